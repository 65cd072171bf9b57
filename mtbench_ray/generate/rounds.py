"""One round over a shard's conversations on a running engine, and what the shard still lacks."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from mtbench_ray.config import EngineConfig
from mtbench_ray.engines import fake
from mtbench_ray.engines.base import Engine, Output, Shard, ShardUnit
from mtbench_ray.errors import EngineFault, UserError
from mtbench_ray.generate.conversation import converse, failed_turn
from mtbench_ray.models.fingerprint import check_content
from mtbench_ray.schema import ANSWERED, Turn

_COMPANY = 8
_TAIL = 1.5
"""Turns for each conversation at once that make the end of a shard: with less the last ones may
begin too late, with more the cache holds what waits for longer than it needs to."""


def company(suspects: int) -> int:
    """How many conversations run together that were there when an engine died: an eighth."""
    return max(1, math.ceil(suspects / _COMPANY))


@dataclass
class Ledger:
    """What a shard has pending; passes rows on as they come.

    Attributes:
        turns_left: That are pending, of all conversations.
    """

    shard: Shard
    send: Callable[[Output], None]
    pending: dict[str, ShardUnit] = field(default_factory=dict)
    turns_left: int = 0

    def __post_init__(self) -> None:
        for unit in self.shard.units:
            # A failed row of an earlier run is no turn to build on: it is pending again.
            unit = replace(unit, done=tuple(t for t in unit.done if t.status in ANSWERED))
            if left := len(self._turns_left(unit)):
                self.pending[unit.answer_id] = unit
                self.turns_left += left

    def emit(self, row: Turn) -> None:
        """A row of a unit: sent on and, where it is good, built on if the engine dies later."""
        unit = self.pending[row.answer_id]
        unit = replace(unit, done=(*unit.done, row))
        self.pending[row.answer_id] = unit
        self.turns_left -= 1
        if not self._turns_left(unit):
            del self.pending[row.answer_id]
        self.send(row)

    def fail(self, answer_id: str, reason: str, origin: str) -> None:
        """Every turn that a unit has pending, as failed rows."""
        unit = self.pending[answer_id]
        for turn in self._turns_left(unit):
            history = tuple(t.content for t in unit.done if t.turn < turn)
            self.emit(failed_turn(unit, self.shard, turn, reason, origin, history))

    def _turns_left(self, unit: ShardUnit) -> list[int]:
        there = {turn.turn for turn in unit.done}
        return [n for n in range(1, len(unit.question.turns) + 1) if n not in there]


@dataclass(frozen=True, slots=True)
class Crash:
    """An engine that ended in a round, and the units that were on it at that moment."""

    fault: EngineFault
    suspects: frozenset[str]


async def views_of(
    engine: Engine, units: list[ShardUnit], kind: str
) -> tuple[dict[str, Engine], dict[str, str]]:
    """The engine as each unit's model sees it, and why some units cannot be answered on it."""
    views: dict[str, Engine] = {}
    apart: dict[str, str] = {}
    by_model: dict[str, Engine | str] = {}
    for unit in units:
        if unit.model is None:
            views[unit.answer_id] = engine
            continue
        label = unit.model.label
        if label not in by_model:
            try:
                await asyncio.to_thread(check_content, unit.model, kind)
                by_model[label] = await engine.adopt(unit.model) or "not an adapter of this engine"
            except (EngineFault, UserError) as error:
                by_model[label] = str(error)
        view = by_model[label]
        if isinstance(view, str):
            apart[unit.answer_id] = view
        else:
            views[unit.answer_id] = view
    return views, apart


async def run_round(
    views: dict[str, Engine], units: list[ShardUnit], ledger: Ledger, limit: int
) -> Crash | None:
    """Walk ``units``, ``limit`` at a time; None where all ended, else the crash."""
    slots = asyncio.Semaphore(limit)
    running: set[str] = set()
    faults: list[EngineFault] = []

    def priority(turn: int) -> int:
        # Later turns first, while what the cache holds of the earlier ones is still there. Towards
        # the end earlier turns first: what is begun at the very end runs through all its turns on
        # an engine that is half empty.
        return -turn if ledger.turns_left > _TAIL * limit else turn

    async def one(unit: ShardUnit) -> None:
        async with slots:
            if faults:
                return  # its slot came free because the engine is lost: it is no suspect
            running.add(unit.answer_id)
            try:
                view = views[unit.answer_id]
                await converse(view, unit, ledger.shard, ledger.emit, priority)
            except EngineFault as fault:
                faults.append(fault)
                raise
            running.discard(unit.answer_id)

    tasks = [asyncio.create_task(one(unit)) for unit in units]
    try:
        await asyncio.gather(*tasks)
    except EngineFault as fault:
        return Crash(fault, frozenset(running & ledger.pending.keys()))
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    return None


def width(config: EngineConfig) -> int:
    """Conversations at once, for an engine that is up.

    Twice as many as it has places: between two turns a conversation is decoded and its next prompt
    rendered, and meanwhile another one has its place. With just as many, 640 of equal length took
    1.5 times as long as on a bare engine.
    """
    if config.kind == "openai":
        return config.concurrency
    if config.kind == "vllm":
        from mtbench_ray.engines.vllm.arguments import sequences

        return 2 * sequences(config)
    return 2 * (config.max_num_seqs or fake.SEQUENCES)
