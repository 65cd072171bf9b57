"""Several benchmarks at a glance: a row for each model, a column for each benchmark's headline."""

from __future__ import annotations

from collections.abc import Sequence

from mtbench_ray.reports.results import Results, judged_alone
from mtbench_ray.reports.tables import common_folder, grid, label, number, short
from mtbench_ray.schema import Evaluation, Score

NOTE = "(n/m): only n of m wanted items are scored"


def suite(
    results: Results, rows: Sequence[Evaluation], format: str = "table", width: int | None = None
) -> str:
    """The table of some evaluations; empty where they are of less than two benchmarks.

    Models that are only compared with others have no figure of their own, and are left out. Of one
    name with several evaluations in a column each has a row.

    Args:
        width: Columns of the terminal; None for as many as it takes.
    """
    rows = judged_alone(rows)
    if len({row.benchmark for row in rows}) < 2:
        return ""
    columns = list(dict.fromkeys((row.benchmark, row.mode, row.judge) for row in rows))
    cells: dict[tuple[str, int], dict[tuple[str, str, str], str]] = {}
    partial = False
    for row in rows:
        column = (row.benchmark, row.mode, row.judge)
        place = 0
        while column in cells.setdefault((row.model, place), {}):
            place += 1
        headline = results.grader(row).headline
        found = next(
            (one for one in results.scores(row, resamples=0) if one.place == headline.place), None
        )
        cells[row.model, place][column] = _cell(found, headline.digits)
        partial = partial or (found is not None and found.scored < found.planned)
    folder = common_folder({model for model, _ in cells})
    judges = {name: {judge for one, _, judge in columns if one == name} for name, _, _ in columns}
    by_column = {(row.benchmark, row.mode, row.judge): results.grader(row) for row in rows}
    headers = ["model"]
    for column in columns:
        name, _, judge = column
        told = f" ({judge})" if len(judges[name]) > 1 else ""
        headers.append(f"{name} {by_column[column].headline.header}{told}")
    table = [
        [short(model, folder), *(mine.get(column, "-") for column in columns)]
        for (model, _), mine in cells.items()
    ]
    text = grid(headers, table, format, width)
    head = f"…/ is {label(folder)}\n\n" if folder else ""
    return f"{head}{text}\n" + (f"\n{NOTE}\n" if partial else "")


def _cell(score: Score | None, digits: int) -> str:
    if score is None or score.mean is None:
        return "-"
    told = number(score.mean, digits)
    return told if score.scored == score.planned else f"{told} ({score.scored}/{score.planned})"
