r"""Reading a verdict that a judge writes as a JSON object. Never raises, and never evaluates text.

Looked for are the whole objects of the reply outside the judge's thinking that have the wanted
key, wherever they stand: alone, in a code block, after an explanation. Several that say the same
are one; where they differ there is no verdict. The value must have the
wanted JSON type: ``"8"`` is no number and ``1`` is not true. A line end within a text, which
judges often write, is taken; ``NaN``, comments, single quotes and trailing commas are not.

A reply that was cut off (``finish_reason="length"``) counts only where nothing but the end of a
code block follows the object: the judge may have been about to write another one.

>>> read_json('So: ```json {"met": true}```', "met", boolean).value
1.0
>>> read_json('{"met": "true"}', "met", boolean).reason
'wrong_type'
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator
from typing import Any

from mtbench_ray.judges.judge_prompt import EXPLANATION_CHARS
from mtbench_ray.judges.parse import Verdict, outside_thinking
from mtbench_ray.models.thinking import THINKING

JSON_TEXT = rf"[ !#-\[\]-~]{{1,{EXPLANATION_CHARS}}}"
"""Regular expression of a short text within a JSON object, for replies that are forced into one:
printable ASCII without what would have to be escaped."""
_LONGEST = 200_000
"""Characters from the end of a reply that are looked at."""
_MOST_BROKEN = 1000
"""Of more broken objects the rest of the reply is not looked at."""
_BEGINS = re.compile(r"""\{(?=\s*["'}])""")
_BRACE = re.compile(r"[{}]")
_CLOSING = re.compile(r"[\s`*]*")

Value = Callable[[Any], "Verdict"]
"""A verdict from the value of the wanted key."""


def boolean(value: Any) -> Verdict:
    """``true`` is 1 and ``false`` 0."""
    if not isinstance(value, bool):
        return Verdict(None, "wrong_type")
    return Verdict(float(value), label="true" if value else "false")


def whole_number(low: int, high: int) -> Value:
    """A whole number of a scale; 7.0 is one, and what is outside is none."""

    def read(value: Any) -> Verdict:
        if isinstance(value, float) and math.isfinite(value) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int):
            return Verdict(None, "wrong_type")
        if not low <= value <= high:
            return Verdict(None, "out_of_range")
        return Verdict(float(value), label=str(value))

    return read


def read_json(
    text: str | None,
    key: str,
    value: Value,
    finish_reason: str | None = None,
    *,
    thinking: tuple[str, str] = THINKING,
) -> Verdict:
    """The verdict under ``key``; see the module's text.

    Args:
        text: The judge's reply.
        finish_reason: Why the reply ended; ``length`` means that it was cut off.
        thinking: Opening and closing tag of the judge's thinking.

    Returns:
        A verdict, or the reason why there is none: ``no_json`` (no object), ``bad_json`` (none
        that is whole), ``no_verdict`` (none with the key), ``wrong_type``, ``out_of_range``,
        ``two_verdicts``, ``truncated``, ``refused`` or ``empty``.
    """
    if finish_reason == "content_filter":
        return Verdict(None, "refused")
    seen = outside_thinking(text or "", thinking).rstrip()[-_LONGEST:]
    objects = list(_objects(seen))
    whole = [one for one, _ in objects if one is not None]
    found = [value(one[key]) for one in whole if key in one]
    end = objects[-1][1] if objects and objects[-1][0] is not None else -1
    if finish_reason == "length" and (end < 0 or not _CLOSING.fullmatch(seen, end)):
        return Verdict(None, "truncated")
    if not seen:
        return Verdict(None, "empty")
    if not found:
        return Verdict(None, "no_verdict" if whole else "bad_json" if objects else "no_json")
    if any(one != found[0] for one in found):
        return Verdict(None, "two_verdicts")
    return found[0]


def only_json(text: str, fence: str = r"^```json\s*|\s*```$") -> dict[str, Any] | None:
    """The object that a reply is as a whole, as the programs of benchmarks want it.

    Args:
        fence: What is cut off first, a regular expression.
    """
    try:
        found = json.loads(re.sub(fence, "", text.strip()))
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _objects(text: str) -> Iterator[tuple[dict[str, Any] | None, int]]:
    """The outermost objects, each with its end; None for one that is broken.

    What stands within a broken one (a text that quotes JSON, say) is no object of the judge's.
    """
    start = broken = 0
    while broken < _MOST_BROKEN and (match := _BEGINS.search(text, start)):
        try:
            found, start = _DECODER.raw_decode(text, match.start())
        except (ValueError, RecursionError):
            found, start = None, _end_of_braces(text, match.start())
            broken += 1
        yield found, start


def _end_of_braces(text: str, start: int) -> int:
    """Where as many braces are closed as were opened, from ``start`` on; the end if nowhere."""
    depth = 0
    for brace in _BRACE.finditer(text, start):
        depth += 1 if brace[0] == "{" else -1
        if depth == 0:
            return brace.end()
    return len(text)


def _no_number(name: str) -> Any:
    raise json.JSONDecodeError(name, name, 0)


_DECODER = json.JSONDecoder(strict=False, parse_constant=_no_number)
