"""Runs a tracker's package in a process of its own, for a bounded time.

Trackers keep threads, retry for minutes, print, and some end their process: none of this is a
run's concern.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Any

from mtbench_ray.system.redact import is_secret_name, redactor
from mtbench_ray.trackers.base import Payload
from mtbench_ray.workspace.journal import read

_TICK_S = 0.05


def without_keys(text: str) -> str:
    """A text without the secrets of the environment and without a login in an address."""
    redact = redactor(value for name, value in os.environ.items() if is_secret_name(name))
    return re.sub(r"(?<=//)[^/?#@\s\"]*@", "", redact(text))


class TrackerProcess:
    """A started process. A context manager, which ends it.

    Attributes:
        folder: A temporary folder, for the payload's files too.
    """

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="mtbench_tracker_")
        self.folder = Path(self._folder.name)
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, payload: Payload) -> None:
        """Begin to send what the payload holds."""
        (self.folder / "payload.json").write_text(json.dumps(payload.plain()), "utf-8")
        command = [sys.executable, "-m", "mtbench_ray.trackers.child", str(self.folder)]
        with (self.folder / "output.log").open("wb") as log:
            # A group of its own: Ctrl-C is for the run, which waits for what is being sent.
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )

    def wait(self, timeout_s: float) -> list[dict[str, Any]]:
        """What it said (see ``child``), without any secret.

        Where it said nothing of a failure there is a line with ``error`` all the same.
        """
        assert self._process is not None
        deadline = time.monotonic() + timeout_s
        while self._process.poll() is None and time.monotonic() < deadline:
            time.sleep(_TICK_S)
        late = self._process.poll() is None
        self._end()
        path = self.folder / "said.jsonl"
        said = [line for _, line in read(path, lambda _: None)] if path.exists() else []
        if late:
            said.append({"error": f"not done within {timeout_s:g} s (tracker.timeout_s)"})
        elif self._process.returncode and not any({"error", "bad"} & set(line) for line in said):
            text = (self.folder / "output.log").read_text("utf-8", "replace").strip()
            last = text.splitlines()[-1] if text else f"exit code {self._process.returncode}"
            said.append({"error": last})
        clean: list[dict[str, Any]] = json.loads(without_keys(json.dumps(said)))
        return clean

    def _end(self) -> None:
        """End the process with all that it started."""
        if self._process is None or self._process.poll() is not None:
            return
        import psutil

        with contextlib.suppress(psutil.Error):
            for child in psutil.Process(self._process.pid).children(recursive=True):
                with contextlib.suppress(psutil.Error):
                    child.kill()
        self._process.kill()
        self._process.wait()

    def __enter__(self) -> TrackerProcess:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._end()
        self._folder.cleanup()
