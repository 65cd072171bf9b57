"""What an engine is to the rest of the program.

An engine answers one turn at a time for one model; many turns run at once on one event loop. The
worker (``engines/worker.py``) walks conversations over it and turns faults into rows.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from mtbench_ray.config import EngineConfig, ModelConfig, SamplingConfig
from mtbench_ray.models.sampling import TurnSampling
from mtbench_ray.models.thinking import ThinkingSpec
from mtbench_ray.schema import EngineEvent, Message, Question, Turn


@dataclass(frozen=True, slots=True)
class Generation:
    """What came back for one turn, before thinking is split off.

    Attributes:
        text: Decoded output without special tokens.
        finish_reason: ``stop`` or ``length``.
        reasoning: Where the engine itself split thinking off (an endpoint's reasoning field).
        sampling: JSON of the parameters really used.
        status: ``ok``, or ``context_overflow``, ``refused`` or ``error`` with ``error`` set: a
            failure of this turn alone. Faults of the engine raise ``EngineFault`` instead.
        served_model: As in :class:`~mtbench_ray.schema.Turn`; empty without an endpoint.
        system_fingerprint: The same.
    """

    text: str
    finish_reason: str | None
    prompt_tokens: int
    output_tokens: int
    sampling: str = "{}"
    reasoning: str | None = None
    status: str = "ok"
    error: str | None = None
    served_model: str = ""
    system_fingerprint: str = ""


class NoOutput(Exception):
    """A request ended without an answer of the model: aborted, broken off, or with nothing."""


def ended_by_model(finish_reason: str | None, tokens: int) -> str:
    """The finish reason of a request that came to its own end.

    Args:
        finish_reason: As the engine says.
        tokens: Of the output; the end token counts.

    Raises:
        NoOutput: It did not come to its end: what there is of it is no answer.
    """
    if finish_reason in ("stop", "length") and tokens:
        return finish_reason
    after = f"after {tokens} tokens" if tokens else "without output"
    raise NoOutput(f"the engine ended the request {after} (finish_reason: {finish_reason})")


def overflow(prompt: int, window: int) -> Generation:
    """What a prompt that leaves no room for a single token comes to. Both in tokens."""
    return Generation(
        "",
        None,
        prompt,
        0,
        status="context_overflow",
        error=f"prompt of {prompt} tokens leaves no room in a window of {window} tokens"
        " (a lower sampling.max_tokens keeps the answers in it shorter)",
    )


class Engine(Protocol):
    """One running engine with one model loaded."""

    origin: str
    """``cold``, ``swap``, ``endpoint`` or ``fake``: goes into each turn row."""
    template_hash: str
    thinking: ThinkingSpec
    gpu_memory_gb: float | None
    """Memory in use on the engine's cards once it was up; None without a GPU."""
    remark: str
    """What a user should know of how it was started; mostly empty."""

    @property
    def under_way(self) -> int:
        """Tokens so far of the turns that run now; 0 where the engine does not tell."""
        ...

    async def generate(
        self,
        messages: Sequence[Message],
        sampling: TurnSampling,
        request_id: str,
        priority: int = 0,
    ) -> Generation:
        """Answer the last user message.

        Args:
            priority: Of the requests that wait for a place the lowest is taken first, by an engine
                that has an order.

        Raises:
            EngineFault: The engine is dead or hung; other requests on it fail too.
        """
        ...

    async def adopt(self, model: ModelConfig) -> Engine | None:
        """The same running engine and weights, answering for another model from now on.

        Returns:
            The engine to go on with, or None where other weights are needed; ``self`` is then
            still what it was.
        """
        ...

    async def prepare(self, model: ModelConfig) -> None:
        """Begin to make all ready for a swap to a model that comes later.

        Called before the first request. What needs the engine for itself is done when this returns;
        the rest goes on while requests run. Never raises.
        """
        ...

    async def swap(self, model: ModelConfig) -> Swap:
        """Load another model's weights in place of these. No request may run on the engine.

        Raises:
            UserError: The model is missing or broken.
        """
        ...

    async def stop(self) -> None:
        """End the engine and every process and file of it. Never raises."""
        ...


@dataclass(frozen=True, slots=True)
class Swap:
    """How an attempt to swap weights ended.

    Attributes:
        engine: The engine to go on with; None where a fresh one is needed. The old one must then
            be stopped: it may have been left in any state.
        detail: The proof that the swap is right, or why there was none: for the run record.
        check: Says of the fresh engine whether it answers as the swapped one did.
    """

    engine: Engine | None
    detail: str
    check: Callable[[Engine], Awaitable[str]] | None = None


@dataclass(frozen=True, slots=True)
class ShardUnit:
    """One conversation of a shard: a question, and the turns of it that are already there.

    Attributes:
        model: Where it is not the shard's: another adapter of the same base, answered among the
            others by the same engine.
        sampling: Where it is not the shard's: of another benchmark, answered in the same visit.
    """

    question: Question
    sample: int
    answer_id: str
    done: tuple[Turn, ...] = ()
    model: ModelConfig | None = None
    sampling: SamplingConfig | None = None


@dataclass(frozen=True, slots=True)
class Shard:
    """What an engine actor takes at once: some conversations of one checkpoint."""

    model: ModelConfig
    sampling: SamplingConfig
    engine: EngineConfig
    units: tuple[ShardUnit, ...]
    run_id: str = ""


Output = Turn | EngineEvent
"""What a worker yields."""
