"""Small shards of our own questions, and a way to run them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mtbench_ray.config import EngineConfig, ModelConfig, SamplingConfig
from mtbench_ray.engines.base import Output, Shard, ShardUnit
from mtbench_ray.generate.claims import Following
from mtbench_ray.generate.worker import ShardWorker
from mtbench_ray.schema import EngineEvent, Question, Turn


def question(number: int, category: str = "writing") -> Question:
    return Question(
        "mt_bench", number, category, (f"Say something on {number}.", f"Say more on {number}.")
    )


def make_shard(
    numbers: Sequence[int],
    *,
    model: ModelConfig | None = None,
    sampling: SamplingConfig | None = None,
    samples: int = 1,
    done: dict[str, tuple[Turn, ...]] | None = None,
    **engine: Any,
) -> Shard:
    """A shard of the fake engine, unless ``kind`` says otherwise."""
    units = tuple(
        ShardUnit(
            question(n),
            sample,
            f"answer-{n}-{sample}",
            (done or {}).get(f"answer-{n}-{sample}", ()),
        )
        for n in numbers
        for sample in range(samples)
    )
    return Shard(
        model=model or ModelConfig(path="fake/model"),
        sampling=sampling or SamplingConfig(max_tokens=64),
        engine=EngineConfig(**({"kind": "fake"} | engine)),
        units=units,
        run_id="run-1",
    )


def run_shard(
    shard: Shard, worker: ShardWorker | None = None, following: Following | None = None
) -> list[Output]:
    own = worker or ShardWorker()
    try:
        return list(own.run(shard, following))
    finally:
        if worker is None:
            own.close()


def rows_of(outputs: Sequence[Output]) -> dict[tuple[str, int], Turn]:
    """Turns by key; a turn that came twice is a failure of the test."""
    rows = [row for row in outputs if isinstance(row, Turn)]
    by_key = {(row.answer_id, row.turn): row for row in rows}
    assert len(by_key) == len(rows), "a turn came twice"
    return by_key


def events_of(outputs: Sequence[Output]) -> list[str]:
    return [event.kind for event in outputs if isinstance(event, EngineEvent)]
