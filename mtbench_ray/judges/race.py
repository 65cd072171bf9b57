"""A race of models over questions in random order: who may still win, and when it is decided.

Pure bookkeeping over confidence sequences: :mod:`mtbench_ray.run.racing` feeds it, a bench
simulates with it.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any

from mtbench_ray.judges.confidence_sequence import MeanSequence
from mtbench_ray.schema import text_hash

LEVEL = 0.05
"""Chance, at most, that a race is decided wrongly."""
SELECTIONS = ("best", "gate")


def in_random_order(groups: Iterable[str], seed: int) -> list[str]:
    """Groups of questions in an order that depends on the seed and their names alone.

    So it is the same in each run, and has nothing to do with categories.
    """
    return sorted(groups, key=lambda group: text_hash(f"{seed} {group}"))


@dataclass
class Race:
    """Models that are compared group by group (of MT-Bench: question by question).

    For each two models the difference of their means over *all* ``count`` groups has a confidence
    sequence, each of at least 95%. A model that is worse than another for sure is out: nothing more
    of it need be judged.

    A wrong decision (the best model is out, or is better than the leader by more than ``margin``)
    needs that the upper end of the best model's difference to one of the K - 1 others is too low at
    some time. Each is with at most half of its sequence's level, which is therefore no more than
    2 / (K - 1) times ``level``.

    Attributes:
        models: How many.
        count: Groups that there are.
        bound: The largest difference of two models in a group.
        select: ``best``: the race is decided once all but one are out, or none could be more than
            ``margin`` better than the leader. ``gate``: once the first of two is certainly not
            worse than the second by ``margin``, or certainly so.
        margin: In points.
        level: See :data:`LEVEL`.
    """

    models: int
    count: int
    bound: float
    select: str = "best"
    margin: float = 0.0
    level: float = LEVEL
    alive: list[int] = field(init=False)
    seen: int = field(init=False, default=0)
    pairs: dict[tuple[int, int], MeanSequence] = field(init=False)

    def __post_init__(self) -> None:
        self.alive = list(range(self.models))
        each = self.pair_level
        self.pairs = {
            pair: MeanSequence(self.count, -self.bound, self.bound, each)
            for pair in combinations(self.alive, 2)
        }

    @property
    def pair_level(self) -> float:
        """Chance, at most, that the interval of two models is ever wrong."""
        return self.level * min(1.0, 2 / (self.models - 1))

    def observe(self, difference: Callable[[int, int], float]) -> None:
        """The next group is judged.

        Args:
            difference: Of two models in it, the first minus the second.
        """
        self.seen += 1
        for one, other in combinations(self.alive, 2):
            self.pairs[one, other].add(difference(one, other))
        if self.select == "best":
            worse = {
                two
                for one, other in combinations(self.alive, 2)
                for better, two in ((one, other), (other, one))
                if self.interval(better, two)[0] > 0
            }
            self.alive = [model for model in self.alive if model not in worse]

    def interval(self, one: int, other: int) -> tuple[float, float]:
        """Of the difference of two models over all groups; of one that is out: as it was then."""
        if one > other:
            low, high = self.interval(other, one)
            return -high, -low
        found = self.pairs[one, other]
        return found.low, found.high

    def looked_at(self, model: int) -> int:
        """Groups of this model that counted."""
        if model in self.alive:
            return self.seen
        return max(pair.seen for both, pair in self.pairs.items() if model in both)

    @property
    def leader(self) -> int:
        """Of those that may still win the one with the best mean so far."""
        if self.select == "gate" or len(self.alive) == 1:
            return self.alive[0]
        lead = dict.fromkeys(self.alive, 0.0)
        for one, other in combinations(self.alive, 2):
            mean = self.pairs[one, other].mean or 0.0
            lead[one] += mean
            lead[other] -= mean
        return max(self.alive, key=lambda model: lead[model])

    @property
    def decided(self) -> bool:
        """Whether nothing more need be judged; at the latest when all is."""
        if self.seen >= self.count:
            return True
        if self.select == "gate":
            low, high = self.interval(0, 1)
            return low > -self.margin or high <= -self.margin
        leader = self.leader
        return all(
            self.interval(other, leader)[1] <= self.margin
            for other in self.alive
            if other != leader
        )


def bound_of(scale: tuple[float, float], sizes: Iterable[int]) -> float:
    """The largest difference of two models in a group.

    A group counts by how many items it has: its difference is the sum over them divided by their
    mean number, so that the mean over groups is the mean over items.

    Args:
        scale: Of an item's value.
        sizes: Items of each group.
    """
    every = list(sizes)
    return (scale[1] - scale[0]) * max(every) * len(every) / sum(every)


Values = dict[Hashable, float]
"""Of the items of a group that have one."""


def difference_in(one: Values, other: Values, mean_size: float) -> float:
    """The difference of two models in a group, see :func:`bound_of`.

    An item without a value on either side (a call that failed) counts as no difference: so the
    set of groups, and with it the target, stays what it was, and over all groups the sign is that
    of the difference that a comparison of the finished run shows.
    """
    return sum(one[item] - other[item] for item in one if item in other) / mean_size


def said(record: Mapping[str, Any]) -> str:
    """What came of a decided race, in one sentence."""
    models, margin = record["models"], record["gate"]
    if record["select"] == "gate":
        worse = record["differences"][0]["ci_high"] <= -margin
        what = (
            f"{models[0]} is {'' if worse else 'not '}worse than {models[1]} by {margin:g} points"
        )
    else:
        best, *others = record["best"]
        what = f"{best} is best"
        if others:
            near = f"at most {margin:g} points better" if margin else "as good"
            what += f", {', '.join(others)} {near}"
    return (
        f"select={record['select']}, judge {record['judge']}: {what}; decided by"
        f" {record['judged']} of {record['questions']} questions,"
        f" {record['saved']} of {record['calls']} judge calls were not needed"
    )
