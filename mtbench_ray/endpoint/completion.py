"""One call and what became of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from mtbench_ray.endpoint.reply import Reply
from mtbench_ray.endpoint.tokens import estimate_tokens
from mtbench_ray.schema import Message, Status, canonical
from mtbench_ray.system.redact import hidden

_IMPLAUSIBLE = 0.1
"""A count below this share of the estimated tokens is no count."""
_NOT_RECORDED = frozenset({"messages", "stream", "stream_options"})


@dataclass(frozen=True, slots=True)
class Completion:
    """What became of one call with all its retries.

    Attributes:
        status: ``ok``, ``truncated``, ``empty``, ``refused``, ``context_overflow`` or ``error``.
        prompt_tokens: As the service counted; estimated where it did not. 0 without a reply.
        output_tokens: The same, with hidden reasoning.
        cached_tokens: Of the prompt's, those that the service had cached.
        attempts: Requests sent.
        latency_s: Seconds of the last request.
        started: Unix seconds at which the last request left.
        error: Reason, ``timeout`` or ``http_503: ...``, None where status is ok.
        params: JSON of what was sent beside the messages; ``adjusted`` says what the service made
            us change.
        cap: Limit on new tokens that was sent, 0 where none was.
        lowered: The cap was lowered to what the window leaves beside this prompt.
        served_model: The model that answered, as the service names it.
        system_fingerprint: The service's own name for the version that answered.
        billed: There is no reply, and the service may have written one all the same.
        logprobs: JSON of the reply's log-probabilities; empty where there are none.
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
    cap: int = 0
    lowered: bool = False
    served_model: str = ""
    system_fingerprint: str = ""
    billed: bool = False
    logprobs: str = ""
    cached_tokens: int = 0


@dataclass
class Call:
    """Progress of one call over its tries."""

    messages: Sequence[Message]
    max_tokens: int
    temperature: float | None
    extra: Mapping[str, Any]
    prompt_tokens: int
    again: Callable[[], bool]
    name: str = ""
    attempts: int = 0
    faults: int = 0
    timeouts: int = 0
    room: int | None = None
    without: list[str] = field(default_factory=list)
    started: float = 0.0
    latency_s: float = 0.0
    version: int = 0
    fields: dict[str, Any] = field(default_factory=dict)

    @property
    def cap(self) -> int:
        """The limit on new tokens in what was sent last, 0 where there is none."""
        cap = self.fields.get("max_tokens", self.fields.get("max_completion_tokens"))
        return cap if isinstance(cap, int) else 0

    def ended(
        self,
        status: Status,
        error: str | None,
        *,
        wanted_cap: int,
        adjusted: Mapping[str, Any],
        billed: bool = False,
    ) -> Completion:
        """What became of the call, without a text.

        Args:
            wanted_cap: The cap that would be sent for this call to a service with room for it.
            adjusted: What the service made us change.
        """
        params: dict[str, Any] = {k: v for k, v in self.fields.items() if k not in _NOT_RECORDED}
        changes = dict(adjusted)
        lowered = 0 < self.cap < wanted_cap
        if lowered:
            changes["room"] = f"{self.cap} of {self.max_tokens} new tokens fit into the window"
        return Completion(
            status=status,
            error=error,
            billed=billed,
            attempts=self.attempts,
            latency_s=self.latency_s,
            started=self.started,
            params=canonical(hidden(params) | ({"adjusted": changes} if changes else {})),
            cap=self.cap,
            lowered=lowered,
        )

    def counted(self, done: Completion, reply: Reply) -> Completion:
        """A completion with a reply's text and token counts."""
        written = done.text + (done.reasoning or "")
        prompt = _plausible(reply.prompt_tokens, self.prompt_tokens)
        return replace(
            done,
            finish_reason=reply.finish_reason,
            prompt_tokens=prompt,
            cached_tokens=min(reply.cached_tokens, prompt),
            output_tokens=_plausible(reply.output_tokens, estimate_tokens(written)),
            system_fingerprint=reply.system_fingerprint,
            logprobs=reply.logprobs,
        )


def _plausible(counted: int | None, estimated: int) -> int:
    """Tokens as the service counted them; as estimated where it did not, or cannot have."""
    return estimated if counted is None or counted < estimated * _IMPLAUSIBLE else counted
