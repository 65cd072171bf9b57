"""The lock of a workspace, and the note that says who holds it."""

from __future__ import annotations

import errno
import json
import os
import platform
import time
from contextlib import suppress
from pathlib import Path

import filelock

from mtbench_ray.errors import UserError
from mtbench_ray.workspace.journal import disk_error, replacing

_NO_LOCKS = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOTSUP)
"""What ``flock`` says where a file system does not carry it (filelock itself minds ENOSYS)."""


class WorkspaceLock:
    """StagedWeights from construction to :meth:`release`, or to the end of the process.

    The lock is the operating system's (``flock`` through filelock), so a killed owner's lock is
    free at once. On network file systems it holds between hosts where the file system carries
    ``flock`` (NFS, GPFS, Lustre mounted with ``flock``); where there is none at all, filelock
    falls back to a lock file with the owner's host and pid.

    Args:
        root: The workspace; made where it is not there.

    Raises:
        UserError: Another process holds it, or the folder cannot be used.
    """

    def __init__(self, root: Path) -> None:
        self._note = root / ".owner.json"
        try:
            root.mkdir(parents=True, exist_ok=True)
            # Whichever thread closes the workspace may give the lock back.
            self._lock = filelock.FileLock(root / ".lock", thread_local=False)
            self._lock.acquire(timeout=0)
        except filelock.Timeout:
            raise UserError(
                self._held(root), "Wait for it to end, or give another workspace=<folder>."
            ) from None
        except OSError as error:
            if error.errno in _NO_LOCKS:
                raise UserError(
                    f"the file system of {root} cannot lock files: {error.strerror}",
                    "Give a workspace on a local disk, and copy it afterwards; on NFS, lockd is "
                    "not running or the mount has nolock.",
                ) from None
            raise disk_error(root, error) from None
        since = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime())
        owner = {"host": platform.node(), "pid": os.getpid(), "since": since}
        try:
            with replacing(self._note) as temporary:
                temporary.write_text(json.dumps(owner) + "\n", "utf-8")
        except UserError:
            self._lock.release()
            raise

    def release(self) -> None:
        """Let the next one in."""
        with suppress(OSError):  # The note may stay; the next owner overwrites it.
            self._note.unlink(missing_ok=True)
        self._lock.release()

    def _held(self, root: Path) -> str:
        try:
            owner = json.loads(self._note.read_text("utf-8"))
            who = f"a run on {owner['host']}, pid {owner['pid']}, since {owner['since']}"
        except (OSError, ValueError, KeyError, TypeError):
            who = "another run"
        return f"workspace {root} is in use by {who}"
