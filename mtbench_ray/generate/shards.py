"""What an engine takes at once: pending conversations cut into shards."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from mtbench_ray.config import EngineConfig, ModelConfig, SamplingConfig
from mtbench_ray.engines.base import Shard, ShardUnit
from mtbench_ray.errors import UserError
from mtbench_ray.models.checkpoint import weight_files
from mtbench_ray.models.window import window_needed


@dataclass(frozen=True)
class Work:
    """Conversations pending by one model."""

    model: ModelConfig
    sampling: SamplingConfig
    engine: EngineConfig
    units: tuple[ShardUnit, ...]


def join(work: Sequence[Work]) -> list[Work]:
    """Work that one engine does in one visit as one, its longest conversations first.

    That is all that is pending by a model, of whatever benchmark, and that of several adapters of
    one base (and of the base). What is not the joined work's own (model, sampling) stands in its
    conversations.
    """
    bases: dict[str, dict[str, list[Work]]] = {}
    for item in work:
        base = replace(item.model, name="", adapter=None, content="")
        engine = json.dumps(asdict(item.engine))
        same_base = json.dumps([asdict(base), engine])
        same_model = json.dumps([asdict(item.model), engine])
        bases.setdefault(same_base, {}).setdefault(same_model, []).append(item)
    joined = []
    for models in bases.values():
        by_model = [_merged(items[0], items) for items in models.values()]
        if len(by_model) > 1 and any(item.model.adapter for item in by_model):
            from mtbench_ray.engines.vllm.arguments import adapter_rank

            # It has the largest adapter, so that the engine has room for the others.
            largest = max(by_model, key=lambda item: adapter_rank(item.model))
            # One adapter after the other: a batch has room for those of a few only, and what is of
            # others would wait in the engine, and keep those out that need not.
            joined.append(_merged(largest, [_longest_first(item) for item in by_model]))
        else:
            joined += [_longest_first(item) for item in by_model]
    return joined


def _longest_first(item: Work) -> Work:
    return replace(item, units=tuple(sorted(item.units, key=_length(item), reverse=True)))


def _merged(lead: Work, items: Sequence[Work]) -> Work:
    """All conversations as the work of one of them."""
    units = [
        replace(
            unit,
            model=unit.model or (None if item.model == lead.model else item.model),
            sampling=None if sampling == lead.sampling else sampling,
        )
        for item in items
        for unit in item.units
        for sampling in (unit.sampling or item.sampling,)
    ]
    return replace(lead, units=tuple(units))


def _length(item: Work) -> Callable[[ShardUnit], tuple[int, int, int]]:
    """How long a conversation may take: its turns come one after the other."""

    def length(unit: ShardUnit) -> tuple[int, int, int]:
        sampling = unit.sampling or item.sampling
        texts = [*unit.question.turns, *(message.content for message in unit.question.context)]
        return len(unit.question.turns) - len(unit.done), sampling.cap, sum(map(len, texts))

    return length


def with_shares(work: Sequence[Work], replicas: int, threads: int) -> list[Work]:
    """Work whose engines know what each may take of a machine, and what its conversations need.

    Engines with the same settings get the same window and width, whatever is left of each model:
    one with others would have to be started anew.

    Args:
        replicas: Engines in all: they may be on one machine, and share its memory.
        threads: For each where there is no GPU.
    """
    windows: dict[str, int] = {}
    pieces: dict[str, int] = {}
    engines_each = max(1, replicas // max(1, len(work)))
    for item in work:
        settings = json.dumps(asdict(item.engine))
        windows[settings] = max(windows.get(settings, 0), _window(item))
        piece = -(-len(item.units) // engines_each)
        pieces[settings] = max(pieces.get(settings, 0), piece)
    return [
        replace(
            item,
            engine=replace(
                item.engine,
                replicas=replicas,
                cpu_threads=threads,
                window=windows[settings],
                piece=pieces[settings],
            ),
        )
        for item in work
        for settings in (json.dumps(asdict(item.engine)),)
    ]


def _window(item: Work) -> int:
    return max(
        window_needed([unit.question], unit.sampling or item.sampling, unit.model or item.model)
        for unit in item.units
    )


def make_shards(work: Sequence[Work], replicas: int, run_id: str) -> list[Shard]:
    """Cut work into what an engine takes at once, in the order in which it is to be begun.

    With as many models as replicas or more, a shard is a whole model: one engine start or swap
    each. With fewer, each model is split over its share of the replicas. The longest come first, so
    that none of them is alone at the end.
    """
    parts = max(1, replicas // max(1, len(work)))
    shards = []
    for item in work:
        count = min(parts, len(item.units))
        shards += [
            # Every count-th unit: each part gets a share of every category.
            Shard(item.model, item.sampling, item.engine, item.units[part::count], run_id)
            for part in range(count)
        ]
    sizes = _sizes(shards)
    return sorted(shards, key=lambda shard: -_turns_left(shard) * sizes[shard.model.path])


def _turns_left(shard: Shard) -> int:
    return sum(len(unit.question.turns) - len(unit.done) for unit in shard.units)


def _sizes(shards: Sequence[Shard]) -> dict[str, int]:
    """Bytes of the weights at each model path; all the same where some are not on this machine."""
    sizes = dict.fromkeys((shard.model.path for shard in shards), 0)
    for path in sizes:
        folder = os.path.expanduser(path)
        if os.path.isdir(folder):
            with contextlib.suppress(OSError, UserError):  # told when its turn comes
                sizes[path] = sum(file.stat().st_size for file in weight_files(Path(folder)))
    return sizes if all(sizes.values()) else dict.fromkeys(sizes, 1)
