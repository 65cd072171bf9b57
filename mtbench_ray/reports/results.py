"""What a workspace holds of evaluations, read once: the only way from rows to scores."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import cached_property

from mtbench_ray.benchmarks import get_benchmark, grader_of
from mtbench_ray.errors import UserError, unknown_name
from mtbench_ray.fastchat import imported_outcomes
from mtbench_ray.judges.base import Column, EvaluationView, Grader, Item, ScoreOptions
from mtbench_ray.planning.evaluations import against, answer_settings, apart, grader_settings
from mtbench_ray.planning.plan import outcomes, view_of
from mtbench_ray.planning.races import RaceRecord, decided_by, races_of
from mtbench_ray.schema import (
    ANSWERS_ONLY,
    AnswerSet,
    Evaluation,
    Outcome,
    QuestionId,
    Score,
    canonical,
    text_hash,
)
from mtbench_ray.workspace.journal import warn
from mtbench_ray.workspace.workspace import Workspace


def current(workspace: Workspace) -> list[Evaluation]:
    """The evaluations that a workspace shows, the newest last; see ``evaluations.apart``.

    One whose questions are not in the workspace any more, or whose benchmark is not installed, is
    left out with a warning.
    """
    rows: dict[str, Evaluation] = {}
    for record in workspace.run_records():
        for row in record.evaluations:
            rows.pop(row.evaluation_id, None)
            rows[row.evaluation_id] = row
    there = {row.data: not row.data or workspace.has_data(row.data) for row in rows.values()}
    known = {(row.benchmark, row.mode): True for row in rows.values()}
    for benchmark, mode in known:
        if (why := _unknown(benchmark, mode)) is not None:
            known[benchmark, mode] = False
            warn(f"evaluations left out: {why}")
            workspace.problems.append(f"evaluations left out: {why}")
    return apart(row for row in rows.values() if there[row.data] and known[row.benchmark, row.mode])


def _unknown(benchmark: str, mode: str) -> UserError | None:
    try:
        get_benchmark(benchmark)
        if mode != ANSWERS_ONLY:
            grader_of(benchmark, mode)
    except UserError as error:
        return error
    return None


class Results:
    """Verdicts and scores of a workspace's evaluations, each worked out once.

    Args:
        options: Parity and bootstrap.
        categories: Patterns, in lower case; verdicts of other categories do not count. None: all
            do.
        metric: What :meth:`items` are of, the key of a column; empty for that of its grader.
    """

    def __init__(
        self,
        workspace: Workspace,
        options: ScoreOptions,
        categories: Collection[str] | None = None,
        metric: str = "",
    ) -> None:
        self.workspace = workspace
        self.options = options
        self.metric = metric
        self._categories = categories
        self._outcomes: dict[str, list[Outcome]] = {}
        self._scores: dict[tuple[str, int], list[Score]] = {}

    @cached_property
    def races(self) -> Mapping[str, RaceRecord]:
        """Decided races by the ids of their evaluations."""
        return races_of(self.workspace)

    def only(self, categories: Collection[str]) -> Results:
        """The same with the verdicts of some categories alone; empty for all."""
        if not categories:
            return self
        return Results(self.workspace, self.options, categories, self.metric)

    def measuring(
        self, metric: str, rows: Sequence[Evaluation]
    ) -> tuple[Results, list[Evaluation]]:
        """The same with the items of another metric, and the judged evaluations that have it.

        Raises:
            UserError: None has; the message lists what there is.
        """
        if not metric:
            return self, list(rows)
        of_set = {c.key for row in rows if row.judge for c in self.grader(row).columns if c.of_set}
        if metric in of_set:
            raise UserError(
                f"{metric} is fitted over all models at once, and has no difference question by"
                " question",
                "the table has it with its interval; leave out metric= to compare the headline",
            )
        measures = {row.evaluation_id: self.grader(row).measures for row in rows if row.judge}
        kept = [row for row in rows if metric in measures.get(row.evaluation_id, ())]
        if not kept:
            known = dict.fromkeys(key for some in measures.values() for key in some)
            raise unknown_name("metric", metric, known)
        return Results(self.workspace, self.options, self._categories, metric), kept

    def grader(self, row: Evaluation) -> Grader:
        """How a judged evaluation is judged."""
        return grader_of(row.benchmark, row.mode)

    def view(self, row: Evaluation) -> EvaluationView:
        """A judged evaluation with its data."""
        data = self.workspace.load_data(row.data) if row.data else None
        return view_of(row, data, self.workspace.turns, self.options.parity)

    def outcomes(self, row: Evaluation) -> list[Outcome]:
        """Every wanted verdict of an evaluation, from a run or an import."""
        if row.evaluation_id not in self._outcomes:
            found = self._find(row)
            if self._categories is not None:
                known = self._categories
                found = [one for one in found if in_categories([one.slot.category], known)]
            self._outcomes[row.evaluation_id] = found
        return self._outcomes[row.evaluation_id]

    def _find(self, row: Evaluation) -> list[Outcome]:
        if row.source == "import":
            return imported_outcomes(self.workspace, row, self.options.parity)
        decided = decided_by(self.races, row.evaluation_id)
        found = outcomes(self.view(row), self.workspace.verdicts, decided=decided)
        if row.error or row.opponent_error:
            found = [
                Outcome(item.slot, None, "model_failed") if item.reason == "missing" else item
                for item in found
            ]
        return found

    def column(self, row: Evaluation) -> Column:
        """What :meth:`items` are of."""
        grader = self.grader(row)
        return grader.measures[self.metric] if self.metric else grader.item_column

    def items(self, row: Evaluation, outcomes: Sequence[Outcome] | None = None) -> list[Item]:
        """What the metric of an evaluation is the mean of.

        Args:
            outcomes: Others than its own, of the same grader.
        """
        found = self.outcomes(row) if outcomes is None else outcomes
        return self.grader(row).measured(found, self.column(row), self.options.parity)

    def scores(self, row: Evaluation, *, resamples: int | None = None) -> list[Score]:
        """All scores of one evaluation; of a comparison of all models see ``scores.Table``.

        Args:
            resamples: Of the bootstrap, instead of the options' own.
        """
        count = self.options.resamples if resamples is None else resamples
        key = row.evaluation_id, count
        if key not in self._scores:
            options = dataclasses.replace(self.options, judge=row.judge, resamples=count)
            if any(column.of_set for column in self.grader(row).columns):
                self._score_set(self.set_of(row), options)
            else:
                view, found = self.view(row), self.outcomes(row)
                self._scores[key] = self.grader(row).reduce([view], found, options)
        return self._scores[key]

    def set_of(self, row: Evaluation) -> list[Evaluation]:
        """The evaluations that scores of a set are fitted on: all that the workspace shows of this
        one's grader and opponent, itself among them."""
        mine = _set_key(row)
        found = [other for other in self._current if _set_key(other) == mine]
        return found if row in found else [*found, row]

    @cached_property
    def _current(self) -> list[Evaluation]:
        return [row for row in current(self.workspace) if row.judge]

    def _score_set(self, rows: Sequence[Evaluation], options: ScoreOptions) -> None:
        """Score evaluations together; labels may be equal, so that each is called by its id."""
        outcomes = [
            dataclasses.replace(one, slot=dataclasses.replace(one.slot, model=row.evaluation_id))
            for row in rows
            for one in self.outcomes(row)
        ]
        scored = {row.evaluation_id: 0 for row in rows}
        for one in outcomes:
            scored[one.slot.model] += not one.reason
        digest = text_hash(canonical(scored))
        grader = self.grader(rows[0])
        of_set = {column.metric for column in grader.columns if column.of_set}
        found = grader.reduce([self.view(row) for row in rows], outcomes, options)
        for row in rows:
            self._scores[row.evaluation_id, options.resamples] = [
                dataclasses.replace(
                    score, model=row.model, set_digest=digest if score.metric in of_set else ""
                )
                for score in found
                if score.model == row.evaluation_id
            ]

    def headline(self, row: Evaluation) -> float | None:
        """The one figure of an evaluation; None where it has none of its own."""
        if not row.judge or against(row) == "all":
            return None
        place = self.grader(row).headline.place
        found = self.scores(row, resamples=0)
        return next((one.mean for one in found if one.place == place), None)


def _set_key(row: Evaluation) -> str:
    """Equal for evaluations whose models belong to one set."""
    opponent = answer_settings(row.opponent) if row.opponent is not None else {}
    return canonical([row.benchmark, row.mode, row.source, opponent, grader_settings(row)])


def answer_ids(answers: AnswerSet) -> dict[tuple[QuestionId, int], str]:
    """The answer to each question and sample; verdicts of imports do not name it."""
    return {(unit.question_id, unit.sample): unit.answer_id for unit in answers.units}


def judged_alone(rows: Iterable[Evaluation]) -> list[Evaluation]:
    """Judged evaluations that compare their model with no other."""
    return [row for row in rows if row.judge and not against(row)]


def in_categories(names: Iterable[str], patterns: Iterable[str]) -> bool:
    """Whether any of the names fits any of the patterns, which are in lower case."""
    lower = [name.casefold() for name in names]
    return any(
        name == pattern or fnmatchcase(name, pattern) for pattern in patterns for name in lower
    )


def tables_of(rows: Sequence[Evaluation]) -> list[tuple[str, str]]:
    """Benchmark and mode of each table of evaluations, newest first and answers alone last."""
    found = dict.fromkeys((row.benchmark, row.mode) for row in reversed(rows))
    return sorted(found, key=lambda table: table[1] == ANSWERS_ONLY)


def in_order(benchmark: str) -> Callable[[Iterable[str]], list[str]]:
    """Puts categories in the order of their benchmark, others after them."""
    order = {name: place for place, name in enumerate(get_benchmark(benchmark).categories)}
    return lambda names: sorted(names, key=lambda name: order.get(name, len(order)))
