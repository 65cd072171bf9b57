"""What `report` shows of a workspace, and its table, JSON and CSV.

Working it out reads every row and every reply of a judge again. As long as no file that it was made
from has changed, and no line of this package, it is the same: so it is kept in the workspace, and
the next report takes it from there (:func:`load`).
"""

from __future__ import annotations

import dataclasses
import json
import shutil
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mtbench_ray.errors import UserError
from mtbench_ray.judges.base import ScoreOptions
from mtbench_ray.planning.evaluations import distinguishing_settings
from mtbench_ray.reports.filters import Filter
from mtbench_ray.reports.formats import wide_csv
from mtbench_ray.reports.results import Results, tables_of
from mtbench_ray.reports.spread import aggregate, is_repeated
from mtbench_ray.reports.suite_text import suite_text
from mtbench_ray.reports.summary import Summary, summarise_all
from mtbench_ray.reports.tables import render
from mtbench_ray.schema import Evaluation, canonical
from mtbench_ray.system.program import program
from mtbench_ray.workspace.workspace import Workspace

FILE = ".report.json"
_READ = ("answers.jsonl", "judgments.jsonl", "runs/*/record.json", "data/*.json")
"""What of a workspace a report is made from."""


@dataclass(frozen=True)
class Shown:
    """What a report shows, as plain JSON values.

    Attributes:
        summary: See :func:`~mtbench_ray.reports.summary.summarise_all`.
        spreads: Of each of :attr:`tables`, the spread of those rows that repeat something.
    """

    summary: Summary
    spreads: list[list[dict[str, Any]]]

    @property
    def tables(self) -> list[Summary]:
        """The summary of each table."""
        return [self.summary, *self.summary["other_modes"]]


def gather(
    results: Results,
    rows: Sequence[Evaluation],
    only: Filter | None = None,
    summary: Summary | None = None,
) -> Shown:
    """What a report shows of some evaluations.

    Args:
        summary: Of these rows, where it is there already.
    """
    only = only or Filter()
    summary = summary or summarise_all(results, rows, only)
    own = results.only(only.categories())
    spreads = []
    for table in tables_of(rows):
        same = [row for row in rows if (row.benchmark, row.mode) == table]
        kept = only.rows(results, same, distinguishing_settings(same))
        spreads.append(aggregate(own, [row for row in kept if is_repeated(row)])["results"])
    return Shown(summary, spreads)


def show(shown: Shown, format: str) -> list[Summary]:
    """Print the tables; in JSON one object. Returns the summary of each."""
    found = shown.tables
    if format == "json":
        print(json.dumps(shown.summary, indent=1))
        return found
    if format == "csv":
        print(wide_csv([result for part in found for result in part["results"]]), end="")
        return found
    several = len({summary["benchmark"] for summary in found}) > 1
    width = shutil.get_terminal_size((160, 24)).columns if sys.stdout.isatty() else None
    if shown.summary["suite"]:
        print(suite_text(shown.summary["suite"], format, width))
    for number, (summary, spreads) in enumerate(zip(found, shown.spreads, strict=True)):
        if len(found) > 1:
            title = f"{summary['benchmark']} {summary['mode']}" if several else summary["mode"]
            mark = {"markdown": "## ", "latex": "% "}.get(format, "")
            print("\n" * bool(number) + f"{mark}{title}\n")
        print(render(summary, spreads, format=format, width=width), end="")
    return found


def state(root: Path, options: ScoreOptions) -> str:
    """Equal as long as nothing has changed that a report of the whole workspace is made from."""
    files = []
    for pattern in _READ:
        for path in sorted(root.glob(pattern)):
            stat = path.stat()
            files.append([str(path.relative_to(root)), stat.st_size, stat.st_mtime_ns])
    return canonical([program(), dataclasses.asdict(options), files])


def keep(workspace: Workspace, options: ScoreOptions, before: str, shown: Shown) -> None:
    """Keep what the report of a whole workspace shows for the next one.

    A workspace that cannot be written to, or with lines to warn of each time, keeps nothing.

    Args:
        before: The :func:`state` from before the rows were read.
    """
    if workspace.problems:
        return
    with suppress(OSError, UserError):
        if state(workspace.root, options) == before:
            kept = {"state": before, "summary": shown.summary, "spreads": shown.spreads}
            workspace.write_text(FILE, json.dumps(kept))


def load(root: Path, options: ScoreOptions) -> Shown | None:
    """What :func:`keep` kept, or None where there is none that is right today."""
    try:
        kept = json.loads((root / FILE).read_bytes())
        if kept["state"] != state(root, options):
            return None
        return Shown(kept["summary"], kept["spreads"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
