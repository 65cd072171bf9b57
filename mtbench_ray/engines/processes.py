"""The processes that an engine starts: ended to the last one, and their last words."""

from __future__ import annotations

import contextlib
import os
import re
from dataclasses import dataclass, field

import psutil

from mtbench_ray.engines.fork_server import server_pid

_ERROR = re.compile(r"\b(?:[A-Za-z_][\w.]*\.)?([A-Z]\w*(?:Error|Exception))\b:? (.+)")
_BARE = re.compile(r"(?:^|[\s\]])([A-Z]\w*Error)\s*$")
"""An error without a message, as of a failed assert: the line before it says what failed."""
_GENERIC = re.compile(
    r"EngineDeadError|Engine core initialization failed|See (?:root cause|stack trace)"
    r"|WorkerProc initialization failed|KeyboardInterrupt|CancelledError"
)
_TRACKER = "multiprocessing.resource_tracker"


@dataclass
class Children:
    """The processes of an engine: those that come up between making this and :meth:`claim`.

    Not those that serve all of this process's children and end by themselves: the resource tracker
    and the fork server.
    """

    _before: set[int] = field(default_factory=lambda: {p.pid for p in _descendants()})
    _known: dict[int, psutil.Process] = field(default_factory=dict)

    def claim(self) -> None:
        """Take in what came up since; a process seen once stays known when its parent is gone."""
        for process in _descendants():
            if process.pid not in self._before and not _is_shared(process):
                self._known.setdefault(process.pid, process)

    def look(self) -> list[psutil.Process]:
        """Those alive now, with the children that they have now."""
        for process in list(self._known.values()):
            for child in _descendants(process):
                self._known.setdefault(child.pid, child)
        return [process for process in self._known.values() if _alive(process)]

    @property
    def lost(self) -> int:
        """How many of those once seen have ended."""
        return sum(not _alive(process) for process in self._known.values())

    def cpu_s(self) -> float:
        """CPU seconds that those alive now have taken."""
        spent = 0.0
        for process in self.look():
            with contextlib.suppress(psutil.Error):
                times = process.cpu_times()
                spent += times.user + times.system
        return spent

    def end(self, patience_s: float = 10.0) -> None:
        """Kill all of them and wait until they are gone, so that their memory is free."""
        for process in self.look():
            try:
                process.kill()
            except psutil.NoSuchProcess:
                continue
        psutil.wait_procs(self._known.values(), timeout=patience_s)


def _descendants(of: psutil.Process | None = None) -> list[psutil.Process]:
    try:
        return (of or psutil.Process()).children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def _alive(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _is_shared(process: psutil.Process) -> bool:
    if process.pid == server_pid():  # by that alone: what it forks has its command line at first
        return True
    try:
        return _TRACKER in " ".join(process.cmdline())
    except psutil.Error:
        return False


class Output:
    """What is written to this process's stdout and stderr from now on, by it and its children.

    Works where these are files, as in every Ray worker; elsewhere nothing can be read back.
    """

    def __init__(self) -> None:
        self._from = {fd: size for fd in (1, 2) if (size := _size(fd)) is not None}

    def last_error(self) -> str:
        """The last line that names an error and says what it is; empty where there is none."""
        message = ""
        for fd, start in self._from.items():
            with open(f"/proc/self/fd/{fd}", "rb") as file:
                file.seek(start)
                text = file.read().decode("utf-8", "replace")
            before = ""
            for line in text.splitlines():
                found = _ERROR.search(line)
                if found and not _GENERIC.search(line):
                    message = f"{found[1]}: {found[2].strip()}"
                elif (bare := _BARE.search(line)) and not _GENERIC.search(line):
                    message = f"{bare[1]}: {before or 'no words'}"
                # Lines of an engine's log begin with the process and a place in brackets.
                before = line.rpartition("] ")[2].strip(" ^~") or before
        return message[:500]


def _size(fd: int) -> int | None:
    """Size of the file behind a descriptor; None where it is no file that can be read."""
    try:
        path = f"/proc/self/fd/{fd}"
        return os.stat(path).st_size if os.path.isfile(path) and os.access(path, os.R_OK) else None
    except OSError:
        return None
