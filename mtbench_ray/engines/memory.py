"""Memory of this machine that may be taken: its own, or what a container's limit leaves of it."""

from __future__ import annotations

from pathlib import Path

import psutil

_CGROUP = Path("/sys/fs/cgroup")


def free_memory(cgroup: Path = _CGROUP) -> int:
    """Bytes that can be taken without anything being pushed out or killed.

    The page cache counts as free. A pod's limit is told by cgroup (version 2) only.
    """
    free = int(psutil.virtual_memory().available)
    try:
        limit = (cgroup / "memory.max").read_text().strip()
        if limit == "max":
            return free
        used = int((cgroup / "memory.current").read_text())
        kinds = dict(line.split() for line in (cgroup / "memory.stat").read_text().splitlines())
        return max(0, min(free, int(limit) - used + int(kinds["file"]) - int(kinds["shmem"])))
    except (OSError, ValueError, KeyError):
        return free
