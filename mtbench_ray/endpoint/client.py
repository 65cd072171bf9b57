"""One endpoint that speaks the OpenAI chat API.

The client library's own retries are off: they would pass by the limiter.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import Any, NoReturn, TypeVar

from mtbench_ray.config import EndpointConfig, JudgeConfig
from mtbench_ray.endpoint.adjusting import Adjusting
from mtbench_ray.endpoint.api_errors import Fault
from mtbench_ray.endpoint.completion import Call, Completion
from mtbench_ray.endpoint.keys import scrub
from mtbench_ray.endpoint.rate_limit import RateLimiter
from mtbench_ray.endpoint.reply import Reply
from mtbench_ray.endpoint.request_adapter import Dialect
from mtbench_ray.endpoint.retry_policy import RetryPolicy
from mtbench_ray.endpoint.served import ServedModel, read_models
from mtbench_ray.endpoint.tokens import prompt_tokens
from mtbench_ray.endpoint.transport import Transport
from mtbench_ray.errors import EndpointStopped
from mtbench_ray.schema import Message, Status
from mtbench_ray.system.redact import redactor

log = logging.getLogger(__name__)

_PROBE_S = 1.0
"""The first call goes alone for so long: what its refusal teaches is paid once, not 128 times. A
refusal comes at once; a good reply may take long, and the others do not wait for it."""
_PROBE_LEAST_S = 0.1
"""A refusal comes about as soon as the list of models, which is asked for at the same moment: when
that is there, the others wait for twice its time more, and for so long at least."""
_FIRST_CALLS = 8
"""So many calls of a paid judge are in flight until the first reply could be read."""
_REFUSED_S = 20.0
"""After so long without any call through it is said that an account may be empty."""
_MODELS_S = 3.0
"""The list of models is waited for so long; no row waits for it later."""
_TIMED_OUT = (408, 504, 524)
"""What gateways answer when what is behind them takes too long."""
_DEFAULT_CAP = 1024
"""Expected of a call without a cap of ours, for limits on tokens."""
T = TypeVar("T")


class Closing(Exception):
    """The client is being closed and starts no further request."""


class EndpointClient:
    """Calls one model of one endpoint. Make, use and close it on one event loop.

    Args:
        config: Address, limits, timeouts.
        model: Name sent to the API, unchanged.
        key: From :func:`resolve_key`; None sends a placeholder.
        limiter: From :func:`make_limiter`.
        label: Begins messages: ``judge gpt-4o``.
        base_urls: Several replicas of the same model, which the run started itself, instead of
            ``config.base_url``.
        transport: Instead of single HTTP requests: batches. No call is the first one then, and
            what limits them is not ours.

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
        transport: Transport | None = None,
    ) -> None:
        self.config = config
        self.label = label
        self.stopped: str | None = None
        self._key = key
        self._limiter = limiter
        self._dialect = Dialect(model, config.token_param, config.extra_body)
        self._adjusting = Adjusting(self._dialect, self._warn)
        self._retries = RetryPolicy(
            config, stop=self._stop, before_retry=self._before_retry, sleep=self.sleep
        )
        self._transport = transport or Transport(config, key, base_urls)
        self._closing = False
        self._probing = False
        self._settled = asyncio.Event()
        if transport is not None:
            self._settled.set()
        self._ended = asyncio.Event()
        paid = isinstance(config, JudgeConfig) and config.kind == "openai" and transport is None
        self._first_calls = asyncio.Semaphore(_FIRST_CALLS) if paid else None
        self._models: asyncio.Task[None] | None = None
        self._served: dict[str, ServedModel] = {}
        self._warned: set[str] = set()
        self._hide = redactor([key or ""])
        self._typical_output: float | None = None
        self._estimating = asyncio.Lock()

    @property
    def learned(self) -> dict[str, str]:
        """Parameters that were renamed, dropped or merged, for the run record."""
        learned = dict(self._dialect.learned)
        rate = getattr(self._limiter, "learned", None)
        if rate is not None and rate.per_second is not None:
            learned["requests_per_minute"] = (
                f"about {60 * rate.per_second:.0f}, learned; {rate.refusals} calls were refused"
            )
        return learned

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
        self._ended.set()

    async def close(self) -> None:
        """Close all connections."""
        self.close_soon()
        if self._models is not None:
            self._models.cancel()
        await self._transport.close()

    async def complete(
        self,
        messages: Sequence[Message],
        *,
        max_tokens: int,
        temperature: float | None = None,
        extra: Mapping[str, Any] | None = None,
        again: Callable[[], bool] = lambda: True,
        name: str = "",
    ) -> Completion:
        """One completion, tried again where that can help.

        Args:
            max_tokens: Limit on new tokens; 0 leaves it to the service.
            extra: Further fields of the request; ``config.extra_body`` goes on top of them.
            again: Asked before a try that follows one which may be billed; False ends the call.
            name: Of what is asked, see :meth:`Transport.send`.

        Raises:
            EndpointStopped: No call to this endpoint can succeed any more.
            Closing: The client was closed before a request could leave.
        """
        call = Call(
            messages,
            max_tokens,
            temperature,
            extra or {},
            prompt_tokens(messages),
            again,
            name,
        )
        if self._models is None:
            self._models = asyncio.create_task(self._ask_models())
        mine, self._probing = not self._probing, True
        if not mine:
            await self._await_probe()
        try:
            reply = await self._retries.run(call, self._attempt)
        except Fault as fault:
            error = scrub(fault.text, self._key)
            return self._outcome(call, fault.status, error, billed=fault.billed)
        finally:
            if mine:
                self._settled.set()
        served = self._served.get(reply.served_model, ServedModel(reply.served_model)).name
        done = replace(
            self._outcome(call, reply.status, reply.reason),
            text=self._hide(reply.text),
            reasoning=self._hide(reply.reasoning) if reply.reasoning else None,
            served_model=served,
        )
        return call.counted(done, reply)

    def _outcome(
        self, call: Call, status: Status, error: str | None, *, billed: bool = False
    ) -> Completion:
        log.debug(
            "%s: %s%s after %d attempts, %.1f s",
            self.label, status, f" ({error})" if error else "", call.attempts, call.latency_s,
        )  # fmt: skip
        return call.ended(
            status,
            error,
            wanted_cap=self.cap(call.max_tokens),
            adjusted=self._dialect.learned,
            billed=billed,
        )

    async def _await_probe(self) -> None:
        if self._settled.is_set():
            return
        try:
            await asyncio.wait_for(self._settled.wait(), _PROBE_S)
        except TimeoutError:
            self._settled.set()

    async def _attempt(self, call: Call) -> Reply:
        return await self._adjusting.send(call, self._send)

    async def _send(self, call: Call) -> Reply:
        async with AsyncExitStack() as held:
            estimate = await self._unless_ended(lambda: self._wait_for_turn(call, held))
            self._check_open()
            call.attempts += 1
            call.version = self._dialect.version
            call.fields = self._write(call)
            call.started, begin = time.time(), time.monotonic()
            try:
                reply = await self._transport.send(call.fields, call.name)
            except Fault as fault:
                if fault.reason == "timeout" or fault.code in _TIMED_OUT:
                    # A gateway gives up before we do.
                    longest = min(self.config.timeout_s, time.monotonic() - begin)
                    self._limiter.slots.timed_out(begin, longest)
                if fault.stop and not self._retries.is_of_prompt(fault):
                    self._stop(fault.stop, fault)
                raise
            finally:
                call.latency_s = time.monotonic() - begin
        self._note_reply(call, reply, estimate)
        return reply

    async def _wait_for_turn(self, call: Call, held: AsyncExitStack) -> int:
        """Wait until a call may leave; what it holds in flight goes into ``held``.

        Returns:
            The tokens that the limiter was asked for.
        """
        if self._first_calls is not None and not self._retries.replied:
            await held.enter_async_context(self._first_calls)
        await held.enter_async_context(self._limiter.slots)
        if not self.config.tokens_per_minute:
            return await self._take_tokens(call)
        # One after the other: a call that waits for tokens may learn from earlier replies that
        # it needs far fewer than its cap.
        async with self._estimating:
            return await self._take_tokens(call)

    async def _take_tokens(self, call: Call) -> int:
        expected = call.max_tokens or _DEFAULT_CAP
        if self._typical_output is not None:
            expected = min(expected, round(self._typical_output))
        estimate = call.prompt_tokens + expected
        await self._limiter.acquire(estimate)
        return estimate

    async def _unless_ended(self, wait: Callable[[], Awaitable[T]]) -> T:
        """The result of a wait, or an exception as soon as the client has ended.

        Raises:
            EndpointStopped: No call can succeed any more.
            Closing: The client is being closed.
        """
        self._check_open()
        task = asyncio.ensure_future(wait())
        ending = asyncio.ensure_future(self._ended.wait())
        try:
            await asyncio.wait((task, ending), return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                self._check_open()
            return await task
        finally:
            ending.cancel()
            if not task.done():
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)

    async def sleep(self, seconds: float) -> None:
        """Wait between two tries; ends at once, with an exception, when the client does.

        Raises:
            EndpointStopped: No call can succeed any more.
            Closing: The client is being closed.
        """
        await self._unless_ended(lambda: asyncio.sleep(seconds))

    def _write(self, call: Call) -> dict[str, Any]:
        max_tokens = call.max_tokens
        if max_tokens:
            room = call.room if call.room is not None else self._dialect.room(call.prompt_tokens)
            max_tokens = min(max_tokens, max_tokens if room is None else room)
        return self._dialect.write(
            call.messages, max_tokens, call.temperature, call.extra, call.without
        )

    def _note_reply(self, call: Call, reply: Reply, estimate: int) -> None:
        if self._first_calls is not None and not self._retries.replied:
            for _ in range(self.config.concurrency):
                self._first_calls.release()
        self._retries.note_reply()
        self._adjusting.accepted(call, reply)
        self._limiter.slots.served()
        if reply.limit:
            self._limiter.stated(reply.limit)
        if reply.prompt_tokens is not None and reply.output_tokens is not None:
            self._limiter.correct(estimate, reply.prompt_tokens + reply.output_tokens)
            before = self._typical_output
            self._typical_output = (
                reply.output_tokens
                if before is None
                else before + (reply.output_tokens - before) / 16
            )

    async def _ask_models(self) -> None:
        """What the service lists of its models: another checkpoint may be behind the same name."""
        body, took_s = await self._transport.models(_MODELS_S)
        self._served = read_models(body)
        if self._served:
            await asyncio.sleep(max(_PROBE_LEAST_S, 2 * took_s))
            self._settled.set()

    def _check_open(self) -> None:
        if self.stopped:
            raise EndpointStopped(self.stopped)
        if self._closing:
            raise Closing

    def _before_retry(self, call: Call, fault: Fault, backoff_s: float) -> None:
        answered = f"{self._transport.where} answered {scrub(fault.text, self._key)}"
        log.debug("%s: attempt %d again: %s", self.label, call.attempts, answered)
        if fault.limit:
            self._limiter.stated(fault.limit)
        if fault.limited:
            self._limiter.refused(call.latency_s)
        if fault.limited or fault.wait is not None:
            self._limiter.pause(self._retries.pause_s(fault, backoff_s), answered)
            if fault.limited and self._retries.refused_s > _REFUSED_S:
                self._warn(
                    "refused",
                    f"no call got through for {self._retries.refused_s:.0f} s ({answered}). Is the "
                    "account's quota used up, or does somebody else use the key? Trying on until "
                    f"max_retry_after_s={self.config.max_retry_after_s:g} s have passed",
                )
        else:
            # The first of each kind is shown, so that a wrong address is no silent hang.
            tries = f"trying again, at most {self.config.max_retries} times"
            self._warn(fault.reason, f"{answered}; {tries} (shown once for each kind)")

    def _warn(self, name: str, text: str) -> None:
        """A log line, once for each name."""
        if name not in self._warned:
            self._warned.add(name)
            log.warning("%s: %s", self.label, text)

    def _stop(self, why: str, fault: Fault) -> NoReturn:
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
            code = f"HTTP {fault.code}: " if fault.code else ""
            self.stopped = (
                f"{self.label} at {self._transport.where}: {why} ({code}"
                f"{scrub(fault.detail, self._key)}). {key} Fix it and re-run the same command: "
                "what is finished is kept."
            )
            self._ended.set()
        raise EndpointStopped(self.stopped)
