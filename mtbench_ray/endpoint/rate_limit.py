"""How fast an endpoint may be called.

``aiolimiter``'s bucket alone lets twice the limit through in its first minute, serves small amounts
before large ones, and refuses amounts above its size. So here a bucket is small (calls are spaced,
not bunched), its waiters take turns, and a large amount is paid in parts.

Order: a concurrency slot, then tokens, then a request. The request is paid last, right before
the call leaves, so that calls held up by anything else cannot pile up and leave at once.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from typing import Protocol

from aiolimiter import AsyncLimiter

from mtbench_ray.endpoint.learned_rate import LearnedRate

log = logging.getLogger(__name__)

_WINDOW_S = 60.0
_NETWORK_JITTER_S = 0.3
"""A call may take this much longer to arrive than a later one, and no window is exceeded."""
_SPREAD = 1.01
"""Requests are spread over so much more than a minute: a service's bucket may hold no more than a
second's worth, and one that comes a moment early is refused."""
_LATE_WAKE_S = 0.1
"""An event loop that wakes so late loses no throughput."""
_TOKEN_BURST = 0.02
"""Size of the token bucket, as a share of the limit."""
_SLOWEST = 0.02
"""Adaptive mode never goes below this share of the full rate."""
_RECOVERY_S = 10.0
"""Adaptive mode: seconds from one step back up to the next."""
_RECOVERY_STEP = 0.05
"""Adaptive mode: the size of such a step, as a share of the full rate."""


_WIDER, _WIDEST = 0.99, 0.95
"""Share of a stated limit after a refusal, and after many."""


class Slots:
    """Calls in flight at once: ``async with slots`` holds one.

    A service that times out under our own load gets fewer at once, as many as it has shown to
    serve in half of the time that a call may take; each round of good replies adds one again.

    Args:
        most: Never more than this.
        label: Begins log lines.
    """

    def __init__(self, most: int, label: str = "endpoint") -> None:
        self.limit = most
        self._most = most
        self._label = label
        self._free = asyncio.Semaphore(most)
        self._held = 0
        self._surplus = 0  # slots in use that end when they are given back
        self._narrowed_at = 0.0
        self._streak = 0
        self._served: deque[float] = deque()
        self._lost: deque[float] = deque()

    async def __aenter__(self) -> None:
        await self._free.acquire()
        self._held += 1

    async def __aexit__(self, *_: object) -> None:
        self._held -= 1
        if self._surplus:
            self._surplus -= 1
        else:
            self._free.release()

    def served(self) -> None:
        """Say that a good reply came."""
        self._served.append(time.monotonic())
        self._streak += 1
        if self.limit < self._most and self._streak >= self.limit:
            self._resize(self.limit + 1)

    def timed_out(self, started: float, timeout_s: float) -> None:
        """Say that a call got no reply in time; to be called while it still holds its slot.

        Args:
            started: ``time.monotonic()`` when it left.
        """
        now = time.monotonic()
        self._lost.append(now)
        for times in (self._served, self._lost):
            while times and times[0] < now - timeout_s:
                times.popleft()
        # One that hangs beside many that are served is no sign of load, and what left before the
        # last change says nothing about it.
        few = len(self._lost) < 2 or 4 * len(self._lost) < len(self._served)
        if few or started < self._narrowed_at or self._held < 2:
            return
        self._narrowed_at = now
        self._resize(max(1, min(self._held // 2, len(self._served) // 2)))
        log.warning("%s: calls time out, at most %d at once from now on", self._label, self.limit)

    def _resize(self, limit: int) -> None:
        self._streak = 0
        self._surplus += max(self.limit - limit, 0)
        for _ in range(limit - self.limit):
            if self._surplus:
                self._surplus -= 1
            else:
                self._free.release()
        self.limit = limit


class RateLimiter(Protocol):
    """What a client needs of a limiter, in this process or on the cluster."""

    @property
    def slots(self) -> Slots:
        """The calls in flight: each holds one slot."""
        ...

    async def acquire(self, tokens: int) -> None:
        """Wait until one call of about so many tokens may leave."""
        ...

    def correct(self, estimated: int, actual: int) -> None:
        """Say what a call really took, once it is known."""
        ...

    def pause(self, seconds: float, reason: str) -> None:
        """Let no call leave for so long."""
        ...

    def refused(self, age_s: float) -> None:
        """Say that a call met 429 which left so many seconds ago."""
        ...

    def stated(self, per_minute: float) -> None:
        """Say how many requests a minute the service says it permits."""
        ...


class _Bucket:
    """One limit per minute: waiters in order of arrival, and a rate that may change."""

    def __init__(self, per_minute: float, *, tokens: bool) -> None:
        self.per_minute = per_minute
        self.factor = 1.0
        self._tokens = tokens
        self._largest = 0.0
        self._turn = asyncio.Lock()
        self._made_for: tuple[float, float] | None = None
        self._bucket: AsyncLimiter

    def note(self, amount: float) -> None:
        """A call of so many tokens may leave before it is paid."""
        self._largest = max(self._largest, min(amount, self.per_minute))

    async def acquire(self, amount: float) -> None:
        amount = min(amount, self.per_minute)
        async with self._turn:
            self.note(amount)
            while amount > 0:
                await self._refresh()
                part = min(amount, self._bucket.max_rate)
                await self._bucket.acquire(part)
                amount -= part

    async def _refresh(self) -> None:
        """A new bucket where the rate has changed. It begins full, or each change were a burst."""
        wanted = (self.factor, self._largest if self._tokens else 0.0)
        if wanted == self._made_for:
            return
        burst, per_second = (self._token_rate if self._tokens else self._request_rate)()
        bucket = AsyncLimiter(burst, burst / per_second)
        if self._made_for is not None:
            await bucket.acquire(burst)
        self._bucket, self._made_for = bucket, wanted

    def _request_rate(self) -> tuple[float, float]:
        """Burst, and requests a second, such that limit + 1 requests span more than a window.

        n + 1 requests through a bucket take at least (n + 1 - burst) / rate seconds. Up to one a
        second nothing is made up for: such a service may hold no more than one call's worth.
        """
        limit = self.per_minute * self.factor
        burst = 1 + max(limit / _WINDOW_S - 1, 0) * _LATE_WAKE_S
        return burst, (limit + 1 - burst) / (_SPREAD * _WINDOW_S + _NETWORK_JITTER_S)

    def _token_rate(self) -> tuple[float, float]:
        """Burst, and tokens a second.

        A window holds at most one call paid before it began, the burst, and what came in since.
        Calls above half of the limit are let through at half the rate.
        """
        limit = self.per_minute * self.factor
        burst = limit * _TOKEN_BURST
        room = max(limit - self._largest, limit / 2) - burst
        return burst, room / (_WINDOW_S + _NETWORK_JITTER_S)


class Limiter:
    """Requests a minute, tokens a minute and calls in flight of one endpoint and key.

    Belongs to the event loop that first uses it.

    Args:
        requests_per_minute: None is no limit. No 60 s window holds more.
        tokens_per_minute: Prompt and completion; None is no limit.
        concurrency: Calls in flight at most.
        adaptive: Halve a stated rate on 429, raise it again by 5% of itself every 10 s.
        learned: What is learned where no rate is stated; None learns nothing.
        label: Begins log lines.
    """

    def __init__(
        self,
        requests_per_minute: float | None,
        tokens_per_minute: float | None,
        concurrency: int,
        adaptive: bool = False,
        label: str = "endpoint",
        learned: LearnedRate | None = None,
    ) -> None:
        self.learned = learned if requests_per_minute is None else None
        self._turn = asyncio.Lock()
        self._requests = _Bucket(requests_per_minute, tokens=False) if requests_per_minute else None
        self._tokens = _Bucket(tokens_per_minute, tokens=True) if tokens_per_minute else None
        self.slots = Slots(concurrency, label)
        self._adaptive = adaptive
        self._label = label
        self._debt = 0.0
        self._unused = True
        self._paused_until = 0.0
        self._slowed_at = 0.0

    async def acquire(self, tokens: int) -> None:
        """Wait until one call of about so many tokens may leave.

        Args:
            tokens: Prompt and expected completion. More than the limit counts as the limit.
        """
        if self._tokens is not None:
            # What earlier calls took beyond their estimate is paid by the next one; what they
            # left over may not be saved up beyond one burst.
            due, self._debt = max(tokens + self._debt, 0.0), min(tokens + self._debt, 0.0)
            if self._unused:
                # The first call leaves at once, and the next one pays for it too: so a service that
                # takes no call at all says so at once.
                self._unused = False
                self._tokens.note(due)
                self._debt += due
            else:
                await self._tokens.acquire(due)
        while True:
            await self._wait_out_pause()
            if self._requests is None:
                if self.learned is not None:
                    await self._learned_turn(self.learned)
                break
            self._recover()
            await self._requests.acquire(1)
            if time.monotonic() >= self._paused_until:
                break

    async def _wait_out_pause(self) -> None:
        while (left := self._paused_until - time.monotonic()) > 0:
            await asyncio.sleep(left)

    def correct(self, estimated: int, actual: int) -> None:
        """Say what a call really took, once it is known."""
        if self._tokens is not None:
            floor = -self._tokens.per_minute * _TOKEN_BURST
            self._debt = max(self._debt + actual - estimated, floor)

    def pause(self, seconds: float, reason: str) -> None:
        """Let no call leave for so long; one log line for each pause."""
        now = time.monotonic()
        if now + seconds <= self._paused_until:
            return
        # Calls in flight together meet the same refusal: they lengthen the pause, silently.
        if now >= self._paused_until:
            log.warning("%s: all calls wait %.1f s: %s", self._label, seconds, reason)
        self._paused_until = now + seconds

    async def _learned_turn(self, learned: LearnedRate) -> None:
        """Leave at the learned rate, in order of arrival."""
        async with self._turn:
            while True:
                await self._wait_out_pause()
                delay = learned.delay(time.monotonic())
                if delay <= 0:
                    break
                await asyncio.sleep(delay)
            learned.sent(time.monotonic())

    def stated(self, per_minute: float) -> None:
        """Say how many requests a minute the service says it permits."""
        if self.learned is not None and self.learned.stated(per_minute):
            log.warning("%s: the service permits %g calls a minute", self._label, per_minute)

    def refused(self, age_s: float) -> None:
        """Say that a call met 429: a stated rate is a little lower then, or halved (adaptive)."""
        now = time.monotonic()
        if self.learned is not None:
            if self.learned.refused(now, now - age_s) and self.learned.refusals == 1:
                log.warning("%s: refused, going on at the pace that it permits", self._label)
            return
        if self._requests is None or now - self._slowed_at < 1.0:
            return
        if not self._adaptive:
            # A stated limit holds; a service whose bucket holds a single call wants a wider berth.
            self._requests.factor = max(self._requests.factor * _WIDER, _WIDEST)
            return
        self._slowed_at = now
        self._requests.factor = max(self._requests.factor / 2, _SLOWEST)
        rate = self._requests.per_minute * self._requests.factor
        log.warning("%s: refused, going on at %.1f calls a minute", self._label, rate)

    def _recover(self) -> None:
        if self._requests is None or self._requests.factor >= 1:
            return
        now = time.monotonic()
        if now - self._slowed_at >= _RECOVERY_S:
            self._slowed_at = now
            self._requests.factor = min(self._requests.factor + _RECOVERY_STEP, 1.0)
