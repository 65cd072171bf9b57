"""Several benchmarks at a glance: a row for each model, a column for each benchmark's headline."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mtbench_ray.benchmarks import grader_of
from mtbench_ray.reports.results import Results, judged_alone
from mtbench_ray.schema import Evaluation, Score


def suite(results: Results, rows: Sequence[Evaluation]) -> dict[str, Any] | None:
    """The table of some evaluations as JSON; None where they are of less than two benchmarks.

    Models that are only compared with others have no figure of their own, and are left out. Of one
    name with several evaluations in a column each has a row.

    Returns:
        ``columns``: benchmark, mode, judge and metric (a key of the results); ``rows``: the model
        and for each column its ``scores``, null where it was not evaluated: the ``id`` of the
        evaluation, ``mean``, ``scored`` and ``planned``.
    """
    rows = judged_alone(rows)
    if len({row.benchmark for row in rows}) < 2:
        return None
    columns = list(dict.fromkeys((row.benchmark, row.mode, row.judge) for row in rows))
    cells: dict[tuple[str, int], dict[tuple[str, str, str], dict[str, Any]]] = {}
    for row in rows:
        column = (row.benchmark, row.mode, row.judge)
        place = 0
        while column in cells.setdefault((row.model, place), {}):
            place += 1
        headline = results.grader(row).headline.place
        scores = results.scores(row, resamples=0)
        found = next((one for one in scores if one.place == headline), None)
        cells[row.model, place][column] = _cell(row, found)
    return {
        "columns": [
            {"benchmark": benchmark, "mode": mode, "judge": judge,
             "metric": grader_of(benchmark, mode).headline.key}
            for benchmark, mode, judge in columns
        ],
        "rows": [
            {"model": model, "scores": [mine.get(column) for column in columns]}
            for (model, _), mine in cells.items()
        ],
    }  # fmt: skip


def _cell(row: Evaluation, score: Score | None) -> dict[str, Any]:
    return {
        "id": row.evaluation_id,
        "mean": None if score is None else score.mean,
        "scored": 0 if score is None else score.scored,
        "planned": 0 if score is None else score.planned,
    }
