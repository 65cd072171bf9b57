"""The event loop of all endpoints of this process."""

from __future__ import annotations

import asyncio
import functools
import threading


@functools.cache
def background_loop() -> asyncio.AbstractEventLoop:
    """One loop in a thread of its own, started when first asked for.

    One for all judges, since a limiter belongs to one loop and judges may share one.
    """
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="endpoints", daemon=True).start()
    return loop
