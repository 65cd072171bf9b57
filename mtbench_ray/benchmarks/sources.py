"""Where the text of a question or reference file comes from: a file, or a data set of the hub."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mtbench_ray.errors import UserError

HUB = "hf://"
_HUB = re.compile(r"hf://([^@?#]+)(?:@([^?#]+))?(?:\?split=([^?&#]+))?")
_RENAMED = {"prompt_id": "question_id", "prompt": "turns"}
"""Columns of MT-Bench's copies on the hub that have other names than in FastChat's files."""


@dataclass(frozen=True, slots=True)
class SourceText:
    """A text and what it is called in the summary (``name sha256:<64 hex digits>``)."""

    text: str
    label: str


def read_source(typed: str, part: str) -> SourceText:
    """The text of a file, or of a hub data set as JSON lines.

    Args:
        typed: A path, or ``hf://org/name[@revision][?split=NAME]``; what ``datasets`` loads from a
            local folder may stand in the place of ``org/name``.
        part: What it is for, for messages.

    Raises:
        UserError: It cannot be read.
    """
    if typed.startswith(HUB):
        text = _from_hub(typed, part)
        return SourceText(text, f"{typed} sha256:{_sha256(text.encode())}")
    path = Path(typed).expanduser()
    try:
        raw = path.read_bytes()
        text = raw.decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path} cannot be read: {error}", f"check the path of {part}") from None
    return SourceText(text, f"{path.name} sha256:{_sha256(raw)}")


def _sha256(raw: bytes) -> str:
    return hashlib.sha256(raw).hexdigest()


def _from_hub(typed: str, part: str) -> str:
    found = _HUB.fullmatch(typed)
    if found is None:
        raise UserError(
            f"{typed} is not the address of a hub data set",
            f"write {HUB}org/name, {HUB}org/name@revision or {HUB}org/name?split=train",
        )
    name, revision, split = found.groups()
    try:
        import datasets
    except ImportError:
        raise UserError(
            f"{typed} needs the package datasets, which is not installed",
            "pip install datasets, or name a file",
        ) from None
    datasets.disable_progress_bars()
    try:
        sets = datasets.load_dataset(name, revision=revision)
    except Exception as error:
        # The hub's client and the readers of each format raise types of their own.
        reason = " ".join(str(error).split())[:300] or repr(error)
        raise UserError(
            f"the data set {name} cannot be loaded: {reason}",
            f"check the name of {part}, the revision, and that this machine reaches the hub"
            " (a gated data set wants HF_TOKEN)",
        ) from None
    if split is None and len(sets) == 1:
        (split,) = sets
    if split not in sets:
        had = ", ".join(sorted(map(str, sets)))
        raise UserError(
            f"the data set {name} has the splits {had}" + (f", not {split}" if split else ""),
            f"name one: {typed.partition('?')[0]}?split={sorted(map(str, sets))[0]}",
        )
    return "".join(json.dumps(_row(row), ensure_ascii=True) + "\n" for row in sets[split])


def _row(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row under FastChat's names; what a data set cannot leave out is null there."""
    return {
        (new if (new := _RENAMED.get(key, key)) == key or new not in row else key): value
        for key, value in row.items()
        if value is not None
    }
