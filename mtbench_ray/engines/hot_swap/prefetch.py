"""The next checkpoint, made ready for its swap while the engine answers for another one."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from mtbench_ray.config import EngineConfig, ModelConfig
from mtbench_ray.engines.hot_swap.page_cache import ReadAhead
from mtbench_ray.engines.hot_swap.staging import OVERHEAD_GB, StagedWeights, Staging
from mtbench_ray.engines.hot_swap.staging_process import StagingError
from mtbench_ray.engines.hot_swap.swap import Loaded, eligible, load_folder, proven
from mtbench_ray.engines.hot_swap.verify import distance
from mtbench_ray.engines.memory import free_memory
from mtbench_ray.errors import UserError
from mtbench_ray.models.chat_template import ChatTemplate, load_template
from mtbench_ray.models.checkpoint import Source, locate, weight_files
from mtbench_ray.models.layout import load_layout

_CACHE_SHARE = 1 / 3
"""Of the engine's memory that must be left for its key-value cache beside two checkpoints."""
_HOST_SHARE = 0.4
"""Of the host's free memory that the next checkpoints of all engines may take."""
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Ready:
    """What lies ready for a swap.

    Attributes:
        held: The new weights in staging memory; None where they come from their files.
        distance: Of the old weights' canary from a reference forward pass, in nats, where this
            could be had while the engine was answering.
        why: There is no staging memory after all; empty where none was meant to be.
    """

    held: StagedWeights | None = None
    distance: float | None = None
    why: str = ""


@dataclass
class Prefetched:
    """What is known of the next checkpoint, and what is being done for it.

    Attributes:
        new: Its files as they were when this was made.
        reason: Why it cannot be swapped in; empty: it may be tried.
        template: Being loaded.
    """

    model: ModelConfig
    new: Loaded
    reason: str
    template: asyncio.Task[ChatTemplate]
    _stamp: Stamp
    _reading: ReadAhead | None = None
    _ready: asyncio.Task[Ready] | None = None

    def read(self, staging: Staging | None, old: Loaded) -> None:
        """Begin to read its weights: into staging memory where there is some, else the page cache.

        Args:
            old: In the engine, with its canary.
        """
        if staging is None:
            self._reading = ReadAhead(self.model)
        else:
            self._ready = _task(self._hold(staging, old))

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

    @property
    def current(self) -> bool:
        """Whether its files are still the ones that were looked at, by their times and sizes."""
        try:
            return _stamp(self.new.folder) == self._stamp
        except OSError:
            return False

    async def _hold(self, staging: Staging, old: Loaded) -> Ready:
        far: float | None = None
        try:
            if old.canary is not None and not proven(old.layout):
                await staging.stage(old.folder)
                # Without it the swap asks the host, when no request runs any more.
                with contextlib.suppress(StagingError):
                    far = distance(old.canary, await staging.logprobs(old.canary.ids))
            return Ready(await staging.stage(self.new.folder), far)
        except StagingError as error:
            self._reading = ReadAhead(self.model)
            return Ready(None, far, str(error))


async def look_at_next(
    model: ModelConfig, old: Loaded, config: EngineConfig, *, adapters: bool
) -> Prefetched:
    """Begin to make a checkpoint ready; returns as soon as its headers are read.

    Args:
        old: What the engine holds, and answers for meanwhile.
        adapters: The engine was started for adapters.

    Raises:
        UserError: The model is missing or broken.
    """
    source = await asyncio.to_thread(locate, model)
    stamp = await asyncio.to_thread(_stamp, source.folder)
    new = await asyncio.to_thread(load_folder, source.folder)
    reason = eligible(old.layout, new.layout, config)
    if adapters or model.adapter:
        reason = "adapters"
    return Prefetched(model, new, reason, _task(chat_template(model, source, config)), stamp)


async def chat_template(model: ModelConfig, source: Source, config: EngineConfig) -> ChatTemplate:
    """See :func:`~mtbench_ray.models.chat_template.load_template`; takes a second or so."""
    return await asyncio.to_thread(
        load_template, model, trust_remote_code=config.trust_remote_code, source=source
    )


@dataclass(frozen=True, slots=True)
class Room:
    """Room for the next checkpoint's weights.

    Attributes:
        place: ``device``, ``host`` or ``files`` (none: they are read when they are needed).
        card_gb: Memory of the card that the engine has to leave free.
    """

    place: str
    card_gb: float = 0.0


def staging_room(
    model: ModelConfig, config: EngineConfig, folder: Path, card_gb: float | None
) -> Room:
    """Where the weights of a checkpoint like this one can wait for their swap.

    Args:
        card_gb: What an engine may take of its card in all; None without a GPU.

    Raises:
        UserError: ``engine.next_weights=device``, and there is no room for it; or a torn file.
    """
    layout = load_layout(folder)
    if model.adapter or config.next_weights == "files" or eligible(layout, layout, config):
        return Room("files")
    weights_gb = sum(file.stat().st_size for file in weight_files(folder)) / 2**30
    wanted = config.next_weights
    one_card = card_gb is not None and config.tensor_parallel * config.pipeline_parallel == 1
    if one_card and wanted != "host":
        assert card_gb is not None
        left = card_gb - 2 * weights_gb - OVERHEAD_GB
        if left >= _CACHE_SHARE * card_gb or (wanted == "device" and left > 0):
            return Room("device", weights_gb + OVERHEAD_GB)
    if wanted == "device":
        reason = "there is no GPU here"
        if card_gb is not None:
            reason = (
                f"{weights_gb:.0f} GB of weights do not fit twice into the {card_gb:.0f} GB of one "
                "card that an engine may take (engines over several cards cannot do this)"
            )
        raise UserError(
            f"engine.next_weights=device: {reason}",
            "leave it at auto, or write engine.next_weights=host",
        )
    fits = weights_gb * 2**30 * (config.replicas or 1) <= _HOST_SHARE * free_memory()
    return Room("host" if wanted == "host" or (card_gb is not None and fits) else "files")


Stamp = tuple[tuple[str, int, int, int], ...]


def _stamp(folder: Path) -> Stamp:
    """Names, inodes, sizes and times of a folder's files."""
    found = [(path, path.stat()) for path in sorted(folder.iterdir()) if path.is_file()]
    return tuple((path.name, at.st_ino, at.st_size, at.st_mtime_ns) for path, at in found)


def _task(work: Awaitable[_T]) -> asyncio.Task[_T]:
    task = asyncio.ensure_future(work)
    # Its error counts where it is awaited; a task that is dropped has none that matters.
    task.add_done_callback(lambda done: done.cancelled() or done.exception())
    return task
