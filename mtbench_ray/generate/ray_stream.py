"""The Ray Data graph: shards in, turn rows out, each as soon as it is there.

Only this module imports ray.data. A shard (some conversations of one checkpoint) is one input row;
an engine actor turns it into many output rows. Two settings make them stream: an output block per
row, and a generator buffer that does not hold the actor back (the defaults deliver rows seconds
late and slow generation down).

Judging is not part of the graph: rows reach the driver, which writes them, and only then are they
judged. So no answer is lost while it waits for a slow judge, and no key leaves the driver.
"""

from __future__ import annotations

import contextlib
import functools
import json
import logging
import os
import platform
import queue
import sys
import threading
import traceback
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from mtbench_ray.config import ClusterConfig
from mtbench_ray.engines.base import Output, Shard
from mtbench_ray.errors import EngineFault
from mtbench_ray.generate.actor_failures import (
    ACTOR_CPUS,
    NodeWatch,
    TaskErrors,
    describe_crash,
    died_before_it_ran,
    end_actors,
    node_is_lost,
)
from mtbench_ray.generate.cluster import gpus_of_engine, needs_ray
from mtbench_ray.generate.engine_logs import EngineLog, engine_logs
from mtbench_ray.generate.shards import shard_from_json, shard_to_json
from mtbench_ray.generate.worker import ShardWorker
from mtbench_ray.schema import EngineEvent, Turn, decode, encode
from mtbench_ray.system.threads import start_thread


@dataclass(frozen=True)
class CrashedShard:
    """A shard whose engine process ended before the shard did.

    Attributes:
        reason: Which process, and what is known of its end.
        with_node: Its whole node is lost.
    """

    shard: Shard
    reason: str
    with_node: bool = False


class NeverBegan(Exception):
    """Ray gave a stream up before any engine began to work: no row is to blame for it."""


class EngineActor:
    """Ray Data UDF around a worker: a plain generator, since an async one would not stream.

    Args:
        replays: Ray calls an actor that it started again with the interrupted shard again. Its rows
            would come twice or, since Ray leaves out as many as it had taken, not at all: such a
            call yields nothing, and the driver asks for what it lacks.
    """

    def __init__(self, replays: bool = False) -> None:
        import ray

        self.worker = ShardWorker(f"{platform.node()}-{os.getpid()}")
        self._skip = replays and ray.get_runtime_context().was_current_actor_reconstructed

    def __call__(self, batch: dict[str, Any]) -> Iterator[dict[str, list[Any]]]:
        """Answer one shard; yields one-row batches: ``begin``, ``rows`` (JSON of those that are
        there together, an empty list as a sign of life), ``end``.

        What goes wrong here comes out as a row too: Ray's own handling of exceptions would end
        the stream of all shards, or drop the rest of this one silently.
        """
        if self._skip:
            self._skip = False
            return
        index = int(batch["index"][0])

        def row(kind: str, text: str = "") -> dict[str, list[Any]]:
            return {"shard": [index], "kind": [kind], "row": [text]}

        yield row("begin", json.dumps(_whereabouts()))
        try:
            for together in self.worker.run_together(shard_from_json(str(batch["row"][0]))):
                yield row("rows", json.dumps([[isinstance(o, Turn), encode(o)] for o in together]))
        except EngineFault as fault:
            # The event loop of this process is blocked or gone, and no other can be had in it. The
            # driver hears of its end, and of these last lines.
            print(f"EngineFault: {fault}", file=sys.stderr, flush=True)
            os._exit(1)
        except Exception:
            yield row("fault", traceback.format_exc())
        yield row("end")

    def __ray_shutdown__(self) -> None:
        """End the engine with the actor."""
        self.worker.close()


def _whereabouts() -> dict[str, Any]:
    """Of this actor: its id in Ray, machine, process and log."""
    import ray

    return {
        "actor": ray.get_runtime_context().get_actor_id(),
        "node": ray.get_runtime_context().get_node_id(),
        "host": platform.node(),
        "pid": os.getpid(),
        "log": os.path.realpath("/proc/self/fd/2"),
    }


def stream(
    shards: Sequence[Shard], replicas: int, cluster: ClusterConfig, stop: threading.Event
) -> Iterator[Output | CrashedShard | EngineLog]:
    """Answers of all shards as they come; ends early once ``stop`` is set.

    What was under way in an engine process that died comes out as :class:`CrashedShard`, and the
    engines' logs at the end.

    Raises:
        NeverBegan: No engine began; the same stream may be started again.
        NoRoom: Nodes are lost, and no other comes.
        Exception: The stream as a whole failed; what came before it counts.
    """
    if not shards:
        return
    engine = shards[0].engine
    if needs_ray(engine, cluster):
        yield from _stream_ray(shards, replicas, cluster, stop)
    else:
        yield from _stream_here(shards, replicas, stop)


def _stream_ray(
    shards: Sequence[Shard], replicas: int, cluster: ClusterConfig, stop: threading.Event
) -> Iterator[Output | CrashedShard | EngineLog]:
    gpus = gpus_of_engine(shards[0].engine, cluster)
    dataset = _graph(shards, replicas, gpus)
    rows: queue.SimpleQueue[dict[str, Any] | BaseException | None] = queue.SimpleQueue()

    def pull() -> None:
        # iter_rows() would prefetch: it keeps each block until the next one is there.
        for table in dataset.iter_batches(
            batch_size=None, batch_format="pyarrow", prefetch_batches=0
        ):
            for row in table.to_pylist():
                rows.put(row)

    at_work: dict[int, dict[str, Any]] = {}
    seen: dict[str, dict[str, Any]] = {}
    try:
        with TaskErrors() as errors, contextlib.ExitStack() as ending:
            ending.callback(end_actors, seen)
            ending.enter_context(_Releasing(dataset, stop))
            start_thread("rows", pull, ended=rows.put)
            watch = NodeWatch(cluster.lost_wait_s, gpus)
            row: dict[str, Any] | BaseException | None = None
            while not stop.is_set():
                try:
                    row = rows.get(timeout=0.5)
                except queue.Empty:
                    watch.check()
                    continue
                watch.heard()
                if row is None or isinstance(row, BaseException):
                    break
                index, kind = int(row["shard"]), row["kind"]
                if kind == "begin":
                    at_work[index] = json.loads(row["row"])
                    seen[at_work[index]["actor"]] = at_work[index]
                elif kind == "end":
                    at_work.pop(index, None)
                elif kind == "fault":
                    raise RuntimeError(f"a fault of this program in an engine actor:\n{row['row']}")
                else:
                    for is_turn, text in json.loads(row["row"]):
                        fields = json.loads(text)
                        yield decode(Turn, fields) if is_turn else decode(EngineEvent, fields)
    except Exception:
        yield from engine_logs(seen.values())
        raise
    if stop.is_set():
        return
    yield from engine_logs(seen.values())
    for index, where in at_work.items():
        yield CrashedShard(
            shards[index], describe_crash(where, errors.reason), node_is_lost(where["node"])
        )
    if isinstance(row, BaseException):
        if not seen and died_before_it_ran(row):
            raise NeverBegan(str(row).strip()) from row
        raise row
    if not seen:
        raise NeverBegan("Ray gave up all shards before an engine began")


class _Releasing:
    """Kills the actors of a dataset whose stream ends early (failed, closed or stopped), so that
    what comes next finds the GPUs free. Ray lets them finish what they do, which may be a whole
    checkpoint.

    It takes hold of the stream's executor, which is no public part of Ray Data: where there is no
    such thing, Ray's own way is left.
    """

    def __init__(self, dataset: Any, stop: threading.Event) -> None:
        self._stop = stop
        self._executors: list[Any] = []
        make = getattr(dataset, "_create_executor", None)
        if make is not None:
            dataset._create_executor = lambda: self._keep(make())

    def _keep(self, executor: Any) -> Any:
        shut = executor.shutdown

        def shutdown(force: bool = False, exception: BaseException | None = None) -> None:
            shut(force=force or exception is not None, exception=exception)

        executor.shutdown = shutdown
        self._executors.append(executor)
        return executor

    def __enter__(self) -> None: ...

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        import ray

        if kind is None and not self._stop.is_set():
            return
        for executor in self._executors:
            # A run that is stopped may have left its Ray meanwhile.
            if ray.is_initialized():
                with contextlib.suppress(Exception):
                    executor.shutdown(force=True)


def _graph(shards: Sequence[Shard], replicas: int, gpus: int) -> Any:
    """The dataset: one input row per shard, an actor pool over them."""
    import ray
    import ray.data

    context = ray.data.DataContext.get_current()
    context.target_max_block_size = 1
    context._max_num_blocks_in_streaming_gen_buffer = 256
    context.execution_options.preserve_order = False
    context.enable_progress_bars = False
    context.print_on_execution_start = False
    # The shard of a dead actor is given up; the others go on, and the driver sees what it lacks.
    context.max_errored_blocks = -1
    for handler in logging.getLogger("ray.data").handlers:
        # Its own console handler only: its log files keep everything, and others' are theirs.
        if isinstance(handler, logging.StreamHandler) and type(handler).__module__[:4] == "ray.":
            handler.setLevel(logging.CRITICAL)
    rows = [{"index": i, "row": shard_to_json(shard)} for i, shard in enumerate(shards)]
    arguments: dict[str, Any] = {
        "batch_size": 1,
        "num_cpus": ACTOR_CPUS,
        "num_gpus": gpus,
        "compute": ray.data.ActorPoolStrategy(
            size=min(replicas, len(shards)),
            max_tasks_in_flight_per_actor=1,
            max_concurrent_calls_per_actor=1,
        ),
    }
    source = ray.data.from_items(rows, override_num_blocks=len(rows))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        try:
            # By default Ray runs the shard of a dead actor again without end, and while no node
            # has room for the actor it waits without end.
            return source.map_batches(EngineActor, **arguments, max_restarts=-1, max_task_retries=0)
        except TypeError:  # from Ray 2.64 on these arguments are gone
            return source.map_batches(
                EngineActor, **arguments, fn_constructor_kwargs={"replays": True}
            )


def _stream_here(
    shards: Sequence[Shard], replicas: int, stop: threading.Event
) -> Iterator[Output | CrashedShard | EngineLog]:
    """The same workers in threads of this process: an endpoint needs no actor and no start."""
    todo: queue.SimpleQueue[Shard] = queue.SimpleQueue()
    for shard in shards:
        todo.put(shard)
    outputs: queue.SimpleQueue[Output | CrashedShard | BaseException | None] = queue.SimpleQueue()
    workers = min(replicas, len(shards))

    def work(name: str) -> None:
        worker = ShardWorker(name)
        try:
            while not stop.is_set():
                try:
                    shard = todo.get_nowait()
                except queue.Empty:
                    break
                try:
                    for output in worker.run(shard):
                        outputs.put(output)
                except EngineFault as fault:
                    outputs.put(CrashedShard(shard, str(fault)))
                    worker.close()
                    worker = ShardWorker(name)
        finally:
            worker.close()

    for index in range(workers):
        start_thread(f"worker-{index}", functools.partial(work, str(index)), ended=outputs.put)
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
