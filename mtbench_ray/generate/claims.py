"""Which checkpoint an engine takes next: a queue that the engines of a run share.

An engine *claims* its next checkpoint when it begins to prepare it, and *begins* it when it is done
with the one before. A claim binds nobody else: what was not begun can be begun by any engine, an
engine's own claim first, then what no other has claimed. So an engine that is done early never
waits for a slow one, and what a dead engine had claimed needs no one to give it back. Where fewer
checkpoints are left than engines, several prepare the same one, and the first to be free takes it.

What was begun is begun once. An engine that dies leaves it to the driver, which knows the rows that
are missing.
"""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

from mtbench_ray.config import ModelConfig
from mtbench_ray.engines.base import Shard

_TOGETHER = 4
"""Engines that prepare the same checkpoint at most: each of them reads all of its weights."""


@dataclass(frozen=True, slots=True)
class Following:
    """What a worker may have to do after its shard.

    Attributes:
        more: Another model was to be answered by somebody when this shard was begun.
        claim: Claims the model to prepare; None where there is none, or no need to prepare. Called
            in a thread.
    """

    more: bool = False
    claim: Callable[[], ModelConfig | None] = lambda: None


@dataclass(frozen=True, slots=True)
class Begun:
    """A shard that is its worker's alone from now on, by its place in the queue."""

    index: int
    shard: Shard
    more: bool


class ClaimQueue:
    """Shards that are not begun. Its methods may be called from several threads.

    Args:
        shards: In the order in which they are to be begun: the longest first.
    """

    def __init__(self, shards: Sequence[Shard]) -> None:
        self._shards = list(shards)
        self._keys = [_key(shard) for shard in shards]
        self._open = dict.fromkeys(range(len(shards)))
        self._claims: dict[str, int] = {}
        self._processes: dict[str, str] = {}
        self._loaded: dict[str, str] = {}
        self._tokens: set[int] = set()
        self._workers: set[str] = set()
        self._lock = threading.Lock()

    def add(self, shards: Sequence[Shard]) -> int:
        """Further shards, to be begun after those that are open; returns the place of the first."""
        with self._lock:
            first = len(self._shards)
            self._shards += shards
            self._keys += [_key(shard) for shard in shards]
            self._open |= dict.fromkeys(range(first, len(self._shards)))
            return first

    def enter(self, worker: str) -> None:
        """A worker is there; it may be too late to begin anything."""
        with self._lock:
            self._workers.add(worker)

    def workers(self) -> list[str]:
        """Names of all that have entered."""
        with self._lock:
            return list(self._workers)

    def begin(self, worker: str, process: str, token: int | None) -> Begun | None:
        """The shard that a worker does now; None where nothing is left.

        Args:
            worker: Its name, the same when it is started again.
            process: In which it runs: another one has prepared nothing.
            token: Of the call that does it. A call that Ray repeats begins nothing more. None:
                the call that began the one before goes on.
        """
        with self._lock:
            if token in self._tokens:
                return None
            if token is not None:
                self._tokens.add(token)
            if self._processes.get(worker) != process:
                self._processes[worker] = process
                self._claims.pop(worker, None)
                self._loaded.pop(worker, None)
            index = self._choose(worker)
            self._claims.pop(worker, None)
            if index is None:
                return None
            del self._open[index]
            key = self._loaded[worker] = self._keys[index]
            more = any(self._keys[other] != key for other in self._open)
            return Begun(index, self._shards[index], more)

    def claim(self, worker: str) -> ModelConfig | None:
        """The model that a worker is to prepare now; None where its engine has it or none is left.

        Asked again, the same one, unless another worker has begun it meanwhile.
        """
        with self._lock:
            index = self._choose(worker)
            others = Counter(i for who, i in self._claims.items() if who != worker)
            if index is None or others[index] >= _TOGETHER:
                return None
            self._claims[worker] = index
            same = self._keys[index] == self._loaded.get(worker)
            return None if same else self._shards[index].model

    def _choose(self, worker: str) -> int | None:
        """What the worker has claimed, else what the fewest have; of these what its engine holds,
        else the longest."""
        mine = self._claims.get(worker)
        if mine in self._open:
            return mine
        claims = Counter(self._claims.values())
        loaded = self._loaded.get(worker)
        return min(
            self._open,
            key=lambda index: (claims[index], self._keys[index] != loaded, index),
            default=None,
        )


def _key(shard: Shard) -> str:
    """Equal for shards that an engine answers without a swap."""
    return json.dumps([asdict(shard.model), asdict(shard.engine)])
