"""``summary.json``: what was scored, with coverage, made from the workspace alone."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from mtbench_ray.benchmarks.mtbench import CATEGORIES
from mtbench_ray.errors import UserError
from mtbench_ray.fastchat import imported_outcomes
from mtbench_ray.fastchat.counting import concerns
from mtbench_ray.journal import warn
from mtbench_ray.judges import pairwise
from mtbench_ray.judges.base import ScoreOptions
from mtbench_ray.judges.modes import get_mode
from mtbench_ray.plan import good_turns, outcomes, setting
from mtbench_ray.runs import RunRecord
from mtbench_ray.schema import (
    ANSWERED,
    ANSWERS_ONLY,
    EngineEvent,
    Evaluation,
    Outcome,
    Question,
    QuestionId,
    Score,
    Turn,
)
from mtbench_ray.store import Workspace

Summary = dict[str, Any]
"""The JSON object; README.md documents its keys."""

_ERRORS = 20
"""Different texts of failed answers that are kept for a model."""

Verdicts = Callable[[Evaluation], list[Outcome]]
"""Every wanted verdict of an evaluation."""


def key(row: Evaluation) -> tuple[str, str, str, str | None]:
    """What makes two evaluations the same row of the table: the newer one then counts."""
    if row.mode == "pairwise-all":
        first, second = sorted((row.model, row.baseline or ""))
        return first, row.judge, row.mode, second
    return row.model, row.judge, row.mode, row.baseline


def newest(records: Iterable[RunRecord]) -> list[Evaluation]:
    """The evaluations that count: per model, judge, mode and baseline those of the newest run."""
    rows: dict[tuple[str, str, str, str | None], Evaluation] = {}
    for record in records:
        for row in record.evaluations:
            rows.pop(key(row), None)
            rows[key(row)] = row
    return list(rows.values())


def readable(workspace: Workspace, rows: Sequence[Evaluation]) -> list[Evaluation]:
    """Without the evaluations whose questions are not in the workspace any more; says so."""
    lost: dict[str, UserError] = {}
    for name in {row.data for row in rows if row.data}:
        try:
            workspace.load_data(name)
        except UserError as error:
            lost[name] = error
    for name, reason in lost.items():
        models = dict.fromkeys(row.model for row in rows if row.data == name)
        warn(f"left out: {', '.join(list(models)[:5])}: {reason.message}. {reason.hint}")
    return [row for row in rows if row.data not in lost]


def shown(rows: Sequence[Evaluation]) -> list[Evaluation]:
    """Without the evaluations whose answers a judge has rated by now: they say nothing more."""
    judged = {(row.model, unit) for row in rows if row.judge for unit in row.answers.units}
    return [
        row
        for row in rows
        if row.judge or not judged.issuperset((row.model, unit) for unit in row.answers.units)
    ]


def summarise_all(
    workspace: Workspace,
    evaluations: Sequence[Evaluation],
    options: ScoreOptions,
    find: Verdicts | None = None,
) -> Summary:
    """The summary of the newest mode that a judge rated, with those of ``other_modes`` in it."""
    rows = shown(evaluations)
    modes = dict.fromkeys(row.mode for row in reversed(rows))
    first, *others = sorted(modes, key=lambda mode: mode == ANSWERS_ONLY)
    find = find or remembering(workspace, options)
    found = summarise(workspace, rows, first, options, find)
    return found | {
        "other_modes": [summarise(workspace, rows, mode, options, find) for mode in others]
    }


def summarise(
    workspace: Workspace,
    evaluations: Sequence[Evaluation],
    mode: str,
    options: ScoreOptions,
    find: Verdicts | None = None,
) -> Summary:
    """The summary of evaluations of one mode.

    Args:
        mode: Evaluations of other modes are left out.
        options: Parity and bootstrap.
        find: From :func:`remembering`, where more is made of the same evaluations.

    Returns:
        A JSON-able object; equal for equal rows, whenever it is made.
    """
    find = find or remembering(workspace, options)
    records = workspace.run_records()
    rows = [row for row in evaluations if row.mode == mode]
    events = [event for record in records for event in record.events]
    results: list[dict[str, Any]] = []
    if mode.startswith("pairwise"):
        results = _pairwise(rows, options, find)
    else:
        for row in rows:
            results.append(_single(workspace, row, options, events, find))
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
    by_judge: dict[tuple[str, str | None], dict[str, str]] = {}
    by_model: dict[str, set[str]] = {}
    for row in rows:
        if row.judge:
            baseline = row.baseline if row.mode == "pairwise-baseline" else None
            by_judge.setdefault((row.judge, baseline), {}).setdefault(row.data, row.model)
            by_model.setdefault(row.model, set()).add(row.answers.settings)
    for (judge, _), models in by_judge.items():
        if len(models) > 1:
            notes.append(
                f"not to be compared: judge {judge} had other questions, references or prompts for "
                + " than for ".join(models.values())
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
    known: dict[Evaluation, list[Outcome]] = {}

    def find(row: Evaluation) -> list[Outcome]:
        if row not in known:
            known[row] = verdicts(workspace, row, options)
        return known[row]

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


def _pairwise(
    rows: Sequence[Evaluation], options: ScoreOptions, find: Verdicts
) -> list[dict[str, Any]]:
    """One result per model, over all its opponents."""
    groups: dict[tuple[str, str | None], list[Outcome]] = {}
    errors: dict[str, str] = {}
    demo = {row.judge for row in rows if row.demo}
    for row in rows:
        # In pairwise-all the opponents differ, and one table holds them all.
        baseline = row.baseline if row.mode == "pairwise-baseline" else None
        groups.setdefault((row.judge, baseline), []).extend(find(row))
        if row.error:
            errors[row.model] = row.error
    results = []
    for (judge, baseline), found in groups.items():
        mode = rows[0].mode
        intervals = {
            score.model: score
            for score in get_mode(mode).reduce(found, options)
            if score.metric == "win_rate_adjusted" and score.dimension == "all"
        }
        for tally in pairwise.tally(found, mode, options.parity):
            results.append(
                {
                    "model": tally.model,
                    "judge": judge,
                    "baseline": baseline,
                    "win": tally.win,
                    "loss": tally.loss,
                    "tie": tally.tie,
                    "n": tally.n,
                    "win_rate": tally.win_rate,
                    "loss_rate": tally.loss_rate,
                    "win_rate_adjusted": tally.win_rate_adjusted,
                    "ci_low": intervals[tally.model].ci_low,
                    "ci_high": intervals[tally.model].ci_high,
                    "inconsistent": tally.inconsistent_rate,
                    "planned": tally.planned,
                    "failed": dict(sorted(tally.failed.items())),
                    "demo": judge in demo,
                    "error": errors.get(tally.model),
                    "complete": 0 < tally.n == tally.planned,
                }
            )
    return results


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
