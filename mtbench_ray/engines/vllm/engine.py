"""A model in vLLM's AsyncLLM, in this process and its children.

Prompts go in as ids and answers come out as ids: template, end tokens and decoding are the
checkpoint's own (:mod:`~mtbench_ray.models.chat_template`), whatever the engine was started with.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from mtbench_ray.config import EngineConfig, ModelConfig
from mtbench_ray.engines import fork_server as forks
from mtbench_ray.engines.base import Engine, Generation, Swap, ended_by_model, overflow
from mtbench_ray.engines.hot_swap.page_cache import ReadAhead
from mtbench_ray.engines.hot_swap.prefetch import Prefetched, chat_template, look_at_next
from mtbench_ray.engines.hot_swap.swap import Loaded, Swapped, exclude, greedy, swap, witness
from mtbench_ray.engines.hot_swap.verify import NoProof
from mtbench_ray.engines.phases import phase
from mtbench_ray.engines.vllm.arguments import (
    adapter_rank,
    gpu_memory_gb,
    on_gpu,
    set_environment,
)
from mtbench_ray.engines.vllm.core import Core, start_core
from mtbench_ray.errors import EngineFault, UserError
from mtbench_ray.models.chat_template import ChatTemplate
from mtbench_ray.models.checkpoint import folder_hash, locate
from mtbench_ray.models.sampling import TurnSampling
from mtbench_ray.schema import Message, canonical

_PATIENCE_S = 30.0
"""For a look at the next checkpoint's headers."""


class VllmEngine:
    """One model on a running vLLM engine, made by :meth:`start`, :meth:`adopt` or :meth:`swap`."""

    def __init__(self, core: Core, model: ModelConfig, template: ChatTemplate) -> None:
        self._core = core
        self._model = model
        self._template = template
        self._lora = core.lora(model)
        self.origin = core.origin
        self.template_hash = template.hash
        self.thinking = template.thinking
        self.remark = core.remark
        config = core.config
        self.gpu_memory_gb = (
            gpu_memory_gb(config.tensor_parallel * config.pipeline_parallel) if on_gpu() else None
        )

    @classmethod
    async def start(cls, model: ModelConfig, config: EngineConfig) -> VllmEngine:
        """Load a model; tens of seconds.

        Raises:
            UserError: Model or settings cannot work; found before weights are loaded.
            EngineFault: The engine did not start; no process of it is left.
        """
        set_environment(config)
        forks.begin() if config.fork_server else forks.end()
        # While Python imports, the disk is idle.
        reading = None if config.args.get("load_format") == "dummy" else ReadAhead(model)
        try:
            with phase("model files"):
                source = await asyncio.to_thread(locate, model)
            with phase("tokenizer"):
                template = await chat_template(model, source, config)
            core = await start_core(model, config, source, template.window)
        finally:
            if reading is not None:
                reading.stop()
        return cls(core, model, template)

    @property
    def under_way(self) -> int:
        """See :class:`~mtbench_ray.engines.base.Engine`."""
        return sum(self._core.under_way.values())

    async def generate(
        self,
        messages: Sequence[Message],
        sampling: TurnSampling,
        request_id: str,
        priority: int = 0,
    ) -> Generation:
        """See :class:`~mtbench_ray.engines.base.Engine`."""
        rendered = self._template.render(messages)
        room = self._core.window - len(rendered.ids)
        if room < 1:
            return overflow(len(rendered.ids), self._core.window)
        # A stop string could end the thinking; where there may be some, the answer is cut later.
        stop = () if self.thinking.split else self.thinking.stop
        used: dict[str, Any] = {
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "top_k": sampling.top_k,
            "repetition_penalty": sampling.repetition_penalty,
            "max_tokens": min(sampling.max_tokens, room),
            "seed": sampling.seed,
            "stop_token_ids": list(self._template.stop_ids),
        }
        if stop:
            used["stop"] = list(stop)
        # An aborted request of the same name may still be in the engine.
        name = f"{request_id}|{next(self._core.requests)}"
        ids, finish = await self._core.watch.guard(self._tokens(rendered.ids, used, name, priority))
        used["dtype"] = self._core.dtype
        if rendered.merged:
            used["system_merged"] = True
        return Generation(
            text=self._template.decode(ids),
            finish_reason=finish,
            prompt_tokens=len(rendered.ids),
            output_tokens=len(ids),
            sampling=canonical(used),
        )

    async def adopt(self, model: ModelConfig) -> Engine | None:
        """Another prompt set-up or another adapter of the same base, on the same engine.

        The same folder is not the same base where other weights lie in it by now.
        """
        core = self._core
        source = await asyncio.to_thread(locate, model)
        if adapter_rank(model) > core.largest_rank:
            return None
        if await asyncio.to_thread(folder_hash, source.folder) != core.loaded.hash:
            return None
        if model == self._model:
            return self
        return VllmEngine(core, model, await chat_template(model, source, core.config))

    async def prepare(self, model: ModelConfig) -> None:
        """See :class:`~mtbench_ray.engines.base.Engine`."""
        core = self._core
        core.drop_ahead()
        try:
            # A file system that hangs is the next checkpoint's trouble, not this one's.
            prefetched = core.prefetched = await asyncio.wait_for(
                self._prefetch(model), _PATIENCE_S
            )
        except Exception:
            return  # told when its turn comes
        if prefetched.reason or prefetched.new.hash == core.loaded.hash:
            prefetched.read(None, core.loaded)
            return
        if core.loaded.canary is None:
            # Swaps are measured by what the engine does now, while nothing else runs on it. Where
            # this fails the swap tries again, and says what is wrong.
            with contextlib.suppress(Exception):
                core.loaded = await asyncio.wait_for(
                    witness(core.llm, core.loaded), core.config.stall_s
                )
        prefetched.read(core.staging, core.loaded)

    async def _prefetch(self, model: ModelConfig) -> Prefetched:
        core = self._core
        return await look_at_next(model, core.loaded, core.config, adapters=bool(core.largest_rank))

    async def swap(self, model: ModelConfig) -> Swap:
        """See :class:`~mtbench_ray.engines.base.Engine`."""
        core = self._core
        # Taken: at the next swap to the same place other files may lie there.
        prefetched, core.prefetched = core.prefetched, None
        if prefetched is None or prefetched.model != model or not prefetched.current:
            if prefetched is not None:
                prefetched.drop()
            prefetched = await self._prefetch(model)
        try:
            new, reason, template = prefetched.new, prefetched.reason, await prefetched.template
        except UserError:
            prefetched.drop()
            raise
        if template.thinking.stop and core.loaded.tokenizer != new.tokenizer:
            # The engine looks for stop strings in what the tokenizer of its start makes of ids.
            reason = reason or "stop strings and another tokenizer"
        if reason:
            return Swap(None, f"no swap: {reason}")
        try:
            done = await asyncio.wait_for(self._load(prefetched), core.config.start_timeout_s)
        except BaseException as error:
            core.watch.fault(EngineFault("a swap of weights was not completed"))
            if isinstance(error, NoProof):
                return Swap(None, f"swap given up: {error}")
            if isinstance(error, TimeoutError):
                return Swap(None, "swap given up: it took longer than engine.start_timeout_s")
            raise
        core.loaded, core.origin = done.loaded, "swap"
        if core.config.hot_swap == "verify":
            return await self._verify(done.detail, done.loaded)
        return Swap(VllmEngine(core, model, template), done.detail)

    async def _load(self, prefetched: Prefetched) -> Swapped:
        core = self._core
        ready = await prefetched.ready()
        if ready.distance is not None:
            core.loaded = replace(core.loaded, distance=ready.distance)
        done = await swap(core.llm, core.loaded, prefetched.new, core.staging, ready.held)
        return replace(done, detail=f"{done.detail}; {ready.why}") if ready.why else done

    async def _verify(self, detail: str, loaded: Loaded) -> Swap:
        """Leave it to a fresh engine to answer, and to say whether this one would have done so."""
        core = self._core
        expected = await greedy(core.llm)

        async def check(fresh: Engine) -> str:
            assert isinstance(fresh, VllmEngine)
            if await greedy(fresh._core.llm) == expected:
                return f"swap verified: the same tokens ({detail})"
            return exclude(loaded.layout, "a swap gave other tokens than a fresh engine")

        return Swap(None, "engine.hot_swap=verify", check)

    async def stop(self) -> None:
        """See :class:`~mtbench_ray.engines.base.Engine`."""
        await self._core.stop()

    async def _tokens(
        self, prompt: tuple[int, ...], used: dict[str, Any], request_id: str, priority: int
    ) -> tuple[list[int], str]:
        """Run one request to its end.

        Raises:
            EngineFault: The engine is dead. Other errors are of this request alone.
            NoOutput: There is no answer.
        """
        from vllm import SamplingParams
        from vllm.inputs import tokens_input
        from vllm.sampling_params import RequestOutputKind

        params = SamplingParams(
            **used,
            # The end token of the model that the engine was started with may not be this one's.
            ignore_eos=True,
            detokenize="stop" in used,
            output_kind=RequestOutputKind.DELTA,
        )
        ids: list[int] = []
        finish: str | None = None
        try:
            async for output in self._core.llm.generate(
                tokens_input(list(prompt)),
                params,
                request_id,
                lora_request=self._lora,
                priority=priority,
            ):
                self._core.watch.beat()
                if output.outputs:
                    ids.extend(output.outputs[0].token_ids)
                    self._core.under_way[request_id] = len(ids)
                    finish = output.outputs[0].finish_reason
        except Exception as error:
            if self._core.llm.errored:
                fault = self._core.fault(error)
                self._core.watch.fault(fault)
                raise fault from error
            raise
        finally:
            self._core.under_way.pop(request_id, None)
        return ids, ended_by_model(finish, len(ids))
