"""The folders of a training run that are, or are to be, checkpoints: found by name alone."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from mtbench_ray.config import ModelConfig
from mtbench_ray.errors import UserError
from mtbench_ray.models.naming import EXPORTS, Naming, is_final, step_of
from mtbench_ray.models.whole import is_unfinished

_CONFIGS = ("config.json", "adapter_config.json")


@dataclass(frozen=True)
class Candidate:
    """The folder of a step.

    Attributes:
        folder: As it is named.
        model: The folder in it (or itself) that holds config.json or adapter_config.json; itself
            where there is none yet.
        step: None of ``final``.
        run: The run that it is of: a folder.
    """

    folder: Path
    model: Path
    step: int | float | None
    run: str

    @property
    def order(self) -> tuple[str, float, str]:
        """In the order of runs and of training; a final one is the last of its run."""
        return self.run, math.inf if self.step is None else self.step, str(self.folder)


def candidates(model: ModelConfig) -> list[Candidate]:
    """The folders below ``model.root`` whose names are those of checkpoints, in order of training.

    Raises:
        UserError: There is no root, or the pattern has no step.
    """
    if not model.root:
        raise UserError("model=checkpoints needs a folder", "model.root=/path/of/the/run")
    root = Path(model.root).expanduser()
    if not root.is_dir():
        raise UserError(f"model.root={model.root} is not a folder", "check the path")
    runs = sorted(_folders(root, model.runs)) if model.runs else [root]
    seen: set[Path] = set()
    found = []
    for run in runs:
        for folder, step in _steps(run, model.pattern):
            # `latest` and the like are links to a folder that has a name of its own.
            if not any(map(is_unfinished, folder.relative_to(root).parts)) and (
                (place := folder.resolve()) not in seen
            ):
                seen.add(place)
                found.append(Candidate(folder, _model_folder(folder), step, str(run)))
    return sorted(found, key=lambda one: one.order)


def _steps(run: Path, pattern: str | None) -> Iterator[tuple[Path, int | float | None]]:
    if pattern:
        naming = Naming(pattern, "model.pattern")
        for folder in sorted(_folders(run, re.sub(r"\{(run|step)\}", "*", pattern))):
            if (step := naming.step(folder.relative_to(run).as_posix())) is not None:
                yield folder, step
        return
    for folder in sorted(_folders(run, "*"), key=lambda path: (path.is_symlink(), path)):
        # Its last folder alone: `hf` of a run is no step of its own.
        step = step_of(f"/{folder.name}")
        if step is not None or is_final(folder.name):
            yield folder, step


def _folders(place: Path, pattern: str) -> Iterator[Path]:
    try:
        for path in place.glob(pattern):
            if path.is_dir():
                yield path
    except (OSError, ValueError, NotImplementedError):
        return


def _model_folder(folder: Path) -> Path:
    """Where the model lies: the outermost place with a config, two folders deep at most."""
    places = [folder, *(folder / name for name in EXPORTS)]
    places += [folder / outer / name for outer in ("actor", "policy", "model") for name in EXPORTS]
    return next(
        (place for place in places if any((place / name).is_file() for name in _CONFIGS)), folder
    )
