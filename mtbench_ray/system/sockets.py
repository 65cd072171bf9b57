"""A folder for sockets: their paths have at most 107 bytes, and batch systems set long TMPDIRs."""

from __future__ import annotations

import contextlib
import os
import tempfile

RAY_NEEDS = 66
"""Bytes that Ray adds to its folder: /ray/session_<time>_<pid>/sockets/plasma_store."""
ENGINE_NEEDS = 45
"""Bytes that vLLM and multiprocessing add: a folder and a name of 36 hex digits."""
_LONGEST = 107
_SHORT = ("/tmp", "/dev/shm", "/var/tmp")


def socket_folder(needs: int, wanted: str | None = None) -> str | None:
    """Where sockets can be.

    Args:
        needs: Bytes that follow the folder's own path.
        wanted: Used where it can be; None: TMPDIR, or the system's own.

    Returns:
        ``wanted`` or another short folder; None where there is none that can be written.
    """
    first = wanted or os.environ.get("TMPDIR") or "/tmp"
    for folder in (first, *_SHORT):
        if len(os.fsencode(os.path.abspath(folder))) + needs <= _LONGEST and _writable(folder):
            return os.path.abspath(folder)
    return None


def _writable(folder: str) -> bool:
    with contextlib.suppress(OSError):
        os.makedirs(folder, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return True
    return False
