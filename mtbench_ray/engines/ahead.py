"""The next checkpoint, made ready for its swap while the engine answers for another one."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from mtbench_ray.config import EngineConfig, ModelConfig
from mtbench_ray.engines.checkpoint import Source, locate, weight_files
from mtbench_ray.engines.memory import free_memory
from mtbench_ray.engines.proof import NoProof, distance
from mtbench_ray.engines.readahead import ReadAhead
from mtbench_ray.engines.spare import OVERHEAD_GB, Held, Spare, SpareError
from mtbench_ray.engines.swap import Loaded, eligible, load_folder, proven
from mtbench_ray.engines.template import ChatTemplate, load_template

_CACHE_SHARE = 1 / 3
"""Of the engine's memory that must be left for its key-value cache beside two checkpoints."""
_HOST_SHARE = 0.4
"""Of the host's free memory that the next checkpoints of all engines may take."""
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Ready:
    """What lies ready for a swap.

    Attributes:
        held: The new weights in spare memory; None where they come from their files.
        distance: Of the old weights' canary from a reference forward pass, in nats, where this
            could be had while the engine was answering.
        why: There is no spare memory after all; empty where none was meant to be.
    """

    held: Held | None = None
    distance: float | None = None
    why: str = ""


@dataclass
class Ahead:
    """What is known of the next checkpoint, and what is being done for it.

    Attributes:
        new: Its files as they are now.
        reason: Why it cannot be swapped in; empty: it may be tried.
        template: Being loaded.
    """

    model: ModelConfig
    new: Loaded
    reason: str
    template: asyncio.Task[ChatTemplate]
    _reading: ReadAhead | None = None
    _ready: asyncio.Task[Ready] | None = None

    def read(self, spare: Spare | None, old: Loaded) -> None:
        """Begin to read its weights: into spare memory where there is some, else the page cache.

        Args:
            old: In the engine, with its canary.
        """
        if spare is None:
            self._reading = ReadAhead(self.model)
        else:
            self._ready = _task(self._hold(spare, old))

    async def ready(self) -> Ready:
        """What lies ready, once nothing more is under way."""
        return await self._ready if self._ready is not None else Ready()

    def drop(self) -> None:
        """Stop what is being done for it."""
        self.template.cancel()
        if self._ready is not None:
            self._ready.cancel()
        if self._reading is not None:
            self._reading.stop()

    async def _hold(self, spare: Spare, old: Loaded) -> Ready:
        far: float | None = None
        try:
            if old.canary is not None and not proven(old.layout):
                await spare.load(old.folder)
                with contextlib.suppress(NoProof):
                    far = await distance(old.canary, old.folder, spare)
            return Ready(await spare.load(self.new.folder), far)
        except SpareError as error:
            self._reading = ReadAhead(self.model)
            return Ready(None, far, str(error))


async def look_ahead(
    model: ModelConfig, old: Loaded, config: EngineConfig, *, adapters: bool
) -> Ahead:
    """Begin to make a checkpoint ready; returns as soon as its headers are read.

    Args:
        old: What the engine holds, and answers for meanwhile.
        adapters: The engine was started for adapters.

    Raises:
        UserError: The model is missing or broken.
    """
    source = await asyncio.to_thread(locate, model)
    new = await asyncio.to_thread(load_folder, source.folder)
    reason = eligible(old.layout, new.layout, config)
    if adapters or model.adapter:
        reason = "adapters"
    return Ahead(model, new, reason, _task(chat_template(model, source, config)))


async def chat_template(model: ModelConfig, source: Source, config: EngineConfig) -> ChatTemplate:
    """See :func:`~mtbench_ray.engines.template.load_template`; takes a second or so."""
    return await asyncio.to_thread(
        load_template, model, trust_remote_code=config.trust_remote_code, source=source
    )


def reserve_gb(config: EngineConfig, folder: Path, memory_gb: float) -> float:
    """Memory of one card to leave to the next checkpoint, in GB; 0 where it does not fit.

    Args:
        memory_gb: What the engine may take of the card in all.
    """
    if config.hot_swap == "off" or config.tensor_parallel * config.pipeline_parallel > 1:
        return 0.0
    weights = weights_gb(folder)
    if not weights or config.next_weights not in ("auto", "device"):
        return 0.0
    left = memory_gb - 2 * weights - OVERHEAD_GB
    if left < _CACHE_SHARE * memory_gb and config.next_weights == "auto":
        return 0.0
    return weights + OVERHEAD_GB


def weights_gb(folder: Path) -> float:
    """Size of a folder's weight files."""
    return sum(file.stat().st_size for file in weight_files(folder)) / 2**30


def spare_place(config: EngineConfig, folder: Path, reserved_gb: float, *, gpu: bool) -> str:
    """Where the next checkpoint is to wait: ``device``, ``host`` or ``files``."""
    if reserved_gb:
        return "device"
    if config.hot_swap == "off" or config.next_weights not in ("auto", "host"):
        return "files"
    weights = weights_gb(folder)
    if config.next_weights == "host":
        return "host" if weights else "files"
    fits = 0 < weights * 2**30 * (config.replicas or 1) <= _HOST_SHARE * free_memory()
    return "host" if gpu and fits else "files"


def _task(work: Awaitable[_T]) -> asyncio.Task[_T]:
    task = asyncio.ensure_future(work)
    # Its error counts where it is awaited; a task that is dropped has none that matters.
    task.add_done_callback(lambda done: done.cancelled() or done.exception())
    return task
