"""Another checkpoint's weights in a running vLLM engine, in place, and proven.

An engine start takes tens of seconds, a swap takes what reading the files takes. But vLLM's reload
is silent where it fails: a missing tensor leaves the old one, a tied output head may stay as it
was, cached prefixes belong to the old weights. So a swap counts only with the proof of
:mod:`~mtbench_ray.engines.hot_swap.verify`; without it the engine is not used again.

The caller sees to it that no request runs meanwhile: pausing in vLLM queues or rejects requests
by version.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from mtbench_ray.config import EngineConfig
from mtbench_ray.engines.hot_swap.staging import StagedWeights, Staging
from mtbench_ray.engines.hot_swap.staging_process import StagingError
from mtbench_ray.engines.hot_swap.verify import (
    Canary,
    NoProof,
    canary,
    check_canary,
    check_distance,
    compare,
    distance,
    reference,
)
from mtbench_ray.models.checkpoint import folder_hash, tokenizer_hash
from mtbench_ray.models.layout import Layout, load_layout

_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
_proven: set[str] = set()
"""Architectures whose swap was once compared with a reference in this process."""
_excluded: dict[str, str] = {}
"""Architectures whose swap went wrong in this process, and how: not tried again."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """The checkpoint in an engine.

    Attributes:
        hash: Of the folder as it was when it was loaded: what lies there may be replaced.
        tokenizer: Hash of what makes ids of text and text of ids, chat templates included.
        canary: Taken before the first answer where a swap is to follow, else by the swap.
        distance: Of the canary from a forward pass in staging memory, in nats, where that was made.
    """

    folder: Path
    hash: str
    tokenizer: str
    layout: Layout
    canary: Canary | None = None
    distance: float | None = None


def load_folder(folder: Path) -> Loaded:
    """What a folder holds now, about to be loaded or just loaded.

    Raises:
        UserError: A file is torn.
    """
    return Loaded(folder, folder_hash(folder), tokenizer_hash(folder), load_layout(folder))


def exclude(layout: Layout, reason: str) -> str:
    """Never again swap checkpoints of this architecture in this process; gives the reason back."""
    _excluded.setdefault(layout.key, reason)
    return reason


def eligible(old: Layout, new: Layout, config: EngineConfig) -> str:
    """Why an engine that holds ``old`` cannot take ``new`` in place; empty: it may be tried."""
    if config.hot_swap == "off":
        return "engine.hot_swap=off"
    if config.quantization or old.quantised or new.quantised:
        return "quantised weights"
    if any(new.config.get(key) for key in _EXPERTS):
        return "a mixture of experts"
    if not new.text_only:
        return "more than a text model"
    if "auto_map" in new.config:
        return "code of its own"
    if old.config != new.config:
        keys = sorted(
            key
            for key in old.config.keys() | new.config.keys()
            if old.config.get(key) != new.config.get(key)
        )
        return f"another config.json: {', '.join(keys[:5])}"
    if not old.tensors or not new.tensors:
        return "no safetensors files here"
    if missing := old.tensors.keys() - new.tensors.keys():
        return f"{len(missing)} tensors are missing: {', '.join(sorted(missing)[:3])}"
    if more := new.tensors.keys() - old.tensors.keys():
        return f"{len(more)} tensors more: {', '.join(sorted(more)[:3])}"
    other = sorted(name for name, tensor in new.tensors.items() if old.tensors[name] != tensor)
    if other:
        return f"{len(other)} tensors of another shape or type: {', '.join(other[:3])}"
    if new.key in _excluded:
        return f"an earlier swap of this architecture failed: {_excluded[new.key]}"
    return ""


@dataclass(frozen=True, slots=True)
class Swapped:
    """A swap that was proven.

    Attributes:
        detail: The proof, for the run record.
    """

    loaded: Loaded
    detail: str


async def witness(llm: Any, loaded: Loaded) -> Loaded:
    """Weights that an engine start has loaded, compared, with their canary: the check itself is
    checked, and what comes after is measured by it.

    Raises:
        NoProof: They cannot be compared, or their files are gone.
        Exception: Whatever the engine raises when it is dead, or the file system.
    """
    if await asyncio.to_thread(folder_hash, loaded.folder) != loaded.hash:
        raise NoProof("the files that it was started with are no longer there")
    await compare(llm, loaded.folder, frozenset(loaded.layout.tensors))
    return replace(loaded, canary=await canary(llm))


def proven(layout: Layout) -> bool:
    """Whether a swap of this architecture was once compared with a reference in this process."""
    return layout.key in _proven


async def swap(
    llm: Any,
    old: Loaded,
    new: Loaded,
    staging: Staging | None = None,
    held: StagedWeights | None = None,
) -> Swapped:
    """Load ``new`` into a running engine and prove it. No request may run.

    Args:
        staging, held: Where the weights of ``new`` lie ready; else its files are read.

    Raises:
        NoProof: The engine does not hold the new weights for certain, or a step failed: it must not
            answer any more.
    """
    try:
        if old.canary is None:
            old = await witness(llm, old)
        assert old.canary is not None
        began = time.monotonic()
        place = await _load(llm, new.folder, held)
        there = time.monotonic()
        # What was loaded is what lay there before: nobody wrote to the folder meanwhile.
        still = asyncio.create_task(asyncio.to_thread(folder_hash, new.folder))
        still.add_done_callback(lambda done: done.cancelled() or done.exception())
        changed = await compare(llm, new.folder, frozenset(new.layout.tensors))
        after = await canary(llm)
        check_canary(after, old.canary, changed)
        detail = f"{len(new.layout.tensors)} tensors compared, {changed} changed"
        if not proven(new.layout):
            before, far = await _distances(old, new.folder, after, staging if held else None)
            check_distance(far, before)
            _proven.add(new.layout.key)
            detail += f"; {far:.2g} nats from a reference forward pass"
        if await still != new.hash:
            raise NoProof("the files changed while they were loaded")
    except NoProof as error:
        if error.lasting:
            exclude(new.layout, str(error))
        raise
    except Exception as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:300]
        raise NoProof(f"the swap failed: {reason}") from error
    detail += f"; from {place} in {there - began:.2f} s, proof {time.monotonic() - there:.2f} s"
    return Swapped(replace(new, canary=after), detail)


async def _distances(
    old: Loaded, folder: Path, after: Canary, staging: Staging | None
) -> tuple[float, float]:
    """Distances from a reference before and after a swap, both measured in the same way."""
    assert old.canary is not None
    if staging is not None and old.distance is not None:
        with contextlib.suppress(StagingError):
            return old.distance, distance(after, await staging.logprobs(after.ids))
    before = distance(old.canary, await reference(old.folder, old.canary.ids))
    return before, distance(after, await reference(folder, after.ids))


async def _load(llm: Any, folder: Path, held: StagedWeights | None = None) -> str:
    """Weights of a folder into the engine, and nothing of the old ones left in its cache.

    Returns:
        Where they came from.
    """
    place, mapped = "files", False
    if held is not None:
        # Mapping is apart: an engine that cannot map the memory still has its old weights whole.
        try:
            await llm.collective_rpc("mtbench_map", args=(held.place, held.handle))
            place, mapped = f"{held.place} memory", True
        except Exception as error:
            place = f"files ({held.place} memory: {' '.join(str(error).split())[:200]})"
    if held is not None and mapped:
        await llm.collective_rpc("mtbench_load", args=([list(entry) for entry in held.table],))
    else:
        await llm.collective_rpc("reload_weights", kwargs={"weights_path": str(folder)})
    if not await llm.reset_prefix_cache():
        raise NoProof("the prefix cache could not be dropped")
    return place


async def greedy(llm: Any) -> tuple[tuple[int, ...], ...]:
    """Tokens that an engine writes at temperature 0 after a few fixed prompts."""
    prompts = 3
    canaries = await asyncio.gather(*(canary(llm, 1 + n, answer=24) for n in range(prompts)))
    return tuple(c.ids for c in canaries)
