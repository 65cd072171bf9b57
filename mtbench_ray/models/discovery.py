"""Finding the checkpoints of a training run: ``model=checkpoints model.root=DIR``."""

from __future__ import annotations

import dataclasses
import json
import re
from decimal import Decimal
from pathlib import Path

from mtbench_ray.config import ModelConfig
from mtbench_ray.errors import UserError

_NUMBER = (
    r"[-_=]?(?P<digits>\d{1,3}(?:,\d{3})+(?!\d)|\d+(?:\.\d+)?(?=[km](?![a-z0-9]))"
    r"|\d+(?:\.\d+)?e\d{1,2}(?![a-z0-9.])|\d+)(?P<unit>[km](?![a-z0-9]))?"
)
_WORDS = ("global_step", "step", "checkpoint", "ckpt", "iter")
_STEP = re.compile(rf"(?:^|[^a-z])({'|'.join(_WORDS)}){_NUMBER}", re.I)
_SAVED = ("checkpoint", "ckpt")
"""Words that name what was saved: they go before others (``iter1_checkpoint-500``)."""
_EPOCH = re.compile(r"(?:^|[^a-z])epoch[-_=]?(?P<digits>\d+(?:\.\d+)?)(?P<unit>$^)?", re.I)
_UNIT = {"k": 1_000, "m": 1_000_000}


def step_of(name: str) -> int | float | None:
    """The training step in a checkpoint's path, None where its last folder names none.

    Knows ``step_120``, ``checkpoint-120``, ``global_step120``, ``epoch=3-step=120``, ``step_1.5k``,
    ``step-1,000``, ``checkpoint-1e3`` and the like; an epoch (whole or not) counts only where there
    is no step.
    """
    last = name.rstrip("/").rpartition("/")[2]
    return _number(found) if (found := _naming(last) or _EPOCH.search(last)) else None


def _naming(last: str) -> re.Match[str] | None:
    """What names the step in a folder's name: the last number of a checkpoint, else of a step.

    ``iter1_checkpoint-500`` is round 1 of something, and its step is 500.
    """
    found = list(_STEP.finditer(last))
    saved = [match for match in found if match[1].lower() in _SAVED]
    return (saved or found)[-1] if found else None


def _number(found: re.Match[str]) -> int | float:
    digits, unit = found.group("digits", "unit")
    value = Decimal(digits.replace(",", "")) * _UNIT.get((unit or "").lower(), 1)
    return int(value) if value == int(value) else float(value)


def run_of(name: str) -> str:
    """The training run that a checkpoint belongs to: its path without what names the step.

    ``/ckpts/run_a/step_120`` is of ``/ckpts/run_a``; ``org/model-step-120`` of ``org/model``.
    """
    folder, slash, last = name.rstrip("/").rpartition("/")
    found = _naming(last)
    rest = _EPOCH.sub("", last[: found.start()] + last[found.end() :] if found else last)
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
    plain = dataclasses.replace(
        model, root=None, base=None, steps=[], every=1, last=None, name=str(folder)
    )
    if (folder / "config.json").is_file():
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
