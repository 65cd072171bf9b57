"""Names of files made from names of models and judges.

Labels stay the exact text typed everywhere else; only a file's name is made safe. A plain label
is its own name, so that ``Qwen2.5-7B-Instruct`` gives the file that FastChat users look for. Any
other label becomes a readable part, ``~`` and 16 hex digits of its sha256. Plain labels never hold
a ``~``, so two labels cannot meet in one name (short of a collision of 64 bits).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable

from pathvalidate import is_valid_filename

from mtbench_ray.schema import text_hash

MAX_BYTES = 200
"""Longest name, ending not counted: file systems allow 255 with it and a temporary ending."""

_PLAIN = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*")
_UNSAFE = re.compile(r"[^A-Za-z0-9._-]+")
_HASH_DIGITS = 16


def safe_name(text: str) -> str:
    """A file name (without ending) for any text, at most :data:`MAX_BYTES` of plain ASCII.

    Different texts give different names, never a path, a hidden or a reserved one. Two texts that
    differ only in case give names that differ only in case: see :func:`safe_names`.
    """
    # Reserved words and a trailing dot are pathvalidate's to know, for every platform.
    if (
        len(text) <= MAX_BYTES
        and _PLAIN.fullmatch(text)
        and is_valid_filename(text, platform="universal")
    ):
        return text
    return _hashed(text)


def safe_names(texts: Iterable[str]) -> dict[str, str]:
    """Names for several texts that meet nowhere, also where the file system ignores case."""
    names = {text: safe_name(text) for text in texts}
    shared = Counter(name.casefold() for name in names.values())
    return {
        text: name if shared[name.casefold()] == 1 else _hashed(text)
        for text, name in names.items()
    }


def _hashed(text: str) -> str:
    readable = _UNSAFE.sub("_", text).strip("._-")[: MAX_BYTES - _HASH_DIGITS - 1]
    return f"{readable or 'name'}~{text_hash(text)[:_HASH_DIGITS]}"


def is_name_of(name: str, text: str) -> bool:
    """Whether :func:`safe_name` or :func:`safe_names` can have made ``name`` from ``text``."""
    return name in (safe_name(text), _hashed(text))
