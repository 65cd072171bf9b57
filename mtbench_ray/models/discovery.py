"""Finding the checkpoints of a training run: ``model=checkpoints model.root=DIR``."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Sequence
from pathlib import Path

from mtbench_ray.config import ModelConfig
from mtbench_ray.errors import UserError
from mtbench_ray.models.arrivals import Arrival, once
from mtbench_ray.models.candidates import Candidate
from mtbench_ray.models.checkpoint import weight_files
from mtbench_ray.models.naming import run_of, step_of

__all__ = ["find", "model_at", "run_of", "select", "step_of"]

_SHOWN = 3
_NAMES = (
    "folders named like step_100, checkpoint-100, epoch=1-step=100, global_step100, 0100 or final,"
    " with config.json or adapter_config.json in them, are found; others: model.pattern='it{step}'"
)


def find(model: ModelConfig, remarks: list[str] | None = None) -> list[ModelConfig]:
    """The whole checkpoints below ``model.root``, in the order of training, as one model each.

    A folder with ``adapter_config.json`` and no model of its own is an adapter on the base model
    that it names. A model's label is its path, so equal folder names stay apart.

    Args:
        remarks: Gets a line for each folder of a checkpoint's name that is not taken.

    Raises:
        UserError: No root, no checkpoint in it, or a wanted step that is not there.
    """
    seen = once(model)
    whole = [one.candidate for one in seen if one.state == "whole"]
    if not whole:
        raise _nothing(model, seen)
    if remarks is not None:
        remarks += [f"{o.candidate.folder} is left out: {o.reason}" for o in seen if o.reason]
    if model.steps:
        missing = sorted(set(model.steps) - {one.step for one in whole})
        if missing:
            why = [
                f"{one.candidate.folder.name}: {one.reason}"
                for one in seen
                if one.reason and one.candidate.step in missing
            ]
            raise UserError(
                f"{model.root} has no checkpoint of step {', '.join(map(str, missing))}",
                "; ".join(why)
                or f"it has {', '.join(str(one.step) for one in whole if one.step is not None)}",
            )
    chosen = select(model, whole)
    if not chosen:
        raise UserError("no checkpoint is left", "loosen model.every or model.last")
    return [model_at(model, one) for one in chosen]


def select(model: ModelConfig, found: Iterable[Candidate]) -> list[Candidate]:
    """Those that ``model.steps``, ``every`` and ``last`` leave, of each run by itself."""
    runs: dict[str, list[Candidate]] = {}
    for one in found:
        if not model.steps or one.step in model.steps:
            runs.setdefault(one.run, []).append(one)
    chosen: list[Candidate] = []
    for mine in runs.values():
        # Counted from the newest: the last checkpoint is always among every n-th.
        mine = mine[:: -max(1, model.every)][::-1]
        if model.last is not None:
            mine = mine[-model.last :] if model.last > 0 else []
        chosen += mine
    return chosen


def model_at(model: ModelConfig, found: Candidate) -> ModelConfig:
    """The settings of one checkpoint.

    Raises:
        UserError: An adapter whose base model is not named, or not there.
    """
    folder = found.model
    plain = dataclasses.replace(
        model, root=None, runs=None, pattern=None, base=None, steps=[], every=1, last=None,
        name=str(folder),
    )  # fmt: skip
    if not _is_adapter(folder):
        return dataclasses.replace(plain, path=str(folder))
    try:
        config = json.loads((folder / "adapter_config.json").read_text("utf-8"))
        base = model.base or config["base_model_name_or_path"]
    except (OSError, ValueError, KeyError, TypeError):
        base = None
    if not isinstance(base, str) or not base.strip():
        raise UserError(
            f"{folder}/adapter_config.json names no base model",
            "name it: model.base=<hub id or folder>",
        )
    path = Path(base).expanduser()
    if not model.base and path.is_absolute() and not path.exists():
        raise UserError(
            f"the base model of {folder} is not there: {base}",
            "where it is now: model.base=<hub id or folder>",
        )
    return dataclasses.replace(plain, path=base, adapter=str(folder))


def _is_adapter(folder: Path) -> bool:
    """Some trainers write the base model's config.json beside an adapter."""
    if not (folder / "adapter_config.json").is_file():
        return False
    own = [file for file in weight_files(folder) if not file.name.startswith("adapter_model")]
    return not own or not (folder / "config.json").is_file()


def _nothing(model: ModelConfig, seen: Sequence[Arrival]) -> UserError:
    """Why nothing can be taken."""
    reasons = [f"{one.candidate.folder.name}: {one.reason}" for one in seen[-_SHOWN:]]
    more = f" and {len(seen) - _SHOWN} more" if len(seen) > _SHOWN else ""
    if tools := [one.hint for one in seen if one.state == "sharded"]:
        return UserError(
            f"{model.root} holds no checkpoint that an engine can load: {'; '.join(reasons)}{more}",
            f"convert it first: {tools[-1]}",
        )
    if seen:
        return UserError(
            f"{model.root} holds no whole checkpoint: {'; '.join(reasons)}{more}",
            "wait until they are written, or with watch=true let the run wait for them",
        )
    if not model.runs and not model.pattern:
        below = once(dataclasses.replace(model, runs="*"))
        if runs := sorted({Path(one.candidate.run).name for one in below}):
            return UserError(
                f"{model.root} holds no checkpoint folder, and its folders"
                f" {', '.join(runs[:_SHOWN])} do",
                "a run of runs: model.runs='*'",
            )
    return UserError(f"{model.root} holds no checkpoint folder", _NAMES)
