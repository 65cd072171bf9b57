"""``summary.json``: what was scored, with coverage, made from the workspace alone."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from mtbench_ray.benchmarks.mtbench import CATEGORIES
from mtbench_ray.fastchat import imported_outcomes
from mtbench_ray.fastchat.counting import concerns
from mtbench_ray.judges import pairwise
from mtbench_ray.judges.base import ScoreOptions
from mtbench_ray.judges.matches import FOR_MODEL
from mtbench_ray.judges.registry import get_mode
from mtbench_ray.models.discovery import step_of
from mtbench_ray.models.messages import thinking_compliance
from mtbench_ray.planning.evaluations import (
    answer_settings,
    apart,
    distinguishing_settings,
    grader_settings,
)
from mtbench_ray.planning.plan import good_turns, outcomes, setting
from mtbench_ray.reports.filters import Filter
from mtbench_ray.schema import (
    ANSWERED,
    ANSWERS_ONLY,
    AnswerSet,
    EngineEvent,
    Evaluation,
    Judgment,
    Outcome,
    Question,
    QuestionId,
    Score,
    Turn,
    canonical,
    content_id,
)
from mtbench_ray.workspace.run_record import RunRecord
from mtbench_ray.workspace.workspace import Workspace

Summary = dict[str, Any]
"""The JSON object; README.md documents its keys."""

_ERRORS = 20
"""Different texts of failed answers that are kept for a model."""

Verdicts = Callable[[Evaluation], list[Outcome]]
"""Every wanted verdict of an evaluation."""


def current(workspace: Workspace) -> list[Evaluation]:
    """The evaluations that a workspace shows, the newest last; see ``evaluations.apart``.

    One whose questions are not in the workspace any more is left out, with a warning.
    """
    rows: dict[str, Evaluation] = {}
    for record in workspace.run_records():
        for row in record.evaluations:
            rows.pop(row.evaluation_id, None)
            rows[row.evaluation_id] = row
    there = {row.data: not row.data or workspace.has_data(row.data) for row in rows.values()}
    return apart(row for row in rows.values() if there[row.data])


def summarise_all(
    workspace: Workspace,
    evaluations: Sequence[Evaluation],
    options: ScoreOptions,
    find: Verdicts | None = None,
    only: Filter | None = None,
) -> Summary:
    """The summary of the newest mode that a judge rated, with those of ``other_modes`` in it."""
    find = find or remembering(workspace, options)
    first, *others = [
        summarise(workspace, evaluations, mode, options, find, only)
        for mode in modes_of(evaluations)
    ]
    return first | {"other_modes": others}


def modes_of(rows: Sequence[Evaluation]) -> list[str]:
    """The modes of some evaluations, the newest first and answers alone last."""
    modes = dict.fromkeys(row.mode for row in reversed(rows))
    return sorted(modes, key=lambda mode: mode == ANSWERS_ONLY)


def summarise(
    workspace: Workspace,
    evaluations: Sequence[Evaluation],
    mode: str,
    options: ScoreOptions,
    find: Verdicts | None = None,
    only: Filter | None = None,
) -> Summary:
    """The summary of evaluations of one mode.

    Args:
        mode: Evaluations of other modes are left out.
        options: Parity and bootstrap.
        find: From :func:`remembering`, where more is made of the same evaluations.
        only: Leaves rows and categories out; what is left keeps its name.

    Returns:
        A JSON-able object; equal for equal rows, whenever it is made.
    """
    find = find or remembering(workspace, options)
    only = only or Filter()
    records = workspace.run_records()
    rows = [row for row in evaluations if row.mode == mode]
    events = [event for record in records for event in record.events]
    apart_by = distinguishing_settings(rows)
    rows = only.rows(workspace, rows, apart_by, find)
    find = only.counting(find)
    results: list[dict[str, Any]] = []
    if mode == "pairwise-all":
        results = [
            result
            for result in _pairwise_all(rows, options, find)
            if only.takes(result["model"], result["settings"])
        ]
    else:
        for row in rows:
            own = (
                _games(row, find(row), options)
                if mode == "pairwise-baseline"
                else _single(workspace, row, options, events, find)
            )
            settings = apart_by[row.evaluation_id]
            results.append(
                {"id": row.evaluation_id, "benchmark": row.benchmark, **own, "settings": settings}
            )
    first = workspace.load_data(rows[0].data) if rows and rows[0].data else None
    return {
        "schema": 1,
        "benchmark": first.name if first else "mt_bench",
        "mode": mode,
        "parity": options.parity,
        "files": dict(first.files) if first else {},
        "notes": [*_notes(records, rows), *_mixed(rows)],
        "complete": bool(results) and all(result["complete"] for result in results),
        "results": results,
    }


def _notes(records: Sequence[RunRecord], rows: Sequence[Evaluation]) -> list[str]:
    """What the imports behind these rows left out or found odd."""
    return list(
        dict.fromkeys(
            note
            for record in records
            if any(row in rows for row in record.evaluations if row.source == "import")
            for note in record.notes
            if not rows or concerns(note, rows[0].mode)
        )
    )


def _mixed(rows: Sequence[Evaluation]) -> list[str]:
    """Why some of these rows are not to be compared with others."""
    notes = []
    by_judge: dict[tuple[str, str | None], dict[tuple[str, str, str], str]] = {}
    by_model: dict[str, set[str]] = {}
    for row in rows:
        if row.judge:
            baseline = row.baseline if row.mode == "pairwise-baseline" else None
            asked = (row.prompts, row.references, row.data if row.source == "import" else "")
            by_judge.setdefault((row.judge, baseline), {}).setdefault(asked, row.model)
            by_model.setdefault(row.model, set()).add(canonical(answer_settings(row.answers)))
    for (judge, _), models in by_judge.items():
        if len(models) > 1:
            names = list(dict.fromkeys(models.values()))
            notes.append(
                f"not to be compared: judge {judge} had other questions, references or prompts for "
                + (" than for ".join(names) if len(names) > 1 else f"each of {names[0]}'s rows")
            )
    notes += [
        f"{model}: its rows are of answers made with different settings"
        for model, settings in by_model.items()
        if len(settings) > 1
    ]
    return notes


def verdicts(workspace: Workspace, row: Evaluation, options: ScoreOptions) -> list[Outcome]:
    """Every wanted verdict of an evaluation, from a run or an import."""
    if row.source == "import":
        return imported_outcomes(workspace, row, options.parity)
    what = setting(row, workspace.load_data(row.data))
    found = outcomes(what, workspace.turns, workspace.verdicts, options.parity)
    if row.error:
        found = [Outcome(item.slot, None, "model_failed") for item in found]
    return found


def rating_scale(workspace: Workspace, row: Evaluation) -> tuple[float, float]:
    """Lowest and highest rating of an evaluation's judge prompts; FastChat's for an import."""
    if row.source == "import":
        return 1.0, 10.0
    return setting(row, workspace.load_data(row.data)).prompts.scale


def remembering(workspace: Workspace, options: ScoreOptions) -> Verdicts:
    """:func:`verdicts` of this workspace, each evaluation's worked out once."""
    known: dict[str, list[Outcome]] = {}

    def find(row: Evaluation) -> list[Outcome]:
        if row.evaluation_id not in known:
            known[row.evaluation_id] = verdicts(workspace, row, options)
        return known[row.evaluation_id]

    return find


def _single(
    workspace: Workspace,
    row: Evaluation,
    options: ScoreOptions,
    events: Sequence[EngineEvent],
    find: Verdicts,
) -> dict[str, Any]:
    answers = answer_figures(workspace, row, events)
    result: dict[str, Any] = {"model": row.model, "judge": row.judge or None}
    complete = row.error is None and answers["answered"] == answers["planned"]
    if row.judge:
        found = find(row)
        scores = {
            (score.dimension, score.name): score
            for score in get_mode(row.mode).reduce(found, options)
        }
        total = scores[("all", "")]
        result |= {
            "first_turn": score_json(scores.get(("turn", "1"))),
            "second_turn": score_json(scores.get(("turn", "2"))),
            "average": score_json(total),
            "categories": {
                name: score_json(scores["category", name])
                for name in in_order(name for kind, name in scores if kind == "category")
            },
        }
        complete = total.planned > 0 and total.scored == total.planned
    result |= {
        "truncated": answers.pop("truncated"),
        "output_tokens_per_s": answers.pop("output_tokens_per_s"),
        "answers": answers,
        "demo": row.demo,
        "error": row.error,
        "complete": complete,
    }
    return result


def in_order(categories: Iterable[str]) -> list[str]:
    """MT-Bench's categories in the order of its tables, others after them."""
    order = {name: place for place, name in enumerate(CATEGORIES)}
    return sorted(categories, key=lambda name: order.get(name, len(order)))


def score_json(score: Score | None) -> dict[str, Any]:
    """A score with its coverage; null mean where nothing was scored."""
    if score is None:
        return {"mean": None, "ci_low": None, "ci_high": None, "planned": 0, "scored": 0,
                "failed": {}}  # fmt: skip
    return {
        "mean": score.mean,
        "ci_low": score.ci_low,
        "ci_high": score.ci_high,
        "planned": score.planned,
        "scored": score.scored,
        "failed": json.loads(score.failed),
    }


def headline(row: Evaluation, find: Verdicts) -> float | None:
    """The one figure of an evaluation: its average or adjusted win rate; None where it has none."""
    if not row.judge or row.mode == "pairwise-all":
        return None
    scores = get_mode(row.mode).reduce(find(row), ScoreOptions(resamples=0))
    return next((score.mean for score in scores if score.dimension == "all"), None)


def all_scores(rows: Sequence[Evaluation], options: ScoreOptions, find: Verdicts) -> list[Score]:
    """Every aggregate of some evaluations; (evaluation_id, metric, dimension, name) is a key."""
    found = []
    for row in rows:
        if row.judge and row.mode != "pairwise-all":
            for score in get_mode(row.mode).reduce(find(row), replace(options, judge=row.judge)):
                found.append(_of(row, score, row.evaluation_id, row.model))
    for table in _tables(rows, find):
        mine = replace(options, judge=table.rows[0].judge)
        for score in get_mode("pairwise-all").reduce(table.outcomes, mine):
            model, name = table.models[score.model]
            found.append(_of(table.rows[0], score, name, model.model))
    return found


def judgment_rows(
    workspace: Workspace, rows: Sequence[Evaluation], find: Verdicts
) -> Iterator[Judgment]:
    """The rows of ``judgments.parquet``: each judgment for every model that it is a verdict on.

    Equal texts are judged once, and then one judgment stands for several models: it comes once for
    each. Judgments that no evaluation looks at any more come once, as they were made.
    """
    seen: set[Hashable] = set()
    for row in rows:
        for found in find(row) if row.judge else ():
            if found.judgment is None:
                continue
            slot = found.slot
            stored = workspace.judgments[found.judgment.judgment_id]
            told = replace(
                stored,
                model=slot.model,
                opponent=slot.opponent,
                question_id=slot.question_id,
                category=slot.category,
                answer_ids=slot.answer_ids,
                order=slot.order,
                sample=slot.sample,
                judge=row.judge,
            )
            if slot.order and stored.label in FOR_MODEL[slot.order]:
                told = replace(told, value=FOR_MODEL[slot.order][stored.label])
            name = (told.judgment_id, told.model, told.answer_ids, told.order, told.judge)
            if name not in seen:
                seen |= {name, told.judgment_id}
                yield told
    for judgment_id, judgment in workspace.judgments.items():
        if judgment_id not in seen:
            yield judgment


def _of(row: Evaluation, score: Score, name: str, model: str) -> Score:
    return replace(
        score, evaluation_id=name, benchmark=row.benchmark, model=model, step=step_of(model)
    )


@dataclass(frozen=True)
class _Table:
    """The matches of pairwise-all under one grader: a row of the table is a model over all of them.

    Attributes:
        outcomes: Of all ``rows``; models are called by the keys of ``models``, since labels may
            be equal.
        models: Each model's answers, and the id of its row.
    """

    rows: list[Evaluation]
    outcomes: list[Outcome]
    models: dict[str, tuple[AnswerSet, str]]


def _tables(rows: Sequence[Evaluation], find: Verdicts) -> list[_Table]:
    groups: dict[str, list[Evaluation]] = {}
    for row in rows:
        if row.mode == "pairwise-all":
            name = canonical([row.benchmark, row.source, grader_settings(row)])
            groups.setdefault(name, []).append(row)
    tables = []
    for name, group in groups.items():
        ids = sorted(row.evaluation_id for row in group)
        table = _Table(group, [], {})
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
                for found in find(row)
            )
        tables.append(table)
    return tables


def _pairwise_all(
    rows: Sequence[Evaluation], options: ScoreOptions, find: Verdicts
) -> list[dict[str, Any]]:
    """One result per model, over all its opponents under one grader."""
    tables = _tables(rows, find)
    # Of each model of each table an evaluation that stands for it, to see what tells them apart.
    stands = [
        replace(table.rows[0], answers=answers, opponent=None, evaluation_id=name)
        for table in tables
        for answers, name in table.models.values()
    ]
    apart_by = distinguishing_settings(stands)
    results = []
    for table in tables:
        errors = {canonical(answer_settings(row.answers)): row.error for row in table.rows}
        for result in _tallies(table.rows[0], table.outcomes, options):
            side = result["model"]
            answers, name = table.models[side]
            results.append(
                {"id": name, "benchmark": table.rows[0].benchmark, **result}
                | {"model": answers.model, "error": errors.get(side), "settings": apart_by[name]}
            )
    return results


def _games(row: Evaluation, found: list[Outcome], options: ScoreOptions) -> dict[str, Any]:
    """The result of one evaluation against a baseline."""
    nothing = _tally(row, pairwise.PairTally(row.model), None)
    result = next(iter(_tallies(row, found, options)), nothing)
    return result | {"baseline": row.baseline, "error": row.error}


def _tallies(row: Evaluation, found: list[Outcome], options: ScoreOptions) -> list[dict[str, Any]]:
    scores = {
        score.model: score
        for score in get_mode(row.mode).reduce(found, options)
        if score.metric == "win_rate_adjusted" and score.dimension == "all"
    }
    return [
        _tally(row, tally, scores[tally.model])
        for tally in pairwise.tally(found, row.mode, options.parity)
    ]


def _tally(row: Evaluation, tally: pairwise.PairTally, score: Score | None) -> dict[str, Any]:
    return {
        "model": tally.model,
        "judge": row.judge,
        "baseline": None,
        "win": tally.win,
        "loss": tally.loss,
        "tie": tally.tie,
        "n": tally.n,
        "win_rate": tally.win_rate,
        "loss_rate": tally.loss_rate,
        "win_rate_adjusted": tally.win_rate_adjusted,
        "ci_low": score.ci_low if score else None,
        "ci_high": score.ci_high if score else None,
        "inconsistent": tally.inconsistent_rate,
        "planned": tally.planned,
        "failed": dict(sorted(tally.failed.items())),
        "demo": row.demo,
        "error": None,
        "complete": 0 < tally.n == tally.planned,
    }


def answer_figures(
    workspace: Workspace, row: Evaluation, events: Sequence[EngineEvent] = ()
) -> dict[str, Any]:
    """Counts, speed and sizes of a model's answers, from the stored rows.

    ``output_tokens_per_s`` is all output tokens over the time in which any turn was being
    generated, so pauses between runs do not count.
    """
    questions: dict[QuestionId, Question] = (
        {question.question_id: question for question in workspace.load_data(row.data).questions}
        if row.data
        else {}
    )
    planned, turns, failed, errors = 0, list[Turn](), Counter[str](), Counter[str]()
    for unit in row.answers.units:
        good = good_turns(unit.answer_id, workspace.turns)
        question = questions.get(unit.question_id)
        wanted = len(question.turns) if question else len(good)
        planned += wanted
        turns += good
        for number in range(len(good) + 1, wanted + 1):
            newest_turn = workspace.turns.get((unit.answer_id, number))
            bad = newest_turn is not None and newest_turn.status not in ANSWERED
            failed[newest_turn.status if newest_turn and bad else "missing"] += 1
            if newest_turn and bad and newest_turn.error:
                errors[newest_turn.error] += 1
    seconds = _covered((turn.created - turn.latency_s, turn.created) for turn in turns)
    tokens = sum(turn.output_tokens for turn in turns)
    mine = [event for event in events if event.model == row.model]
    starts = [event.seconds for event in mine if event.kind in ("start", "swap")]
    memory = [event.gpu_memory_gb for event in mine if event.gpu_memory_gb is not None]
    judged = [turn.compliant for turn in turns if turn.compliant is not None]
    return {
        "planned": planned,
        "answered": len(turns),
        "failed": dict(sorted(failed.items())),
        "errors": dict(errors.most_common(_ERRORS)),
        # Imported answers do not say whether they were cut.
        "truncated": None
        if row.answers.source == "import"
        else sum(turn.status == "truncated" or turn.finish_reason == "length" for turn in turns),
        "empty": sum(not turn.content for turn in turns),
        "output_tokens_per_s": round(tokens / seconds, 1) if seconds > 0 else None,
        "prompt_tokens": sum(turn.prompt_tokens for turn in turns),
        "output_tokens": tokens,
        "seconds_per_answer": (
            round(sum(turn.latency_s for turn in turns) / len(turns), 3) if turns else None
        ),
        "engine_start_s": round(starts[-1], 1) if starts else None,
        "peak_gpu_memory_gb": max(memory) if memory else None,
        "thinking_compliance": round(sum(judged) / len(judged), 4) if judged else None,
        "thinking_compliance_by_turn": {
            str(number): round(share, 4) for number, share in thinking_compliance(turns).items()
        }
        or None,
        "origins": dict(sorted(Counter(turn.engine_origin for turn in turns).items())),
    }


def _covered(spans: Iterable[tuple[float, float]]) -> float:
    """Length of the union of time spans, in their unit."""
    total, end = 0.0, float("-inf")
    for begin, finish in sorted(spans):
        if finish > end:
            total += finish - max(begin, end)
            end = finish
    return total
