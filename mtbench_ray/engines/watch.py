"""Notices that an engine died or hangs, and ends every request on it at once."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from mtbench_ray.errors import EngineFault

T = TypeVar("T")
_SLOW = 6
"""Times ``stall_s`` that an engine may compute without a token."""
_WORKING = 0.02
"""Cores that an engine at work takes at least: beside busy processes it may be few."""


class Watch:
    """One per engine, on the engine's event loop.

    Args:
        stall_s: Seconds without any token, while requests run, until the engine counts as hung.
        computed: CPU seconds that the engine's processes have taken so far. An engine that goes on
            computing is slow and not hung, until it has been silent for six times as long. None
            where that says nothing, as on a GPU, beside which a process may spin for ever.
    """

    def __init__(self, stall_s: float, computed: Callable[[], float] | None = None) -> None:
        self._stall_s = stall_s
        self._computed = computed
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
        sample: float | None = None
        since, allowed = 0.0, self._stall_s
        while not self._fault.done():
            await asyncio.sleep(min(1.0, self._stall_s / 4))
            silent = time.monotonic() - self._last
            if not self._running or silent < self._stall_s / 2:
                sample, allowed = None, self._stall_s
                continue
            if sample is None:
                sample, since = await self._cpu_s(), silent
            if silent <= allowed:
                continue
            if silent < _SLOW * self._stall_s:
                spent = await self._cpu_s()
                if spent - sample > _WORKING * (silent - since):
                    sample, since, allowed = spent, silent, silent + self._stall_s / 2
                    continue
            self.fault(
                EngineFault(
                    f"engine hangs: no token for {silent:.0f} s with {self._running} requests "
                    "running (engine.stall_s)",
                    hung=True,
                )
            )

    async def _cpu_s(self) -> float:
        return await asyncio.to_thread(self._computed) if self._computed else 0.0
