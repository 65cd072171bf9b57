"""The HTML file: a head that forbids everything remote, the data, and the script that shows it.

The index (names, values, tables) is JSON and read when the page opens. The texts are one block for
each question, deflated and in base64, unpacked when the question is looked at: so that thousands of
answers open at once, and so that no text can end the element that it is in.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
import zlib
from collections.abc import Callable, Iterator
from dataclasses import astuple
from importlib import resources
from typing import Any

from mtbench_ray.reports.page import render
from mtbench_ray.reports.page.contents import Contents, Item, Verdict
from mtbench_ray.schema import Judgment, Turn

_UNSAFE = re.compile("[<>&\u2028\u2029]")
_MOST_STATES = 30
"""Different ways to fail that the filter lists; they are bits of a number in JavaScript."""
_LABEL = 90
"""Characters of a question in the list."""

Rich = Callable[[str], str]


def parts(contents: Contents, rich: Rich = render.rich) -> Iterator[str]:
    """The file, piece by piece.

    Args:
        rich: Renders a text; one that remembers what it did saves time where a page is made often.

    Raises:
        UserError: A library of the extra ``html`` is missing.
    """
    render.needed()
    folder = resources.files(__package__)
    style, script, frame = (
        (folder / name).read_text("utf-8") for name in ("page.css", "page.js", "page.html")
    )
    texts = {
        "policy": html.escape(policy(style, script)),
        "title": html.escape(_shown(contents.title)),
        "style": style,
        "script": script,
        "index": island(index(contents)),
    }
    before, after = frame.split("{{texts}}")
    yield _filled(before, texts)
    for number, item in enumerate(contents.items):
        packed = pack(item_texts(contents, item, rich))
        yield f'<script type="text/plain" id="item-{number}">{packed}</script>\n'
    for number, plot in enumerate(contents.plots):
        yield f'<script type="text/plain" id="plot-{number}">{pack(plot.svg)}</script>\n'
    yield _filled(after, texts)


def policy(style: str, script: str) -> str:
    """The Content-Security-Policy: this style, this script, and nothing from anywhere."""
    return "; ".join(
        [
            "default-src 'none'",
            f"script-src '{_sum(script)}'",
            f"style-src '{_sum(style)}'",
            "img-src data:",
            "base-uri 'none'",
            "form-action 'none'",
            "require-trusted-types-for 'script'",
            "trusted-types page",
        ]
    )


def island(value: Any) -> str:
    """JSON that can stand in a script element: ASCII, and no character that HTML reads."""
    text = json.dumps(value, ensure_ascii=True, separators=(",", ":"))
    return _UNSAFE.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def pack(value: Any) -> str:
    """JSON, deflated (zlib), in base64."""
    text = json.dumps(value, ensure_ascii=True, separators=(",", ":"))
    return base64.b64encode(zlib.compress(text.encode("ascii"), 6)).decode("ascii")


def index(contents: Contents) -> dict[str, Any]:
    """What the tables, the list of questions and the filters need: names, values and states.

    A pair is a model and a question. ``pairs`` has its question, model and the states of its
    answers; each grader has for each pair its values and the states of its verdicts. States are
    bits, numbered as in ``states``.
    """
    states = _States()
    pairs: list[tuple[int, int]] = []
    answered: list[int] = []
    values: list[list[list[float] | None]] = [[] for _ in contents.graders]
    judged: list[list[int]] = [[] for _ in contents.graders]
    for number, item in enumerate(contents.items):
        for model in sorted({*item.answers, *item.verdicts}):
            pairs.append((number, model))
            answered.append(states.of_answers(item, model))
            for grader, (kept, masks) in enumerate(zip(values, judged, strict=True)):
                mine = [one for one in item.verdicts.get(model, ()) if one.grader == grader]
                kept.append([one.value for one in mine if one.value is not None] if mine else None)
                masks.append(states.of_verdicts(mine))
    return {
        "title": contents.title,
        "models": list(contents.models),
        "states": states.names,
        "graders": [
            {
                "name": grader.name,
                "low": grader.low,
                "high": grader.high,
                "values": kept,
                "states": masks,
            }
            for grader, kept, masks in zip(contents.graders, values, judged, strict=True)
        ],
        "tables": [
            {
                "grader": table.grader,
                "columns": [astuple(column) for column in table.columns],
                "rows": [
                    [row.model, row.name, [astuple(cell) if cell else None for cell in row.cells]]
                    for row in table.rows
                ],
            }
            for table in contents.tables
        ],
        "plots": [[plot.group, plot.title] for plot in contents.plots],
        "items": [
            [item.id, item.benchmark, item.category, _first_line(item)] for item in contents.items
        ],
        "pairs": {
            "item": [item for item, _ in pairs],
            "model": [model for _, model in pairs],
            "states": answered,
        },
    }


class _States:
    """Names of states and failures, each a bit."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def _bit(self, name: str) -> int:
        if name not in self.names:
            if len(self.names) > _MOST_STATES - 2:
                name = "other"
            if name not in self.names:
                self.names.append(name)
        return 1 << self.names.index(name)

    def of_answers(self, item: Item, model: int) -> int:
        mask = 0
        for turns in item.answers.get(model, {}).values():
            for turn in turns:
                mask |= self._bit(f"answer {turn.status}")
            if len(turns) < len(item.turns) or not turns:
                mask |= self._bit("answer missing")
        return mask or self._bit("answer missing")

    def of_verdicts(self, verdicts: list[Verdict]) -> int:
        mask = 0
        for one in verdicts:
            mask |= self._bit(f"judgment {one.reason or 'ok'}")
        return mask


def _first_line(item: Item) -> str:
    text = " ".join(item.turns[0].split()) if item.turns else ""
    return text if len(text) <= _LABEL else text[: _LABEL - 1] + "…"


def item_texts(contents: Contents, item: Item, rich: Rich) -> dict[str, Any]:
    """All texts of a question: answers by model and sample, verdicts, and their judgments."""
    judgments: dict[str, int] = {}
    verdicts: dict[str, list[Any]] = {}
    for model, found in item.verdicts.items():
        verdicts[str(model)] = [
            _lean(
                g=one.grader,
                t=one.turn,
                s=one.sample,
                n=one.judge_sample,
                c=one.criterion,
                l=one.label,
                v=one.value,
                w=one.reason,
                o=one.opponent,
                f=one.first,
                j=judgments.setdefault(one.judgment_id, len(judgments))
                if one.judgment_id
                else None,
            )
            for one in found
        ]
    return {
        "turns": item.turns,
        "references": [{"c": text, "h": rich(text)} for text in item.references],
        "context": item.context,
        "answers": {
            str(model): [
                [sample, [_turn(turn, rich) for turn in turns]]
                for sample, turns in sorted(samples.items())
            ]
            for model, samples in item.answers.items()
        },
        "verdicts": verdicts,
        "judgments": [_judgment(contents.judgment(name), rich) for name in judgments],
    }


def _turn(turn: Turn, rich: Rich) -> dict[str, Any]:
    return _lean(
        n=turn.turn,
        c=turn.content,
        h=rich(turn.content),
        r=turn.reasoning,
        s=turn.status,
        e=turn.error,
        f=turn.finish_reason,
        k=turn.output_tokens,
        l=round(turn.latency_s, 2),
    )


def _judgment(row: Judgment, rich: Rich) -> dict[str, Any]:
    return _lean(
        c=row.text,
        h=rich(row.text),
        r=row.reasoning,
        p=row.user_prompt,
        s=row.status,
        e=row.error,
        b=row.judge,
        m=row.judge_prompt,
        k=row.output_tokens,
        l=round(row.latency_s, 2),
    )


def _lean(**values: Any) -> dict[str, Any]:
    """Without what is empty; a 0 that means something is a float or an index and stays."""
    return {
        name: value
        for name, value in values.items()
        if value is not None and value != "" and (value or name in ("g", "v", "o", "f", "j"))
    }


def _filled(frame: str, texts: dict[str, str]) -> str:
    """The frame with its names replaced, in one pass: what is filled in is not read again."""
    return re.sub(r"\{\{(\w+)\}\}", lambda found: texts[found[1]], frame)


def _shown(text: str) -> str:
    return text.encode("utf-8", "replace").decode()


def _sum(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
