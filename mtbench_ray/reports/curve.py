"""``report curve``: score against training step, as pictures and as a table of numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from mtbench_ray.benchmarks import grader_of
from mtbench_ray.errors import EXIT_OK, UserError, unknown_name
from mtbench_ray.judges.base import ScoreOptions
from mtbench_ray.models.naming import Naming, step_of
from mtbench_ray.reports.filters import Filter
from mtbench_ray.reports.points import by_benchmark, collect, to_csv
from mtbench_ray.reports.results import current, judged_alone
from mtbench_ray.reports.tables import label
from mtbench_ray.schema import Evaluation
from mtbench_ray.workspace.filenames import safe_names
from mtbench_ray.workspace.journal import replacing
from mtbench_ray.workspace.workspace import Workspace

ERRORS = ("ci95", "sem", "std", "repeats", "none")
"""What error bars show: the 95% interval, one standard error of the mean, the standard deviation of
single verdicts, that of repeated averages, or nothing (see :mod:`mtbench_ray.reports.spread`)."""
BENCHMARK = "benchmark"
PARTS = ("both", "all", BENCHMARK)
"""Pictures beside those by a dimension of the graders: over all and by category, over all, and of
each benchmark a panel."""


def report(
    workspaces: Sequence[str],
    *,
    error: str,
    by: str,
    out: str,
    options: ScoreOptions,
    only: Filter | None = None,
    steps: str = "",
    name_pattern: str = "",
) -> int:
    """Draw the curves of one or more workspaces, and say where they are: see :func:`write`."""
    paths, left_out = write(workspaces, error=error, by=by, out=out, options=options, only=only,
                            steps=steps, name_pattern=name_pattern)  # fmt: skip
    for line in (*left_out, *paths):
        print(line)
    return EXIT_OK


def write(
    workspaces: Sequence[str],
    *,
    error: str,
    by: str,
    out: str,
    options: ScoreOptions,
    only: Filter | None = None,
    steps: str = "",
    name_pattern: str = "",
) -> tuple[list[Path], list[str]]:
    """Draw the curves of one or more workspaces.

    Args:
        workspaces: Folders; models with the same name in two of them are two curves.
        error: One of :data:`ERRORS`.
        by: One of :data:`PARTS`, or a dimension of the graders.
        out: Folder of the files; empty for ``curve`` in the first workspace.
        only: What is drawn.
        steps: Numbers and ranges with commas between (``100,500-1000,2000-``); empty for all.
        name_pattern: How a name holds run and step (``{run}/it{step}*``); empty for the usual.

    Returns:
        The files, and what is left out of them with why.

    Raises:
        UserError: Nothing has a step, a wrong word, matplotlib is missing, or no disk.
    """
    if error not in ERRORS:
        raise unknown_name("error", error, ERRORS)
    wanted = wanted_steps(steps)
    naming = Naming(name_pattern)
    from mtbench_ray.reports.plots import draw

    folder = Path(out or Path(workspaces[0]) / "curve").expanduser()
    with ExitStack() as stack:
        opened = [
            stack.enter_context(Workspace.open(name, write=False))
            for name in dict.fromkeys(workspaces)
        ]
        rows = [row for one in opened for row in current(one)]
        alone = judged_alone(rows)
        rated = {row.model for row in alone}
        known = dict.fromkeys(
            name for row in alone for name in grader_of(row.benchmark, row.mode).dimensions
        )
        if by not in (*PARTS, *known):
            raise unknown_name("by", by, [*PARTS, *known])
        dimension = by if by in known else "category" * (by == "both")
        found, without = collect(opened, options, only, naming, dimension)
        unrated = [row.model for row in rows if row.model not in rated and naming.step(row.model)]
    found = [point for point in found if wanted(point.step)]
    left_out = [f"left out, its name has no step: {label(name)}" for name in without]
    left_out += [f"left out, no judge rated it: {label(name)}" for name in dict.fromkeys(unrated)]
    left_out += [
        f"left out, none of its {point.planned} verdicts is there: {label(point.model)}"
        for point in found
        if not point.category and point.mean is None
    ]
    if not found:
        raise UserError(
            "no rated model here has a step in its name",
            "names like step_100, checkpoint-100, global_step100 or epoch=1-step=100 have one",
        )
    files = {"curve.csv": to_csv(found).encode()}
    if by == BENCHMARK:
        found = by_benchmark(found)
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
        shown = {"both": "both", "all": "all"}.get(by, "category")
        for suffix, picture in draw(mine, error=error, by=shown).items():
            files[f"{stem}{suffix}"] = picture
    for name, content in files.items():
        with replacing(folder / name) as temporary:
            temporary.write_bytes(content)
    return [folder / name for name in files], left_out


def figures(workspace: Workspace, options: ScoreOptions, only: Filter | None) -> Iterator[Any]:
    """The curves of a workspace with 95% intervals, over all and by category.

    Those of one judge on different scales are left out.
    """
    from mtbench_ray.reports.plots import figures as drawn

    found, _ = collect([workspace], options, only, Naming(""), "category")
    for judge, metric in dict.fromkeys((point.judge, point.metric) for point in found):
        mine = [point for point in found if (point.judge, point.metric) == (judge, metric)]
        if len({point.scale for point in mine}) == 1:
            for _, figure in drawn(mine, error="ci95", by="both"):
                yield figure


def has_curves(rows: Iterable[Evaluation]) -> bool:
    """Whether the names of judged models have two steps or more."""
    return len({step_of(row.model) for row in judged_alone(rows)} - {None}) > 1


def wanted_steps(text: str) -> Callable[[float], bool]:
    """Which steps ``steps=`` takes.

    Raises:
        UserError: It is no list of numbers and ranges.
    """
    ranges = []
    for part in filter(None, (part.strip() for part in text.split(","))):
        low, dash, high = part.partition("-")
        try:
            first = float(low or "-inf")
            ranges.append((first, float(high or "inf") if dash else first))
        except ValueError:
            raise UserError(f"steps={text} is no list of steps", "steps=100,500-1000") from None
    return lambda step: not ranges or any(low <= step <= high for low, high in ranges)
