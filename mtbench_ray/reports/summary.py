"""``summary.json``: what was scored, with coverage, made from the workspace alone.

What stands in a row follows from the columns that its grader declares.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from mtbench_ray.benchmarks import get_benchmark
from mtbench_ray.fastchat.counting import concerns
from mtbench_ray.judges.base import Column, Grader
from mtbench_ray.judges.outcomes import NOT_NEEDED
from mtbench_ray.judges.race import said
from mtbench_ray.planning.evaluations import against, answer_settings, distinguishing_settings
from mtbench_ray.reports.answer_figures import answer_figures
from mtbench_ray.reports.filters import Filter
from mtbench_ray.reports.results import Results, in_order, tables_of
from mtbench_ray.reports.scores import tables
from mtbench_ray.reports.suite import suite
from mtbench_ray.schema import ANSWERS_ONLY, EngineEvent, Evaluation, Score, canonical
from mtbench_ray.workspace.run_record import RunRecord

Summary = dict[str, Any]
"""The JSON object; README.md documents its keys."""

Places = Mapping[tuple[str, str, str], Score]
"""One model's scores by metric, dimension and name."""


def summarise_all(
    results: Results, evaluations: Sequence[Evaluation], only: Filter | None = None
) -> Summary:
    """The summary of the newest table that has verdicts, with those of ``other_modes`` in it.

    ``suite``: the headlines of several benchmarks side by side, null where there is one; see
    :func:`mtbench_ray.reports.suite.suite`.
    """
    only = only or Filter()
    tables = tables_of(evaluations)
    first, *others = [summarise(results, evaluations, *table, only) for table in tables]
    shown = []
    for table in tables:
        same = [row for row in evaluations if (row.benchmark, row.mode) == table]
        shown += only.rows(results, same, distinguishing_settings(same))
    order = {row.evaluation_id: at for at, row in enumerate(evaluations)}
    shown.sort(key=lambda row: order[row.evaluation_id])
    found = suite(results.only(only.categories()), shown)
    return first | {"suite": found, "other_modes": others}


def summarise(
    results: Results,
    evaluations: Sequence[Evaluation],
    benchmark: str,
    mode: str,
    only: Filter | None = None,
) -> Summary:
    """The summary of one table: the evaluations of a benchmark and mode.

    Args:
        evaluations: Others are left out.
        only: Leaves rows and categories out; what is left keeps its name.

    Returns:
        A JSON-able object; equal for equal rows, whenever it is made.
    """
    only = only or Filter()
    workspace = results.workspace
    records = workspace.run_records()
    rows = [row for row in evaluations if (row.benchmark, row.mode) == (benchmark, mode)]
    events = [event for record in records for event in record.events]
    apart_by = distinguishing_settings(rows)
    rows = only.rows(results, rows, apart_by)
    results = results.only(only.categories())
    found: list[dict[str, Any]] = []
    if rows and against(rows[0]) == "all":
        found = [
            result
            for result in _over_all(results, rows)
            if only.takes(result["model"], result["settings"])
        ]
    else:
        for row in rows:
            own = _compared(results, row) if against(row) else _alone(results, row, events)
            settings = apart_by[row.evaluation_id]
            found.append(
                {"id": row.evaluation_id, "benchmark": row.benchmark, **own, **_protocol(row),
                 "settings": settings}
            )  # fmt: skip
    if mode != ANSWERS_ONLY and rows:
        _rank(found, results.grader(rows[0]))
    first = workspace.load_data(rows[0].data) if rows and rows[0].data else None
    return {
        "schema": 1,
        "benchmark": benchmark,
        "mode": mode,
        "parity": results.options.parity,
        "files": dict(first.files) if first else {},
        "notes": [
            *_protocols(rows),
            *_remarks(results, rows),
            *_notes(records, rows),
            *_mixed(rows),
            *_raced(results, rows),
        ],
        "complete": bool(found) and all(result["complete"] for result in found),
        "results": found,
    }


def _rank(found: Sequence[dict[str, Any]], grader: Grader) -> None:
    """Number the results of each judge (and baseline), the best with 1; equal ones share a rank."""
    by_judge: dict[str, list[dict[str, Any]]] = {}
    for result in found:
        settings = {k: v for k, v in result["settings"].items() if k.startswith("judge.")}
        key = canonical([result["judge"], result.get("baseline"), settings])
        by_judge.setdefault(key, []).append(result)
    for group in by_judge.values():
        means = [figure(result, grader.headline.key) for result in group]
        for result, mean in zip(group, means, strict=True):
            result["rank"] = rank_of(mean, means)


def figure(result: Mapping[str, Any], key: str) -> float | None:
    """A figure of a result, flat or with its coverage."""
    value = result[key]
    mean = value["mean"] if isinstance(value, dict) else value
    return None if mean is None else float(mean)


def rank_of(mean: float | None, means: Sequence[float | None]) -> int | None:
    """1 for the highest; equal means share the best rank; None has none."""
    if mean is None:
        return None
    return 1 + sum(other is not None and other > mean for other in means)


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
            baseline = row.baseline if against(row) == "baseline" else None
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


def _protocol(row: Evaluation) -> dict[str, str]:
    """Which protocol a judged evaluation follows, where its benchmark has more than one."""
    known = row.judge and get_benchmark(row.benchmark).official
    return {"protocol": row.protocol} if known else {}


def _protocols(rows: Sequence[Evaluation]) -> list[str]:
    """What these evaluations follow, and what is otherwise than in the benchmark's program."""
    notes = []
    for protocol in dict.fromkeys(row.protocol for row in rows if _protocol(row)):
        benchmark = get_benchmark(rows[0].benchmark)
        if protocol == "official":
            notes.append(f"protocol: official, as {benchmark.official}")
        else:
            notes.append(f"protocol: default; other than {benchmark.official}: {benchmark.differs}")
    return notes


def _remarks(results: Results, rows: Sequence[Evaluation]) -> list[str]:
    """What graders say of the scores of their models."""
    return list(
        dict.fromkeys(
            note
            for row in rows
            if row.judge and against(row) != "all"
            for note in results.grader(row).remarks(results.view(row), results.scores(row))
        )
    )


def _raced(results: Results, rows: Sequence[Evaluation]) -> list[str]:
    """What came of races, and what their early end makes of the figures of a table."""
    found = {
        canonical(race["evaluations"]): race
        for row in rows
        if (race := results.races.get(row.evaluation_id)) is not None
    }
    notes = [said(race) for race in found.values()]
    if notes:
        notes.append(
            "the averages of a race are over what was judged of each model, and their intervals are"
            " not made for an early end: `report compare` has anytime-valid ones of the differences"
            " over all questions; the same line without select= judges the rest"
        )
    return notes


def _alone(results: Results, row: Evaluation, events: Sequence[EngineEvent]) -> dict[str, Any]:
    """The result of an evaluation that compares its model with no other."""
    answers = answer_figures(results.workspace, row, events)
    result: dict[str, Any] = {"model": row.model, "judge": row.judge or None}
    complete = row.error is None and answers["answered"] == answers["planned"]
    if row.mode != ANSWERS_ONLY:
        grader = results.grader(row)
        places = _places(results.scores(row))
        for column in grader.columns:
            result[column.key] = (
                _parts(places, column, in_order(row.benchmark))
                if column.parts
                else score_json(places.get(column.place))
            )
        total = places.get(grader.headline.place)
        needed = total.planned - not_needed(total) if total else 0
        complete = total is not None and 0 < needed == total.scored
    result |= {
        "truncated": answers.pop("truncated"),
        "output_tokens_per_s": answers.pop("output_tokens_per_s"),
        "answers": answers,
        "demo": row.demo,
        "error": row.error,
        "complete": complete,
    }
    return result


def _places(scores: Iterable[Score]) -> Places:
    return {score.place: score for score in scores}


def _parts(
    places: Places, column: Column, ordered: Callable[[Iterable[str]], list[str]]
) -> dict[str, Any]:
    found = {
        name: score_json(score)
        for (metric, dimension, name), score in places.items()
        if (metric, dimension) == (column.metric, column.dimension)
    }
    return {name: found[name] for name in ordered(found)}


def score_json(score: Score | None) -> dict[str, Any]:
    """A score with its coverage; null mean where nothing was scored.

    ``ci_method`` says how the interval was made, or after ``none: `` why there is none.
    ``not_needed``, where a race was decided: verdicts that are neither scored nor failed.
    """
    if score is None:
        return {"mean": None, "ci_low": None, "ci_high": None, "ci_method": "", "planned": 0,
                "scored": 0, "failed": {}}  # fmt: skip
    return {
        "mean": score.mean,
        "ci_low": score.ci_low,
        "ci_high": score.ci_high,
        "ci_method": score.method,
        "planned": score.planned,
        "scored": score.scored,
        "failed": {name: n for name, n in json.loads(score.failed).items() if name != NOT_NEEDED},
    } | ({NOT_NEEDED: spared} if (spared := not_needed(score)) else {})


def not_needed(score: Score) -> int:
    """Verdicts of a score that were not judged because its race was decided."""
    return int(json.loads(score.failed).get(NOT_NEEDED, 0))


def _compared(results: Results, row: Evaluation) -> dict[str, Any]:
    """The result of an evaluation against a baseline."""
    figures = _comparison(results.grader(row), row, row.model, _places(results.scores(row)))
    error = row.error
    if not error and row.opponent_error:
        error = f"baseline {row.baseline}: {row.opponent_error}"
    return figures | {"baseline": row.baseline, "error": error}


def _over_all(results: Results, rows: Sequence[Evaluation]) -> list[dict[str, Any]]:
    """One result per model, over all its opponents under one judge."""
    found = tables(rows, results)
    # Of each model of each table an evaluation that stands for it, to see what tells them apart.
    stands = [
        replace(table.rows[0], answers=answers, opponent=None, evaluation_id=name)
        for table in found
        for answers, name in table.models.values()
    ]
    apart_by = distinguishing_settings(stands)
    shown = []
    for table in found:
        first = table.rows[0]
        errors: dict[str, str | None] = {}
        for row in table.rows:
            for answers, error in ((row.answers, row.error), (row.opponent, row.opponent_error)):
                if answers is not None and error:
                    errors[canonical(answer_settings(answers))] = error
        by_model: dict[str, list[Score]] = {}
        for score in table.scores(results):
            by_model.setdefault(score.model, []).append(score)
        for side, scores in by_model.items():
            answers, name = table.models[side]
            figures = _comparison(results.grader(first), first, answers.model, _places(scores))
            shown.append(
                {"id": name, "benchmark": first.benchmark, **figures}
                | {"error": errors.get(side), "settings": apart_by[name]}
            )
    return shown


def _comparison(grader: Grader, row: Evaluation, model: str, places: Places) -> dict[str, Any]:
    """The figures of a comparison, flat, with the coverage of its headline."""
    total = score_json(places.get(grader.headline.place))
    result: dict[str, Any] = {"model": model, "judge": row.judge, "baseline": None}
    for column in grader.columns:
        if column.parts:
            result[column.key] = _parts(places, column, in_order(row.benchmark))
            continue
        score = places.get(column.place)
        mean = score.mean if score else None
        count = column.digits == 0 and mean is not None
        result[column.key] = round(mean) if count and mean is not None else mean
        if column.interval and not column.headline:
            result[f"{column.key}_ci"] = [score.ci_low, score.ci_high] if score else [None, None]
        if column.of_set:
            result["set"] = score.set_digest if score else result.get("set", "")
    return result | {
        "n": total["scored"],
        "ci_low": total["ci_low"],
        "ci_high": total["ci_high"],
        "ci_method": total["ci_method"],
        "planned": total["planned"],
        "failed": total["failed"],
        "demo": row.demo,
        "error": None,
        "complete": 0 < total["scored"] == total["planned"],
    }
