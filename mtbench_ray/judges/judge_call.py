"""From one judge request to its judgment: context check, calls, retries of bad replies, cost."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from mtbench_ray.config import JudgeConfig
from mtbench_ray.endpoint.client import Closing, EndpointClient
from mtbench_ray.endpoint.completion import Completion
from mtbench_ray.endpoint.tokens import cost, prompt_tokens
from mtbench_ray.errors import EndpointStopped
from mtbench_ray.judges.base import Reply
from mtbench_ray.judges.budget import Budget
from mtbench_ray.judges.judge_prompt import EXPLANATION_CHARS
from mtbench_ray.judges.outcomes import sound
from mtbench_ray.schema import Judgment, Request, Status, canonical

if TYPE_CHECKING:
    from mtbench_ray.judges.base import Reading

Read = Callable[[Request, Reply], "Reading"]
"""Reads a verdict from a reply."""
Shorten = Callable[[Request, int], Request]
"""Cuts the answers in a request until its prompt has at most so many tokens."""

_SURELY = 0.75
"""An estimated count may be a third too high; only what surely cannot fit is not even sent, since
a service that refuses an overlong prompt does so for nothing."""
_RESERVE = 1.5
"""An estimated count may be a third too low; what a call may cost or take of the judge's window is
reserved with this factor."""

_FULL = 0.9
"""A reply shorter than this share of its cap was not cut off by the cap."""
_SAME_LENGTH = 3
"""So many replies cut at the same length were cut by a cap that the service does not tell."""
_UNCAPPED = 8192
"""A reply without a cap of ours is reserved for as if it had this one."""
_CUTS = 2
_CUT_TO = 0.75
"""A prompt that the service refused as too long is cut to this share, so many times."""

_LONGEST_VERDICT = 20


class BudgetSpent(Exception):
    """The next call does not fit into the budget."""


@dataclass
class _Total:
    """What all calls for one judgment took."""

    attempts: int = 0
    prompt_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0

    def add(self, done: Completion) -> None:
        self.attempts += done.attempts
        self.prompt_tokens += done.prompt_tokens
        self.output_tokens += done.output_tokens
        self.cached_tokens += done.cached_tokens


def is_ok(judgment: Judgment) -> bool:
    """Whether a judgment has a value."""
    return judgment.status == "ok"


@dataclass(frozen=True)
class Asker:
    """Asks one judge.

    Args:
        client: None for a judge that is none: its requests are checks.
        enough: Whether a judgment needs no further call.
        pattern: Regular expression that replies are forced into (structured outputs).
        shorten: For ``judge.truncate=answer_tail``.
        without_logprobs: What to type where the judge turns out to give no log-probabilities.
    """

    judge: JudgeConfig
    client: EndpointClient | None
    read: Read
    enough: Callable[[Judgment], bool] = is_ok
    pattern: str | None = None
    budget: Budget | None = None
    run_id: str = ""
    shorten: Shorten | None = None
    without_logprobs: str = ""
    _gave_logprobs: set[bool] = field(default_factory=set)

    async def ask(self, request: Request) -> Judgment:
        """One judgment, whatever the service does.

        Raises:
            EndpointStopped: No call can succeed any more; nothing has been paid for this request.
            BudgetSpent: The same, for want of money.
            Closing: The client is being closed before a reply came.
        """
        if request.want == "check":
            return await self._check(request)
        shown, total = self._fit(request), _Total()
        if shown is None:
            reason = f"context_overflow: more than the judge's {self.judge.context_window} tokens"
            done = Completion("context_overflow", error=reason)
            return self._judgment(request, done, total)[0]
        params = json.loads(request.params)
        cap = params.pop("max_tokens", self.judge.max_tokens)
        temperature = params.pop("temperature", self.judge.temperature)
        extra = self._extra() | params
        flakes = retries = cuts = 0
        short = request.want == "logprobs"  # a token or two, whose probabilities are the verdict
        if cap and "structured_outputs" in extra and not short:
            cap = max(cap, EXPLANATION_CHARS + _LONGEST_VERDICT)  # a token is a letter at least
        lengths: list[int] = []
        last: Judgment | None = None
        while True:
            try:
                done = await self._call(shown, cap, temperature, extra)
            except (EndpointStopped, BudgetSpent, Closing):
                if last is None or self.judge.batch:
                    raise  # the next run is handed what batches have replied
                return last  # a paid reply, even an unreadable one, is on record
            total.add(done)
            if short:
                done = self._as_logprobs(done)
            if done.status == "context_overflow" and last and last.status != done.status:
                # The larger cap did not fit: the reply that was paid for is kept.
                return dataclasses.replace(last, attempts=total.attempts)
            last, again = self._judgment(shown, done, total, cut=shown is not request)
            if done.status == "context_overflow" and cuts < _CUTS and self._may_cut:
                # The service counts more tokens than we did, or its window was not known.
                cuts += 1
                shown = self._cut(request, round(self._tokens(shown) * _CUT_TO))
                continue
            if self.enough(last) or done.status in ("error", "refused", "context_overflow"):
                return last
            if not again:
                return last  # the same call would bring the same
            if done.status == "truncated":
                lengths.append(done.output_tokens)
                larger = 0 if short else self._client.cap(self._larger_cap(shown))
                if larger > done.cap and not done.lowered:
                    cap = larger
                    continue
                if _is_cut_by_cap(done, done.cap, lengths):
                    return last  # the same again would end at the same place
            if _is_broken(done) and flakes < self.judge.max_retries:
                try:
                    await self._client.sleep(self._backoff_s(flakes))
                except (EndpointStopped, Closing):
                    if self.judge.batch:
                        raise
                    return last
                flakes += 1
            elif not _is_broken(done) and retries < self.judge.parse_retries:
                retries += 1
            elif short and done.status == "ok" and not done.logprobs and not self._gave_logprobs:
                raise EndpointStopped(self._no_logprobs("its replies come without"))
            else:
                return last

    def _as_logprobs(self, done: Completion) -> Completion:
        """A reply whose probabilities are wanted: that it is cut after its token is no fault.

        Raises:
            EndpointStopped: The service refuses to give any.
        """
        if done.logprobs:
            self._gave_logprobs.add(True)
        refused = done.status == "error" and "logprob" in (done.error or "").lower()
        if refused and not self._gave_logprobs:
            raise EndpointStopped(self._no_logprobs(done.error or ""))
        there = bool(done.logprobs or done.text.strip())
        if done.status in ("truncated", "empty") and there:
            return dataclasses.replace(done, status="ok", error=None)
        return done

    def _no_logprobs(self, why: str) -> str:
        instead = f"; {self.without_logprobs}" if self.without_logprobs else ""
        return f"it gives no log-probabilities ({why}){instead}"

    async def _check(self, request: Request) -> Judgment:
        """The judgment of a check: its verdict is in the answer, and nothing is called."""
        began = time.monotonic()
        # In a thread: a check may take long, and the loop serves others.
        found = sound(await asyncio.to_thread(self.read, request, Reply()))
        done = Completion("ok", latency_s=time.monotonic() - began, started=time.time())
        judgment = self._row(request, done, _Total())
        return dataclasses.replace(
            judgment,
            label=found.label,
            value=found.value,
            status=found.status,
            error=found.reason or None,
        )

    @property
    def _client(self) -> EndpointClient:
        assert self.client is not None, "a judge that is none is asked"
        return self.client

    def _backoff_s(self, tries: int) -> float:
        judge = self.judge
        return min(judge.retry_wait_s * judge.retry_factor**tries, judge.retry_max_wait_s)

    def failed(self, request: Request, reason: str) -> Judgment:
        """The row of a request that this program itself failed on."""
        return self._judgment(request, Completion("error", error=reason), _Total())[0]

    def _fit(self, request: Request) -> Request | None:
        """The request as it will be sent, None where it cannot fit into the judge's window."""
        window = self.judge.context_window
        if window is None:
            return request
        room = window - self.judge.max_tokens
        if self._may_cut:
            if self._tokens(request) > room:
                request = self._cut(request, max(room, 0))
            return request if self._tokens(request) <= room else None
        return request if self._tokens(request) * _SURELY <= room else None

    @property
    def _may_cut(self) -> bool:
        return self.judge.truncate == "answer_tail" and self.shorten is not None

    def _cut(self, request: Request, tokens: int) -> Request:
        assert self.shorten is not None
        return self.shorten(request, tokens)

    def _tokens(self, request: Request) -> int:
        return prompt_tokens(request.messages)

    def _tokens_at_most(self, request: Request) -> int:
        return round(self._tokens(request) * _RESERVE)

    def _larger_cap(self, request: Request) -> int:
        if self.judge.context_window is None:
            return self.judge.max_tokens_retry
        room = self.judge.context_window - self._tokens_at_most(request)
        return min(self.judge.max_tokens_retry, room)

    def _extra(self) -> dict[str, Any]:
        extra: dict[str, Any] = {}
        if self.judge.reasoning_effort is not None:
            extra["reasoning_effort"] = self.judge.reasoning_effort
        if self.pattern:
            extra["structured_outputs"] = {"regex": self.pattern}
        return extra

    async def _call(
        self, request: Request, cap: int, temperature: float | None, extra: Mapping[str, Any]
    ) -> Completion:
        most = self._client.cap(cap) or max(self.judge.max_tokens_retry, _UNCAPPED)
        reserved = await self._reserve(self._tokens_at_most(request), most)
        paid = reserved
        try:
            done = await self._client.complete(
                request.messages,
                max_tokens=cap,
                temperature=temperature,
                extra=extra,
                again=lambda: self.budget is None or self.budget.again(reserved),
                name=request.judgment_id,
            )
            if not done.billed:
                paid = (
                    cost(self.judge, done.prompt_tokens, done.output_tokens, done.cached_tokens)
                    or 0.0
                )
        except (EndpointStopped, Closing):
            paid = 0.0
            raise
        finally:
            # A call that was cancelled in flight, or got no reply, may have been billed in full.
            if self.budget is not None:
                self.budget.validate(reserved, paid)
        return done

    async def _reserve(self, tokens: int, cap: int) -> float:
        if self.budget is None:
            return 0.0
        amount = cost(self.judge, tokens, cap) or 0.0
        while (fits := self.budget.reserve(amount)) is None:
            # The calls of a batch are settled together, hours later, and there may be thousands.
            await asyncio.sleep(2.0 if self.judge.batch else 0.05)
        if not fits:
            raise BudgetSpent
        return amount

    def _judgment(
        self, request: Request, done: Completion, total: _Total, *, cut: bool = False
    ) -> tuple[Judgment, bool]:
        """The judgment of a reply, and whether another call may bring a better one."""
        label, value, again = None, None, True
        status: Status | str = done.status
        error = done.error
        if done.status not in ("error", "refused", "context_overflow"):
            reply = Reply(done.text, done.finish_reason, done.logprobs)
            reading = sound(self.read(request, reply))
            label, value, status = reading.label, reading.value, reading.status
            again = reading.again
            error = reading.reason or None
            if status != "ok" and done.status in ("truncated", "empty"):
                status, error = done.status, done.error
        params = done.params
        if cut:
            params = canonical(json.loads(params) | {"truncate": self.judge.truncate})
        row = dataclasses.replace(
            self._row(request, done, total),
            status=status,
            label=label,
            value=value,
            error=error,
            params=params,
        )
        return row, again

    def _row(self, request: Request, done: Completion, total: _Total) -> Judgment:
        """A judgment with what was sent and what came back, its verdict not read."""
        copied = {f.name for f in dataclasses.fields(Judgment)} - {"schema", "params"}
        shared = {
            f.name: getattr(request, f.name)
            for f in dataclasses.fields(Request)
            if f.name in copied
        }
        return Judgment(
            **shared,
            status=done.status,
            user_prompt=request.messages[-1].content if request.messages else "",
            text=done.text,
            reasoning=done.reasoning,
            finish_reason=done.finish_reason,
            error=done.error,
            logprobs=done.logprobs,
            attempts=total.attempts,
            prompt_tokens=total.prompt_tokens,
            output_tokens=total.output_tokens,
            cached_tokens=total.cached_tokens,
            cost_usd=cost(
                self.judge, total.prompt_tokens, total.output_tokens, total.cached_tokens
            ),
            latency_s=done.latency_s,
            params=done.params,
            served_model=done.served_model,
            system_fingerprint=done.system_fingerprint,
            started=done.started,
            created=time.time(),
            run_id=self.run_id,
        )


def _is_cut_by_cap(done: Completion, cap: int, lengths: list[int]) -> bool:
    """Whether a reply was cut off by a cap, ours or one that the service keeps to itself.

    Args:
        cap: The one that was sent.
        lengths: Tokens of all cut replies to this request, the last one included.
    """
    thought_only = not done.text.strip()  # its tokens may be counted or not
    full = done.output_tokens >= cap * _FULL
    return thought_only or full or lengths.count(done.output_tokens) >= _SAME_LENGTH


def _is_broken(done: Completion) -> bool:
    """Whether a reply is the service's failure rather than the judge's word.

    Nothing was generated, or it was cut off by something else than its cap: such a reply is tried
    again as often as a failed request.
    """
    return done.status == "truncated" or (done.status == "empty" and done.output_tokens <= 1)
