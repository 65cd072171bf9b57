"""Notices that an engine died or hangs, and ends every request on it at once."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine
from typing import Any, TypeVar

from mtbench_ray.errors import EngineFault

T = TypeVar("T")


class Watch:
    """One per engine, on the engine's event loop.

    Args:
        stall_s: Seconds without any token, while requests run, until the engine counts as hung.
    """

    def __init__(self, stall_s: float) -> None:
        self._stall_s = stall_s
        self._last = time.monotonic()
        self._running = 0
        self._fault: asyncio.Future[EngineFault] = asyncio.get_running_loop().create_future()
        self._task = asyncio.create_task(self._look())

    def beat(self) -> None:
        """Some request got a token."""
        self._last = time.monotonic()

    def fault(self, error: EngineFault) -> None:
        """The engine is lost: every guarded request raises ``error``."""
        if not self._fault.done():
            self._fault.set_result(error)

    async def guard(self, request: Coroutine[Any, Any, T]) -> T:
        """Wait for a request or for the end of its engine.

        Raises:
            EngineFault: The engine died or hung; whatever ``request`` raises passes through.
        """
        if self._fault.done():
            request.close()
            raise self._fault.result()
        if self._running == 0:
            self.beat()
        self._running += 1
        task = asyncio.ensure_future(request)
        try:
            either: set[asyncio.Future[Any]] = {task, self._fault}
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                return task.result()
            raise self._fault.result()
        finally:
            self._running -= 1
            task.cancel()

    def close(self) -> None:
        """Stop looking."""
        self._task.cancel()

    async def _look(self) -> None:
        while not self._fault.done():
            await asyncio.sleep(min(1.0, self._stall_s / 4))
            silent = time.monotonic() - self._last
            if self._running and silent > self._stall_s:
                self.fault(
                    EngineFault(
                        f"engine hangs: no token for {silent:.0f} s with {self._running} requests "
                        "running (engine.stall_s)"
                    )
                )
