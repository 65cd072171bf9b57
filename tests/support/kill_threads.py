"""Threads that end at a time of our choice."""

import ctypes
import threading
import time
from collections.abc import Callable


class Killed(SystemExit):
    """Ends an event loop too, which survives other exceptions of what runs on it."""


def kill(thread: threading.Thread) -> None:
    """Raise :class:`Killed` in a thread at whatever it does next."""
    ctypes.pythonapi.PyThreadState_SetAsyncExc(
        ctypes.c_ulong(thread.ident or 0), ctypes.py_object(Killed)
    )


def kill_when_there(
    name: str, wait_s: float = 0.5, busy: Callable[[], object] = lambda: True
) -> None:
    """In the background: kill the thread of a name once it has worked for a while.

    Args:
        busy: Says whether it works.
    """
    # One loop is for all runs of a process; other threads of that name are of earlier tests.
    earlier = [t for t in threading.enumerate() if name != "endpoints"]

    def work() -> None:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            for thread in threading.enumerate():
                if thread.name == name and thread not in earlier and busy():
                    time.sleep(wait_s)
                    kill(thread)
                    return
            time.sleep(0.02)

    threading.Thread(target=work, name="killer", daemon=True).start()
