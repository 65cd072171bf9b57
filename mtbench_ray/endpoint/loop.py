"""The event loop of all endpoints of this process."""

from __future__ import annotations

import asyncio
import threading

from mtbench_ray.system.threads import start_loop

_started: tuple[asyncio.AbstractEventLoop, threading.Thread] | None = None


def background_loop() -> asyncio.AbstractEventLoop:
    """One loop in a thread of its own, started when first asked for.

    One for all judges, since a limiter belongs to one loop and judges may share one. Should its
    thread end, those who listen to :mod:`~mtbench_ray.system.threads` are told.
    """
    global _started
    if _started is None or not _started[1].is_alive():
        _started = start_loop("endpoints")
    return _started[0]
