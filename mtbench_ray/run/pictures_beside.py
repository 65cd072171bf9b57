"""The curve and the page of a watch, made by a process beside it.

Drawing takes seconds, and the page of a large workspace minutes: neither the next checkpoint nor
Ctrl-C waits for them. Where one is still being made, the next is begun once it is done.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

_CODE = """
import contextlib, ctypes, sys
with contextlib.suppress(Exception):
    ctypes.CDLL(None).prctl(1, 9)  # it ends with the watch, on Linux
from mtbench_ray.cli.main import main
naming, *words = sys.argv[1:]
codes = [
    main(["report", "curve", *words, *([f"name_pattern={naming}"] * bool(naming))]),
    main(["report", "html", *words]),
]
sys.exit(max(codes))
"""
_END_S = 120.0
"""Patience with the last pictures at the end of a watch."""


class PicturesBeside:
    """Makes curve and page anew after each round.

    Args:
        workspace: The folder.
        settings: Further words of ``report``.
        naming: ``name_pattern=`` of the curve; empty for the usual names.
        tell: Takes lines for the user: what fails is told once, like a missing library.
    """

    def __init__(
        self, workspace: Path, settings: Sequence[str], naming: str, tell: Callable[[str], None]
    ) -> None:
        self._words = [naming, f"workspace={workspace}", *settings]
        self._tell = tell
        self._told: set[str] = set()
        self._process: subprocess.Popen[str] | None = None
        self._pending = False

    def update(self) -> None:
        """There are new rows."""
        self._pending = True
        self.look()

    def look(self) -> None:
        """Hear what a process has said that is done, and start the next where there is need."""
        if self._process is not None:
            if self._process.poll() is None:
                return
            self._hear()
        if self._pending:
            self._pending = False
            package = str(Path(__file__).resolve().parents[2])
            paths = [package, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
            words = [sys.executable, "-P", "-c", _CODE, *self._words]
            self._process = subprocess.Popen(
                words, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
                text=True, env=os.environ | {"PYTHONPATH": os.pathsep.join(paths)},
            )  # fmt: skip

    def end(self, at_once: bool = False) -> None:
        """Make the last ones, unless it is to end at once."""
        if at_once:
            if self._process is not None:
                self._process.kill()
                self._process.communicate()
            return
        while self._process is not None or self._pending:
            if self._process is not None:
                try:
                    self._process.wait(_END_S)
                except subprocess.TimeoutExpired:
                    self._process.kill()
            self.look()

    def _hear(self) -> None:
        assert self._process is not None
        _, said = self._process.communicate()
        self._process = None
        for line in said.splitlines():
            if line.startswith("error: ") and line not in self._told:
                self._told.add(line)
                self._tell(f"no picture: {line.removeprefix('error: ')}")
