"""Pictures of points: part against part, score against length, judge against judge."""

from __future__ import annotations

import random
import statistics
from collections import Counter
from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import Any

from mtbench_ray.judges.agreement import Rated
from mtbench_ray.judges.base import ScoreOptions
from mtbench_ray.reports.drawing import MARKERS, PALETTE, legend_below, new_figure, short_name
from mtbench_ray.reports.parts import Judged, difference_of, mean_of, parts_of
from mtbench_ray.reports.results import answer_ids
from mtbench_ray.reports.tables import part_header
from mtbench_ray.schema import Turn
from mtbench_ray.stats.clusters import LEAST_CLUSTERS
from mtbench_ray.stats.correlation import rank_correlation

MOST_MODELS = 14
"""Models with a colour and marker of their own; more are drawn alike, and not named."""

MOST_CLOUDS = 6
"""Models whose answers are points of their own."""

Scale = tuple[float, float]
Turns = Mapping[tuple[str, int], Turn]


def part_figures(
    group: Sequence[Judged], scale: Scale, options: ScoreOptions
) -> Iterator[tuple[str, Any]]:
    """For each dimension whose parts a question has together: the last against the first."""
    first = group[0]
    items = [item for one in group for item in one.items]
    for dimension, part in first.grader.dimensions.items():
        order = parts_of(items, part, first.benchmark)
        if difference_of(items, part, order, options) is None:
            continue
        ends = []
        for one in group:
            means = [
                mean_of([item for item in one.items if part(item.slot) == name], options)
                for name in (order[0], order[-1])
            ]
            if all(mean["mean"] is not None for mean in means):
                ends.append((one.model, *means))
        if ends:
            yield f"{dimension}s", _ends(first, dimension, order, ends, scale)


def _ends(
    first: Judged, dimension: str, order: Sequence[str], ends: Sequence[Any], scale: Scale
) -> Any:
    names = [part_header(dimension, name) for name in (order[0], order[-1])]
    figure = new_figure(6.6, 6.2, f"{names[0]} against {names[1]}, {first.judge} · {first.mode}")
    axis = figure.subplots()
    _diagonal(axis, scale)
    for at, (model, x, y) in enumerate(ends):
        look = _look(at, len(ends))
        for mean, other, bar in ((x, y, "xerr"), (y, x, "yerr")):
            if mean["ci_low"] is not None:
                reach = [[mean["mean"] - mean["ci_low"]], [mean["ci_high"] - mean["mean"]]]
                at_x, at_y = (mean, other) if bar == "xerr" else (other, mean)
                axis.errorbar(at_x["mean"], at_y["mean"], fmt="none", ecolor=look["color"],
                              alpha=0.45, elinewidth=1, **{bar: reach})  # fmt: skip
        axis.plot(x["mean"], y["mean"], label=f" {short_name(model)}", **look)
    figures = [value[key] for _, x, y in ends for value in (x, y)
               for key in ("mean", "ci_low", "ci_high")]  # fmt: skip
    _square(axis, scale, [figure for figure in figures if figure is not None])
    axis.set_xlabel(names[0])
    axis.set_ylabel(names[1])
    note = f"bars: 95% interval, none below {LEAST_CLUSTERS} questions; dashed: equal"
    _legend(figure, len(ends), note)
    return figure


def length_figure(group: Sequence[Judged], turns: Turns, scale: Scale) -> Any:
    """The value of each answer against its length; None where no length is known.

    Of more than :data:`MOST_CLOUDS` models the means. Values of answers are moved a little, at
    random but always alike, so that equal ones can be seen.
    """
    found = [(one.model, points) for one in group if (points := lengths(one, turns))]
    if not found:
        return None
    first = group[0]
    figure = new_figure(8, 5.2, f"Score and answer length, {first.judge} · {first.mode}")
    axis = figure.subplots()
    shake = random.Random(0)
    step = 0.012 * (scale[1] - scale[0])
    means = len(found) > MOST_CLOUDS
    for at, (model, points) in enumerate(found):
        look = _look(at, len(found))
        rho = rank_correlation(*zip(*points, strict=True)) if len(points) > 2 else None
        said = f" {short_name(model)}" + ("" if rho is None else f"  (rank correlation {rho:+.2f})")
        x = [length for length, _ in points]
        y = [value for _, value in points]
        if means:
            axis.plot(statistics.fmean(x), statistics.fmean(y), label=said, **look)
        else:
            y = [value + shake.uniform(-step, step) for value in y]
            axis.plot(x, y, alpha=0.5, label=said, **{**look, "markersize": 4})
    if not means:
        sizes = [length for _, points in found for length, _ in points]
        if max(sizes) > 20 * max(1.0, min(sizes)):
            axis.set_xscale("symlog", linthresh=max(10.0, min(sizes)))
        room = 0.04 * (scale[1] - scale[0])
        axis.set_ylim(scale[0] - room, scale[1] + room)
    _plain_ticks(axis.xaxis)
    axis.grid(True)
    axis.set_xlabel("characters of an answer" + ", mean of each model" * means)
    axis.set_ylabel("mean score" if means else "score")
    note = "rank correlation: over the answers of a model" if means else ""
    _legend(figure, len(found), note)
    return figure


def lengths(one: Judged, turns: Turns) -> list[tuple[float, float]]:
    """Characters of the answer, and value, of each item whose answer is there."""
    found = []
    ids = answer_ids(one.answers)
    for item in one.items:
        slot = item.slot
        turn = turns.get((ids.get((slot.question_id, slot.sample), ""), slot.turn))
        if turn is not None and item.value is not None:
            found.append((float(len(turn.content)), item.value))
    return found


def judges_figure(
    names: tuple[str, str],
    values: tuple[Mapping[Hashable, Rated], Mapping[Hashable, Rated]],
    scale: Scale,
) -> Any:
    """How often two judges gave an answer which values; None where they share no answer."""
    shared = [key for key in values[0] if key in values[1]]
    if not shared:
        return None
    x, y = ([side[key].value for key in shared] for side in values)
    counts = Counter(zip(x, y, strict=True))
    figure = new_figure(6.4, 6.2, f"{short_name(names[0])} against {short_name(names[1])}")
    axis = figure.subplots()
    _diagonal(axis, scale)
    most = max(counts.values())
    axis.scatter(
        [one for one, _ in counts],
        [other for _, other in counts],
        s=[24 + 480 * count / most for count in counts.values()],
        color=PALETTE[0],
        alpha=0.55,
        linewidths=0,
    )
    for (one, other), count in counts.items():
        if count > 1:
            axis.text(one, other, str(count), ha="center", va="center", fontsize=7)
    _square(axis, scale, [*x, *y])
    rho = rank_correlation(x, y)
    equal = sum(one == other for one, other in zip(x, y, strict=True)) / len(x)
    shift = statistics.fmean(x) - statistics.fmean(y)
    notes = [f"{len(x)} answers", f"equal {equal:.0%}", f"mean shift {shift:+.2f}"]
    notes += [] if rho is None else [f"rank correlation {rho:.2f}"]
    axis.set_xlabel(f"{short_name(names[0])}\n{', '.join(notes)}")
    axis.set_ylabel(short_name(names[1]))
    return figure


def _look(number: int, count: int) -> dict[str, Any]:
    if count > MOST_MODELS:
        return {"color": PALETTE[0], "marker": "o", "markersize": 5, "linestyle": "none"}
    return {
        "color": PALETTE[number % len(PALETTE)],
        "marker": MARKERS[(number + number // len(PALETTE)) % len(MARKERS)],
        "markersize": 6,
        "linestyle": "none",
    }


def _legend(figure: Any, count: int, note: str) -> None:
    """Names below, or how many there are."""
    if count > MOST_MODELS:
        note = "; ".join(filter(None, [f"{count} models", note]))
        figure.supxlabel(note, fontsize=8)
        return
    names = [text for axis in figure.axes for text in axis.get_legend_handles_labels()[1]]
    figure.legend(loc="outside lower center", ncols=legend_below(figure, names, 2), frameon=False,
                  fontsize=9, title=note or None, title_fontsize=8)  # fmt: skip


def _diagonal(axis: Any, scale: Scale) -> None:
    axis.plot(scale, scale, color="#999999", linestyle="--", linewidth=1)
    axis.grid(True)


def _square(axis: Any, scale: Scale, values: Sequence[float]) -> None:
    """Equal axes around the values, no less than a third of the scale."""
    low, high = min(values), max(values)
    half = max((high - low) / 2 * 1.25, (scale[1] - scale[0]) / 6)
    middle = (low + high) / 2
    room = 0.04 * (scale[1] - scale[0])
    bottom, top = max(scale[0] - room, middle - half), min(scale[1] + room, middle + half)
    axis.set_xlim(bottom, top)
    axis.set_ylim(bottom, top)
    axis.set_aspect("equal")


def _plain_ticks(axis: Any) -> None:
    from matplotlib.ticker import FuncFormatter

    axis.set_major_formatter(
        FuncFormatter(lambda size, _: f"{size / 1000:g}k" if size >= 1000 else f"{size:g}")
    )
