"""What dead engine processes took with them, and what is done about it.

When a process is killed (no memory left, a node taken back, a kernel that crashed), the driver
knows only which conversations it still had. They are retried, by the rule that the worker has for
engines that die inside a living process: once more in small company, then alone; a conversation
that kills its process when nobody else is there is failed by itself.
"""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from mtbench_ray.engines.base import ShardUnit
from mtbench_ray.generate.ray_stream import CrashedShard
from mtbench_ray.generate.rounds import company
from mtbench_ray.generate.shards import Work


class GivenUp(NamedTuple):
    """A conversation that is not tried again, and why."""

    work: Work
    unit: ShardUnit
    reason: str


@dataclass
class CrashRetries:
    """Deaths of engine processes in one run."""

    processes: Counter[str] = field(default_factory=Counter)
    """Processes lost, by model: those that count against ``max_restarts``."""
    losses: int = 0
    """All of them."""
    _pending: float = math.inf
    _crashes: Counter[str] = field(default_factory=Counter)
    _alone: set[str] = field(default_factory=set)
    _reasons: dict[str, str] = field(default_factory=dict)
    _excluded: Counter[str] = field(default_factory=Counter)

    def note(self, crashed: CrashedShard, pending: Collection[str]) -> None:
        """A process is gone.

        Args:
            pending: Answer ids that still lack a turn.
        """
        suspects = [unit.answer_id for unit in crashed.shard.units if unit.answer_id in pending]
        # By the joined model, the same in all rounds, where adapters share an engine.
        label = crashed.shard.model.label
        self.losses += 1
        # A node that is taken back says nothing of the engine, as long as rows come in between. One
        # whose memory a row fills goes with its engine too: then none do.
        left = len(pending)
        if not (crashed.with_node and left < self._pending):
            self.processes[label] += 1
        self._pending = left
        self._crashes.update(suspects)
        self._reasons[label] = crashed.reason
        if len(suspects) == 1:
            self._alone.update(suspects)

    def cut(self, work: Sequence[Work]) -> tuple[list[Work], list[GivenUp]]:
        """What is pending as the next round takes it: suspects apart, and what is given up."""
        todo: list[Work] = []
        given_up: list[GivenUp] = []
        for item in work:
            label = item.model.label
            for unit in item.units:
                crashes = self._crashes[unit.answer_id]
                if unit.answer_id in self._alone and crashes >= item.engine.row_attempts:
                    reason = (
                        f"took its engine's process down {crashes} times: {self._reasons[label]}"
                    )
                    given_up.append(GivenUp(item, unit, reason))
                    # It was this row and not the engine: the others get their tries back.
                    self._excluded[label] += 1
            gone = {entry.unit.answer_id for entry in given_up}
            rest = [unit for unit in item.units if unit.answer_id not in gone]
            if self.processes[label] > item.engine.max_restarts + self._excluded[label]:
                reason = (
                    f"gave up after {self.processes[label]} lost engine processes"
                    f" (engine.max_restarts): {self._reasons[label]}"
                )
                given_up += [GivenUp(item, unit, reason) for unit in rest]
            else:
                groups = self._groups(rest)
                todo += [dataclasses.replace(item, units=tuple(group)) for group in groups]
        return todo, given_up

    def _groups(self, units: Sequence[ShardUnit]) -> list[list[ShardUnit]]:
        def dead(least: int, most: int) -> list[ShardUnit]:
            return [unit for unit in units if least <= self._crashes[unit.answer_id] <= most]

        groups = [dead(0, 0)]
        for size, suspects in ((company(len(dead(1, 1))), dead(1, 1)),
                               (1, dead(2, 1 << 30))):  # fmt: skip
            groups += [suspects[i : i + size] for i in range(0, len(suspects), size)]
        return [group for group in groups if group]
