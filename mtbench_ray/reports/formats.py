"""Tables of text cells as CSV and as LaTeX; for terminals and Markdown see ``tables``; files."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from mtbench_ray.workspace.journal import replacing

FORMATS = ("table", "json", "markdown", "csv", "latex")

_LATEX = {
    "\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}",
    **{sign: f"\\{sign}" for sign in "&%$#_{}"},
}  # fmt: skip


def show(found: Any, texts: Iterable[str], format: str, out: str) -> None:
    """Print figures, as JSON or as blocks of text, and write them as JSON where a file is named."""
    whole = json.dumps(found, indent=1)
    if out:
        with replacing(Path(out).expanduser()) as temporary:
            temporary.write_text(whole + "\n", "utf-8")
    print(whole if format == "json" else "\n\n".join(texts))


def to_csv(headers: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Comma-separated lines, the header first; None is an empty cell.

    A text that a spreadsheet would run as a formula gets an apostrophe before it, numbers do not.
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerows([list(map(_cell, line)) for line in (headers, *rows)])
    return text.getvalue()


def wide_csv(results: Sequence[Mapping[str, Any]]) -> str:
    """Nested JSON objects as lines, with a column for each leaf: ``average_mean``.

    Objects of unlike keys have empty cells.
    """
    lines = [dict(_leaves("", result)) for result in results]
    headers = list(dict.fromkeys(name for line in lines for name in line))
    return to_csv(headers, [[line.get(name) for name in headers] for line in lines])


def _leaves(name: str, value: Any) -> Iterator[tuple[str, object]]:
    if isinstance(value, Mapping):
        for key, part in value.items():
            yield from _leaves(f"{name}_{key}" if name else key, part)
    else:
        yield name, value


def _cell(value: object) -> object:
    """A cell as it is, or safe to open in a spreadsheet where it is a text of somebody else's."""
    if value is None:
        return ""
    if isinstance(value, str) and value[:1] in tuple("=+-@\t\r") and not _is_number(value):
        return f"'{value}"
    return value


def _is_number(text: str) -> bool:
    return re.fullmatch(r"[+-]?\d+(\.\d+)?(e[+-]?\d+)?", text) is not None


def to_latex(headers: Sequence[str], rows: Iterable[Sequence[str]], left: int = 2) -> str:
    """A ``tabular`` that needs no package; the first ``left`` columns are of names."""
    columns = "".join("l" if at < left else "r" for at in range(len(headers)))
    lines = [" & ".join(map(latex, line)) + r" \\" for line in (headers, *rows)]
    body = [lines[0], r"\hline", *lines[1:]]
    return "\n".join([rf"\begin{{tabular}}{{{columns}}}", *body, r"\end{tabular}"])


def latex(text: str) -> str:
    """A text without meaning to LaTeX."""
    return "".join(_LATEX.get(sign, sign) for sign in text)
