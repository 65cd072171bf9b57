"""No process of a run outlives it, however it ends, not even by kill -9.

A small process in a session of its own waits for the run's process to be gone (a pipe closes), lets
Ray end its cluster for a moment, and kills what is left. It finds the run's processes by a mark in
their environment. Some of Ray's overwrite theirs with a title: it looks at what is below the run
while Ray comes up, until it is told that all of it is there.

Standard library only: the second half of this module runs as a script. Linux only; elsewhere
nothing is watched.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

_MARK = "MTBENCH_RAY_MARK"
PATIENCE_S = 2.0
"""How long processes may take to end by themselves after the run's own process is gone."""
_SHORT_S = 0.3
"""The same where the run itself has shut Ray down: what is left would stay."""
_GIVE_UP_S = 30.0
_POLL_S = 0.2
_UP, _OVER = b"u", b"o"


class Watchdog:
    """The run's side. Begins to watch when made; processes started from now on are marked."""

    def __init__(self) -> None:
        self._mark = secrets.token_hex(8)
        os.environ[_MARK] = self._mark
        self._process = subprocess.Popen(
            [sys.executable, "-P", str(Path(__file__).resolve()), self._mark, str(os.getpid())],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    @property
    def pid(self) -> int:
        """Of the watching process."""
        return self._process.pid

    def settled(self) -> None:
        """Ray is up."""
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.write(_UP)
            self._process.stdin.flush()

    def close(self) -> None:
        """The run is over: wait until nothing of it is left."""
        os.environ.pop(_MARK, None)
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.write(_OVER)
            self._process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(PATIENCE_S + 5.0)


def _watch(mark: str, run: int) -> None:
    seen: dict[int, str] = {}
    said = b""
    while True:
        if select.select([sys.stdin], [], [], None if _UP in said else _POLL_S)[0]:
            word = os.read(0, 16)
            if not word:
                break
            said += word
        seen |= _below(run)
    patience = _SHORT_S if said.endswith(_OVER) else PATIENCE_S
    began = time.monotonic()
    while left := _left(mark, seen):
        if time.monotonic() - began > patience:
            for pid in left:
                with contextlib.suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
        if time.monotonic() - began > _GIVE_UP_S:
            return
        time.sleep(_POLL_S)


def _below(pid: int) -> dict[int, str]:
    """The processes below one, each with when it was started."""
    found: dict[int, str] = {}
    with contextlib.suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in map(int, (task / "children").read_text().split()):
                if child != os.getpid():
                    found |= {child: _born(child)} | _below(child)
    return found


def _left(mark: str, seen: dict[int, str]) -> list[int]:
    """Processes of the run that are alive, apart from this one."""
    wanted = f"{_MARK}={mark}".encode()
    pids = []
    for folder in Path("/proc").glob("[0-9]*"):
        pid = int(folder.name)
        if pid == os.getpid():
            continue
        if seen.get(pid) and seen[pid] == _born(pid):
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
    _watch(sys.argv[1], int(sys.argv[2]))
