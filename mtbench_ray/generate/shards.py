"""What an engine takes at once: pending conversations cut into shards, and shards as text."""

from __future__ import annotations

import json
from collections.abc import Sequence
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


def join_adapters(work: Sequence[Work]) -> list[Work]:
    """Work of several adapters of one base (and of the base) as one: one engine interleaves it.

    The joined work's model is the one with the largest adapter, so that the engine has room for
    the others; every conversation names its own model.
    """
    groups: dict[str, list[Work]] = {}
    for item in work:
        base = replace(item.model, name="", adapter=None, content="")
        key = json.dumps([asdict(base), asdict(item.sampling), asdict(item.engine)])
        groups.setdefault(key, []).append(item)
    joined = []
    for group in groups.values():
        if len(group) < 2 or not any(item.model.adapter for item in group):
            joined += group
            continue
        from mtbench_ray.engines.vllm.arguments import adapter_rank

        largest = max(group, key=lambda item: adapter_rank(item.model))
        units = [
            replace(unit, model=None if item is largest else item.model)
            for item in group
            for unit in item.units
        ]
        # Interleaved: the engine sees all adapters from the first step on.
        units.sort(key=lambda unit: str(unit.question.question_id))
        joined.append(replace(largest, units=tuple(units)))
    return joined


def with_shares(work: Sequence[Work], replicas: int, threads: int) -> list[Work]:
    """Work whose engines know what each may take of a machine, and what its conversations need.

    Args:
        replicas: Engines in all: they may be on one machine, and share its memory.
        threads: For each where there is no GPU.
    """
    return [
        replace(
            item,
            engine=replace(
                item.engine,
                replicas=replicas,
                cpu_threads=threads,
                window=window_needed(
                    [unit.question for unit in item.units], item.sampling, item.model
                ),
            ),
        )
        for item in work
    ]


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
