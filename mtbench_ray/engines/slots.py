"""One path for all checkpoints of a layout, so that what was compiled for one serves the next.

vLLM keeps compiled code under a key that holds the model's path. A checkpoint at a path of its own
would be compiled anew, most of a minute each time, although its code is the same. So an engine gets
the path of a slot: a link to the checkpoint, in a folder named by the layout. Each running engine
holds a slot of its own by a lock that ends with its process. Slots lie on this machine's own disk:
on a shared one another machine's engine could turn the link.
"""

from __future__ import annotations

import os
import tempfile
from dataclasses import dataclass
from pathlib import Path

import filelock

from mtbench_ray.engines.swap import load_layout

_MOST = 64
"""Engines of one layout on a machine at most; one more is started by the checkpoint's own path."""


@dataclass(frozen=True, slots=True)
class Slot:
    """A path that leads to a checkpoint for as long as the slot is held.

    Attributes:
        path: The same for every checkpoint of the layout.
    """

    path: Path
    _lock: filelock.FileLock

    def leads_to(self, folder: Path) -> bool:
        """Whether the path still leads there."""
        return self.path.resolve() == folder.resolve()

    def release(self) -> None:
        """Give the slot up. May be called twice."""
        self._lock.release()


def take_slot(folder: Path, root: Path | None = None) -> Slot | None:
    """A free slot that leads to a checkpoint folder; None where there can be none.

    Raises:
        UserError: A weight file is torn.
    """
    root = root or Path(tempfile.gettempdir()) / f"mtbench_ray-{os.getuid()}" / "slots"
    try:
        layout = load_layout(folder)
        for made in (root.parent, root):  # one by one: mkdir makes parents as the umask has it
            made.mkdir(exist_ok=True, mode=0o700)
            if not _ours(made):
                return None
        for number in range(_MOST):
            slot = root / f"{layout.key[:16]}-{number}"
            slot.mkdir(exist_ok=True, mode=0o700)
            # Not one per thread: a slot is given up by another thread than took it.
            lock = filelock.FileLock(slot / "lock", thread_local=False)
            try:
                lock.acquire(timeout=0)
            except filelock.Timeout:
                continue
            link, fresh = slot / "model", slot / "new"
            fresh.unlink(missing_ok=True)
            fresh.symlink_to(folder.resolve())
            fresh.replace(link)
            return Slot(link, lock)
    except OSError:
        return None
    return None


def _ours(folder: Path) -> bool:
    """Whether nobody else can turn links in it."""
    found = folder.stat()
    return found.st_uid == os.getuid() and not found.st_mode & 0o022
