"""No process of a run outlives it, however it ends, not even by kill -9.

A small process in a session of its own waits for the run's process to be gone (a pipe closes), lets
Ray end its cluster for a moment, and kills what is left. It finds the run's processes by a mark in
their environment; those that overwrite theirs with a title (some of Ray's) it was told of.

Standard library only: the second half of this module runs as a script. Linux only; elsewhere
nothing is watched.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import subprocess
import sys
import time
from pathlib import Path

_MARK = "MTBENCH_RAY_MARK"
PATIENCE_S = 2.0
"""How long processes may take to end by themselves."""
_GIVE_UP_S = 30.0
_POLL_S = 0.2


class Watchdog:
    """The run's side. Begins to watch when made; processes started from now on are marked."""

    def __init__(self) -> None:
        self._mark = secrets.token_hex(8)
        os.environ[_MARK] = self._mark
        self._process = subprocess.Popen(
            [sys.executable, "-P", str(Path(__file__).resolve()), self._mark],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    @property
    def pid(self) -> int:
        """Of the watching process."""
        return self._process.pid

    def tell(self) -> None:
        """Tell it of all processes that are below this one now."""
        import psutil

        assert self._process.stdin is not None
        pids = [child.pid for child in psutil.Process().children(recursive=True)]
        with contextlib.suppress(OSError):
            self._process.stdin.write((" ".join(map(str, pids)) + "\n").encode())
            self._process.stdin.flush()

    def close(self) -> None:
        """The run is over: wait until nothing of it is left."""
        os.environ.pop(_MARK, None)
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(PATIENCE_S + 5.0)


def _watch(mark: str) -> None:
    told: dict[int, str] = {}
    for line in sys.stdin:
        told |= {pid: born for pid in map(int, line.split()) if (born := _born(pid))}
    began = time.monotonic()
    while left := _left(mark, told):
        if time.monotonic() - began > PATIENCE_S:
            for pid in left:
                with contextlib.suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
        if time.monotonic() - began > _GIVE_UP_S:
            return
        time.sleep(_POLL_S)


def _left(mark: str, told: dict[int, str]) -> list[int]:
    """Processes of the run that are alive, apart from this one."""
    wanted = f"{_MARK}={mark}".encode()
    pids = []
    for folder in Path("/proc").glob("[0-9]*"):
        pid = int(folder.name)
        if pid == os.getpid():
            continue
        if pid in told and told[pid] == _born(pid):
            pids.append(pid)
            continue
        with contextlib.suppress(OSError):
            if wanted in (folder / "environ").read_bytes().split(b"\0"):
                pids.append(pid)
    return pids


def _born(pid: int) -> str:
    """When a process was started, so that a number used again is told apart; "" if it is gone."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text("utf-8", "replace").rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if fields[0] in "ZX" else fields[19]


if __name__ == "__main__":
    _watch(sys.argv[1])
