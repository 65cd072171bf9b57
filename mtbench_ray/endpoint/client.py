"""One endpoint that speaks the OpenAI chat API, and the only policy of retries.

The client library's own retries are off: they would pass by the limiter.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

import tenacity

from mtbench_ray.config import EndpointConfig
from mtbench_ray.endpoint.faults import Fault
from mtbench_ray.endpoint.keys import scrub
from mtbench_ray.endpoint.limiter import RateLimiter
from mtbench_ray.endpoint.params import Dialect
from mtbench_ray.endpoint.reply import Reply
from mtbench_ray.endpoint.tokens import estimate_tokens, prompt_tokens
from mtbench_ray.endpoint.transport import Transport
from mtbench_ray.errors import EndpointStopped
from mtbench_ray.redact import hidden, redactor
from mtbench_ray.schema import Message, Status, canonical

log = logging.getLogger(__name__)

_PROBE_S = 1.0
"""The first call goes alone for so long: what its refusal teaches is paid once, not 128 times. A
refusal comes at once; a good reply may take long, and the others do not wait for it."""
_LONGEST_BACKOFF_S = 60.0


@dataclass(frozen=True, slots=True)
class Completion:
    """What became of one call with all its retries.

    Attributes:
        status: ``ok``, ``truncated``, ``empty``, ``refused``, ``context_overflow`` or ``error``.
        prompt_tokens: As the service counted; estimated where it did not. 0 without a reply.
        output_tokens: The same, with hidden reasoning.
        attempts: Requests sent.
        latency_s: Seconds of the last request.
        started: Unix seconds at which the last request left.
        error: Reason, ``timeout`` or ``http_503: ...``, None where status is ok.
        params: JSON of what was sent beside the messages.
        billed: There is no reply, and the service may have written one all the same.
    """

    status: Status
    text: str = ""
    reasoning: str | None = None
    finish_reason: str | None = None
    prompt_tokens: int = 0
    output_tokens: int = 0
    attempts: int = 0
    latency_s: float = 0.0
    started: float = 0.0
    error: str | None = None
    params: str = "{}"
    billed: bool = False


class Closing(Exception):
    """The client is being closed and starts no further request."""


@dataclass
class _Call:
    """Progress of one call over its tries."""

    messages: Sequence[Message]
    max_tokens: int
    temperature: float | None
    extra: Mapping[str, Any]
    prompt_tokens: int
    again: Callable[[], bool]
    attempts: int = 0
    faults: int = 0
    refused_since: float = 0.0
    started: float = 0.0
    latency_s: float = 0.0
    version: int = 0
    fields: dict[str, Any] = field(default_factory=dict)


class EndpointClient:
    """Calls one model of one endpoint. Make, use and close it on one event loop.

    Args:
        config: Address, limits, timeouts.
        model: Name sent to the API, unchanged.
        key: From :func:`resolve_key`; None sends a placeholder.
        limiter: From :func:`make_limiter`.
        label: Begins messages: ``judge gpt-4o``.
        base_urls: Several replicas of the same model instead of ``config.base_url``.
        backoff_s: First wait after a fault; it doubles from try to try.

    Raises:
        UserError: The address, or a proxy that the environment names, cannot be used.
    """

    def __init__(
        self,
        config: EndpointConfig,
        model: str,
        *,
        key: str | None,
        limiter: RateLimiter,
        label: str = "endpoint",
        base_urls: Sequence[str] | None = None,
        backoff_s: float = 1.0,
    ) -> None:
        self.config = config
        self.label = label
        self.stopped: str | None = None
        self._key = key
        self._limiter = limiter
        self._dialect = Dialect(model, config.token_param, config.extra_body)
        self._backoff = tenacity.wait_exponential(
            backoff_s, _LONGEST_BACKOFF_S
        ) + tenacity.wait_random(0, backoff_s)
        self._transport = Transport(config, key, base_urls)
        self._closing = False
        self._probing = False
        self._settled = asyncio.Event()
        self._told: set[str] = set()
        self._hide = redactor([key or ""])
        self._typical_output: float | None = None
        self._estimating = asyncio.Lock()
        self._replied_at: float | None = None
        self._forbidden = 0  # in a row

    @property
    def learned(self) -> dict[str, str]:
        """Parameters that were renamed, dropped or merged, for the run record."""
        return dict(self._dialect.learned)

    def cap(self, max_tokens: int) -> int:
        """The cap that is really sent where ``max_tokens`` is wanted: settings and service rule."""
        return self._dialect.cap(max_tokens)

    @property
    def in_flight(self) -> int:
        """Requests sent and not yet answered."""
        return self._transport.in_flight

    def close_soon(self) -> None:
        """Start no further request; those in flight may end."""
        self._closing = True

    async def close(self) -> None:
        """Close all connections."""
        self._closing = True
        await self._transport.close()

    async def complete(
        self,
        messages: Sequence[Message],
        *,
        max_tokens: int,
        temperature: float | None = None,
        extra: Mapping[str, Any] | None = None,
        again: Callable[[], bool] = lambda: True,
    ) -> Completion:
        """One completion, tried again where that can help.

        Args:
            extra: Further fields of the request; ``config.extra_body`` goes on top of them.
            again: Asked before a try that follows one which may be billed; False ends the call.

        Raises:
            EndpointStopped: No call to this endpoint can succeed any more.
            Closing: The client was closed before a request could leave.
        """
        call = _Call(
            messages,
            max_tokens,
            temperature,
            extra or {},
            prompt_tokens(messages),
            again,
        )
        mine, self._probing = not self._probing, True
        if not mine:
            await self._await_probe()
        try:
            reply = await self._with_retries(call)
        except Fault as fault:
            words = scrub(fault.text, self._key)
            return self._completion(call, fault.status, error=words, billed=fault.billed)
        finally:
            if mine:
                self._settled.set()
        return self._from_reply(call, reply)

    async def _await_probe(self) -> None:
        if self._settled.is_set():
            return
        try:
            await asyncio.wait_for(self._settled.wait(), _PROBE_S)
        except TimeoutError:
            self._settled.set()

    async def _with_retries(self, call: _Call) -> Reply:
        retrying = tenacity.AsyncRetrying(
            retry=tenacity.retry_if_exception(lambda e: isinstance(e, Fault) and e.retry),
            stop=lambda state: self._is_spent(call, _fault_of(state)),
            wait=self._wait,
            before_sleep=self._before_retry,
            reraise=True,
        )
        return await retrying(self._adjusting, call)

    async def _adjusting(self, call: _Call) -> Reply:
        """One try; a refused parameter is changed at once, and is no fault of this call."""
        while True:
            try:
                return await self._send(call)
            except Fault as fault:
                if fault.stop and not self._is_of_prompt(fault):
                    self._stop(fault)
                if self._dialect.learn(fault, call.fields):
                    continue
                # A call that left before another one learned is written anew, too.
                stale = fault.code in (400, 422) and self._dialect.version != call.version
                if not stale or fault.status != "error":
                    raise

    def _is_of_prompt(self, fault: Fault) -> bool:
        """Whether a 403 may be about one prompt (a firewall's), not about the key.

        So it is where the key got replies before, and not only 403s since for all calls in flight.
        """
        if fault.reason != "forbidden" or self._replied_at is None:
            return False
        self._forbidden += 1
        return self._forbidden <= self.config.concurrency

    async def _send(self, call: _Call) -> Reply:
        async with self._limiter.slot():
            self._check_open()
            # One after the other: a call that waits for tokens may learn from earlier replies that
            # it needs far fewer than its cap.
            async with self._estimating if self.config.tokens_per_minute else nullcontext():
                expected = call.max_tokens
                if self._typical_output is not None:
                    expected = min(expected, round(self._typical_output))
                estimate = call.prompt_tokens + expected
                await self._limiter.acquire(estimate)
            self._check_open()
            call.attempts += 1
            call.version = self._dialect.version
            call.fields = self._dialect.write(
                call.messages, call.max_tokens, call.temperature, call.extra
            )
            call.started, begin = time.time(), time.perf_counter()
            try:
                reply = await self._transport.send(call.fields)
            finally:
                call.latency_s = time.perf_counter() - begin
        self._replied_at, self._forbidden = time.monotonic(), 0
        if reply.prompt_tokens is not None and reply.output_tokens is not None:
            self._limiter.correct(estimate, reply.prompt_tokens + reply.output_tokens)
            before = self._typical_output
            self._typical_output = (
                reply.output_tokens
                if before is None
                else before + (reply.output_tokens - before) / 16
            )
        return reply

    def _check_open(self) -> None:
        if self.stopped:
            raise EndpointStopped(self.stopped)
        if self._closing:
            raise Closing

    def _is_spent(self, call: _Call, fault: Fault) -> bool:
        """Whether a call is given up after this fault.

        A 429 costs nothing and says only "later", so it is bounded by time; other faults by number.
        The time is that in which no call got through: a slow service serves all in the end.
        """
        longest = self.config.max_retry_after_s
        if fault.wait is not None and fault.wait > longest:
            fault.detail = f"asked to wait {fault.wait:.0f} s, max_retry_after_s is {longest:g}"
            return True
        if fault.limited:
            now = time.monotonic()
            call.refused_since = call.refused_since or now
            return now - max(call.refused_since, self._replied_at or 0.0) > longest
        call.faults += 1
        if call.faults > self.config.max_retries:
            return True
        return fault.billed and not call.again()

    def _wait(self, state: tenacity.RetryCallState) -> float:
        """Seconds that this call alone waits; what holds for all is a pause of the limiter."""
        fault = _fault_of(state)
        return 0.0 if fault.limited or fault.wait is not None else self._backoff(state)

    def _before_retry(self, state: tenacity.RetryCallState) -> None:
        fault = _fault_of(state)
        words = f"{self._transport.where} answered {scrub(fault.text, self._key)}"
        log.debug("%s: try %d again: %s", self.label, state.attempt_number, words)
        if fault.limited:
            self._limiter.refused()
        if fault.limited or fault.wait is not None:
            self._limiter.pause(fault.wait or self._backoff(state), words)
        elif fault.reason not in self._told:
            # The first of each kind is told, so that a wrong address is no silent hang.
            self._told.add(fault.reason)
            log.warning(
                "%s: %s; trying again, at most %d times (told once for each kind)",
                self.label,
                words,
                self.config.max_retries,
            )

    def _stop(self, fault: Fault) -> None:
        """End all calls, with one message.

        Raises:
            EndpointStopped: Always.
        """
        if self.stopped is None:
            key = (
                f"The key comes from {self.config.api_key_env}."
                if self._key
                else "No key was sent."
            )
            self.stopped = (
                f"{self.label} at {self._transport.where}: {fault.stop} (HTTP {fault.code}: "
                f"{scrub(fault.detail, self._key)}). {key} Mend it and run the same line again: "
                "what is finished is kept."
            )
        raise EndpointStopped(self.stopped)

    def _from_reply(self, call: _Call, reply: Reply) -> Completion:
        done = self._completion(call, reply.status, error=reply.reason)
        text = self._hide(reply.text)
        thought = self._hide(reply.reasoning) if reply.reasoning else None
        prompt, output = reply.prompt_tokens, reply.output_tokens
        return replace(
            done,
            text=text,
            reasoning=thought,
            finish_reason=reply.finish_reason,
            prompt_tokens=call.prompt_tokens if prompt is None else prompt,
            output_tokens=estimate_tokens(text + (thought or "")) if output is None else output,
        )

    def _completion(
        self, call: _Call, status: Status, error: str | None, *, billed: bool = False
    ) -> Completion:
        log.debug(
            "%s: %s%s after %d attempts, %.1f s",
            self.label, status, f" ({error})" if error else "", call.attempts, call.latency_s,
        )  # fmt: skip
        return Completion(
            status=status,
            error=error,
            billed=billed,
            attempts=call.attempts,
            latency_s=call.latency_s,
            started=call.started,
            params=canonical(hidden({k: v for k, v in call.fields.items() if k != "messages"})),
        )


def _fault_of(state: tenacity.RetryCallState) -> Fault:
    error = state.outcome.exception() if state.outcome else None
    assert isinstance(error, Fault)  # only faults are tried again
    return error
