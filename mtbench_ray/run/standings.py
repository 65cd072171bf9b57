"""Which models of a run wait for what, and what each came to once its last verdict is there."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field

from mtbench_ray.judges.base import ScoreOptions
from mtbench_ray.judges.registry import failed_reason, outcome
from mtbench_ray.planning.plan import Setting, render, tags, value_today
from mtbench_ray.reports.tables import number, reasons
from mtbench_ray.schema import ANSWERED, Evaluation, Judgment, Slot, Turn
from mtbench_ray.workspace.workspace import Workspace

TurnKey = tuple[str, int]


@dataclass
class _Wanted:
    """A verdict that a model wants: its id, or why it cannot be judged."""

    slot: Slot
    judgment_id: str
    reason: str


@dataclass
class _Model:
    """One evaluation on its way.

    Attributes:
        keys: All turns that it is made of; its baseline's too.
        turns: Those that it still waits for; other evaluations may wait for the same.
        named: Which of its verdicts could be named from the start.
        wanted: All its verdicts, once its turns are there.
        verdicts: Ids of the verdicts that it then still waits for.
    """

    row: Evaluation
    what: Setting | None
    keys: tuple[TurnKey, ...] = ()
    turns: set[TurnKey] = field(default_factory=set)
    named: tuple[bool, ...] = ()
    wanted: list[_Wanted] | None = None
    verdicts: set[str] = field(default_factory=set)


@dataclass
class Count:
    """Verdicts of one judge.

    Attributes:
        done: Good ones, and those that were tried in this run; of ``wanted``.
        scored: So many of them have a value.
        total: Sum of these values.
    """

    wanted: int = 0
    done: int = 0
    scored: int = 0
    total: float = 0.0


@dataclass
class _Verdict:
    """A verdict by its id: equal texts, of whatever models, share one.

    Attributes:
        named: So many wanted verdicts are known to be this one.
        counted: So many of them are in the judge's count as done.
    """

    named: int = 0
    counted: int = 0
    there: bool = False
    value: float | None = None


class Standings:
    """What the models of a run still wait for; told of each row once the workspace has it.

    Args:
        evaluations: All of the run.
        settings: Those of them that are judged, bound to their data.
        workspace: Read only.
        parity: In which verdicts count.

    Attributes:
        turns_wanted: Turns of the run's models and their baselines, done or not.
        turns_done: So many of them are answered.
        verdicts: By judge.
        finished: Models whose last verdict is there.
    """

    def __init__(
        self,
        evaluations: Sequence[Evaluation],
        settings: Sequence[Setting],
        workspace: Workspace,
        parity: str = "safe",
    ) -> None:
        self._workspace = workspace
        self._parity = parity
        self._verdicts: dict[str, _Verdict] = {}
        self._by_turn: dict[TurnKey, list[_Model]] = {}
        self._by_verdict: dict[str, list[_Model]] = {}
        bound = {id(what.evaluation): what for what in settings}
        self._readers = {(what.evaluation.judge, what.mode.name): what for what in settings}
        self._models = [_Model(row, bound.get(id(row))) for row in evaluations]
        self.finished = 0
        self.verdicts: dict[str, Count] = {}
        turns: dict[TurnKey, bool] = {}
        for model in self._models:
            turns |= self._expect(model)
        self.turns_wanted = len(turns)
        self.turns_done = sum(turns.values())

    def already(self) -> list[tuple[Evaluation, str]]:
        """Models that wait for nothing from the start: failed ones, and those that are done."""
        return self._look(self._models)

    def turn(self, row: Turn) -> list[tuple[Evaluation, str]]:
        """Count a turn; returns the models that it finishes, each with its result in words."""
        key = (row.answer_id, row.turn)
        self.turns_done += row.status in ANSWERED
        waiting = self._by_turn.pop(key, [])
        for model in waiting:
            model.turns.discard(key)
        return self._look(waiting)

    def judgment(self, row: Judgment) -> list[tuple[Evaluation, str]]:
        """Count a verdict; returns as :meth:`turn` does."""
        verdict = self._verdicts.setdefault(row.judgment_id, _Verdict())
        # Rows are stored as parity=safe reads them; what counts is how this run does.
        what = self._readers.get((row.judge, row.mode))
        verdict.there = True
        verdict.value = value_today(what, row, self._parity) if what else row.value
        # Its model may still wait for other turns, and has not named it yet.
        self._count(row.judge, verdict, least=1)
        waiting = self._by_verdict.pop(row.judgment_id, [])
        for model in waiting:
            model.verdicts.discard(row.judgment_id)
        return self._look(waiting)

    def _expect(self, model: _Model) -> dict[TurnKey, bool]:
        """Note what a model waits for; returns its turns, and whether each is there."""
        row = model.row
        if row.error is not None:
            return {}
        turns = self._workspace.turns
        count = {
            question.question_id: len(question.turns)
            for question in self._workspace.load_data(row.data).questions
        }
        wanted = {
            (unit.answer_id, turn): _answered(turns.get((unit.answer_id, turn)))
            for answers in (row.answers, row.opponent)
            if answers is not None
            for unit in answers.units
            for turn in range(1, count[unit.question_id] + 1)
        }
        model.keys = tuple(wanted)
        model.turns = {key for key, there in wanted.items() if not there}
        for key in model.turns:
            self._by_turn.setdefault(key, []).append(model)
        if model.what is not None:
            verdicts = self._wanted(model.what)
            self.verdicts.setdefault(row.judge, Count()).wanted += len(verdicts)
            model.named = tuple(bool(item.judgment_id) for item in verdicts)
            for item in verdicts:
                if item.judgment_id:
                    self._name(model.what, item.judgment_id)
        return wanted

    def _name(self, what: Setting, judgment_id: str) -> None:
        """One more wanted verdict is known to be this one."""
        verdict = self._verdicts.setdefault(judgment_id, _Verdict())
        verdict.named += 1
        value = value_today(what, self._workspace.verdicts.get(judgment_id), self._parity)
        if not verdict.there and value is not None:
            verdict.there, verdict.value = True, value
        self._count(what.evaluation.judge, verdict)

    def _count(self, judge: str, verdict: _Verdict, least: int = 0) -> None:
        """Bring the judge's count up to what is known of a verdict."""
        if verdict.there:
            more = max(verdict.named, least) - verdict.counted
            count = self.verdicts.setdefault(judge, Count())
            count.done += more
            verdict.counted += more
            if verdict.value is not None:
                count.scored += more
                count.total += more * verdict.value

    def _wanted(self, what: Setting) -> list[_Wanted]:
        """All verdicts of an evaluation as far as they can be named now."""
        turns, wanted = self._workspace.turns, []
        for slot in what.mode.slots(what.evaluation, what.questions):
            reason = failed_reason(slot, turns)
            name = "" if reason else render(what, slot, turns).judgment_id
            wanted.append(_Wanted(slot, name, reason or ""))
        return wanted

    def _look(self, models: Sequence[_Model]) -> list[tuple[Evaluation, str]]:
        """Which of these models wait for nothing any more."""
        done = []
        for model in models:
            if model.turns:
                continue
            if model.wanted is None:
                self._await_verdicts(model)
            if not model.verdicts:
                done.append((model.row, self._result(model)))
                model.wanted = []
        self.finished += len(done)
        return done

    def _await_verdicts(self, model: _Model) -> None:
        """All turns of a model are there: name the verdicts that it waits for."""
        what = model.what
        model.wanted = self._wanted(what) if what else []
        for item, known in zip(model.wanted, model.named, strict=True):
            if what and item.judgment_id and not known:
                self._name(what, item.judgment_id)
        model.verdicts = {
            item.judgment_id
            for item in model.wanted
            if item.judgment_id and not self._verdicts[item.judgment_id].there
        }
        for name in model.verdicts:
            self._by_verdict.setdefault(name, []).append(model)

    def _result(self, model: _Model) -> str:
        """Average and coverage, or what went wrong."""
        what = model.what
        if model.row.error is not None:
            return f"failed: {model.row.error}"
        if what is None:
            there = sum(_answered(self._workspace.turns.get(key)) for key in model.keys)
            return f"answered {there}/{len(model.keys)} turns"
        judgments = self._workspace.verdicts
        found = [
            outcome(
                what.mode, item.slot, judgments.get(item.judgment_id), item.reason, self._parity,
                what.prompts, tags(what.judge),
            )
            for item in model.wanted or ()
        ]  # fmt: skip
        options = ScoreOptions(self._parity, resamples=0, judge=model.row.judge)
        score = next(
            score
            for score in what.mode.reduce(found, options)
            if score.model == model.row.model
            and score.dimension == "all"
            and score.metric in ("rating", "win_rate_adjusted")
        )
        failed = f" ({reasons(json.loads(score.failed))})" if score.scored < score.planned else ""
        return (
            f"average {number(score.mean, 2 if score.metric == 'rating' else 3):>5}"
            f"  {score.scored}/{score.planned} scored{failed}"
        )


def _answered(turn: Turn | None) -> bool:
    return turn is not None and turn.status in ANSWERED
