"""What the names of checkpoints say: the training step, and the run that it is of."""

from __future__ import annotations

import re
from decimal import Decimal

from mtbench_ray.errors import UserError

_NUMBER = (
    r"[-_=]?(?P<digits>\d{1,3}(?:,\d{3})+(?!\d)|\d+(?:\.\d+)?(?=[km](?![a-z0-9]))"
    r"|\d+(?:\.\d+)?e\d{1,2}(?![a-z0-9.])|\d+)(?P<unit>[km](?![a-z0-9]))?"
)
_WORDS = ("global_steps?", "steps?", "checkpoint", "ckpt", "iteration", "iter")
_STEP = re.compile(rf"(?:^|[^a-z])({'|'.join(_WORDS)}){_NUMBER}", re.I)
_SAVED = ("checkpoint", "ckpt")
"""Words that name what was saved: they go before others (``iter1_checkpoint-500``)."""
_EPOCH = re.compile(r"(?:^|[^a-z])epoch[-_=]?(?P<digits>\d+(?:\.\d+)?)(?P<unit>$^)?", re.I)
_UNIT = {"k": 1_000, "m": 1_000_000}
EXPORTS = ("huggingface", "hf", "hf_model", "hf_checkpoint", "actor", "policy", "model", "weights",
           "consolidated", "merged", "lora_adapter")  # fmt: skip
"""Folders inside that of a step which hold the model: ``global_step_120/actor/huggingface``."""
_FINAL = frozenset(("final", "final_model", "final_checkpoint", "final-model", "final-checkpoint"))


def step_of(name: str) -> int | float | None:
    """The training step in a checkpoint's path, None where its last folder names none.

    Knows ``step_120``, ``checkpoint-120``, ``global_step120``, ``epoch=3-step=120``, ``step_1.5k``,
    ``step-1,000``, ``checkpoint-1e3``, ``run/0120``, ``global_step_120/actor/huggingface`` and the
    like; an epoch (whole or not) counts only where there is no step.
    """
    folder, last = _of_step(name)
    if folder and last.isdecimal() and last.isascii():
        return int(last)
    return _number(found) if (found := _naming(last) or _EPOCH.search(last)) else None


def is_final(name: str) -> bool:
    """Whether a folder is the last checkpoint of its run, without a step in its name."""
    return name.lower() in _FINAL


def _of_step(name: str) -> tuple[str, str]:
    """The folder of a step: what it lies in (with a slash at its end), and its name."""
    path = name.rstrip("/")
    folder, slash, last = path.rpartition("/")
    outer = path
    while "/" in outer and outer.rpartition("/")[2].lower() in EXPORTS:
        outer = outer.rpartition("/")[0].rstrip("/")
        above, cut, inner = outer.rpartition("/")
        if _naming(inner) or _EPOCH.search(inner) or (cut and inner.isdecimal()):
            return above + cut, inner
    return folder + slash, last


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
    folder, last = _of_step(name)
    if folder and (last.isdecimal() or is_final(last)):
        return folder.rstrip("/") or "/"
    found = _naming(last)
    rest = _EPOCH.sub("", last[: found.start()] + last[found.end() :] if found else last)
    return f"{folder}{rest}".rstrip("/") or folder[-1:]


class Naming:
    """How the names of checkpoints hold their run and their step.

    Args:
        pattern: ``{run}`` and ``{step}`` stand for these, ``*`` for anything; empty for the usual
            names (``step_100``, ``checkpoint-100`` ...).
        key: The setting that it is the value of.

    Raises:
        UserError: There is no ``{step}`` in the pattern.
    """

    def __init__(self, pattern: str = "", key: str = "name_pattern") -> None:
        self._regex = None
        if pattern:
            if pattern.count("{step}") != 1 or pattern.count("{run}") > 1:
                raise UserError(
                    f"{key}={pattern} must have one {{step}}",
                    f"{key}='{{run}}/it{{step}}'",
                )
            text = re.escape(pattern).replace(r"\*", ".*")
            text = text.replace(re.escape("{step}"), r"(?P<step>\d+(?:\.\d+)?)")
            self._regex = re.compile(text.replace(re.escape("{run}"), "(?P<run>.+?)"))

    def step(self, model: str) -> int | float | None:
        """The step in a name; None where there is none."""
        if self._regex is None:
            return step_of(model)
        found = self._regex.fullmatch(model)
        if found is None:
            return None
        value = float(found["step"])
        return int(value) if value.is_integer() else value

    def run(self, model: str) -> str:
        """The run that a name belongs to."""
        if self._regex is None:
            return run_of(model)
        found = self._regex.fullmatch(model)
        return (found.groupdict().get("run") or "") if found else model
