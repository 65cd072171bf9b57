"""What a tracker is told of each evaluation: figures by name, and its verdicts."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mtbench_ray.benchmarks import get_benchmark
from mtbench_ray.judges.base import Grader
from mtbench_ray.judges.outcomes import NOT_NEEDED
from mtbench_ray.models.naming import Naming
from mtbench_ray.planning.evaluations import (
    against,
    answer_settings,
    grader_settings,
    settings_of,
)
from mtbench_ray.reports.answer_figures import answer_figures
from mtbench_ray.reports.points import SAME_LINE
from mtbench_ray.reports.results import Results, answer_ids
from mtbench_ray.reports.scores import tables
from mtbench_ray.reports.summary import not_needed
from mtbench_ray.schema import (
    ANSWERS_ONLY,
    AnswerSet,
    Evaluation,
    Outcome,
    Score,
    Slot,
    content_id,
)
from mtbench_ray.trackers.base import segment
from mtbench_ray.workspace.journal import well_formed

_NOT_TRIED = "missing"
_NOT_THE_JUDGE = frozenset({_NOT_TRIED, "stale_answer", "model_failed", NOT_NEEDED})
COLUMNS = ("evaluation_id", "model", "step", "question_id", "category", "turn", "sample",
           "judge_sample", "criterion", "value", "reason", "question", "answer",
           "judgment")  # fmt: skip
"""Of the table of verdicts."""


@dataclass(frozen=True)
class Found:
    """An evaluation, before it is known what a tracker calls it.

    Attributes:
        run: The training run.
        step: None where the model's name has none.
        line: Equal for evaluations that lie on one curve.
        key: What the curve would be called.
        whole: Nothing of it is still to be tried.
    """

    evaluation_id: str
    model: str
    run: str
    step: int | float | None
    line: str
    key: str
    values: Mapping[str, float]
    rows: tuple[tuple[Any, ...], ...]
    whole: bool

    @property
    def digest(self) -> str:
        """Equal where a tracker would be told the same."""
        verdicts = [row[: COLUMNS.index("question")] for row in self.rows]
        return content_id("tracked", {"values": dict(self.values), "verdicts": verdicts})


def found_in(
    results: Results, rows: Sequence[Evaluation], prefix: str, naming: Naming, texts: bool
) -> Iterator[Found]:
    """The evaluations of a round; of comparisons of all models a row for each model.

    Args:
        prefix: Begins the keys.
        naming: How models' names hold their training run and step.
        texts: Whether the verdicts are wanted, with question, answer and judgment.
    """
    for row in rows:
        if against(row) == "all":
            continue
        scores, outcomes, verdicts = [], [], list[_Verdict]()
        if _judged(row):
            scores, outcomes = results.scores(row), results.outcomes(row)
            verdicts = list(_verdicts(results, row, outcomes)) if texts else []
        yield _found(
            results, row, row.answers, row.evaluation_id, scores, outcomes, verdicts, prefix, naming
        )
    for table in tables([row for row in rows if against(row) == "all"], results):
        first, every = table.rows[0], table.scores(results)
        items = results.items(first, table.outcomes) if texts else []
        for side, (answers, name) in table.models.items():
            scores = [one for one in every if one.model == side]
            outcomes = [
                one for one in table.outcomes if side in (one.slot.model, one.slot.opponent)
            ]
            verdicts = [
                _Verdict(item.slot, item.value, item.reason, "")
                for item in items
                if item.slot.model == side
            ]
            yield _found(results, first, answers, name, scores, outcomes, verdicts, prefix, naming)


def _judged(row: Evaluation) -> bool:
    return row.mode != ANSWERS_ONLY and bool(row.judge)


@dataclass(frozen=True)
class _Verdict:
    slot: Slot
    value: float | None
    reason: str
    text: str


def _verdicts(results: Results, row: Evaluation, outcomes: Sequence[Outcome]) -> Iterator[_Verdict]:
    grader = results.grader(row)
    for one in outcomes:
        value, text = None, ""
        if one.judgment is not None:
            text = one.judgment.text
            value = None if one.reason else grader.value_for(one.slot, one.judgment)
        yield _Verdict(one.slot, value, one.reason, text)


def _found(
    results: Results,
    row: Evaluation,
    answers: AnswerSet,
    name: str,
    scores: Sequence[Score],
    outcomes: Sequence[Outcome],
    verdicts: Sequence[_Verdict],
    prefix: str,
    naming: Naming,
) -> Found:
    values: dict[str, float | None] = {}
    whole = True
    if _judged(row):
        values |= _scores(results.grader(row), scores)
        values |= _failures(outcomes)
        whole = not any(one.reason == _NOT_TRIED for one in outcomes)
    if answers is row.answers:
        figures, tried = _answers(results, row)
        values |= figures
        whole = whole and tried
    step = naming.step(answers.model)
    head = (name, answers.model, step)
    return Found(
        evaluation_id=name,
        model=answers.model,
        run=naming.run(answers.model),
        step=step,
        line=_line(row, answers, naming),
        key=_key(row, answers, prefix),
        values={
            key: value
            for key, value in values.items()
            if value is not None and math.isfinite(value)
        },
        rows=tuple(_rows(results, row, answers, head, verdicts)),
        whole=whole,
    )


def _scores(grader: Grader, scores: Sequence[Score]) -> dict[str, float | None]:
    """Means with the ends of their intervals, and the coverage of the headline."""
    values: dict[str, float | None] = {}
    places = {score.place: score for score in scores}
    for column in grader.columns:
        for place, score in places.items():
            if place == column.place and not column.parts:
                name = segment(column.key)
            elif column.parts and place[:2] == (column.metric, column.dimension):
                name = f"{segment(column.key)}/{segment(place[2])}"
            else:
                continue
            values |= {name: score.mean, f"{name}_low": score.ci_low, f"{name}_high": score.ci_high}
    if total := places.get(grader.headline.place):
        needed = total.planned - not_needed(total)
        values |= {"planned": needed, "scored": total.scored}
        values["failed_share"] = 1 - total.scored / needed if needed else None
    return values


def _failures(outcomes: Sequence[Outcome]) -> dict[str, float | None]:
    """The share of judge calls, or checks, that gave no verdict."""
    asked = [
        one.reason
        for one in outcomes
        if one.reason not in _NOT_THE_JUDGE and not one.reason.startswith("answer_")
    ]
    return {"judge_error_rate": sum(map(bool, asked)) / len(asked) if asked else None}


def _answers(results: Results, row: Evaluation) -> tuple[dict[str, float | None], bool]:
    """Figures of the answers, and whether all were tried."""
    found = answer_figures(results.workspace, row)
    planned, answered = found["planned"], found["answered"]

    def share(name: str) -> float | None:
        return found[name] / answered if answered and found[name] is not None else None

    values = {
        "failed_share": 1 - answered / planned if planned else None,
        "truncated_share": share("truncated"),
        "empty_share": share("empty"),
        "output_tokens": share("output_tokens"),
        "seconds": found["seconds_per_answer"],
        "tokens_per_s": found["output_tokens_per_s"],
        "thinking_compliance": found["thinking_compliance"],
    }
    for turn, kept in (found["thinking_compliance_by_turn"] or {}).items():
        values[f"thinking_compliance_turn_{turn}"] = kept
    tried = row.error is not None or _NOT_TRIED not in found["failed"]
    return {f"answers/{name}": value for name, value in values.items()}, tried


def _line(row: Evaluation, answers: AnswerSet, naming: Naming) -> str:
    """What does not differ from checkpoint to checkpoint, the questions and the run among it."""
    settings = settings_of(row)
    if against(row) == "all":  # a model over all of its opponents
        settings = answer_settings(answers) | grader_settings(row)
        settings |= {"benchmark": row.benchmark, "mode": row.mode}
    settings = {key: value for key, value in settings.items() if key not in SAME_LINE}
    asked = sorted({(str(unit.question_id), unit.question_hash) for unit in answers.units})
    return content_id(
        "line", {"settings": settings, "asked": asked, "run": naming.run(answers.model)}
    )


def _key(row: Evaluation, answers: AnswerSet, prefix: str) -> str:
    parts = [row.benchmark]
    if row.selection:
        parts[0] += f"-{len({str(unit.question_id) for unit in answers.units})}q"
    if row.mode not in (ANSWERS_ONLY, get_benchmark(row.benchmark).graders[0].name):
        parts.append(row.mode)
    if row.judge:
        parts.append(f"{row.judge}-demo" if row.demo else row.judge)
    if row.baseline and against(row) != "all":
        parts.append(f"against_{row.baseline}")
    return "/".join([prefix, *map(segment, parts)])


def _rows(
    results: Results,
    row: Evaluation,
    answers: AnswerSet,
    head: tuple[Any, ...],
    verdicts: Sequence[_Verdict],
) -> Iterator[tuple[Any, ...]]:
    workspace = results.workspace
    known = workspace.load_data(row.data).questions if row.data else ()
    turns = {question.question_id: question.turns for question in known}
    ids = answer_ids(answers)
    for one in verdicts:
        slot = one.slot
        asked = "".join(turns.get(slot.question_id, ())[slot.turn - 1 : slot.turn])
        turn = workspace.turns.get((ids.get((slot.question_id, slot.sample), ""), slot.turn))
        yield (
            *head,
            str(slot.question_id),
            well_formed(slot.category),
            slot.turn,
            slot.sample,
            slot.judge_sample,
            slot.criterion,
            one.value,
            one.reason,
            well_formed(asked),
            well_formed(turn.content) if turn else "",
            well_formed(one.text),
        )
