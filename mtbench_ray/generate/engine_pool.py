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
import itertools
import json
import queue
import threading
from collections.abc import Callable, Iterator, Sequence
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
from mtbench_ray.generate.claims import ClaimQueue, Following
from mtbench_ray.generate.cluster import gpus_of_engine, needs_ray
from mtbench_ray.generate.engine_logs import EngineLog, engine_logs
from mtbench_ray.generate.ray_stream import (
    CrashedShard,
    EngineActor,
    NeverBegan,
    end_queue,
    outputs_of,
    queue_actor,
)
from mtbench_ray.generate.worker import ShardWorker
from mtbench_ray.schema import Turn
from mtbench_ray.system.threads import start_thread

_CLOSE_S = 90.0
"""Patience with engines that are stopped: more than a worker's own."""
_LOOK_S = 0.5
_STARTS = 3
"""Processes in a row that end before they began to work, until a seat is left empty."""
_NUMBERS = itertools.count()
"""Of calls and processes: none comes twice."""
_Put = Callable[[Any], None]


class _Lost(Exception):
    """The engine's process ended, or is given up.

    Attributes:
        index: The shard that it had begun, by its place in the queue; None where it had none.
        with_node: Its whole node is lost.
    """

    def __init__(self, reason: str, index: int | None, with_node: bool = False) -> None:
        super().__init__(reason)
        self.index = index
        self.with_node = with_node


class _Seat(Protocol):
    """Where one engine lives."""

    def serve(self, put: _Put) -> bool:
        """Begin a shard and answer it; False where none is left.

        Args:
            put: Takes lists of rows that were there at the same moment; an empty one is a sign of
                life.

        Raises:
            _Lost: The seat is empty now; the next shard gets a fresh engine.
        """

    def close(self, at_once: bool = False) -> None:
        """End the engine. May be called from any thread."""


class EnginePool:
    """Engines for streams that come one after the other. A context manager; its methods are for one
    thread at a time."""

    def __init__(self) -> None:
        self._seats: list[_Seat] = []
        self._claims: Any = None
        self._windows: dict[str, int] = {}

    def stream(
        self, shards: Sequence[Shard], replicas: int, cluster: ClusterConfig, stop: threading.Event
    ) -> Iterator[Output | CrashedShard | EngineLog]:
        """Answers of all shards as they come; the engines stay for the next shards.

        Where it ends early (stopped, closed or failed) its engines are ended at once.

        Raises:
            NeverBegan: No engine began; the same stream may be started again.
            NoRoom: Nodes are lost, and no other comes.
            Exception: A fault of this program in an engine's process.
        """
        if not shards:
            return
        engine = shards[0].engine
        on_ray = needs_ray(engine, cluster)
        gpus = gpus_of_engine(engine, cluster) if on_ray else 0
        first = self._add([self._as_before(shard) for shard in shards], on_ray)
        count = min(replicas, len(shards))
        while len(self._seats) < count:
            name = str(len(self._seats))
            self._seats.append(
                _RaySeat(gpus, self._claims) if on_ray else _Here(name, self._claims)
            )
        seats = self._seats[:count]
        outputs: queue.SimpleQueue[Any] = queue.SimpleQueue()
        over = threading.Event()
        for index, seat in enumerate(seats):
            work = functools.partial(_work, seat, outputs.put, over)
            start_thread(f"worker-{index}", work, ended=outputs.put)
        watch = NodeWatch(cluster.lost_wait_s, gpus) if on_ray else None
        busy, began, why = len(seats), False, ""
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
                elif isinstance(found, list):
                    began = True
                    yield from found
                elif isinstance(found, _Lost) and found.index is not None:
                    began = True
                    shard = shards[found.index - first]
                    yield CrashedShard(shard, str(found), found.with_node)
                elif isinstance(found, _Lost):
                    why = str(found)
                else:
                    raise found
            if on_ray and not stop.is_set():
                yield from engine_logs([s.where for s in seats if isinstance(s, _RaySeat)
                                        and s.where])  # fmt: skip
            if not began and not stop.is_set():
                raise NeverBegan(why or "no engine began")
        finally:
            over.set()
            if busy or not began:
                self._end(at_once=True)

    def close(self) -> None:
        """End all engines; the next stream starts others."""
        self._end(at_once=False)

    def __enter__(self) -> EnginePool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _add(self, shards: Sequence[Shard], on_ray: bool) -> int:
        """Put shards into the queue that all seats share; the place of the first."""
        if not on_ray:
            self._claims = self._claims or ClaimQueue([])
            return int(self._claims.add(shards))
        import ray

        self._claims = self._claims or queue_actor([])
        return int(ray.get(self._claims.add.remote(shards)))

    def _end(self, at_once: bool) -> None:
        seats, self._seats = self._seats, []
        claims, self._claims = self._claims, None
        ending = [
            start_thread("ending", functools.partial(seat.close, at_once), ended=lambda _: None)
            for seat in seats
        ]
        for thread in ending:
            thread.join(_CLOSE_S)
        if claims is not None and not isinstance(claims, ClaimQueue):
            end_queue(claims)

    def _as_before(self, shard: Shard) -> Shard:
        """With the largest window so far: of a checkpoint of which little is left a smaller one
        would do, and the engine would have to be started again for it."""
        key = json.dumps(asdict(replace(shard.engine, window=0)))
        window = self._windows[key] = max(self._windows.get(key, 0), shard.engine.window)
        return replace(shard, engine=replace(shard.engine, window=window))


def _work(seat: _Seat, put: _Put, over: threading.Event) -> None:
    """In a thread: what one engine does until no shard is left."""
    starts = 0
    while not over.is_set():
        try:
            if not seat.serve(put):
                return
            starts = 0
        except _Lost as lost:
            put(lost)
            starts = starts + 1 if lost.index is None else 0
            if starts >= _STARTS:
                return


class _Here:
    """A worker in this process: an endpoint needs no actor and no start."""

    def __init__(self, name: str, claims: ClaimQueue) -> None:
        self._name = name
        self._claims = claims
        self._worker: ShardWorker | None = None
        self._process = ""

    def serve(self, put: _Put) -> bool:
        if self._worker is None:
            self._worker, self._process = ShardWorker(self._name), str(next(_NUMBERS))
        begun = self._claims.begin(self._name, self._process, next(_NUMBERS))
        if begun is None:
            return False
        claim = functools.partial(self._claims.claim, self._name)
        try:
            for together in self._worker.run_together(begun.shard, Following(begun.more, claim)):
                put([o for o in together if isinstance(o, Turn) or o.kind != "beat"])
        except EngineFault as fault:
            self.close()
            raise _Lost(str(fault), begun.index) from fault
        return True

    def close(self, at_once: bool = False) -> None:
        worker, self._worker = self._worker, None
        if worker is not None:
            worker.close()


class _RaySeat:
    """A worker in an actor of its own.

    Attributes:
        where: The actor's machine, process and log; None before it began.
    """

    def __init__(self, gpus: int, claims: Any) -> None:
        self._gpus = gpus
        self._claims = claims
        self._actor: Any = None
        self.where: dict[str, Any] | None = None

    def serve(self, put: _Put) -> bool:
        import ray

        if self._actor is None:
            made = ray.remote(EngineActor).options(
                num_cpus=ACTOR_CPUS, num_gpus=self._gpus, max_restarts=0, max_task_retries=0
            )
            self._actor = made.remote(self._claims)
        batch = {"token": [next(_NUMBERS)]}
        rows = self._actor.answer.options(num_returns="streaming").remote(batch)
        index = None
        try:
            for reference in rows:
                row = ray.get(reference)
                kind, text = row["kind"][0], row["row"][0]
                if kind == "begin":
                    self.where, index = json.loads(text), int(row["shard"][0])
                elif kind == "fault":
                    raise RuntimeError(f"a fault of this program in an engine actor:\n{text}")
                elif kind == "rows":
                    put(list(outputs_of(text)))
        except ray.exceptions.RayError as error:
            where, self.where = self.where, None
            self.close(at_once=True)
            if where is None:
                reason = " ".join(str(error).split())[:300]
                raise _Lost(f"an engine's process did not start: {reason}", None) from error
            lost = node_is_lost(where["node"])
            raise _Lost(describe_crash(where, str(error)), index, lost) from error
        return index is not None

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
