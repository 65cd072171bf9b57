"""Judging question by question until it is decided (``select=``): which calls may go out now.

Calls of a group of questions are held back until its turn comes, in an order that the seed gives;
a few groups are judged at once. Once a model is out, or the race is decided, the calls that were
held back are not made. What has been judged before counts like any other verdict, so that the same
line again pays nothing, and a line without ``select`` judges the rest.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

from mtbench_ray.config import RunConfig
from mtbench_ray.errors import UserError
from mtbench_ray.judges.base import EvaluationView, Item
from mtbench_ray.judges.outcomes import failed_reason
from mtbench_ray.judges.race import (
    Race,
    Values,
    bound_of,
    difference_in,
    in_random_order,
    said,
)
from mtbench_ray.planning.evaluations import (
    against,
    distinguishing_settings,
    grader_settings,
    judge_of,
    named,
)
from mtbench_ray.planning.plan import Board, WantedVerdict, counts
from mtbench_ray.schema import Evaluation, Judgment, Outcome, QuestionId, Request, Turn, canonical

AT_ONCE = 4
"""Groups that are judged at once: more are faster, and more may turn out not to be needed."""
TOLERATED = 0.05
"""Where more than this share of a model's verdicts failed, its race is not called decided: they
count as no difference, which may be far from the truth."""
Requests = list[tuple[int, Request]]


@dataclass
class _Held:
    """The race of the evaluations of one judge.

    Attributes:
        views: Their indexes on the board.
        order: Groups of questions that all of them have, as they are judged.
        verdicts: Of each group and view.
        mean_size: Items of a group, on average.
        held: Calls not made so far, by group.
        sent: Verdicts whose calls were made.
        failed: Items without a value, by model; of so many ``wanted`` of each.
    """

    views: list[int]
    order: list[str]
    verdicts: dict[str, dict[int, list[WantedVerdict]]]
    race: Race
    mean_size: float
    held: dict[str, Requests] = field(default_factory=dict)
    sent: set[str] = field(default_factory=set)
    failed: dict[int, int] = field(default_factory=dict)
    wanted: int = 0
    announced: bool = False

    @property
    def decided(self) -> bool:
        """Whether what is held back is not needed."""
        worst = max((self.failed.get(place, 0) for place in self.race.alive), default=0)
        return self.race.decided and worst <= TOLERATED * self.wanted


class Races:
    """All races of a run. Its methods are for the main thread, like those of the board.

    Args:
        board: Wanted verdicts; told which evaluations' races are decided.

    Raises:
        UserError: As of :func:`races`.
    """

    def __init__(self, config: RunConfig, board: Board) -> None:
        self._config = config
        self._board = board
        self._tried: set[str] = set()
        self._failed: set[str] = set()
        self._answered = False
        self._of: dict[int, _Held] = {}
        self._groups: dict[tuple[int, QuestionId], str] = {}
        self._names = distinguishing_settings([view.evaluation for view in board.views])
        self.all: list[_Held] = []
        for views in races(config, [view.evaluation for view in board.views]):
            held = self._hold(views)
            self.all.append(held)
            self._of |= dict.fromkeys(views, held)

    def admit(self, requests: Requests) -> Requests:
        """Of calls that are possible now those that may go out; the others are held back."""
        free = []
        for index, request in requests:
            held = self._of.get(index)
            if held is None:
                free.append((index, request))
                continue
            group = self._groups[index, request.question_id]
            held.held.setdefault(group, []).append((index, request))
        return free + self._advance()

    @property
    def held(self) -> int:
        """Calls that are possible and held back: so many may follow."""
        return sum(len(calls) for one in self.all for calls in one.held.values())

    def turn(self, row: Turn, answered: bool) -> None:
        """An answer's turn is there, or has failed in this run: before :meth:`admit`."""
        if not answered:
            self._failed.add(row.answer_id)

    def judged(self, row: Judgment) -> Requests:
        """A verdict is there, or has failed; returns what may go out now."""
        self._tried.add(row.judgment_id)
        return self._advance()

    def answers_ended(self) -> Requests:
        """No more answers will come; returns what may go out now."""
        self._answered = True
        return self._advance()

    def decided(self) -> list[str]:
        """A line for each race that has been decided since the last call."""
        lines = []
        for held in self.all:
            if held.decided and not held.announced:
                held.announced = True
                lines.append(said(self._record(held)))
        return lines

    def records(self) -> list[dict[str, Any]]:
        """What the run record keeps of the races."""
        return [self._record(held) for held in self.all]

    def not_needed(self) -> dict[int, set[str]]:
        """Verdicts that will not be judged, by index of their evaluation."""
        return {
            index: {
                one.judgment_id
                for group in held.order
                for one in held.verdicts[group].get(index, ())
                if one.judgment_id
                and one.judgment_id not in held.sent
                and self._board.judgments.get(one.judgment_id) is None
            }
            for held in self.all
            if held.decided
            for index in held.views
        }

    def _hold(self, views: list[int]) -> _Held:
        verdicts: dict[str, dict[int, list[WantedVerdict]]] = {}
        for index in views:
            for one in self._board.verdicts[index]:
                self._groups[index, one.slot.question_id] = one.slot.group
                verdicts.setdefault(one.slot.group, {}).setdefault(index, []).append(one)
        shared = [group for group, mine in verdicts.items() if len(mine) == len(views)]
        view = self._board.views[views[0]]
        sizes = [len(self._planned(views[0], verdicts[group])) for group in shared]
        if not shared:
            raise UserError(
                "the models of this race have no question in common", "leave out select="
            )
        race = Race(
            len(views),
            len(shared),
            bound_of(view.grader.item_scale(view), sizes),
            self._config.select or "best",
            self._config.gate,
        )
        order = in_random_order(shared, self._config.select_seed)
        return _Held(views, order, verdicts, race, fmean(sizes))

    def _planned(self, index: int, verdicts: dict[int, list[WantedVerdict]]) -> Values:
        """The items of a group, with or without a value."""
        return _values(self._items(self._board.views[index], verdicts[index]), planned=True)

    def _items(self, view: EvaluationView, verdicts: Sequence[WantedVerdict]) -> list[Item]:
        found: list[Outcome] = [self._board.outcome(one) for one in verdicts]
        return view.grader.items(found)

    def _advance(self) -> Requests:
        free: Requests = []
        for held in self.all:
            while (
                not held.decided
                and held.race.seen < held.race.count
                and self._is_complete(held, held.order[held.race.seen])
            ):
                self._observe(held)
            if held.decided:
                for place, index in enumerate(held.views):
                    self._board.decided[index] = held.order[: held.race.looked_at(place)]
            else:
                free += self._due(held)
        return free

    def _is_complete(self, held: _Held, group: str) -> bool:
        """Whether no further verdict on a group will come, of the models that may still win."""
        return all(self._is_settled(one) for one in self._alive(held, group))

    def _is_settled(self, one: WantedVerdict) -> bool:
        view = self._board.views[one.view]
        if one.judgment_id:
            stored = self._board.judgments.get(one.judgment_id)
            return one.judgment_id in self._tried or counts(view, stored)
        reason = failed_reason(one.slot, view.turns)
        tried = self._answered or any(answer in self._failed for answer in one.slot.answer_ids)
        return reason is not None and tried

    def _alive(self, held: _Held, group: str) -> Iterator[WantedVerdict]:
        for place in held.race.alive:
            yield from held.verdicts[group][held.views[place]]

    def _observe(self, held: _Held) -> None:
        group = held.order[held.race.seen]
        size = len(self._planned(held.views[0], held.verdicts[group]))
        values = {
            place: _values(
                self._items(self._board.views[index], held.verdicts[group][index]), planned=False
            )
            for place, index in enumerate(held.views)
            if place in held.race.alive
        }
        held.wanted += size
        for place, mine in values.items():
            held.failed[place] = held.failed.get(place, 0) + size - len(mine)
        held.race.observe(lambda a, b: difference_in(values[a], values[b], held.mean_size))

    def _due(self, held: _Held) -> Requests:
        """Calls of the groups whose turn it is, taken out of those that are held back."""
        due: Requests = []
        for group in held.order[held.race.seen : held.race.seen + AT_ONCE]:
            wanted = {one.judgment_id for one in self._alive(held, group)}
            kept: Requests = []
            for index, request in held.held.get(group, ()):
                (due if request.judgment_id in wanted else kept).append((index, request))
            held.held[group] = kept
        held.sent |= {request.judgment_id for _, request in due}
        return due

    def _record(self, held: _Held) -> dict[str, Any]:
        race, rows = held.race, [self._board.views[index].evaluation for index in held.views]
        names = [named(row.model, self._names[row.evaluation_id]) for row in rows]
        ids = {
            one.judgment_id
            for mine in held.verdicts.values()
            for index in held.views
            for one in mine.get(index, ())
            if one.judgment_id
        }
        there = {name for name in ids if self._board.judgments.get(name) is not None}
        best = [race.leader, *(place for place in race.alive if place != race.leader)]
        return {
            "select": race.select,
            "gate": race.margin,
            "seed": self._config.select_seed,
            "level": race.level,
            "pair_level": race.pair_level,
            "benchmark": rows[0].benchmark,
            "mode": rows[0].mode,
            "judge": rows[0].judge,
            "evaluations": [row.evaluation_id for row in rows],
            "models": names,
            "questions": race.count,
            "judged": race.seen,
            "order": held.order[: race.seen],
            "looked_at": [race.looked_at(place) for place in range(race.models)],
            "decided": held.decided,
            "best": [names[place] for place in best] if race.select == "best" else [],
            "calls": len(ids),
            "saved": len(ids - there - held.sent),
            "differences": [
                {
                    "a": rows[one].evaluation_id,
                    "b": rows[other].evaluation_id,
                    "judged": pair.seen,
                    "mean": pair.mean,
                    "ci_low": pair.low,
                    "ci_high": pair.high,
                    "p_value": pair.p_value(0.0),
                }
                for (one, other), pair in race.pairs.items()
            ],
        }


def races(config: RunConfig, rows: Sequence[Evaluation]) -> list[list[int]]:
    """Which evaluations race against each other, by place: those of one benchmark and judge.

    Raises:
        UserError: ``select`` is set and there is nothing to race, or ``select=gate`` with other
            than two models.
    """
    if config.select is None:
        return []
    groups: dict[str, list[int]] = {}
    for place, row in enumerate(rows):
        if row.judge and not against(row) and judge_of(row).kind != "none":
            key = canonical([row.benchmark, row.mode, row.data, grader_settings(row)])
            groups.setdefault(key, []).append(place)
    sizes = {len(group) for group in groups.values()}
    if config.select == "gate" and sizes - {2}:
        raise UserError(
            f"select=gate is of two models, and {max(sizes)} are judged",
            "-m model=NEW,OLD select=gate gate=0.1",
        )
    if not sizes or min(sizes) < 2:
        raise UserError(
            f"select={config.select} compares models, and {'only one' if sizes else 'none'} is"
            " judged by a judge",
            "-m model=A,B,C select=best",
        )
    return list(groups.values())


def _values(items: Sequence[Item], *, planned: bool) -> Values:
    """Values of a group's items, repeats as their mean.

    Args:
        planned: Of all wanted items, those without a value as 0.
    """
    found: dict[Hashable, list[float]] = {}
    for item in items:
        value = 0.0 if planned else item.value
        if value is not None:
            slot = item.slot
            found.setdefault((slot.question_id, slot.turn, slot.criterion), []).append(value)
    return {key: fmean(values) for key, values in found.items()}
