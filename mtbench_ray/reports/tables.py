"""The score tables, for people: plain text for a terminal, or Markdown."""

from __future__ import annotations

import math
import os
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from mtbench_ray.benchmarks import grader_of
from mtbench_ray.judges.base import Column, Grader
from mtbench_ray.judges.outcomes import NOT_NEEDED
from mtbench_ray.planning.evaluations import named
from mtbench_ray.reports import spread
from mtbench_ray.reports.formats import to_csv, to_latex
from mtbench_ray.reports.summary import Summary, figure
from mtbench_ray.schema import ANSWERS_ONLY

LONG_PREFIX = 16
"""Characters of a shared folder from which on it is shown only once."""
_REASONS = 8
"""Of more texts of failures the commonest are shown."""
MARK = "…/"
"""Stands for that folder."""


def render(
    summary: Summary,
    spreads: Sequence[dict[str, Any]] = (),
    *,
    format: str = "table",
    width: int | None = None,
) -> str:
    """All tables of a summary as text.

    A long folder that several models are in is said once, above the tables.

    Args:
        spreads: Results of :mod:`mtbench_ray.reports.spread` to show in a table of their own.
        width: Columns of the terminal; None lets the tables be as wide as they need.
    """
    names = {result["model"] for result in summary["results"]}
    names |= {result.get("baseline") or result["model"] for result in summary["results"]}
    folder = common_folder(names)
    tables, notes = _tables(summary, folder)
    if spreads:
        tables.append(_spread_table(spreads, folder))
        notes.insert(1, spread.NOTE)
    head = [f"{MARK} is {label(folder)}"] if folder else []
    blocks = [grid(headers, rows, format, width) for headers, rows in tables]
    head, notes = [said(head, format), said(notes, format)]
    return "\n\n".join(block for block in [*head, *blocks, "\n".join(notes)] if block) + "\n"


def said(lines: Iterable[str], format: str) -> list[str]:
    """Lines beside a table, as its format wants them: escaped, or comments."""
    if format == "markdown":
        return list(map(escaped, lines))
    return [f"% {line}" for line in lines] if format == "latex" else list(lines)


Grid = tuple[list[str], list[list[str]]]


def grid(
    headers: list[str], rows: list[list[str]], format: str = "table", width: int | None = None
) -> str:
    """One table, for a terminal (``table``) or in Markdown, CSV or LaTeX.

    Cells are made safe as by :func:`label`.
    """
    headers, rows = list(map(label, headers)), [list(map(label, row)) for row in rows]
    if format == "csv":
        return to_csv(headers, rows).rstrip("\n")
    if format == "latex":
        return to_latex(headers, rows)
    return _markdown(headers, rows) if format == "markdown" else plain(headers, rows, width)


def common_folder(names: Iterable[str]) -> str:
    """The folder, with its slash, that all names lie in that are paths; empty where it is short.

    Names without a folder, or of a hub (``org/model``), do not count.
    """
    paths = [name.rstrip("/") for name in names if name.startswith("/") or name.count("/") > 1]
    # By characters, and then cut at the last slash: the names need not be clean paths.
    shared = os.path.commonprefix(paths)  # noqa: RUF071
    folder = shared[: shared.rfind("/") + 1]
    return folder if len(folder) >= LONG_PREFIX else ""


def short(name: str, folder: str) -> str:
    """A model's name as :func:`label`, with :data:`MARK` for a folder of :func:`common_folder`."""
    if folder and name.startswith(folder):
        name = f"{MARK}{name[len(folder) :]}"
    return label(name)


def _tables(summary: Summary, folder: str) -> tuple[list[Grid], list[str]]:
    results = summary["results"]
    judged = [result for result in results if result["judge"]]
    tables: list[Grid] = []
    notes: list[str] = []
    if judged:
        grader = grader_of(summary["benchmark"], summary["mode"])
        compared = bool(grader.against)
        ranked = sorted(judged, key=lambda r: _best_first(figure(r, grader.headline.key)))
        tables.append(_main_table(grader, ranked, folder, compared))
        tables += [
            _parts_table(column, ranked, folder)
            for column in grader.columns
            if column.parts and any(result.get(column.key) for result in ranked)
        ]
        notes.append(
            f"{grader.note}{'; ' * bool(grader.note)}intervals: 95%, bootstrap over questions"
            + ("; parity: fastchat" if summary["parity"] == "fastchat" else "")
        )
        notes.append(no_interval_note(_total(result, grader) for result in ranked))
    unjudged = [result for result in results if not result["judge"]]
    if unjudged:
        tables.append(
            (
                ["model", "answered", "failed", "truncated", "tok/s"],
                [
                    [
                        short(model_label(result), folder),
                        f"{result['answers']['answered']}/{result['answers']['planned']}",
                        reasons(result["answers"]["failed"]),
                        _truncated(result),
                        number(result["output_tokens_per_s"], 0),
                    ]
                    for result in unjudged
                ],
            )
        )
    return tables, [note for note in [*notes, *_notes(summary)] if note]


def _main_table(
    grader: Grader, results: Sequence[dict[str, Any]], folder: str, compared: bool
) -> Grid:
    """A row for each result: the grader's columns, the interval and coverage of its headline."""
    headers = ["model", "judge", *["against"] * compared]
    for column in grader.columns:
        if not column.parts:
            headers += [column.header, *["95% interval"] * (column.headline or column.interval)]
    several = len(results) > 1
    headers += [
        *["rank"] * several,
        grader.scored,
        "failed",
        *([] if compared else ["truncated", "tok/s"]),
    ]
    rows = []
    for result in results:
        total = _total(result, grader)
        cells = [short(model_label(result), folder), judge_label(result)]
        if compared:
            cells.append(short(result["baseline"] or "all", folder))
        for column in grader.columns:
            if not column.parts:
                cells.append(number(figure(result, column.key), column.digits))
                if column.headline:
                    cells.append(interval(total, column.digits))
                elif column.interval:
                    cells.append(interval(_ends(result, column), column.digits))
        if several:
            cells.append("n/a" if result.get("rank") is None else str(result["rank"]))
        cells.append(f"{total['n' if compared else 'scored']}/{total['planned']}")
        cells.append(reasons(total["failed"]))
        if not compared:
            cells += [_truncated(result), number(result["output_tokens_per_s"], 0)]
        rows.append(cells)
    return headers, rows


def _ends(result: Mapping[str, Any], column: Column) -> dict[str, Any]:
    """The ends of the interval of a column that is not the headline."""
    value = result[column.key]
    if isinstance(value, dict):
        return value
    low, high = result[f"{column.key}_ci"]
    return {"ci_low": low, "ci_high": high}


def _parts_table(column: Column, results: Sequence[dict[str, Any]], folder: str) -> Grid:
    """A column for each part of a dimension."""
    names = list(dict.fromkeys(name for result in results for name in result[column.key]))
    headers = [part_header(column.dimension, name) for name in names]
    return ["model", "judge", *headers], [
        [
            short(model_label(result), folder),
            judge_label(result),
            *(part_cell(result[column.key].get(name), column.digits) for name in names),
        ]
        for result in results
    ]


def _total(result: dict[str, Any], grader: Grader) -> dict[str, Any]:
    """The headline of a result with its interval and coverage; comparisons are flat."""
    total: dict[str, Any] = result if grader.against else result[grader.headline.key]
    return total


def part_header(dimension: str, name: str) -> str:
    """The header of a part; a number alone says nothing."""
    return f"{dimension} {name}" if name.isdecimal() else name


def _spread_table(spreads: Sequence[dict[str, Any]], folder: str) -> Grid:
    headers = ["model", "judge", "samples", "mean", "std", "sem", "95% interval",
               "question part", "answer part", "judge part", "repeats", "scored"]  # fmt: skip
    return headers, [
        [
            short(model_label(item), folder),
            label(named(item["judge"], item["settings"], judge=True)),
            f"{item['samples']} x {item['judge_samples']}",
            number(item["mean"]),
            number(item["std"]),
            number(item["sem"], 3),
            interval(item),
            *(number(item["parts"][name]) for name in ("question", "answer", "judge")),
            number(item["repeat_std"], 3),
            f"{item['scored']}/{item['planned']}",
        ]
        for item in sorted(spreads, key=lambda item: _best_first(item["mean"]))
    ]


def _truncated(result: dict[str, Any]) -> str:
    if result["truncated"] is None:
        return "n/a"
    return f"{result['truncated']}/{result['answers']['answered']}"


def _best_first(value: float | None) -> float:
    """Sorts the highest first, and what has no figure last."""
    return math.inf if value is None else -value


def _notes(summary: Summary) -> list[str]:
    notes, results = [label(note) for note in summary["notes"]], summary["results"]
    headline = ""
    if summary["mode"] != ANSWERS_ONLY:
        headline = grader_of(summary["benchmark"], summary["mode"]).headline.key
    if any(result["demo"] and result["judge"] for result in results):
        notes.append("demo judge: not comparable")
    why: Counter[str] = Counter()
    of_answers: dict[str, Counter[str]] = {}
    first: dict[str, str] = {}
    for result in results:
        if result["error"]:
            notes.append(f"{label(result['model'])} failed: {label(result['error'])}")
        # A row for each judge tells of the same answers.
        for text, count in result.get("answers", {}).get("errors", {}).items():
            shown = f"{result['model']} failed: {text}"
            name = first.setdefault(f"{result['model']} failed: {_alike(text)}", shown)
            of_answers.setdefault(result["id"], Counter())[name] += count
        total = result.get(headline)
        for reason, count in (
            (total if isinstance(total, dict) else result).get("failed", {}).items()
        ):
            if ":" in reason:
                why[first.setdefault(_alike(reason), reason)] += count
    for counted in of_answers.values():
        why |= counted
    # Without counts, which stand in the table: a failed comparison is one of both its models.
    notes += [label(text) for text, _ in why.most_common(_REASONS)]
    if len(why) > _REASONS:
        notes.append(f"and {len(why) - _REASONS} more reasons, in summary.json")
    return notes


def _alike(reason: str) -> str:
    """Equal for reasons that differ in numbers and ids alone, as services write them."""
    return re.sub(r"\b(?=\w*\d)[\w-]+", "#", reason)


def number(value: float | None, digits: int = 2) -> str:
    """A figure, or n/a where there is none."""
    return "n/a" if value is None else f"{value:.{digits}f}"


def interval(score: dict[str, Any], digits: int = 2) -> str:
    """A confidence interval, or n/a."""
    if score["ci_low"] is None:
        return "n/a"
    return f"{score['ci_low']:.{digits}f} to {score['ci_high']:.{digits}f}"


def no_interval_because(method: str) -> str:
    """Why a score has no interval, from its ``ci_method``; empty where nothing is said."""
    return method.partition("none: ")[2]


def no_interval_note(scores: Iterable[Mapping[str, Any]]) -> str:
    """What stands below a table in which intervals are missing; empty where none is."""
    why = Counter(
        no_interval_because(score["ci_method"]) for score in scores if score["ci_low"] is None
    )
    said = [text for text, _ in why.most_common() if text]
    return f"no interval: {'; '.join(said)}" if said else ""


def reasons(failed: dict[str, int]) -> str:
    """Failure counts by kind of reason, or 0; what stands after a colon is told below a table.

    What was not needed did not fail; the coverage shows it.
    """
    kinds: Counter[str] = Counter()
    for reason, count in failed.items():
        if reason == NOT_NEEDED:
            continue
        kinds[reason.partition(":")[0]] += count
    return ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items())) or "0"


def part_cell(score: dict[str, Any] | None, digits: int = 2) -> str:
    """A part's mean, with its coverage where that is not full."""
    if score is None or not score["planned"]:
        return "n/a"
    missing = score["planned"] - score["scored"]
    cell = number(score["mean"], digits)
    return f"{cell} ({score['scored']}/{score['planned']})" if missing else cell


def model_label(result: dict[str, Any]) -> str:
    """The model's name, with the settings that tell its row from others of that name."""
    return named(result["model"], result["settings"])


def judge_label(result: dict[str, Any]) -> str:
    """The judge's name likewise, marked where its scores mean nothing."""
    name = label(named(result["judge"], result["settings"], judge=True))
    return f"{name}{' (demo)' if result['demo'] else ''}"


def label(text: str) -> str:
    """A name on one line, without what would break a terminal or a table.

    That is control characters, marks that turn the direction of writing, and lone surrogates.
    """
    return re.sub(
        r"[\x00-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]", "?", text
    )


def plain(headers: list[str], rows: list[list[str]], width: int | None) -> str:
    """A table for a terminal of ``width`` columns, or as wide as it needs to be.

    Where it does not fit, headers are broken between words and columns move together; then it is
    cut into several tables, each with the first two columns, which say what a row is about.
    """
    table = _table(headers, rows, gap=3)
    if width is not None and _width(table) > width:
        headers = [header.replace(" ", "\n") for header in headers]
        table = _table(headers, rows, gap=2)
        fit = len(headers)
        while fit > 3 and _width(_table(headers[:fit], [row[:fit] for row in rows], 2)) > width:
            fit -= 1
        if 3 < fit < len(headers):
            parts = (
                [cells[:fit] for cells in (headers, *rows)],
                [[*cells[:2], *cells[fit:]] for cells in (headers, *rows)],
            )
            return "\n\n".join(plain(first, rest, width) for first, *rest in parts)
    console = Console(width=width or 10_000, color_system=None)
    with console.capture() as capture:
        console.print(table)
    return "\n".join(line.rstrip() for line in capture.get().splitlines() if line.strip())


def _width(table: Table) -> int:
    return Console(width=10_000).measure(table).maximum


def _table(headers: list[str], rows: list[list[str]], gap: int) -> Table:
    # The box itself puts one column between two.
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, gap - 2, 0, 1))
    for index, header in enumerate(headers):
        table.add_column(Text(header), justify="left" if index < 2 else "right", overflow="fold")
    for row in rows:
        table.add_row(*map(Text, row))
    return table


def escaped(text: str) -> str:
    """A text without meaning in Markdown: no link, picture, HTML, emphasis, heading, end of a cell.

    Names and words of models and services come here. An underscore inside a word has none anyway.
    """
    text = re.sub(r"([\\|<>*`~\[\]&]|(?<!\w)_|_(?!\w)|^\s*[#+-])", r"\\\1", text)
    # A bare address becomes a link, and a name after @ calls somebody.
    return re.sub(r"(?<=[a-zA-Z])://|(?<!\w)@(?=\w)|\bwww(?=\.)", "\\g<0>\u200b", text)


def _markdown(headers: list[str], rows: list[list[str]]) -> str:
    lines = [list(map(escaped, line)) for line in (headers, *rows)]
    lines.insert(1, ["---"] * len(headers))
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
