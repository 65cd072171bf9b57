"""Finding the checkpoints of a training run: ``model=checkpoints model.root=DIR``."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path

from mtbench_ray.config import ModelConfig
from mtbench_ray.errors import UserError

_NUMBER = r"[-_=]?0*(\d+(?:\.\d+)?(?=[km](?![a-z0-9]))|\d+)([km](?![a-z0-9]))?"
_STEP = re.compile(r"(?:^|[^a-z])(?:global_step|step|checkpoint|ckpt|iter)" + _NUMBER, re.I)
_EPOCH = re.compile(r"(?:^|[^a-z])epoch" + _NUMBER, re.I)
_UNIT = {"k": 1_000, "m": 1_000_000}


def step_of(name: str) -> int | None:
    """The training step in a checkpoint's path, None where its last folder names none.

    Knows ``step_120``, ``checkpoint-120``, ``global_step120``, ``epoch=3-step=120``, ``step_1.5k``
    and the like; an epoch counts only where there is no step.
    """
    last = name.rstrip("/").rpartition("/")[2]
    found = _STEP.search(last) or _EPOCH.search(last)
    if found is None:
        return None
    return round(float(found[1]) * _UNIT[found[2].lower()]) if found[2] else int(found[1])


def run_of(name: str) -> str:
    """The training run that a checkpoint belongs to: its path without what names the step.

    ``/ckpts/run_a/step_120`` is of ``/ckpts/run_a``; ``org/model-step-120`` of ``org/model``.
    """
    folder, slash, last = name.rstrip("/").rpartition("/")
    rest = _EPOCH.sub("", _STEP.sub("", last))
    return f"{folder}{slash}{rest}".rstrip("/") or slash


def find(model: ModelConfig) -> list[ModelConfig]:
    """The checkpoints below ``model.root``, sorted by step, as one model each.

    A folder with ``adapter_config.json`` and no ``config.json`` is an adapter on the base model
    that it names. A model's label is its path, so equal folder names stay apart.

    Raises:
        UserError: No root, no checkpoint in it, or a wanted step that is not there.
    """
    if not model.root:
        raise UserError("model=checkpoints needs a folder", "model.root=/path/of/the/run")
    root = Path(model.root).expanduser()
    if not root.is_dir():
        raise UserError(f"model.root={model.root} is not a folder", "check the path")
    found = [
        (step, str(folder))
        for folder in root.iterdir()
        if folder.is_dir() and (step := step_of(folder.name)) is not None and _is_model(folder)
    ]
    if not found:
        raise UserError(
            f"{root} holds no checkpoint folder",
            "folders named like step_100, checkpoint-100, epoch=1-step=100 or global_step100, with"
            " config.json or adapter_config.json in them, are found",
        )
    found.sort()
    if model.steps:
        missing = sorted(set(model.steps) - {step for step, _ in found})
        if missing:
            raise UserError(
                f"{root} has no checkpoint of step {', '.join(map(str, missing))}",
                f"it has {', '.join(str(step) for step, _ in found)}",
            )
        found = [item for item in found if item[0] in model.steps]
    # Counted from the newest: the last checkpoint is always among every n-th.
    found = found[:: -max(1, model.every)][::-1]
    if model.last is not None:
        found = found[-model.last :] if model.last > 0 else []
    if not found:
        raise UserError("no checkpoint is left", "loosen model.every or model.last")
    return [_model(model, Path(path)) for _, path in found]


def _is_model(folder: Path) -> bool:
    return (folder / "config.json").is_file() or (folder / "adapter_config.json").is_file()


def _model(model: ModelConfig, folder: Path) -> ModelConfig:
    plain = dataclasses.replace(model, root=None, steps=[], every=1, last=None, name=str(folder))
    if (folder / "config.json").is_file():
        return dataclasses.replace(plain, path=str(folder))
    try:
        config = json.loads((folder / "adapter_config.json").read_text("utf-8"))
        base = config["base_model_name_or_path"]
    except (OSError, ValueError, KeyError, TypeError):
        raise UserError(
            f"{folder}/adapter_config.json names no base model",
            "give one model and its adapter: model=BASE model.adapter=FOLDER",
        ) from None
    return dataclasses.replace(plain, path=str(base), adapter=str(folder))
