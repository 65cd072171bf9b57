"""One limiter for all processes of one user on one machine, where no Ray cluster joins them.

The next free moment of each limit lies in a small file; whoever wants to call takes it, under a
file lock, and moves it on. A process that is killed leaves nothing to clean up.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import filelock

from mtbench_ray.config import EndpointConfig
from mtbench_ray.endpoint.rate_limit import Slots

log = logging.getLogger(__name__)

_WINDOW_S = 60.0
_SPREAD = 1.01
"""Calls are this much further apart than the limit asks: the clock of the service is another."""
_STALE_S = 3600.0
"""A moment further ahead than any wait comes from a clock that was set back."""
_LEAST_FACTOR = 0.02
_RECOVERY_S = 10.0
_RECOVERY_STEP = 0.05


class FileLimiter:
    """A :class:`~mtbench_ray.endpoint.rate_limit.RateLimiter` shared through a file.

    ``concurrency`` stays a matter of each process.

    Args:
        name: The same for all that share; no part of a key.
        folder: None is one in the machine's temporary folder, for this user alone.
    """

    def __init__(
        self, config: EndpointConfig, name: str, label: str, folder: Path | None = None
    ) -> None:
        folder = folder or Path(tempfile.gettempdir()) / f"mtbench_ray-limits-{os.getuid()}"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.slots = Slots(config.concurrency, label)
        self._requests = config.requests_per_minute
        self._tokens = config.tokens_per_minute
        self._adaptive = bool(config.adaptive)
        self._label = label
        self._file = folder / f"{name}.json"
        self._lock = filelock.FileLock(folder / f"{name}.lock", thread_local=False)
        # One of each process's calls at a time waits for its moment, so that a pause finds few.
        self._turn = asyncio.Lock()

    async def acquire(self, tokens: int) -> None:
        """Wait until one call of about so many tokens may leave, over all processes."""
        async with self._turn:
            while True:
                wait, paused = await asyncio.to_thread(self._change, self._take(tokens))
                await asyncio.sleep(wait)
                if not paused and not await asyncio.to_thread(self._change, _pause_left):
                    return

    def correct(self, estimated: int, actual: int) -> None:
        """Say what a call really took."""
        limit = self._tokens
        if limit:
            self._later(lambda state: _move(state, "tokens", (actual - estimated) / limit))

    def pause(self, seconds: float, reason: str) -> None:
        """Let no call of any process leave for so long."""

        def change(state: dict[str, float]) -> None:
            begins = _pause_left(state) == 0.0
            state["paused_until"] = max(state.get("paused_until", 0.0), time.time() + seconds)
            if begins:
                log.warning("%s: all calls wait %.1f s: %s", self._label, seconds, reason)

        self._later(change)

    def stated(self, per_minute: float) -> None:
        """What a service says of its limits is for runs that share none."""

    def refused(self, age_s: float) -> None:
        """Say that a call met 429."""

        def change(state: dict[str, float]) -> None:
            now = time.time()
            if now - state.get("slowed_at", 0.0) >= 1.0:
                state["slowed_at"] = now
                state["factor"] = max(state.get("factor", 1.0) / 2, _LEAST_FACTOR)

        if self._adaptive:
            self._later(change)

    def _take(self, tokens: int) -> Callable[[dict[str, float]], tuple[float, bool]]:
        """Seconds until the next free moment, which is taken; or those of a pause, and True."""

        def take(state: dict[str, float]) -> tuple[float, bool]:
            if left := _pause_left(state):
                return left, True
            factor = self._factor(state)
            amounts = {"tokens": (tokens, self._tokens), "requests": (1, self._requests)}
            waits = [
                _move(state, name, min(amount / (limit * factor), 1.0))
                for name, (amount, limit) in amounts.items()
                if limit
            ]
            return max(waits, default=0.0), False

        return take

    def _factor(self, state: dict[str, float]) -> float:
        factor, now = state.get("factor", 1.0), time.time()
        if factor < 1.0 and now - state.get("slowed_at", 0.0) >= _RECOVERY_S:
            state["slowed_at"] = now
            state["factor"] = factor = min(factor + _RECOVERY_STEP, 1.0)
        return factor

    def _change(self, change: Callable[[dict[str, float]], Any]) -> Any:
        """Apply a change to the shared state; returns what it returns."""
        with self._lock:
            state: dict[str, float] = {}
            with suppress(OSError, ValueError):
                state = json.loads(self._file.read_text("utf-8"))
            before = dict(state)
            result = change(state)
            if state != before:
                self._file.write_text(json.dumps(state), "utf-8")
            return result

    def _later(self, change: Callable[[dict[str, float]], Any]) -> None:
        asyncio.get_running_loop().run_in_executor(None, self._change, change)


def _move(state: dict[str, float], name: str, share: float) -> float:
    """Move a limit's next free moment on by a share of a minute; seconds until it was free."""
    now = time.time()
    free = state.get(name, now)
    if not now <= free <= now + _STALE_S:
        free = now
    state[name] = max(free + share * _WINDOW_S * _SPREAD, now)
    return free - now


def _pause_left(state: dict[str, float]) -> float:
    left = state.get("paused_until", 0.0) - time.time()
    return left if 0.0 < left < _STALE_S else 0.0
