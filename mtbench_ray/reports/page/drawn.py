"""The plots of the page: those of ``report plots`` and ``report curve``, as SVG inside it."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator, Sequence
from typing import Any

from mtbench_ray.errors import UserError
from mtbench_ray.reports import curve, pictures
from mtbench_ray.reports.drawing import style
from mtbench_ray.reports.filters import Filter
from mtbench_ray.reports.page.contents import Plot
from mtbench_ray.reports.page.inline_svg import PAPER, inline
from mtbench_ray.reports.results import Results
from mtbench_ray.reports.score_tables import Grader, Table
from mtbench_ray.schema import Evaluation

_MOST = 60
"""Pictures; more judges against judges are left to `report plots`."""


def plots(
    results: Results,
    rows: Sequence[Evaluation],
    graders: Sequence[Grader],
    tables: Sequence[Table],
    only: Filter | None = None,
) -> list[Plot]:
    """All that the scores allow; none, with a word on standard error, without matplotlib."""
    found: list[Plot] = []
    try:
        with style("plots", paper=PAPER):
            for group, figure in _figures(results, rows, graders, tables, only):
                if len(found) == _MOST:
                    break
                title = figure.get_suptitle()
                name = f"plot{len(found)}"
                found.append(Plot(group, title, inline(_svg(figure), name, title)))
    except UserError as error:
        print(f"the page has no plots: {error}", file=sys.stderr)
    return found


def _figures(
    results: Results,
    rows: Sequence[Evaluation],
    graders: Sequence[Grader],
    tables: Sequence[Table],
    only: Filter | None,
) -> Iterator[tuple[str, Any]]:
    """The part of the page that it belongs to, and the figure."""
    if curve.has_curves(rows):
        for figure in curve.figures(results.workspace, results.options, only):
            yield "Training steps", figure
    for table in tables:
        grader = graders[table.grader]
        for _, figure in pictures.table_figures(table, grader):
            yield grader.name, figure
    for _, figure in pictures.point_figures(results, rows):
        yield "Answers and judges", figure


def _svg(figure: Any) -> bytes:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None})
    return buffer.getvalue()
