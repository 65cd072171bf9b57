"""SIGINT (Ctrl-C) and SIGTERM of a run: the first asks it to end, the second ends it at once.

Both end with exit code 130: who stops a run by hand and a cluster that takes a machine back
(Kubernetes sends SIGTERM) find the same state, and the same line again goes on from it.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from types import FrameType, TracebackType
from typing import Any

from mtbench_ray.errors import EXIT_INTERRUPTED


class Interrupts:
    """Handlers of both signals, from the first line of a run to its last. A context manager.

    Attributes:
        stop: Set by the first signal after :meth:`be_orderly`.
        exempt: Process ids that the second signal leaves alive.
    """

    def __init__(self) -> None:
        self.stop = threading.Event()
        self._orderly = False
        self.exempt: set[int] = set()
        self._count = 0
        self._previous: dict[signal.Signals, Any] = {}

    @property
    def happened(self) -> bool:
        """Whether a signal came."""
        return self._count > 0

    def be_orderly(self) -> None:
        """From now on the run looks at ``stop`` by itself. Before, while it is being set up, there
        is nothing to finish: the first signal raises KeyboardInterrupt.

        Raises:
            KeyboardInterrupt: A signal came where Python ignores exceptions, in a ``__del__`` say.
        """
        self._orderly = True
        if self.happened and not self.stop.is_set():
            raise KeyboardInterrupt

    def install(self) -> None:
        """Take the signals (again: ``ray.init`` puts a handler of its own in place)."""
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                previous = signal.signal(number, self._on_signal)
                self._previous.setdefault(number, previous)

    def __enter__(self) -> Interrupts:
        self.install()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self._count += 1
        if self._count > 1:
            end_children(self.exempt)
            # Rows on disk are whole lines already; nothing else is worth waiting for.
            os._exit(EXIT_INTERRUPTED)
        if not self._orderly:
            raise KeyboardInterrupt
        self.stop.set()


def end_children(exempt: set[int]) -> None:
    """Kill every process below this one, but for those ``exempt``."""
    import psutil

    for child in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            if child.pid not in exempt:
                child.kill()
