"""When a call is tried again, and when a service is given up: the only policy of retries."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from typing import NoReturn

import tenacity

from mtbench_ray.config import EndpointConfig
from mtbench_ray.endpoint.api_errors import Fault
from mtbench_ray.endpoint.completion import Call
from mtbench_ray.endpoint.reply import Reply

_UNREADABLE = 10
"""After so many replies that could not be read, and none that could, a service is given up."""
_EMPTY_S = 90.0
"""After so long without any call through, a refusal that speaks of money is taken at its word: a
limit on a minute has let some through by then."""
_TIMED_OUT_TRIES = 3
"""A call that times out may be billed each time."""


class RetryPolicy:
    """One for all calls of a client: what a service did to one call counts for the others.

    Args:
        config: Bounds and pauses.
        stop: Ends all calls, with a reason; raises.
        before_retry: Called with the call, its fault and the seconds of its own back-off.
        sleep: Waits so many seconds.
    """

    def __init__(
        self,
        config: EndpointConfig,
        *,
        stop: Callable[[str, Fault], NoReturn],
        before_retry: Callable[[Call, Fault, float], None],
        sleep: Callable[[float], Awaitable[None]],
    ) -> None:
        self._config = config
        self._stop = stop
        self._before_retry = before_retry
        self._sleep = sleep
        self._backoff = tenacity.wait_exponential(
            config.retry_wait_s, config.retry_max_wait_s, config.retry_factor
        ) + tenacity.wait_random(0, config.retry_wait_s)
        self.replied = False
        """A reply could be read."""
        self._refused_since: float | None = None  # no call got through since then
        self._unreadable = 0
        self._forbidden = 0  # in a row

    @property
    def refused_s(self) -> float:
        """Seconds for which no call got through and some were refused because of the rate."""
        return time.monotonic() - self._refused_since if self._refused_since else 0.0

    def pause_s(self, fault: Fault, backoff_s: float) -> float:
        """Seconds that all calls wait after a fault that holds for all.

        The longer no call got through, the longer: to ask a service that serves none often would
        change nothing.
        """
        growing = min(self.refused_s / 2, self._config.retry_max_wait_s)
        return max(fault.wait or backoff_s, growing if fault.limited else 0.0)

    def note_reply(self) -> None:
        """A reply could be read."""
        self.replied, self._refused_since, self._forbidden = True, None, 0

    async def run(self, call: Call, attempt: Callable[[Call], Awaitable[Reply]]) -> Reply:
        """A call's reply, after as many attempts as may help.

        Raises:
            Fault: Of the last attempt.
        """
        retrying = tenacity.AsyncRetrying(
            retry=tenacity.retry_if_exception(lambda e: isinstance(e, Fault) and e.retry),
            stop=lambda state: self._is_spent(call, _fault_of(state)),
            wait=self._wait,
            sleep=self._sleep,
            before_sleep=lambda state: self._before_retry(
                call, _fault_of(state), self._backoff(state)
            ),
            reraise=True,
        )
        return await retrying(attempt, call)

    def is_of_prompt(self, fault: Fault) -> bool:
        """Whether a 403 may be about one prompt (a firewall's), not about the key.

        So it is where the key got replies before, and not only 403s since for all calls in flight.
        """
        if fault.reason != "forbidden" or not self.replied:
            return False
        self._forbidden += 1
        return self._forbidden <= self._config.concurrency

    def _is_spent(self, call: Call, fault: Fault) -> bool:
        """Whether a call is given up after this fault.

        A 429 costs nothing and says only "later", so it is bounded by time; other faults by number.
        The time is that in which no call got through, one for the service: a slow one serves all in
        the end, and one that serves none is not waited for again by each call.
        """
        longest = self._config.max_retry_after_s
        if fault.wait is not None and fault.wait > longest:
            fault.detail = f"asked to wait {fault.wait:.0f} s, max_retry_after_s is {longest:g}"
            return True
        if fault.limited:
            now = time.monotonic()
            self._refused_since = self._refused_since or now
            if fault.money and now - self._refused_since > min(_EMPTY_S, longest):
                self._stop("the account has no quota left", fault)
            if now - self._refused_since > longest:
                waited = f"no call got through for {longest:g} s (max_retry_after_s)"
                self._stop(waited, fault)
            return False
        call.faults += 1
        call.timeouts += fault.reason == "timeout"
        if call.timeouts >= _TIMED_OUT_TRIES:
            return True
        if call.faults > self._config.max_retries:
            return True
        spent = fault.billed and not call.again()
        if fault.reason == "bad_reply" and not self.replied:
            # Each is paid, and not one could ever be read.
            self._unreadable += 1
            if self._unreadable >= _UNREADABLE:
                self._stop(f"{self._unreadable} replies came and none can be read", fault)
        return spent

    def _wait(self, state: tenacity.RetryCallState) -> float:
        """Seconds that this call alone waits; what holds for all is a pause of the limiter."""
        fault = _fault_of(state)
        return 0.0 if fault.limited or fault.wait is not None else self._backoff(state)


def _fault_of(state: tenacity.RetryCallState) -> Fault:
    error = state.outcome.exception() if state.outcome else None
    assert isinstance(error, Fault)  # only faults are tried again
    return error
