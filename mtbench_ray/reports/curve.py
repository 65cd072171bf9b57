"""``report curve``: score against training step, as pictures and as a table of numbers."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from mtbench_ray.errors import EXIT_OK, UserError, unknown_name
from mtbench_ray.judges.base import ScoreOptions
from mtbench_ray.models.discovery import step_of
from mtbench_ray.reports.points import collect, to_csv
from mtbench_ray.reports.results import current, judged_alone
from mtbench_ray.reports.tables import label
from mtbench_ray.workspace.filenames import safe_names
from mtbench_ray.workspace.journal import replacing
from mtbench_ray.workspace.workspace import Workspace

ERRORS = ("ci95", "sem", "std", "repeats", "none")
"""What error bars show: the 95% interval, one standard error of the mean, the standard deviation of
single verdicts, that of repeated averages, or nothing (see :mod:`mtbench_ray.reports.spread`)."""
PARTS = ("both", "all", "category")


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
