"""Answers from a running server that speaks the OpenAI chat API.

Limits, retries and the reading of replies are the client's; this adds what an answer needs: seed
and sampling, thinking switches, and asking again for answers that are too short.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from mtbench_ray.config import EngineConfig, ModelConfig
from mtbench_ray.endpoint.client import Closing, EndpointClient
from mtbench_ray.endpoint.completion import Completion
from mtbench_ray.endpoint.keys import resolve_key
from mtbench_ray.endpoint.loop import background_loop
from mtbench_ray.endpoint.shared_limit import shared_limiter
from mtbench_ray.engines.base import Engine, Generation, Swap
from mtbench_ray.errors import EndpointStopped, EngineFault
from mtbench_ray.models.messages import thinking_spec
from mtbench_ray.models.sampling import TurnSampling
from mtbench_ray.schema import Message

_SHORT_TRIES = 3
"""Calls for one answer that stays away, or shorter than ``engine.min_response_length``."""
_ANSWERED = ("ok", "truncated", "empty")
T = TypeVar("T")


class EndpointEngine:
    """One model behind an endpoint. Texts of errors never become answers.

    All replicas call from one event loop and under one limiter, whatever number of them there is.

    Raises:
        UserError: The key is not there, or the address cannot be used.
    """

    origin = "endpoint"
    template_hash = ""
    gpu_memory_gb: float | None = None
    remark = ""
    under_way = 0

    def __init__(self, model: ModelConfig, config: EngineConfig) -> None:
        self._model = model
        self._config = config
        key = resolve_key(config)
        # The models of one service share its limits.
        limiter = shared_limiter(config, "", key, "engine")
        self._client = EndpointClient(
            config, model.path, key=key, limiter=limiter, label=f"engine {model.label}"
        )
        self.thinking = thinking_spec(model, None)

    async def generate(
        self,
        messages: Sequence[Message],
        sampling: TurnSampling,
        request_id: str,
        priority: int = 0,
    ) -> Generation:
        """See :class:`~mtbench_ray.engines.base.Engine`."""
        extra = self._extra(sampling)
        for shift in range(_SHORT_TRIES):
            # Another seed: a server that honours it would give the same short answer again.
            extra["seed"] = sampling.seed + shift
            try:
                reply = await _on_loop(
                    self._client.complete(
                        messages,
                        max_tokens=sampling.max_tokens,
                        temperature=sampling.temperature,
                        extra=dict(extra),
                    )
                )
            except (EndpointStopped, Closing) as error:
                raise EngineFault(str(error) or "the run is ending", fatal=True) from error
            generation = _generation(reply)
            if _is_no_output(reply):
                generation = replace(generation, status="error", error="no output came")
                continue
            short = len(reply.text.strip()) < self._config.min_response_length
            if generation.status != "ok" or not short:
                return generation
        # Still too short: as if nothing had been written. Without any output it is a failure.
        return replace(generation, text="")

    async def prepare(self, model: ModelConfig) -> None:
        """See :class:`~mtbench_ray.engines.base.Engine`."""

    async def adopt(self, model: ModelConfig) -> Engine | None:
        """Another model of the same endpoint, under the same limits."""
        if model == self._model:
            return self
        engine = EndpointEngine(model, self._config)
        await _on_loop(self._client.close())
        return engine

    async def swap(self, model: ModelConfig) -> Swap:
        """Never: an endpoint has no weights to swap."""
        return Swap(None, "")

    async def stop(self) -> None:
        """See :class:`~mtbench_ray.engines.base.Engine`."""
        await _on_loop(self._client.close())

    def _extra(self, sampling: TurnSampling) -> dict[str, Any]:
        # Values that do nothing are sent too: a server would take the model's generation_config
        # instead. Where a service takes none, the client leaves them out and says so.
        extra: dict[str, Any] = {
            "top_p": sampling.top_p,
            "top_k": sampling.top_k,
            "repetition_penalty": sampling.repetition_penalty,
        }
        if self._model.thinking in ("on", "off"):
            extra["chat_template_kwargs"] = {"enable_thinking": self._model.thinking == "on"}
        if self._model.stop_token_ids:
            extra["stop_token_ids"] = list(self._model.stop_token_ids)
        # A stop string could end the thinking; where there may be some, the answer is cut later.
        if sampling.stop and not self.thinking.split:
            extra["stop"] = list(sampling.stop)
        return extra


async def _on_loop(work: Coroutine[Any, Any, T]) -> T:
    """Run on the event loop of all endpoints; a cancelled wait cancels the work."""
    return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, background_loop()))


def _is_no_output(reply: Completion) -> bool:
    """Whether a request ended without a single token: the service's failure, not an answer."""
    nothing = not reply.text and not reply.reasoning and reply.output_tokens == 0
    return reply.status in ("empty", "truncated") and nothing


def _generation(reply: Completion) -> Generation:
    answered = reply.status in _ANSWERED
    return Generation(
        text=reply.text if answered else "",
        finish_reason=reply.finish_reason,
        prompt_tokens=reply.prompt_tokens or 0,
        output_tokens=reply.output_tokens or 0,
        sampling=reply.params,
        reasoning=reply.reasoning,
        status="ok" if answered else reply.status,
        error=None if answered else reply.error,
        served_model=reply.served_model,
        system_fingerprint=reply.system_fingerprint,
    )
