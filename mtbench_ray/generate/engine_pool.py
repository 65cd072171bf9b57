"""Engines that outlive what they were started for: a watch takes checkpoints as they land.

A Ray Data stream ends with its input, and its actors with it: what is to come hours later is no
input that it has. So the pool's actors are plain ones, of the same class and with the same rows as
in :mod:`mtbench_ray.generate.ray_stream`; a checkpoint that lands finds its engine warm, and is
swapped in. Where no Ray is needed the same workers live in threads of this process.

:meth:`EnginePool.stream` has the contract of :func:`mtbench_ray.generate.ray_stream.stream`.
"""

from __future__ import annotations

import contextlib
import functools
import json
import queue
import threading
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from typing import Any, Protocol

from mtbench_ray.config import ClusterConfig
from mtbench_ray.engines.base import Output, Shard
from mtbench_ray.errors import EngineFault
from mtbench_ray.generate.actor_failures import (
    ACTOR_CPUS,
    NodeWatch,
    describe_crash,
    node_is_lost,
)
from mtbench_ray.generate.cluster import gpus_of_engine, needs_ray
from mtbench_ray.generate.engine_logs import EngineLog, engine_logs
from mtbench_ray.generate.ray_stream import CrashedShard, EngineActor, outputs_of
from mtbench_ray.generate.shards import shard_to_json
from mtbench_ray.generate.worker import ShardWorker
from mtbench_ray.system.threads import start_thread

_CLOSE_S = 90.0
"""Patience with engines that are stopped: more than a worker's own."""
_LOOK_S = 0.5
_Item = Output | CrashedShard | BaseException | None


class _Lost(Exception):
    """The engine's process ended, or is given up, before the shard was done."""

    def __init__(self, reason: str, with_node: bool = False) -> None:
        super().__init__(reason)
        self.with_node = with_node


class _Seat(Protocol):
    """Where one engine lives."""

    def answer(self, shard: Shard) -> Iterator[list[Output]]:
        """Rows of a shard, those together that are there at the same moment; an empty list is a
        sign of life.

        Raises:
            _Lost: The seat is empty now; the next shard gets a fresh engine.
        """

    def close(self, at_once: bool = False) -> None:
        """End the engine. May be called from any thread."""


class EnginePool:
    """A context manager around engines. Its methods are for one thread at a time."""

    def __init__(self) -> None:
        self._seats: list[_Seat] = []
        self._windows: dict[str, int] = {}

    def stream(
        self, shards: Sequence[Shard], replicas: int, cluster: ClusterConfig, stop: threading.Event
    ) -> Iterator[Output | CrashedShard | EngineLog]:
        """Answers of all shards as they come; the engines stay for the next shards.

        Where it ends early (stopped, closed or failed) its engines are ended at once.

        Raises:
            NoRoom: Nodes are lost, and no other comes.
            Exception: A fault of this program in an engine's process.
        """
        if not shards:
            return
        engine = shards[0].engine
        on_ray = needs_ray(engine, cluster)
        gpus = gpus_of_engine(engine, cluster) if on_ray else 0
        count = min(replicas, len(shards))
        while len(self._seats) < count:
            self._seats.append(_RaySeat(gpus) if on_ray else _Here(str(len(self._seats))))
        seats = self._seats[:count]
        todo: queue.SimpleQueue[Shard] = queue.SimpleQueue()
        for shard in shards:
            todo.put(self._as_before(shard))
        outputs: queue.SimpleQueue[list[Output] | _Item] = queue.SimpleQueue()
        over = threading.Event()
        for index, seat in enumerate(seats):
            work = functools.partial(_work, seat, todo, outputs, over)
            start_thread(f"worker-{index}", work, ended=outputs.put)
        watch = NodeWatch(cluster.lost_wait_s, gpus) if on_ray else None
        busy = len(seats)
        try:
            while busy and not stop.is_set():
                try:
                    found = outputs.get(timeout=_LOOK_S)
                except queue.Empty:
                    if watch is not None:
                        watch.check()
                    continue
                if watch is not None:
                    watch.heard()
                if found is None:
                    busy -= 1
                elif isinstance(found, BaseException):
                    raise found
                elif isinstance(found, list):
                    yield from found
                else:
                    yield found
            if not busy and on_ray:
                yield from engine_logs([s.where for s in seats if isinstance(s, _RaySeat)
                                        and s.where])  # fmt: skip
        finally:
            over.set()
            if busy:
                self._end(at_once=True)

    def close(self) -> None:
        """End all engines; the next stream starts others."""
        self._end(at_once=False)

    def __enter__(self) -> EnginePool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _end(self, at_once: bool) -> None:
        seats, self._seats = self._seats, []
        ending = [threading.Thread(target=seat.close, args=(at_once,), daemon=True)
                  for seat in seats]  # fmt: skip
        for thread in ending:
            thread.start()
        for thread in ending:
            thread.join(_CLOSE_S)

    def _as_before(self, shard: Shard) -> Shard:
        """With the largest window so far: of a checkpoint of which little is left a smaller one
        would do, and the engine would have to be started again for it."""
        key = json.dumps(asdict(replace(shard.engine, window=0)))
        window = self._windows[key] = max(self._windows.get(key, 0), shard.engine.window)
        return replace(shard, engine=replace(shard.engine, window=window))


def _work(
    seat: _Seat,
    todo: queue.SimpleQueue[Shard],
    outputs: queue.SimpleQueue[list[Output] | _Item],
    over: threading.Event,
) -> None:
    """In a thread: what one engine does until no shard is left."""
    while not over.is_set():
        try:
            shard = todo.get_nowait()
        except queue.Empty:
            return
        try:
            for together in seat.answer(shard):
                outputs.put(together)
        except _Lost as lost:
            outputs.put(CrashedShard(shard, str(lost), lost.with_node))


class _Here:
    """A worker in this process: an endpoint needs no actor and no start."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._worker: ShardWorker | None = None

    def answer(self, shard: Shard) -> Iterator[list[Output]]:
        self._worker = self._worker or ShardWorker(self._name)
        try:
            yield from self._worker.run_together(shard)
        except EngineFault as fault:
            self.close()
            raise _Lost(str(fault)) from fault

    def close(self, at_once: bool = False) -> None:
        worker, self._worker = self._worker, None
        if worker is not None:
            worker.close()


class _RaySeat:
    """A worker in an actor of its own.

    Attributes:
        where: The actor's machine, process and log; None before it began.
    """

    def __init__(self, gpus: int) -> None:
        self._gpus = gpus
        self._actor: Any = None
        self.where: dict[str, Any] | None = None

    def answer(self, shard: Shard) -> Iterator[list[Output]]:
        import ray

        if self._actor is None:
            self._actor = ray.remote(EngineActor).options(
                num_cpus=ACTOR_CPUS, num_gpus=self._gpus, max_restarts=0, max_task_retries=0
            ).remote()  # fmt: skip
        batch = {"index": [0], "row": [shard_to_json(shard)]}
        rows = self._actor.answer.options(num_returns="streaming").remote(batch)
        try:
            for reference in rows:
                row = ray.get(reference)
                kind, text = row["kind"][0], row["row"][0]
                if kind == "begin":
                    self.where = json.loads(text)
                elif kind == "fault":
                    raise RuntimeError(f"a fault of this program in an engine actor:\n{text}")
                elif kind == "rows":
                    yield list(outputs_of(text))
        except ray.exceptions.RayError as error:
            where, self.where = self.where, None
            self.close(at_once=True)
            if where is None:
                raise _Lost(f"an engine's process did not start: {error}") from error
            lost = node_is_lost(where["node"])
            raise _Lost(describe_crash(where, str(error)), lost) from error

    def close(self, at_once: bool = False) -> None:
        import ray

        actor, self._actor = self._actor, None
        if actor is None or not ray.is_initialized():
            return
        with contextlib.suppress(Exception):  # it may be gone already
            if not at_once:
                ray.get(actor.close.remote(), timeout=_CLOSE_S)
        with contextlib.suppress(Exception):
            ray.kill(actor)
