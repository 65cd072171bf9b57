"""What an engine takes at once: pending conversations cut into shards, and shards as text."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace

from mtbench_ray.config import EngineConfig, ModelConfig, SamplingConfig
from mtbench_ray.engines.base import Shard, ShardUnit
from mtbench_ray.models.window import window_needed
from mtbench_ray.schema import Question, Turn, decode


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
    one base (and of the base), which the engine interleaves. What is not the joined work's own
    (model, sampling) stands in its conversations.
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
            one = _merged(largest, by_model)
            # Interleaved: the engine sees all adapters from the first step on.
            units = sorted(one.units, key=lambda unit: str(unit.question.question_id))
            by_model = [replace(one, units=tuple(units))]
        joined += [
            replace(item, units=tuple(sorted(item.units, key=_length(item), reverse=True)))
            for item in by_model
        ]
    return joined


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

    Engines with the same settings get the same window, whatever is left of each model: one with
    another would have to be started anew.

    Args:
        replicas: Engines in all: they may be on one machine, and share its memory.
        threads: For each where there is no GPU.
    """
    windows: dict[str, int] = {}
    for item in work:
        settings = json.dumps(asdict(item.engine))
        windows[settings] = max(windows.get(settings, 0), _window(item))
    return [
        replace(
            item,
            engine=replace(
                item.engine,
                replicas=replicas,
                cpu_threads=threads,
                window=windows[json.dumps(asdict(item.engine))],
            ),
        )
        for item in work
    ]


def _window(item: Work) -> int:
    return max(
        window_needed([unit.question], unit.sampling or item.sampling, unit.model or item.model)
        for unit in item.units
    )


def make_shards(work: Sequence[Work], replicas: int, run_id: str) -> list[Shard]:
    """Cut work into what an engine takes at once.

    With as many models as replicas or more, a shard is a whole model: one engine start or swap
    each. With fewer, each model is split over its share of the replicas. The longest shards come
    first, so that none of them is alone at the end.
    """
    parts = max(1, replicas // max(1, len(work)))
    shards = []
    for index, item in enumerate(work):
        count = min(parts, len(item.units))
        following = work[index + replicas].model if index + replicas < len(work) else None
        shards += [
            # Every count-th unit: each part gets a share of every category.
            Shard(
                item.model, item.sampling, item.engine, item.units[part::count], run_id, following
            )
            for part in range(count)
        ]
    return sorted(shards, key=lambda shard: -len(shard.units))


def shard_to_json(shard: Shard) -> str:
    """A shard as text: Arrow would infer a schema from the first row and lose keys of others."""
    return json.dumps(asdict(shard), ensure_ascii=True)


def shard_from_json(text: str) -> Shard:
    """The reverse of :func:`shard_to_json`."""
    data = json.loads(text)
    units = tuple(
        ShardUnit(
            decode(Question, unit["question"]),
            unit["sample"],
            unit["answer_id"],
            tuple(decode(Turn, turn) for turn in unit["done"]),
            ModelConfig(**unit["model"]) if unit["model"] else None,
            SamplingConfig(**unit["sampling"]) if unit["sampling"] else None,
        )
        for unit in data["units"]
    )
    following = data["next_model"]
    return Shard(
        ModelConfig(**data["model"]),
        SamplingConfig(**data["sampling"]),
        EngineConfig(**data["engine"]),
        units,
        data["run_id"],
        ModelConfig(**following) if following else None,
    )
