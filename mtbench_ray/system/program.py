"""This program as it is, to tell whether it would work out again what it worked out before."""

from __future__ import annotations

import hashlib
import platform
import secrets
from contextlib import suppress
from functools import cache
from importlib.metadata import PackageNotFoundError, entry_points, version
from pathlib import Path

import mtbench_ray

ENTRY_POINTS = "mtbench_ray.benchmarks"
"""Where other packages say which benchmarks they bring."""
_COUNTS = ("numpy", "scipy", "scikit-learn", "tiktoken", "if-verifiable")
"""Packages on which a score may depend."""


@cache
def program() -> str:
    """A hash of this package's own files when first asked for, of Python and of what it counts
    with.

    Another one in each process where another package brings benchmarks: its files are not known.
    """
    digest = hashlib.sha256()
    folder = Path(mtbench_ray.__file__).parent
    for path in sorted(path for kind in ("py", "jsonl") for path in folder.rglob(f"*.{kind}")):
        digest.update(f"{path.relative_to(folder)} {path.stat().st_size}\n".encode())
        digest.update(path.read_bytes())
    digest.update(f"python {platform.python_version()}\n".encode())
    for name in _COUNTS:
        with suppress(PackageNotFoundError):
            digest.update(f"{name} {version(name)}\n".encode())
    if entry_points(group=ENTRY_POINTS):
        digest.update(secrets.token_bytes())
    return digest.hexdigest()
