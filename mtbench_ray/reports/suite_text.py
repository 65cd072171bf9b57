"""Several benchmarks at a glance, as people see them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mtbench_ray.benchmarks import grader_of
from mtbench_ray.reports.tables import common_folder, grid, label, number, short

NOTE = "(n/m): only n of m wanted items are scored"


def suite_text(found: Mapping[str, Any], format: str = "table", width: int | None = None) -> str:
    """The table of :func:`mtbench_ray.reports.suite.suite`.

    Args:
        width: Columns of the terminal; None for as many as it takes.
    """
    folder = common_folder({row["model"] for row in found["rows"]})
    judges: dict[tuple[str, str], set[str]] = {}
    modes: dict[str, set[str]] = {}
    for one in found["columns"]:
        judges.setdefault((one["benchmark"], one["mode"]), set()).add(one["judge"])
        modes.setdefault(one["benchmark"], set()).add(one["mode"])
    headers, digits = ["model"], []
    for one in found["columns"]:
        benchmark, mode = one["benchmark"], one["mode"]
        headline = grader_of(benchmark, mode).headline
        digits.append(headline.digits)
        apart = [mode] * (len(modes[benchmark]) > 1)
        apart += [one["judge"]] * (len(judges[benchmark, mode]) > 1)
        said = f" ({', '.join(apart)})" if apart else ""
        headers.append(f"{benchmark} {headline.header}{said}")
    cells = [
        [short(row["model"], folder), *map(_shown, row["scores"], digits)] for row in found["rows"]
    ]
    partial = any("(" in cell for row in cells for cell in row[1:])
    head = f"…/ is {label(folder)}\n\n" if folder else ""
    return f"{head}{grid(headers, cells, format, width)}\n" + f"\n{NOTE}\n" * partial


def _shown(cell: Mapping[str, Any] | None, digits: int) -> str:
    if cell is None or cell["mean"] is None:
        return "-"
    text = number(cell["mean"], digits)
    whole = cell["scored"] == cell["planned"]
    return text if whole else f"{text} ({cell['scored']}/{cell['planned']})"
