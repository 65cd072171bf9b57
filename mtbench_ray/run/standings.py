"""Which models of a run wait for what, and what each came to once its last verdict is there."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from mtbench_ray.judges.base import ScoreOptions
from mtbench_ray.planning.plan import Board, WantedVerdict, good_turns, value_today
from mtbench_ray.reports.tables import number, reasons
from mtbench_ray.schema import ANSWERED, Evaluation, Judgment, Turn
from mtbench_ray.workspace.workspace import Workspace

TurnKey = tuple[str, int]


@dataclass
class _Model:
    """One evaluation on its way.

    Attributes:
        view: Its index on the board; None where it is not judged.
        keys: All turns that it is made of; its baseline's too.
        turns: Those that it still waits for; other evaluations may wait for the same.
        verdicts: Ids of the named verdicts that it still waits for.
    """

    row: Evaluation
    view: int | None
    keys: tuple[TurnKey, ...] = ()
    turns: set[TurnKey] = field(default_factory=set)
    verdicts: set[str] = field(default_factory=set)
    done: bool = False


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
        board: Their wanted verdicts; whoever updates it passes on what it names.
        workspace: Read only.

    Attributes:
        turns_wanted: Turns of the run's models and their baselines, done or not.
        turns_done: So many of them are answered.
        verdicts: By judge.
        finished: Models whose last verdict is there.
    """

    def __init__(
        self,
        evaluations: Sequence[Evaluation],
        board: Board,
        workspace: Workspace,
    ) -> None:
        self._workspace = workspace
        self._board = board
        self._verdicts: dict[str, _Verdict] = {}
        self._by_turn: dict[TurnKey, list[_Model]] = {}
        self._by_verdict: dict[str, list[_Model]] = {}
        bound = {id(view.evaluation): index for index, view in enumerate(board.views)}
        self._models = [_Model(row, bound.get(id(row))) for row in evaluations]
        self.finished = 0
        self.verdicts: dict[str, Count] = {}
        turns: dict[TurnKey, bool] = {}
        for model in self._models:
            turns |= self._expect(model)
        self.turns_wanted = len(turns)
        self.turns_done = sum(turns.values())
        self._by_view = {model.view: model for model in self._models if model.view is not None}
        self.named([one for wanted in board.verdicts for one in wanted if one.judgment_id])

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
        view = self._board.views[self._board.named[row.judgment_id].view]
        verdict.there = True
        verdict.value = value_today(view, row)
        self._count(row.judge, verdict)
        waiting = self._by_verdict.pop(row.judgment_id, [])
        for model in waiting:
            model.verdicts.discard(row.judgment_id)
        return self._look(waiting)

    def not_needed(self, verdicts: Mapping[int, Collection[str]]) -> list[tuple[Evaluation, str]]:
        """These verdicts, by index of their evaluation, will not come; returns as :meth:`turn`."""
        models = []
        for index, ids in verdicts.items():
            model = self._by_view[index]
            gone = model.verdicts & set(ids)
            model.verdicts -= gone
            self.verdicts[model.row.judge].wanted -= len(gone)
            models.append(model)
        return self._look(models)

    def _expect(self, model: _Model) -> dict[TurnKey, bool]:
        """Note what a model waits for; returns its turns, and whether each is there."""
        row = model.row
        if row.error is not None:
            return {}
        turns = self._workspace.turns
        length = {
            question.question_id: len(question.turns)
            for question in self._workspace.load_data(row.data).questions
        }
        wanted = {
            (unit.answer_id, turn): turn <= there
            for answers in (row.answers, row.opponent)
            if answers is not None
            for unit in answers.units
            for there in (len(good_turns(unit.answer_id, turns)),)
            for turn in range(1, length[unit.question_id] + 1)
        }
        model.keys = tuple(wanted)
        model.turns = {key for key, there in wanted.items() if not there}
        for key in model.turns:
            self._by_turn.setdefault(key, []).append(model)
        if model.view is not None:
            count = self.verdicts.setdefault(row.judge, Count())
            count.wanted += len(self._board.verdicts[model.view])
        return wanted

    def named(self, verdicts: Sequence[WantedVerdict]) -> None:
        """The ids of wanted verdicts are known now; before the turn that named them counts."""
        for one in verdicts:
            view, model = self._board.views[one.view], self._by_view[one.view]
            verdict = self._verdicts.setdefault(one.judgment_id, _Verdict())
            verdict.named += 1
            value = value_today(view, self._workspace.verdicts.get(one.judgment_id))
            if not verdict.there and value is not None:
                verdict.there, verdict.value = True, value
            self._count(view.evaluation.judge, verdict)
            if not verdict.there:
                model.verdicts.add(one.judgment_id)
                self._by_verdict.setdefault(one.judgment_id, []).append(model)

    def _count(self, judge: str, verdict: _Verdict) -> None:
        """Bring the judge's count up to what is known of a verdict."""
        if verdict.there:
            more = verdict.named - verdict.counted
            count = self.verdicts.setdefault(judge, Count())
            count.done += more
            verdict.counted += more
            if verdict.value is not None:
                count.scored += more
                count.total += more * verdict.value

    def _look(self, models: Sequence[_Model]) -> list[tuple[Evaluation, str]]:
        """Which of these models wait for nothing any more."""
        done = []
        for model in models:
            if not (model.turns or model.verdicts or model.done):
                model.done = True
                done.append((model.row, self._result(model)))
        self.finished += len(done)
        return done

    def _result(self, model: _Model) -> str:
        """Average and coverage, or what went wrong."""
        if model.row.error is not None:
            return f"failed: {model.row.error}"
        if model.view is None:
            there = sum(_answered(self._workspace.turns.get(key)) for key in model.keys)
            return f"answered {there}/{len(model.keys)} turns"
        view = self._board.views[model.view]
        found = [self._board.outcome(one) for one in self._board.verdicts[model.view]]
        options = ScoreOptions(view.parity, resamples=0, judge=model.row.judge)
        headline = view.grader.headline
        score = next(
            (
                score
                for score in view.grader.reduce([view], found, options)
                if score.model == model.row.model and score.place == headline.place
            ),
            None,
        )
        if score is None:
            return "nothing to score"
        missing = reasons(json.loads(score.failed))
        failed = f" ({missing})" if missing != "0" else ""
        return (
            f"{headline.header} {number(score.mean, headline.digits):>5}"
            f"  {score.scored}/{score.planned} {view.grader.scored}{failed}"
        )


def _answered(turn: Turn | None) -> bool:
    return turn is not None and turn.status in ANSWERED
