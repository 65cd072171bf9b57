"""Pictures of curves. matplotlib (the extra ``plots``) is imported only when one is drawn."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any

from mtbench_ray.reports.drawing import MARKERS, PALETTE, legend_below, saved, style, tell_lacking
from mtbench_ray.reports.points import Point, short_names
from mtbench_ray.stats.clusters import LEAST_CLUSTERS

DASHES = ("-", "--", ":", "-.")
LEAST_SPAN = 2 / 9
"""The score axis never shows less than this share of the scale, so that noise does not look like a
trend."""
LONG_NAME = 48
"""Characters of a name in the legend; of longer ones both ends are shown."""

_BARS = {
    "ci95": "95% interval, bootstrap over questions",
    "sem": "one standard error of the mean, by question",
    "std": "standard deviation of single verdicts",
    "repeats": "standard deviation of repeated averages",
}


def draw(
    points: Sequence[Point], *, error: str, by: str, dark: bool = False, dpi: int = 150
) -> dict[str, bytes]:
    """The pictures of one judge's points.

    Args:
        points: At least one.
        error: One of ``curve.ERRORS``.
        dark: On a dark ground.
        dpi: Of the PNG files.
        by: ``all`` (one panel), ``category`` (a panel for each) or ``both``.

    Returns:
        File endings (``.png``, ``.svg``, ``_category.png``, ``_category.svg``) to contents.

    Raises:
        UserError: matplotlib is not installed.
    """
    tell_lacking("".join(point.line + point.judge + point.category for point in points))
    with style("curves", dark):
        return {
            f"{name}{end}": made
            for name, figure in figures(points, error=error, by=by)
            for end, made in saved(figure, dpi).items()
        }


def figures(points: Sequence[Point], *, error: str, by: str) -> Iterator[tuple[str, Any]]:
    """The same as figures, by the ends of their names."""
    from matplotlib.figure import Figure

    if by in ("both", "all"):
        figure = Figure(figsize=(8.0, 4.6), layout="constrained")
        _fill(figure, points, [""], error, columns=1)
        yield "", figure
    # Points come in the order of their benchmark's categories.
    categories = list(dict.fromkeys(point.category for point in points if point.category))
    if by in ("both", "category") and categories:
        columns = min(4, len(categories))
        rows = math.ceil(len(categories) / columns)
        size = (max(8.0, 3.2 * columns), 1.0 + 2.6 * rows)
        figure = Figure(figsize=size, layout="constrained")
        _fill(figure, points, categories, error, columns=columns)
        yield "_category", figure


def _fill(
    figure: Any, points: Sequence[Point], categories: Sequence[str], error: str, *, columns: int
) -> None:
    """One panel per category, ``""`` being all of them together; the legend below."""
    rows = math.ceil(len(categories) / columns)
    grid = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
    axes = list(grid.flat)
    shown = [point for point in points if point.category in categories]
    names = short_names(point.line for point in points)
    steps = sorted({point.step for point in points})
    # Runs are often saved at the same steps: a little apart, their bars can be told apart.
    near = min((after - before for before, after in itertools.pairwise(steps)), default=0)
    apart = min(0.006 * columns * (steps[-1] - steps[0]), 0.3 * near / len(names))
    handles = {}
    for axis, category in zip(axes, categories, strict=False):
        axis.grid(True)
        for number, line in enumerate(names):
            mine = [p for p in shown if p.category == category and p.line == line]
            missing = {p.step for p in points if p.line == line} - {p.step for p in mine}
            shift = apart * (number - (len(names) - 1) / 2)
            handles[line] = _line(axis, mine, missing, number, shift, error)
        if category:
            axis.set_title(category, fontsize=10)
        if not any(p.mean is not None for p in shown if p.category == category):
            axis.text(0.5, 0.5, "nothing scored", transform=axis.transAxes, ha="center",
                      color="#666666")  # fmt: skip
    for axis in axes[len(categories) :]:
        axis.set_visible(False)
    first = points[0]
    axes[0].set_ylim(*_limits(shown, error))
    _steps(axes[0], steps, most=max(4, 11 - 2 * columns))
    for index, axis in enumerate(axes[: len(categories)]):
        if index + columns >= len(categories):
            axis.set_xlabel("training step")
            axis.tick_params(labelbottom=True)
        if index % columns == 0:
            axis.set_ylabel(f"{first.metric} ({first.scale[0]:g} to {first.scale[1]:g})")
    what = "Score by category" if categories != [""] else "Score"
    demo = " (demo judge: not comparable)" if first.demo else ""
    figure.suptitle(f"{what} and training step, judge {first.judge}{demo}", fontsize=11)
    notes = [f"bars: {_BARS[error]}"] if error in _BARS else []
    if error in ("ci95", "sem") and any(p.n_questions < LEAST_CLUSTERS for p in shown):
        notes.append(f"no bar below {LEAST_CLUSTERS} questions")
    if any(_hollow(point, shown) for point in shown):
        notes.append("hollow: rated on fewer questions, or some verdicts are missing")
    texts = _legend_names(list(names.values()))
    # A space first: matplotlib leaves out entries that begin with an underscore.
    figure.legend(
        list(handles.values()),
        [f" {text}" for text in texts],
        loc="outside lower center",
        ncols=legend_below(figure, texts, len(texts)),
        title="; ".join(notes) or None,
        title_fontsize=9,
        frameon=False,
    )


def _legend_names(names: Sequence[str]) -> list[str]:
    """Names that fit a legend and differ where the names do."""
    half = LONG_NAME // 2
    cut = [n if len(n) <= LONG_NAME else f"{n[:half]}…{n[-half:]}" for n in names]
    return list(names) if len(set(cut)) < len(set(names)) else cut


def _hollow(point: Point, beside: Sequence[Point]) -> bool:
    """Whether a point says less than it seems: verdicts are missing, or questions that others of
    its curve have."""
    most = max(
        (p.n_questions for p in beside if (p.line, p.category) == (point.line, point.category)),
        default=0,
    )
    return point.mean is not None and (point.scored < point.planned or point.n_questions < most)


def _line(
    axis: Any,
    points: Sequence[Point],
    missing: set[int | float],
    number: int,
    shift: float,
    error: str,
) -> Any:
    """One curve with its bars; returns what stands for it in the legend.

    Args:
        missing: Steps of the curve for which there is no point here at all.
        number: Chooses the style.
        shift: Moves it along the step axis.
    """
    from matplotlib import rcParams

    colour = PALETTE[number % len(PALETTE)]
    style = {
        "color": colour,
        "marker": MARKERS[number % len(MARKERS)],
        "linestyle": DASHES[number // len(PALETTE) % len(DASHES)],
        "markersize": 5,
        "linewidth": 1.6,
    }
    # NaN breaks the line: what is missing is a gap, never a 0 or a straight way across.
    means = [(p.step, math.nan if p.mean is None else p.mean) for p in points]
    means = sorted([*means, *((step, math.nan) for step in missing)])
    steps = [step + shift for step, _ in means]
    (handle,) = axis.plot(steps, [mean for _, mean in means], **style)
    hollow = [p for p in points if _hollow(p, points)]
    axis.plot([p.step + shift for p in hollow], [p.mean for p in hollow],
              **{**style, "linestyle": "none"},
              markerfacecolor=rcParams["axes.facecolor"])  # fmt: skip
    bars = [
        (p.step + shift, p.mean, p.mean - ends[0], ends[1] - p.mean)
        for p in points
        if p.mean is not None and (ends := p.bar(error)) is not None
    ]
    if bars:
        places, middles, down, up = zip(*bars, strict=True)
        axis.errorbar(places, middles, yerr=[down, up], fmt="none", ecolor=colour,
                      elinewidth=1.1, capsize=2.5, alpha=0.8)  # fmt: skip
    return handle


def _limits(points: Sequence[Point], error: str) -> tuple[float, float]:
    """Ends of the score axis: all points and bars with some room, no less than LEAST_SPAN
    of the scale, and within it."""
    low, high = points[0].scale
    ends = [end for p in points for end in (p.bar(error) or ()) if p.mean is not None]
    ends += [p.mean for p in points if p.mean is not None]
    if not ends:
        return low, high
    least = LEAST_SPAN * (high - low)
    middle, span = (min(ends) + max(ends)) / 2, max(least, 1.1 * (max(ends) - min(ends)))
    bottom = max(low, middle - span / 2)
    top = min(high, bottom + span)
    bottom = max(low, top - span)
    room = 0.02 * (top - bottom)  # so that a marker at the end of the scale is whole
    return bottom - room, top + room


def _steps(axis: Any, steps: Sequence[int | float], most: int) -> None:
    """Ticks at the steps where they have room beside one another, else at round numbers."""
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    gaps = [after - before for before, after in itertools.pairwise(steps)]
    if all(gap * most >= steps[-1] - steps[0] for gap in gaps):
        axis.set_xticks(steps)
    else:
        axis.xaxis.set_major_locator(MaxNLocator(most, integer=True))
    size, unit = (1e6, "M") if steps[-1] >= 1e7 else (1e3, "k") if steps[-1] >= 1e4 else (1, "")
    axis.xaxis.set_major_formatter(
        FuncFormatter(lambda step, _: f"{step / size:g}{unit if step else ''}")
    )
