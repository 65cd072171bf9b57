"""One endpoint that speaks the OpenAI chat API, and the only policy of retries.

The client library's own retries are off: they would pass by the limiter.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import Any, TypeVar

import tenacity

from mtbench_ray.config import EndpointConfig, JudgeConfig
from mtbench_ray.endpoint.api_errors import Fault
from mtbench_ray.endpoint.completion import Call, Completion
from mtbench_ray.endpoint.keys import scrub
from mtbench_ray.endpoint.rate_limit import RateLimiter
from mtbench_ray.endpoint.reply import Reply
from mtbench_ray.endpoint.request_adapter import Dialect
from mtbench_ray.endpoint.served import ServedModel, read_models
from mtbench_ray.endpoint.sizes import read_window
from mtbench_ray.endpoint.tokens import prompt_tokens
from mtbench_ray.endpoint.transport import Transport
from mtbench_ray.errors import EndpointStopped
from mtbench_ray.schema import Message, Status
from mtbench_ray.system.redact import redactor

log = logging.getLogger(__name__)

_PROBE_S = 1.0
"""The first call goes alone for so long: what its refusal teaches is paid once, not 128 times. A
refusal comes at once; a good reply may take long, and the others do not wait for it."""
_FIRST_CALLS = 8
"""So many calls of a paid judge are in flight until the first reply could be read."""
_UNREADABLE = 10
"""After so many replies that could not be read, and none that could, a service is given up."""
_TIMED_OUT_TRIES = 3
"""A call that times out may be billed each time."""
_MODELS_S = 3.0
"""The list of models is waited for so long; no row waits for it later."""
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
    ) -> None:
        self.config = config
        self.label = label
        self.stopped: str | None = None
        self._key = key
        self._limiter = limiter
        self._dialect = Dialect(model, config.token_param, config.extra_body)
        self._backoff = tenacity.wait_exponential(
            config.retry_wait_s, config.retry_max_wait_s, config.retry_factor
        ) + tenacity.wait_random(0, config.retry_wait_s)
        self._transport = Transport(config, key, base_urls)
        self._closing = False
        self._probing = False
        self._settled = asyncio.Event()
        self._ended = asyncio.Event()
        self._trial = asyncio.Lock()
        paid = isinstance(config, JudgeConfig) and config.kind == "openai"
        self._first_calls = asyncio.Semaphore(_FIRST_CALLS) if paid else None
        self._models: asyncio.Task[None] | None = None
        self._served: dict[str, ServedModel] = {}
        self._warned: set[str] = set()
        self._hide = redactor([key or ""])
        self._typical_output: float | None = None
        self._estimating = asyncio.Lock()
        self._replied_at: float | None = None
        self._refused_since: float | None = None  # no call got through since then
        self._unreadable = 0
        self._forbidden = 0  # in a row

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
    ) -> Completion:
        """One completion, tried again where that can help.

        Args:
            max_tokens: Limit on new tokens; 0 leaves it to the service.
            extra: Further fields of the request; ``config.extra_body`` goes on top of them.
            again: Asked before a try that follows one which may be billed; False ends the call.

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
        )
        if self._models is None:
            self._models = asyncio.create_task(self._ask_models())
        mine, self._probing = not self._probing, True
        if not mine:
            await self._await_probe()
        try:
            reply = await self._with_retries(call)
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

    async def _with_retries(self, call: Call) -> Reply:
        retrying = tenacity.AsyncRetrying(
            retry=tenacity.retry_if_exception(lambda e: isinstance(e, Fault) and e.retry),
            stop=lambda state: self._is_spent(call, _fault_of(state)),
            wait=self._wait,
            sleep=self.sleep,
            before_sleep=lambda state: self._before_retry(call, state),
            reraise=True,
        )
        return await retrying(self._adjusting, call)

    async def _adjusting(self, call: Call) -> Reply:
        """One try; a refused parameter is changed at once, and is no fault of this call."""
        reason: Fault | None = None  # of a call that is tried without this and that
        async with AsyncExitStack() as trial:
            while True:
                try:
                    reply = await self._send(call)
                except Fault as fault:
                    if fault.stop and not self._is_of_prompt(fault):
                        self._stop(fault.stop, fault)
                    if self._learn(fault, call) or self._is_stale(fault, call):
                        continue
                    if self._suspect(fault, call) and reason is None:
                        # One call at a time finds out what the service does not say.
                        reason = fault
                        await trial.enter_async_context(self._trial)
                        if self._is_stale(fault, call):
                            reason = None
                            await trial.aclose()
                            continue
                    if name := self._suspect(fault, call):
                        call.without.append(name)
                        continue
                    if call.without:
                        self._dialect.give_up()
                    raise reason or fault from None
                if call.without:
                    self._dialect.blame(call.without[-1], call.fields)
                    self._warn_of_changes()
                    call.without.clear()
                return reply

    def _is_stale(self, fault: Fault, call: Call) -> bool:
        """Whether a refused call left before another one learned how to write it."""
        old = self._dialect.version != call.version
        return old and fault.code in (400, 422) and fault.status == "error"

    def _suspect(self, fault: Fault, call: Call) -> str | None:
        return self._dialect.suspect(fault, call.fields, call.without)

    def _learn(self, fault: Fault, call: Call) -> bool:
        """Whether a refusal says how the same request will pass, by the settings or by its size."""
        if self._dialect.learn(fault, call.fields):
            self._warn_of_changes()
            return True
        cap = call.cap
        if fault.size != "window" or not cap:
            return False
        said = read_window(fault.detail)
        room = self._dialect.learn_window(said.tokens, said.prompt, call.prompt_tokens)
        if room is None or room >= cap:
            return False
        call.room = room
        return True

    def _warn_of_changes(self) -> None:
        for name, note in self._dialect.learned.items():
            self._warn(f"{name}: {note}", f"the service made us change {name}: {note}")

    def _warn(self, name: str, text: str) -> None:
        """A log line, once for each name."""
        if name not in self._warned:
            self._warned.add(name)
            log.warning("%s: %s", self.label, text)

    def _is_of_prompt(self, fault: Fault) -> bool:
        """Whether a 403 may be about one prompt (a firewall's), not about the key.

        So it is where the key got replies before, and not only 403s since for all calls in flight.
        """
        if fault.reason != "forbidden" or self._replied_at is None:
            return False
        self._forbidden += 1
        return self._forbidden <= self.config.concurrency

    async def _send(self, call: Call) -> Reply:
        async with AsyncExitStack() as held:
            estimate = await self._unless_ended(lambda: self._wait_for_turn(call, held))
            self._check_open()
            call.attempts += 1
            call.version = self._dialect.version
            call.fields = self._write(call)
            call.started, begin = time.time(), time.monotonic()
            try:
                reply = await self._transport.send(call.fields)
            except Fault as fault:
                if fault.reason == "timeout":
                    self._limiter.slots.timed_out(begin, self.config.timeout_s)
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
        if self._first_calls is not None and self._replied_at is None:
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
        if self._first_calls is not None and self._replied_at is None:
            for _ in range(self.config.concurrency):
                self._first_calls.release()
        self._replied_at, self._refused_since, self._forbidden = time.monotonic(), None, 0
        self._dialect.accepted(call.fields)
        self._limiter.slots.served()
        if reply.limit:
            self._limiter.stated(reply.limit)
        if reply.odd_finish:
            name, word = "finish_reason", reply.finish_reason
            self._dialect.learned[name] = f"{word} is unknown, its replies are taken for whole"
            self._warn_of_changes()
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
        self._served = read_models(await self._transport.models(_MODELS_S))

    def _check_open(self) -> None:
        if self.stopped:
            raise EndpointStopped(self.stopped)
        if self._closing:
            raise Closing

    def _is_spent(self, call: Call, fault: Fault) -> bool:
        """Whether a call is given up after this fault.

        A 429 costs nothing and says only "later", so it is bounded by time; other faults by number.
        The time is that in which no call got through, one for the service: a slow one serves all in
        the end, and one that serves none is not waited for again by each call.
        """
        longest = self.config.max_retry_after_s
        if fault.wait is not None and fault.wait > longest:
            fault.detail = f"asked to wait {fault.wait:.0f} s, max_retry_after_s is {longest:g}"
            return True
        if fault.limited:
            now = time.monotonic()
            self._refused_since = self._refused_since or now
            if now - self._refused_since > longest:
                waited = f"no call got through for {longest:g} s (max_retry_after_s)"
                self._stop(waited, fault)
            return False
        call.faults += 1
        call.timeouts += fault.reason == "timeout"
        if call.timeouts >= _TIMED_OUT_TRIES:
            return True
        if call.faults > self.config.max_retries:
            return True
        spent = fault.billed and not call.again()
        if fault.reason == "bad_reply" and self._replied_at is None:
            # Each is paid, and not one could ever be read.
            self._unreadable += 1
            if self._unreadable >= _UNREADABLE:
                self._stop(f"{self._unreadable} replies came and none can be read", fault)
        return spent

    def _wait(self, state: tenacity.RetryCallState) -> float:
        """Seconds that this call alone waits; what holds for all is a pause of the limiter."""
        fault = _fault_of(state)
        return 0.0 if fault.limited or fault.wait is not None else self._backoff(state)

    def _before_retry(self, call: Call, state: tenacity.RetryCallState) -> None:
        fault = _fault_of(state)
        answered = f"{self._transport.where} answered {scrub(fault.text, self._key)}"
        log.debug("%s: try %d again: %s", self.label, state.attempt_number, answered)
        if fault.limit:
            self._limiter.stated(fault.limit)
        if fault.limited:
            self._limiter.refused(call.latency_s)
        if fault.limited or fault.wait is not None:
            self._limiter.pause(fault.wait or self._backoff(state), answered)
        else:
            # The first of each kind is shown, so that a wrong address is no silent hang.
            tries = f"trying again, at most {self.config.max_retries} times"
            self._warn(fault.reason, f"{answered}; {tries} (shown once for each kind)")

    def _stop(self, why: str, fault: Fault) -> None:
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


def _fault_of(state: tenacity.RetryCallState) -> Fault:
    error = state.outcome.exception() if state.outcome else None
    assert isinstance(error, Fault)  # only faults are tried again
    return error
