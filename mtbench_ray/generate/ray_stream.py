"""The Ray Data graph: shards in, turn rows out, each as soon as it is there.

Only this module imports ray.data. An input row is a token: it has an engine actor do shards (some
conversations of one checkpoint), which the actor takes from the queue that all share
(:mod:`~mtbench_ray.generate.claims`) until nothing is left, and turns into many output rows. So
between two shards nobody waits for the driver, which is busy with the rows of all engines. Two
settings make them stream: an output block per row, and a generator buffer that does not hold the
actor back (the defaults deliver rows seconds late and slow generation down).

Judging is not part of the graph: rows reach the driver, which writes them, and only then are they
judged. So no answer is lost while it waits for a slow judge, and no key leaves the driver.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
import logging
import os
import platform
import queue
import sys
import threading
import traceback
import warnings
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from mtbench_ray.config import ClusterConfig, ModelConfig
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
from mtbench_ray.generate.claims import Begun, ClaimQueue, Following
from mtbench_ray.generate.cluster import gpus_of_engine, needs_ray
from mtbench_ray.generate.engine_logs import EngineLog, engine_logs
from mtbench_ray.generate.worker import ShardWorker
from mtbench_ray.schema import EngineEvent, Turn, decode, encode
from mtbench_ray.system.threads import start_thread

_LOOK_S = 5.0
"""Patience with the claim queue at the end of a stream."""
_SPARE = 8
"""Deaths of engine processes that a stream survives, beside one of each engine."""
_QUEUE_S = 120.0
"""Patience of an engine actor with the claim queue, whose process may have to come up first."""


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
        queue: Handle of the actor that is the claim queue.
    """

    def __init__(self, queue: Any) -> None:
        import ray

        # Of an actor that Ray has started again the id is the same, and the process another.
        self._id = ray.get_runtime_context().get_actor_id()
        self._process = f"{platform.node()}-{os.getpid()}"
        self._queue = queue
        self._queue.enter.remote(self._id)
        self.worker = ShardWorker(self._process)

    def __call__(self, batch: dict[str, Any]) -> Iterator[dict[str, list[Any]]]:
        """Answer shards until none is left; yields one-row batches, for each: ``begin``, ``rows``
        (JSON of those that are there together, an empty list as a sign of life), ``end``.

        Ray from 2.64 on calls an actor that it started again with the interrupted token again. Its
        rows would come twice or, since Ray leaves out as many as it had taken, not at all: for such
        a call nothing is left, and the driver asks for what it lacks.

        What goes wrong here comes out as a row too: Ray's own handling of exceptions would end
        the stream of all shards, or drop the rest of this one silently.
        """
        token: int | None = int(batch["token"][0])
        while (yield from self._shard(token)):
            token = None

    def answer(self, batch: dict[str, Any]) -> Iterator[dict[str, list[Any]]]:
        """The same for who calls the actor without Ray Data, and one shard at most."""
        yield from self._shard(int(batch["token"][0]))

    def _shard(self, token: int | None) -> Generator[dict[str, list[Any]], None, bool]:
        """Whether there was one, and others may follow."""
        try:
            begun = self._begin(token)
        except Exception:
            yield _row(-1, "fault", traceback.format_exc())
            return False
        if begun is None:
            return False
        yield _row(begun.index, "begin", json.dumps(_whereabouts()))
        try:
            for together in self.worker.run_together(
                begun.shard, Following(begun.more, self._claim)
            ):
                rows = [[isinstance(o, Turn), encode(o)] for o in together]
                yield _row(begun.index, "rows", json.dumps(rows))
        except EngineFault as fault:
            # The event loop of this process is blocked or gone, and no other can be had in it. The
            # driver hears of its end, and of these last lines.
            print(f"EngineFault: {fault}", file=sys.stderr, flush=True)
            os._exit(1)
        except Exception:
            yield _row(begun.index, "fault", traceback.format_exc())
        yield _row(begun.index, "end")
        return True

    def _begin(self, token: int | None) -> Begun | None:
        import ray
        from ray.exceptions import RayActorError

        with contextlib.suppress(RayActorError):
            call = self._queue.begin.remote(self._id, self._process, token)
            begun: Begun | None = ray.get(call, timeout=_QUEUE_S)
            return begun
        # The queue died: no shard of this stream is begun any more, and the driver makes another.
        return None

    def _claim(self) -> ModelConfig | None:
        import ray

        with contextlib.suppress(Exception):  # the checkpoint is only not ready when its turn comes
            model: ModelConfig | None = ray.get(
                self._queue.claim.remote(self._id), timeout=_QUEUE_S
            )
            return model
        return None

    def close(self) -> None:
        """End the engine."""
        self.worker.close()

    def __ray_shutdown__(self) -> None:
        """End the engine with the actor."""
        self.close()


def outputs_of(text: str) -> Iterator[Output]:
    """What is in a row of the kind ``rows``."""
    for is_turn, line in json.loads(text):
        fields = json.loads(line)
        yield decode(Turn, fields) if is_turn else decode(EngineEvent, fields)


def _row(shard: int, kind: str, text: str = "") -> dict[str, list[Any]]:
    return {"shard": [shard], "kind": [kind], "row": [text]}


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


def import_early() -> None:
    """Import in a thread most of what Ray Data takes to import: Ray's own start can hide it.

    Not Ray Data itself: its modules and those that Ray imports meanwhile import each other, and two
    threads that do so may see halves of them.
    """

    def work() -> None:
        import pandas  # noqa: F401
        import pyarrow.parquet  # noqa: F401

    start_thread("imports of Ray Data", work, ended=lambda _: None)  # who needs it sees the fault


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
    claims = queue_actor(shards)
    engines = min(replicas, len(shards))
    # One for each engine, and for others that take the place of those that die.
    dataset = _graph(min(2 * engines + _SPARE, len(shards)), engines, gpus, claims)
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
            ending.callback(end_queue, claims)
            ending.callback(lambda: end_actors({*seen, *_entered(claims)}))
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
                    yield from outputs_of(row["row"])
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


def queue_actor(shards: Sequence[Shard]) -> Any:
    """The claim queue as an actor beside the driver: it is lost only with the driver's machine."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    actor = ray.remote(ClaimQueue).options(num_cpus=0, scheduling_strategy=here)
    return actor.remote(shards)


def _entered(claims: Any) -> list[str]:
    """Ids of the actors that a queue knows, those too that came when nothing was left."""
    import ray

    with contextlib.suppress(Exception):  # it died, or Ray has ended
        if ray.is_initialized():
            ids: list[str] = ray.get(claims.workers.remote(), timeout=_LOOK_S)
            return ids
    return []


def end_queue(claims: Any) -> None:
    """End the actor of a claim queue."""
    import ray

    with contextlib.suppress(Exception):
        if ray.is_initialized():
            ray.kill(claims)


def _graph(tokens: int, engines: int, gpus: int, claims: Any) -> Any:
    """The dataset: input rows for an actor pool."""
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
    arguments: dict[str, Any] = {
        "fn_constructor_args": (claims,),
        "batch_size": 1,
        "num_cpus": ACTOR_CPUS,
        "num_gpus": gpus,
        "compute": ray.data.ActorPoolStrategy(
            size=engines,
            max_tasks_in_flight_per_actor=1,
            max_concurrent_calls_per_actor=1,
        ),
    }
    rows = [{"token": token} for token in range(tokens)]
    source = ray.data.from_items(rows, override_num_blocks=tokens)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        try:
            # By default Ray runs the token of a dead actor again without end, and while no node
            # has room for the actor it waits without end.
            return source.map_batches(EngineActor, **arguments, max_restarts=-1, max_task_retries=0)
        except TypeError:  # from Ray 2.64 on these arguments are gone
            return source.map_batches(EngineActor, **arguments)


def _stream_here(
    shards: Sequence[Shard], replicas: int, stop: threading.Event
) -> Iterator[Output | CrashedShard | EngineLog]:
    """The same workers in threads of this process: an endpoint needs no actor and no start."""
    claims, numbers = ClaimQueue(shards), itertools.count()
    outputs: queue.SimpleQueue[Output | CrashedShard | BaseException | None] = queue.SimpleQueue()
    workers = min(replicas, len(shards))

    def work(name: str) -> None:
        worker, process = ShardWorker(name), str(next(numbers))
        claim = functools.partial(claims.claim, name)
        try:
            while not stop.is_set():
                begun = claims.begin(name, process, next(numbers))
                if begun is None:
                    break
                try:
                    following = Following(begun.more, claim)
                    for output in itertools.chain.from_iterable(
                        worker.run_together(begun.shard, following)
                    ):
                        if isinstance(output, Turn) or output.kind != "beat":
                            outputs.put(output)
                except EngineFault as fault:
                    outputs.put(CrashedShard(begun.shard, str(fault)))
                    worker.close()
                    worker, process = ShardWorker(name), str(next(numbers))
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
