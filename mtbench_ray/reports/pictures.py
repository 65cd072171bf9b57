"""``report plots``: bars with intervals, a heat map and a radar of each grader's scores.

Drawn from score tables alone (see :mod:`mtbench_ray.reports.page.collect`), so for any benchmark.
What is missing is a gap, never a 0. matplotlib (the extra ``plots``) is imported when drawing.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Hashable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from mtbench_ray.errors import EXIT_OK, UserError
from mtbench_ray.judges.agreement import Rated, values_of
from mtbench_ray.reports.drawing import (
    MARKERS,
    PALETTE,
    legend_below,
    new_figure,
    saved,
    short_name,
    style,
    tell_lacking,
)
from mtbench_ray.reports.parts import Judged, judged
from mtbench_ray.reports.results import Results
from mtbench_ray.reports.scatters import judges_figure, length_figure, part_figures
from mtbench_ray.reports.score_tables import Cell, Grader, Table, tables_of
from mtbench_ray.schema import Evaluation
from mtbench_ray.stats.clusters import LEAST_CLUSTERS
from mtbench_ray.workspace.filenames import safe_names
from mtbench_ray.workspace.journal import replacing

RADAR_MODELS = 6
"""Models on one radar; more cannot be told apart. The best ones are shown."""
RADAR_FILLED = 2
"""Models whose areas are filled; more areas are one grey."""
RADAR_LEAST = 3
"""Categories; fewer have no shape."""


def report(results: Results, rows: Sequence[Evaluation], out: str) -> int:
    """Draw all that the scores of a workspace allow; prints the files.

    Args:
        out: Folder of the files; empty for ``plots`` in the first workspace.

    Raises:
        UserError: Nothing is scored, matplotlib is missing, or the disk refused it.
    """
    graders, tables = tables_of(results, rows)
    root = results.workspace.root
    folder = Path(out).expanduser() if out else root / "plots"
    if not any(cell for table in tables for row in table.rows for cell in row.cells):
        raise UserError(f"the workspace {root} holds no score", "judge its answers first")
    names = _file_names(graders[table.grader].name for table in tables)
    for table in tables:
        grader = graders[table.grader]
        for name, content in draw(table, grader).items():
            path = folder / f"{names[grader.name]}-{name}"
            _write(path, content)
    for name, content in points(results, rows).items():
        _write(folder / name, content)
    return EXIT_OK


def _file_names(titles: Iterable[str]) -> dict[str, str]:
    """Beginnings of file names by title."""
    plain = {title: title.replace(" · ", "-") for title in titles}
    safe = safe_names(list(plain.values()))
    return {title: safe[name] for title, name in plain.items()}


def _write(path: Path, content: bytes) -> None:
    with replacing(path) as temporary:
        temporary.write_bytes(content)
    print(path)


def points(results: Results, rows: Sequence[Evaluation]) -> dict[str, bytes]:
    """The files of :func:`point_figures`, by name."""
    with style("plots"):
        return {
            f"{name}{end}": content
            for name, figure in point_figures(results, rows)
            for end, content in saved(figure).items()
        }


def point_figures(results: Results, rows: Sequence[Evaluation]) -> Iterator[tuple[str, Any]]:
    """Part against part, score against length and judge against judge, with names for files."""
    groups: dict[tuple[str, str, str], list[Judged]] = {}
    for one in judged(results, rows):
        groups.setdefault((one.judge, one.mode, one.benchmark), []).append(one)
    several = len({benchmark for _, _, benchmark in groups}) > 1
    titles = [" · ".join(key if several else key[:2]) for key in groups]
    names = _file_names(titles)
    values: dict[str, tuple[tuple[str, str], dict[Hashable, Rated], tuple[float, float]]] = {}
    for title, (key, group) in zip(titles, groups.items(), strict=True):
        ends = group[0].scale
        for name, figure in part_figures(group, ends, results.options):
            yield f"{names[title]}-{name}", figure
        figure = length_figure(group, results.workspace.turns, ends)
        if figure is not None:
            yield f"{names[title]}-length", figure
        if not group[0].grader.against:
            items = [item for one in group for item in one.items]
            values[title] = (key[1:], values_of(items), ends)
    for first, second in itertools.combinations(values, 2):
        (kind, mine, ends), (other_kind, theirs, other_ends) = values[first], values[second]
        if (kind, ends) == (other_kind, other_ends):
            figure = judges_figure((first, second), (mine, theirs), ends)
            if figure is not None:
                yield f"{names[first]}-against-{names[second]}", figure


def draw(table: Table, grader: Grader) -> dict[str, bytes]:
    """The pictures of a table, PNG and SVG, by the ends of their names.

    Raises:
        UserError: matplotlib is not installed.
    """
    tell_lacking("".join([grader.name, *(row.name for row in table.rows)]))
    with style("plots"):
        return {
            f"{name}{end}": content
            for name, figure in table_figures(table, grader)
            for end, content in saved(figure).items()
        }


def table_figures(table: Table, grader: Grader) -> Iterator[tuple[str, Any]]:
    """Bars, heat map and radar of a table, those that it allows, by name."""
    for name, kind in (("bars", _bars), ("heatmap", _heatmap), ("radar", _radar)):
        figure = kind(table, grader)
        if figure is not None:
            yield name, figure


def _mean(cell: Cell | None) -> float:
    return math.nan if cell is None or cell.mean is None else cell.mean


def _categories(table: Table) -> list[int]:
    return [at for at, column in enumerate(table.columns) if column.category]


def _bars(table: Table, grader: Grader) -> Any:
    """The first column of each model, the best on top, with its interval where there is one."""
    rows = [row for row in reversed(table.rows) if row.cells and row.cells[0]]
    if not rows:
        return None
    figure = new_figure(8, 1.2 + 0.32 * len(rows), f"{table.columns[0].header}, {grader.name}")
    axis = figure.subplots()
    lacking = False
    for at, row in enumerate(rows):
        cell = row.cells[0]
        assert cell is not None
        if cell.mean is None:
            axis.annotate("nothing scored", (grader.low, at), (5, 0), textcoords="offset points",
                          va="center", color="#666666", fontsize=8)  # fmt: skip
            continue
        axis.barh(at, cell.mean - grader.low, left=grader.low, color=PALETTE[0], alpha=0.75)
        end = cell.mean
        if cell.low is not None and cell.high is not None:
            axis.errorbar(cell.mean, at, xerr=[[cell.mean - cell.low], [cell.high - cell.mean]],
                          fmt="none", ecolor="#222222", elinewidth=1.1, capsize=2.5)  # fmt: skip
            end = max(end, cell.high)
        part = cell.scored < cell.planned
        lacking |= part
        said = f"{cell.mean:.2f}" + f" ({cell.scored}/{cell.planned} scored)" * part
        axis.annotate(said, (end, at), (5, 0), textcoords="offset points", va="center", fontsize=8)
    axis.set_yticks(range(len(rows)), [short_name(row.name) for row in rows])
    axis.set_xlim(grader.low, grader.high + 0.12 * (grader.high - grader.low))
    axis.set_ylim(-0.7, len(rows) - 0.3)
    notes = [f"whiskers: 95% interval, none below {LEAST_CLUSTERS} questions"]
    notes += ["not all is scored where a count is given"] * lacking
    axis.set_xlabel("; ".join(notes), fontsize=8)
    return figure


def _heatmap(table: Table, grader: Grader) -> Any:
    """Model by category; a hatched field where nothing was scored."""
    columns = _categories(table)
    if not columns or not table.rows:
        return None
    values = [[_mean(row.cells[at]) for at in columns] for row in table.rows]
    figure = new_figure(
        3.2 + 0.85 * len(columns), 1.4 + 0.32 * len(values), f"By category, {grader.name}"
    )
    axis = figure.subplots()
    from matplotlib.patches import Rectangle

    axis.set_xlim(-0.5, len(columns) - 0.5)
    axis.set_ylim(len(values) - 0.5, -0.5)
    for y, line in enumerate(values):
        for x, value in enumerate(line):
            if math.isnan(value):
                axis.add_patch(
                    Rectangle((x - 0.5, y - 0.5), 1, 1, facecolor="#f4f4f4", edgecolor="#bbbbbb",
                              hatch="////", linewidth=0)
                )  # fmt: skip
                continue
            share = (value - grader.low) / ((grader.high - grader.low) or 1)
            # Of one colour, more or less of it: readable on white and on black.
            strength = 0.04 + 0.9 * min(1.0, max(0.0, share))
            axis.add_patch(
                Rectangle((x - 0.5, y - 0.5), 1, 1, facecolor=PALETTE[0], alpha=strength,
                          linewidth=0)
            )  # fmt: skip
            dark = strength > 0.6
            axis.text(x, y, f"{value:.2f}", ha="center", va="center", fontsize=8,
                      color="white" if dark else "#222222")  # fmt: skip
    axis.set_xticks(range(len(columns)), [table.columns[at].category for at in columns],
                    rotation=30, ha="right", rotation_mode="anchor")  # fmt: skip
    axis.set_yticks(range(len(values)), [short_name(row.name) for row in table.rows])
    axis.tick_params(length=0)
    for side in axis.spines.values():
        side.set_visible(False)
    if any(math.isnan(value) for line in values for value in line):
        axis.set_xlabel("hatched: nothing scored", fontsize=8)
    return figure


def _radar(table: Table, grader: Grader) -> Any:
    """The best models over the categories; a line ends where a category is missing."""
    columns = _categories(table)
    rows = [
        row for row in table.rows if any(not math.isnan(_mean(row.cells[at])) for at in columns)
    ]
    if len(columns) < RADAR_LEAST or not rows:
        return None
    shown = rows[:RADAR_MODELS]
    left_out = len(rows) - len(shown)
    title = f"By category, {grader.name}"
    if left_out:
        title += f" (the first {len(shown)} of {len(rows)} models)"
    figure = new_figure(7, 7, title)
    axis = figure.subplots(subplot_kw={"projection": "polar"})
    axis.set_theta_offset(math.pi / 2)
    axis.set_theta_direction(-1)
    angles = [2 * math.pi * at / len(columns) for at in range(len(columns))]
    for number, row in enumerate(shown):
        values = [_mean(row.cells[at]) for at in columns]
        axis.plot([*angles, angles[0]], [*values, values[0]], color=PALETTE[number % len(PALETTE)],
                  marker=MARKERS[number % len(MARKERS)], markersize=4, linewidth=1.5,
                  label=f" {short_name(row.name)}")  # fmt: skip
        if len(shown) <= RADAR_FILLED and not any(map(math.isnan, values)):
            axis.fill(angles, values, color=PALETTE[number % len(PALETTE)], alpha=0.06)
    axis.set_xticks(angles, [table.columns[at].category for at in columns])
    axis.set_ylim(grader.low, grader.high)
    axis.tick_params(axis="y", labelsize=7, labelcolor="#666666")
    axis.spines["polar"].set_color("#cccccc")
    axis.grid(color="#e0e0e0")
    names = [short_name(row.name) for row in shown]
    fitting = legend_below(figure, names, 3)
    figure.legend(loc="outside lower center", ncols=fitting, frameon=False)
    return figure
