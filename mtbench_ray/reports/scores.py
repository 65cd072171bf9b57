"""The rows of ``scores.parquet`` and ``judgments.parquet``."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, replace

from mtbench_ray.models.naming import step_of
from mtbench_ray.planning.evaluations import against, answer_settings, grader_settings
from mtbench_ray.reports.results import Results
from mtbench_ray.schema import (
    AnswerSet,
    Evaluation,
    Judgment,
    Outcome,
    Score,
    canonical,
    content_id,
)


def all_scores(results: Results, rows: Sequence[Evaluation]) -> list[Score]:
    """Every aggregate of some evaluations; (evaluation_id, metric, dimension, name) is a key."""
    found = []
    for row in rows:
        if row.judge and against(row) != "all":
            found += [_of(row, one, row.evaluation_id, row.model) for one in results.scores(row)]
    for table in tables(rows, results):
        for score in table.scores(results):
            model, name = table.models[score.model]
            found.append(_of(table.rows[0], score, name, model.model))
    return found


def _of(row: Evaluation, score: Score, name: str, model: str) -> Score:
    return replace(
        score, evaluation_id=name, benchmark=row.benchmark, model=model, step=step_of(model)
    )


@dataclass(frozen=True)
class Table:
    """The comparisons of all models under one judge: a row is a model over all of them.

    Attributes:
        outcomes: Of all ``rows``; models are called by the keys of ``models``, since labels may
            be equal.
        models: Each model's answers, and the id of its row.
    """

    rows: list[Evaluation]
    outcomes: list[Outcome]
    models: dict[str, tuple[AnswerSet, str]]

    def scores(self, results: Results) -> list[Score]:
        """Of all models, by the keys of ``models``."""
        options = replace(results.options, judge=self.rows[0].judge)
        views = [results.view(row) for row in self.rows]
        return results.grader(self.rows[0]).reduce(views, self.outcomes, options)


def tables(rows: Sequence[Evaluation], results: Results) -> list[Table]:
    """The comparisons of all models among some evaluations."""
    groups: dict[str, list[Evaluation]] = {}
    for row in rows:
        if against(row) == "all":
            name = canonical([row.benchmark, row.source, grader_settings(row)])
            groups.setdefault(name, []).append(row)
    tables = []
    for name, group in groups.items():
        ids = sorted(row.evaluation_id for row in group)
        table = Table(group, [], {})
        for row in group:
            sides = []
            for answers in (row.answers, row.opponent):
                assert answers is not None
                side = canonical(answer_settings(answers))
                row_id = content_id("evaluation", {"grader": name, "model": side, "of": ids})
                table.models.setdefault(side, (answers, row_id))
                sides.append(side)
            table.outcomes.extend(
                Outcome(
                    replace(found.slot, model=sides[0], opponent=sides[1]),
                    found.judgment,
                    found.reason,
                )
                for found in results.outcomes(row)
            )
        tables.append(table)
    return tables


def judgment_rows(results: Results, rows: Sequence[Evaluation]) -> Iterator[Judgment]:
    """The rows of ``judgments.parquet``: each judgment for every model that it is a verdict on.

    Equal texts are judged once, and then one judgment stands for several models: it comes once for
    each. Judgments that no evaluation looks at any more come once, as they were made.
    """
    seen: set[Hashable] = set()
    workspace = results.workspace
    for row in rows:
        for found in results.outcomes(row) if row.judge else ():
            if found.judgment is None:
                continue
            slot = found.slot
            stored = workspace.judgments[found.judgment.judgment_id]
            shown = replace(
                stored,
                value=results.grader(row).value_for(slot, stored),
                model=slot.model,
                opponent=slot.opponent,
                question_id=slot.question_id,
                category=slot.category,
                answer_ids=slot.answer_ids,
                order=slot.order,
                sample=slot.sample,
                judge=row.judge,
            )
            name = (shown.judgment_id, shown.model, shown.answer_ids, shown.order, shown.judge)
            if name not in seen:
                seen |= {name, shown.judgment_id}
                yield shown
    for judgment_id, judgment in workspace.judgments.items():
        if judgment_id not in seen:
            yield judgment
