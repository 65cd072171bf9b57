"""The Ray Data graph: shards in, turn rows out, each as soon as it is there.

Only this module imports ray.data. A shard (some conversations of one checkpoint) is one input row;
an engine actor turns it into many output rows. Two settings make them stream: an output block per
row, and a generator buffer that does not hold the actor back (the defaults deliver rows seconds
late and slow generation down).

Judging is not part of the graph: rows reach the driver, which writes them, and only then are they
judged. So no answer is lost while it waits for a slow judge, and no key leaves the driver.
"""

from __future__ import annotations

import json
import logging
import os
import queue
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from mtbench_ray.config import ClusterConfig, EngineConfig, ModelConfig, SamplingConfig
from mtbench_ray.engines.base import Output, Shard, ShardUnit
from mtbench_ray.engines.worker import ShardWorker
from mtbench_ray.errors import UserError
from mtbench_ray.schema import EngineEvent, Question, Turn, decode, encode


@dataclass(frozen=True)
class Work:
    """Conversations owed by one model."""

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
        base = replace(item.model, name="", adapter=None)
        key = json.dumps([asdict(base), asdict(item.sampling), asdict(item.engine)])
        groups.setdefault(key, []).append(item)
    joined = []
    for group in groups.values():
        if len(group) < 2 or not any(item.model.adapter for item in group):
            joined += group
            continue
        from mtbench_ray.engines.vllm_args import adapter_rank

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


def make_shards(work: Sequence[Work], replicas: int, run_id: str) -> list[Shard]:
    """Cut work into what an engine takes at once.

    With as many models as replicas or more, a shard is a whole model: one engine start or swap
    each. With fewer, each model is split over its share of the replicas. The longest shards come
    first, so that none of them is alone at the end.
    """
    work = join_adapters(work)
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


class EngineActor:
    """Ray Data UDF around a worker: a plain generator, since an async one would not stream."""

    def __init__(self) -> None:
        self.worker = ShardWorker()

    def __call__(self, batch: dict[str, Any]) -> Iterator[dict[str, list[str]]]:
        """Answer one shard; yields one-row batches of a turn or an engine event as JSON."""
        for output in self.worker.run(shard_from_json(str(batch["shard"][0]))):
            kind = "turn" if isinstance(output, Turn) else "event"
            yield {"kind": [kind], "row": [encode(output)]}

    def __ray_shutdown__(self) -> None:
        """End the engine with the actor."""
        self.worker.close()


def needs_ray(engine: EngineConfig, cluster: ClusterConfig) -> bool:
    """Whether the answers of an engine come through Ray: an endpoint needs no actors."""
    return engine.kind == "vllm" or cluster.ray == "always"


def start_ray(cluster: ClusterConfig) -> None:
    """Start Ray on this machine, or join the cluster that is named.

    Raises:
        UserError: The named cluster cannot be reached.
    """
    import ray

    if ray.is_initialized():
        return
    # Its core worker prints advice to the developers of Ray Data; logs keep everything.
    os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")
    address = cluster.address or os.environ.get("RAY_ADDRESS")
    options: dict[str, Any] = {
        "namespace": cluster.namespace,
        "log_to_driver": False,
        "logging_level": logging.WARNING,
    }
    if address is None:
        # Actors import this package from where the driver did, installed or not.
        here = str(Path(__file__).resolve().parents[1])
        paths = os.environ.get("PYTHONPATH", "").split(os.pathsep)
        if here not in paths:
            os.environ["PYTHONPATH"] = os.pathsep.join([here, *filter(None, paths)])
        options |= {
            "include_dashboard": False,
            "num_cpus": cluster.num_cpus,
            "num_gpus": cluster.num_gpus,
        }
    try:
        ray.init(address=address, **options)
    except (ConnectionError, TimeoutError, ValueError, RuntimeError) as error:
        raise UserError(
            f"Ray at {address or 'this machine'} cannot be reached: {error}",
            "check cluster.address and RAY_ADDRESS, or unset both to start Ray here",
        ) from None


def count_replicas(engine: EngineConfig, cluster: ClusterConfig, models: int, units: int) -> int:
    """Engines to start: what is asked for, or what the cluster's GPUs allow.

    Raises:
        UserError: More GPUs are asked for than the cluster has, with need and have.
    """
    if not needs_ray(engine, cluster):
        return min(engine.replicas or 1, max(1, units))
    import ray

    per_engine = engine.tensor_parallel * engine.pipeline_parallel
    gpus = int(ray.cluster_resources().get("GPU", 0))
    if engine.kind == "fake" or (gpus == 0 and per_engine == 1):
        return min(engine.replicas or 1, max(1, units))
    need = (engine.replicas or 1) * per_engine
    deadline = time.monotonic() + (cluster.wait_s if cluster.address else 0.0)
    while gpus < need and time.monotonic() < deadline:
        time.sleep(1.0)
        gpus = int(ray.cluster_resources().get("GPU", 0))
    biggest = max((int(node["Resources"].get("GPU", 0)) for node in ray.nodes()), default=0)
    if gpus < need or biggest < per_engine:
        raise UserError(
            f"{need} GPUs are needed ({engine.replicas or 1} engines of {per_engine}) and the"
            f" cluster has {gpus}, at most {biggest} on one node",
            "lower engine.replicas or engine.tensor_parallel, or add nodes",
        )
    return min(engine.replicas or gpus // per_engine, max(models, 1) * max(1, units))


def stream(
    shards: Sequence[Shard], replicas: int, cluster: ClusterConfig, stop: threading.Event
) -> Iterator[Output]:
    """Answers of all shards as they come; ends early once ``stop`` is set."""
    if not shards:
        return
    engine = shards[0].engine
    if needs_ray(engine, cluster):
        yield from _stream_ray(shards, replicas, engine, stop)
    else:
        yield from _stream_here(shards, replicas, stop)


def _stream_ray(
    shards: Sequence[Shard], replicas: int, engine: EngineConfig, stop: threading.Event
) -> Iterator[Output]:
    import ray
    import ray.data

    context = ray.data.DataContext.get_current()
    context.target_max_block_size = 1
    context._max_num_blocks_in_streaming_gen_buffer = 256
    context.execution_options.preserve_order = False
    context.enable_progress_bars = False
    context.print_on_execution_start = False
    for noisy in ("ray.data", "ray.data._internal.progress"):
        logging.getLogger(noisy).setLevel(logging.ERROR)
    gpus = int(ray.cluster_resources().get("GPU", 0)) if engine.kind == "vllm" else 0
    per_engine = engine.tensor_parallel * engine.pipeline_parallel if gpus else 0
    rows = [{"shard": shard_to_json(shard)} for shard in shards]
    dataset = ray.data.from_items(rows, override_num_blocks=len(rows)).map_batches(
        EngineActor,
        batch_size=1,
        num_cpus=0.1,
        num_gpus=per_engine,
        compute=ray.data.ActorPoolStrategy(
            size=min(replicas, len(shards)),
            max_tasks_in_flight_per_actor=1,
            max_concurrent_calls_per_actor=1,
        ),
    )
    for row in dataset.iter_rows():
        fields = json.loads(row["row"])
        yield decode(Turn, fields) if row["kind"] == "turn" else decode(EngineEvent, fields)
        if stop.is_set():
            return


def _stream_here(shards: Sequence[Shard], replicas: int, stop: threading.Event) -> Iterator[Output]:
    """The same workers in threads of this process: an endpoint needs no actor and no start."""
    todo: queue.SimpleQueue[Shard] = queue.SimpleQueue()
    for shard in shards:
        todo.put(shard)
    outputs: queue.SimpleQueue[Output | BaseException | None] = queue.SimpleQueue()
    workers = min(replicas, len(shards))

    def work() -> None:
        worker = ShardWorker()
        try:
            while not stop.is_set():
                try:
                    shard = todo.get_nowait()
                except queue.Empty:
                    break
                for output in worker.run(shard):
                    outputs.put(output)
        except BaseException as error:
            outputs.put(error)
        finally:
            worker.close()
            outputs.put(None)

    for index in range(workers):
        threading.Thread(target=work, name=f"engine-{index}", daemon=True).start()
    while workers:
        output = outputs.get()
        if output is None:
            workers -= 1
        elif isinstance(output, BaseException):
            raise output
        elif stop.is_set():
            return
        else:
            yield output
