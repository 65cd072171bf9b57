"""A running vLLM engine: how it is started and ended, whatever model it answers for."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from mtbench_ray.config import EngineConfig, ModelConfig
from mtbench_ray.engines import fork_server as forks
from mtbench_ray.engines.hot_swap.prefetch import Prefetched, Room, staging_room
from mtbench_ray.engines.hot_swap.staging import Staging
from mtbench_ray.engines.hot_swap.swap import Loaded, load_folder
from mtbench_ray.engines.phases import Phase, keep, phase
from mtbench_ray.engines.processes import Children, Output
from mtbench_ray.engines.vllm.arguments import (
    check_fits,
    engine_arguments,
    engine_share_gb,
    on_gpu,
    set_threads,
    weights_dtype,
)
from mtbench_ray.engines.watch import Watch
from mtbench_ray.errors import EngineFault, UserError
from mtbench_ray.models.checkpoint import Source, adapter_folder
from mtbench_ray.models.layout import load_layout

_STOP_S = 20.0
"""Patience with an engine that is asked to end, before its processes are killed."""
_ABANDON_S = 60.0
"""Patience with a start that was given up, until its thread has noticed; twice, see there."""
_PHASES_S = 10.0
_HOPELESS = ("ValueError", "ValidationError", "NotImplementedError", "KeyError", "AssertionError")
"""Errors of a start that the same settings would meet again."""
_TOO_SMALL = "No available memory for the cache blocks"


@dataclass
class Core:
    """A running AsyncLLM, shared by the models that it answers for.

    Attributes:
        loaded: The checkpoint that it holds.
        window: Context window in tokens.
        staging: The memory where the next checkpoint waits for its swap; None: its files are read.
        origin: How the weights came in: ``cold`` or ``swap``.
        prefetched: The checkpoint that comes next.
        dtype: Of the weights, as vLLM has it.
        remark: What a user should know of how it was started.
        under_way: Tokens of each request that runs.
    """

    llm: Any
    loaded: Loaded
    config: EngineConfig
    children: Children
    output: Output
    watch: Watch
    window: int
    largest_rank: int
    staging: Staging | None
    origin: str = "cold"
    prefetched: Prefetched | None = None
    dtype: str = ""
    remark: str = ""
    under_way: dict[str, int] = field(default_factory=dict)
    adapters: dict[str, int] = field(default_factory=dict)
    requests: Iterator[int] = field(default_factory=itertools.count)

    def lora(self, model: ModelConfig) -> Any:
        """The request for a model's adapter, None where it has none."""
        folder = adapter_folder(model)
        if folder is None:
            return None
        from vllm.lora.request import LoRARequest

        number = self.adapters.setdefault(str(folder), len(self.adapters) + 1)
        return LoRARequest(
            lora_name=f"adapter-{number}", lora_int_id=number, lora_path=str(folder.resolve())
        )

    async def stop(self) -> None:
        """End the engine, its processes and what was being done for the next checkpoint."""
        self.watch.fault(EngineFault("engine was stopped"))
        self.watch.close()
        self.drop_ahead()
        self.children.look()
        # A hung engine never answers; whatever shutdown does or says, its processes end below.
        with contextlib.suppress(Exception):
            await asyncio.wait_for(asyncio.to_thread(self.llm.shutdown), _STOP_S)
        # Dropped now: at the interpreter's end its own clean-up would trip over missing modules.
        self.llm = None
        await asyncio.to_thread(self.children.end)
        if self.staging is not None:
            await asyncio.to_thread(self.staging.close)

    def drop_ahead(self) -> None:
        """Stop what is being done for the next checkpoint, and forget it."""
        if self.prefetched is not None:
            self.prefetched.drop()
            self.prefetched = None

    def fault(self, error: BaseException) -> EngineFault:
        """The engine's own words for its death, as far as they can be had."""
        self.children.look()
        message = self.output.last_error() or f"{type(error).__name__}: {error}"
        if self.children.lost:
            message += " (a process of the engine is gone: killed, or out of host memory?)"
        return EngineFault(message)


async def start_core(
    model: ModelConfig, config: EngineConfig, source: Source, window: int | None
) -> Core:
    """Start vLLM's processes and load a model.

    Args:
        window: Context window of the model in tokens, None where unknown.

    Raises:
        UserError: The settings cannot work; found before weights are loaded.
        EngineFault: The engine did not start; no process of it is left.
    """
    staging: Staging | None = None
    try:
        # The first import of vllm takes seconds.
        with phase("settings"):
            arguments, room, remark = await asyncio.to_thread(
                _prepare, model, config, source, window
            )
        # Before the engine's own processes, so that it is none of them.
        if room.place != "files":
            # Without it the files are read when they are needed.
            with contextlib.suppress(OSError), phase("staging memory"):
                staging = await asyncio.wait_for(_staging(room.place), config.start_timeout_s)
        llm, loaded, children = await _start(arguments, config, source)
    except BaseException:
        if staging is not None:
            await asyncio.to_thread(staging.close)
        raise
    return Core(
        llm=llm,
        loaded=loaded,
        config=config,
        children=children,
        output=Output(),
        watch=Watch(config.stall_s, None if on_gpu() else children.cpu_s),
        window=int(llm.model_config.max_model_len),
        largest_rank=int(arguments.get("max_lora_rank", 0)),
        staging=staging,
        dtype=str(llm.model_config.dtype).removeprefix("torch."),
        remark=remark,
    )


async def _start(
    arguments: dict[str, Any], config: EngineConfig, source: Source
) -> tuple[Any, Loaded, Children]:
    children, output = Children(), Output()
    began = time.monotonic()
    starting = asyncio.ensure_future(asyncio.to_thread(_build, arguments))
    try:
        llm = await asyncio.wait_for(asyncio.shield(starting), config.start_timeout_s)
        # Only now are the files of a hub id here.
        loaded = await asyncio.to_thread(load_folder, source.folder)
    except BaseException as error:
        await _abandon(starting, children)
        if isinstance(error, TimeoutError):
            waited = time.monotonic() - began
            message = f"not up after {waited:.0f} s (engine.start_timeout_s)"
            raise EngineFault(message, fatal=True) from None
        if isinstance(error, Exception):
            raise _start_fault(error, output) from error
        raise
    children.claim()
    await _keep_phases(llm)
    return llm, loaded, children


async def _keep_phases(llm: Any) -> None:
    """Keep what the first worker knows of the start's parts, for the timeline."""
    with contextlib.suppress(Exception):  # engine.hot_swap=off: it has no such method
        (first, *_) = await asyncio.wait_for(llm.collective_rpc("mtbench_phases"), _PHASES_S)
        keep(*(Phase(name, ended, seconds) for name, ended, seconds in first))


def _prepare(
    model: ModelConfig, config: EngineConfig, source: Source, window: int | None
) -> tuple[dict[str, Any], Room, str]:
    """Engine arguments, the room that they leave to the next checkpoint, and what to tell."""
    set_threads(config)
    if "numa_bind" not in config.args:  # which binds processes while they are spawned
        forks.serve_vllm()
    share_gb = engine_share_gb(config)
    layout = load_layout(source.folder)
    check_fits(layout, config, share_gb)
    dtype = weights_dtype(config, layout)
    room = staging_room(model, config, source.folder, share_gb)
    arguments = engine_arguments(
        model, replace(config, dtype=dtype.name), source, window, room.card_gb
    )
    return arguments, room, dtype.why


def _build(arguments: dict[str, Any]) -> Any:
    """Start the engine's processes and load the weights; blocks."""
    with phase("import of vLLM"):
        from vllm.engine.arg_utils import AsyncEngineArgs
        from vllm.v1.engine.async_llm import AsyncLLM

    with phase("vLLM's processes, weights, graphs"):
        return AsyncLLM.from_engine_args(AsyncEngineArgs(**arguments))


async def _staging(place: str) -> Staging:
    making = asyncio.ensure_future(asyncio.to_thread(Staging, place))
    try:
        return await asyncio.shield(making)
    except asyncio.CancelledError:
        making.add_done_callback(_close)
        raise


def _close(made: asyncio.Future[Staging]) -> None:
    if made.exception() is None:
        made.result().close()


async def _abandon(starting: asyncio.Future[Any], children: Children) -> None:
    """End a start, whatever it has come to: no process of it is left, nor comes up later."""
    end = time.monotonic() + _ABANDON_S
    while True:
        done = starting.done()
        children.claim()
        # The thread that starts the engine cannot be stopped, but it ends when its children do.
        await asyncio.to_thread(children.end)
        if done or time.monotonic() > end + _ABANDON_S:
            break
        if time.monotonic() > end:
            forks.end()  # it may wait for the first child
        await asyncio.sleep(0.2)
    if starting.done() and not starting.cancelled() and starting.exception() is None:
        starting.result().shutdown()


def _start_fault(error: Exception, output: Output) -> Exception:
    if isinstance(error, UserError | EngineFault):
        return error
    message = output.last_error() or " ".join(f"{type(error).__name__}: {error}".split())[:500]
    hopeless = message.split(":")[0] in _HOPELESS or type(error).__name__ in _HOPELESS
    # Memory may still be held by what ran before; a share that the weights fill is too small for
    # good.
    fatal = hopeless and ("memory" not in message.lower() or _TOO_SMALL in message)
    return EngineFault(message, fatal=fatal)
