"""``report curve``: score against training step, as pictures and as a table of numbers."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from mtbench_ray.errors import EXIT_OK, UserError, unknown_name
from mtbench_ray.judges.base import ScoreOptions
from mtbench_ray.models.discovery import run_of, step_of
from mtbench_ray.planning.evaluations import distinguishing_settings, named
from mtbench_ray.reports.results import Results, current, in_order, judged_alone
from mtbench_ray.reports.spread import spread
from mtbench_ray.reports.tables import common_folder, label
from mtbench_ray.schema import Evaluation
from mtbench_ray.workspace.filenames import safe_names
from mtbench_ray.workspace.journal import replacing
from mtbench_ray.workspace.workspace import Workspace

ERRORS = ("ci95", "sem", "std", "repeats", "none")
"""What error bars show: the 95% interval, one standard error of the mean, the standard deviation of
single verdicts, that of repeated averages, or nothing (see :mod:`mtbench_ray.reports.spread`)."""
_SAME_LINE = frozenset(
    {"model.path", "model.name", "model.revision", "model.adapter", "fingerprint", "questions",
     "sampling.samples", "judge.samples", "judgments", "import"}
)  # fmt: skip
"""Settings that differ from checkpoint to checkpoint of one curve."""
PARTS = ("both", "all", "category")


@dataclass(frozen=True)
class Point:
    """One checkpoint's score under a judge, over all or in one category.

    Attributes:
        line: Which curve it lies on: the training run, and the workspace where there are several.
        category: Empty for the score over all.
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


def report(
    workspaces: Sequence[str], *, error: str, by: str, out: str, options: ScoreOptions
) -> int:
    """Draw the curves of one or more workspaces and say where they are.

    Args:
        workspaces: Folders; models with the same name in two of them are two curves.
        error: One of :data:`ERRORS`.
        by: One of :data:`PARTS`.
        out: Folder of the files; empty for ``curve`` in the first workspace.

    Raises:
        UserError: Nothing has a step, a wrong word, matplotlib is missing, or no disk.
    """
    for kind, word, known in (("error", error, ERRORS), ("by", by, PARTS)):
        if word not in known:
            raise unknown_name(kind, word, known)
    from mtbench_ray.reports.plots import draw

    folder = Path(out or Path(workspaces[0]) / "curve").expanduser()
    with ExitStack() as stack:
        opened = [
            stack.enter_context(Workspace.open(name, write=False))
            for name in dict.fromkeys(workspaces)
        ]
        found, without = collect(opened, options)
        rows = [row for one in opened for row in current(one)]
        rated = {row.model for row in judged_alone(rows)}
        unrated = [row.model for row in rows if row.model not in rated and step_of(row.model)]
    for name in without:
        print(f"left out, its name has no step: {label(name)}")
    for name in dict.fromkeys(unrated):
        print(f"left out, no judge rated it: {label(name)}")
    for point in found:
        if not point.category and point.mean is None:
            print(f"left out, none of its {point.planned} verdicts is there: {label(point.model)}")
    if not found:
        raise UserError(
            "no rated model here has a step in its name",
            "names like step_100, checkpoint-100, global_step100 or epoch=1-step=100 have one",
        )
    files = {"curve.csv": to_csv(found).encode()}
    judges = safe_names({point.judge for point in found})
    metrics = safe_names({point.metric for point in found})
    for judge, metric in dict.fromkeys((point.judge, point.metric) for point in found):
        mine = [point for point in found if (point.judge, point.metric) == (judge, metric)]
        if len({point.scale for point in mine}) > 1:
            raise UserError(
                f"judge {judge} rated these checkpoints on different scales",
                "judge all of them with the same judge.prompts",
            )
        stem = (
            "curve"
            + f"_{judges[judge]}" * (len(judges) > 1)
            + f"_{metrics[metric]}" * (len(metrics) > 1)
        )
        for suffix, picture in draw(mine, error=error, by=by).items():
            files[f"{stem}{suffix}"] = picture
    for name, content in files.items():
        with replacing(folder / name) as temporary:
            temporary.write_bytes(content)
        print(folder / name)
    return EXIT_OK


def collect(
    workspaces: Sequence[Workspace], options: ScoreOptions
) -> tuple[list[Point], list[str]]:
    """All points, by judge, line and step, and the models that have no step."""
    points: list[Point] = []
    without: list[str] = []
    alike = len({workspace.root.name for workspace in workspaces}) < len(workspaces)
    for workspace in workspaces:
        place = str(workspace.root) if alike else workspace.root.name
        results = Results(workspace, options)
        rows = judged_alone(current(workspace))
        settings = distinguishing_settings(
            rows,
            lambda row: (run_of(row.model), row.judge, row.benchmark, row.mode),
            ignore=_SAME_LINE,
        )
        for row in rows:
            said = settings[row.evaluation_id]
            step = step_of(row.model)
            if step is None:
                without.append(row.model)
                continue
            line = named(run_of(row.model), said)
            if len(workspaces) > 1:
                line = f"{place}: {line}"
            judge = named(row.judge, said, judge=True)
            points += _points(results, row, judge, step, line)
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
    results: Results, row: Evaluation, judge: str, step: int | float, line: str
) -> Iterable[Point]:
    found, grader = results.items(row), results.grader(row)
    scale = grader.scale(results.view(row))
    categories = in_order(row.benchmark)(dict.fromkeys(item.slot.category for item in found))
    for category in ["", *categories]:
        part = [item for item in found if category in ("", item.slot.category)]
        figures = spread(replace(row, judge=judge), part, results.options)
        yield Point(
            line=line,
            step=step,
            category=category,
            scale=scale,
            metric=f"{row.benchmark} {grader.headline.header}",
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
