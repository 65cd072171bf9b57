"""The points of curves: the score of each checkpoint, with its spread and coverage."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from mtbench_ray.errors import UserError
from mtbench_ray.judges.base import ScoreOptions
from mtbench_ray.models.naming import Naming
from mtbench_ray.planning.evaluations import distinguishing_settings, named
from mtbench_ray.reports.filters import Filter
from mtbench_ray.reports.results import Results, current, in_order, judged_alone
from mtbench_ray.reports.spread import spread
from mtbench_ray.reports.tables import common_folder, label, part_header
from mtbench_ray.schema import Evaluation
from mtbench_ray.workspace.workspace import Workspace

SAME_LINE = frozenset(
    {"model.path", "model.name", "model.revision", "model.adapter", "fingerprint", "questions",
     "sampling.samples", "judge.samples", "judgments", "import"}
)  # fmt: skip
"""Settings that differ from checkpoint to checkpoint of one curve."""


@dataclass(frozen=True)
class Point:
    """One checkpoint's score under a judge, over all or in one category.

    Attributes:
        line: Which curve it lies on: the training run, and the workspace where there are several.
        category: A part of a dimension, such as a category; empty for the score over all.
        mean: None where nothing was scored.
        scale: Lowest and highest value that the score may have.
        metric: Benchmark and header of the score.
    """

    line: str
    judge: str
    step: int | float
    model: str
    category: str
    mean: float | None
    std: float | None
    sem: float | None
    ci_low: float | None
    ci_high: float | None
    repeat_std: float | None
    n_questions: int
    planned: int
    scored: int
    scale: tuple[float, float]
    metric: str
    demo: bool = False

    def bar(self, error: str) -> tuple[float, float] | None:
        """Lower and upper end of the error bar, or None where there is none."""
        if error == "ci95" and self.ci_low is not None and self.ci_high is not None:
            return self.ci_low, self.ci_high
        half = {"sem": self.sem, "std": self.std, "repeats": self.repeat_std}.get(error)
        if self.mean is None or half is None:
            return None
        return self.mean - half, self.mean + half


COLUMNS = (
    "line", "judge", "step", "model", "category", "mean", "std", "sem", "ci_low", "ci_high",
    "repeat_std", "n_questions", "planned", "scored", "metric",
)  # fmt: skip


def by_benchmark(points: Iterable[Point]) -> list[Point]:
    """Points over all, with a panel for each benchmark instead of a category.

    Raises:
        UserError: Their scales differ.
    """
    whole = [point for point in points if not point.category]
    if len({point.scale for point in whole}) > 1:
        raise UserError(
            "these benchmarks have different scales", "benchmark=NAME draws one of them"
        )
    return [replace(point, category=point.metric, metric="score") for point in whole]


def collect(
    workspaces: Sequence[Workspace],
    options: ScoreOptions,
    only: Filter | None = None,
    naming: Naming | None = None,
    dimension: str = "category",
) -> tuple[list[Point], list[str]]:
    """All points, by judge, line and step, and the models that have no step.

    Args:
        only: Which rows; None for all.
        dimension: Whose parts have points beside those over all; empty for none.
    """
    naming, only = naming or Naming(), only or Filter()
    points: list[Point] = []
    without: list[str] = []
    alike = len({workspace.root.name for workspace in workspaces}) < len(workspaces)
    for workspace in workspaces:
        place = str(workspace.root) if alike else workspace.root.name
        try:
            results, rows = only.chosen(Results(workspace, options), current(workspace))
        except UserError:  # nothing of one workspace is wanted
            if len(workspaces) == 1:
                raise
            continue
        rows = judged_alone(rows)
        settings = distinguishing_settings(
            rows,
            lambda row: (naming.run(row.model), row.judge, row.benchmark, row.mode),
            ignore=SAME_LINE,
        )
        for row in rows:
            said = settings[row.evaluation_id]
            step = naming.step(row.model)
            if step is None:
                without.append(row.model)
                continue
            line = named(naming.run(row.model), said)
            if len(workspaces) > 1:
                line = f"{place}: {line}"
            judge = named(row.judge, said, judge=True)
            points += _points(results, row, judge, step, line, dimension)
    # Of two evaluations of one checkpoint that ask other questions the larger one is its point.
    largest: dict[tuple[str, str, str, int | float, str, str], Point] = {}
    for point in points:
        key = (point.line, point.judge, point.metric, point.step, point.model, point.category)
        if key not in largest or point.planned >= largest[key].planned:
            largest[key] = point
    points = sorted(
        largest.values(), key=lambda point: (point.metric, point.judge, point.line, point.step)
    )
    return points, list(dict.fromkeys(without))


def _points(
    results: Results,
    row: Evaluation,
    judge: str,
    step: int | float,
    line: str,
    dimension: str,
) -> Iterable[Point]:
    found, grader = results.items(row), results.grader(row)
    scale = grader.scale(results.view(row))
    part_of = grader.dimensions.get(dimension)
    whose = [part_of(item.slot) if part_of else "" for item in found]
    for name in dict.fromkeys(["", *in_order(row.benchmark)(dict.fromkeys(whose))]):
        part = [item for item, own in zip(found, whose, strict=True) if name in ("", own)]
        category = part_header(dimension, name) if name else ""
        figures = spread(replace(row, judge=judge), part, results.options)
        yield Point(
            line=line,
            step=step,
            category=category,
            scale=scale,
            metric=f"{row.benchmark} {grader.item_column.header}",
            demo=row.demo,
            **{name: figures[name] for name in COLUMNS if name in figures},
        )


def short_names(lines: Iterable[str]) -> dict[str, str]:
    """Names of curves for a legend: without the folder that they share."""
    lines = list(dict.fromkeys(lines))
    folder = common_folder(lines)
    return {line: label(line.removeprefix(folder)) or "(one run)" for line in lines}


def to_csv(points: Iterable[Point]) -> str:
    """The numbers behind the pictures; a missing figure is an empty cell."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    for point in points:
        cells = [getattr(point, name) for name in COLUMNS]
        cells[COLUMNS.index("category")] = point.category or "all"
        writer.writerow(["" if cell is None else cell for cell in cells])
    return text.getvalue()
