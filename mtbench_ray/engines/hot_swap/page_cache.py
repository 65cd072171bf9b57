"""The files of the checkpoint that comes next, read into the page cache while this one answers."""

from __future__ import annotations

import contextlib
import os
import threading
from pathlib import Path

from mtbench_ray.config import ModelConfig
from mtbench_ray.engines.memory import free_memory
from mtbench_ray.errors import UserError
from mtbench_ray.models.checkpoint import adapter_folder, locate, weight_files
from mtbench_ray.system.threads import start_thread

_CHUNK = 4 << 20
_SHARE = 0.5
"""Of the memory that is free: more would push out what was just read, or what runs here."""


class ReadAhead:
    """Reads a model's weight files in a thread of the lowest priority, and forgets them.

    A hint and no more: what cannot be found or read is left to the engine to complain about. The
    kernel does the work; the thread holds no lock of the interpreter while it does.
    """

    def __init__(self, model: ModelConfig) -> None:
        self._stop = threading.Event()
        # Without it the engine reads the files itself: its end is nobody's trouble.
        self._thread = start_thread("read-ahead", lambda: self._run(model), ended=lambda _: None)

    def stop(self) -> None:
        """Read no further."""
        self._stop.set()

    def wait(self) -> None:
        """Until all is read."""
        self._thread.join()

    def _run(self, model: ModelConfig) -> None:
        with contextlib.suppress(OSError, AttributeError):
            # On Linux this is the priority of the thread alone.
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 19)
        with contextlib.suppress(UserError, OSError):
            folders = [locate(model).folder, adapter_folder(model)]
            files = [file for folder in folders if folder for file in weight_files(folder)]
            size = sum(file.stat().st_size for file in files)
            if size <= _SHARE * free_memory():
                for file in files:
                    self._read(file)

    def _read(self, path: Path) -> None:
        buffer = bytearray(_CHUNK)
        with path.open("rb", buffering=0) as file:
            while not self._stop.is_set() and file.readinto(buffer):
                pass
