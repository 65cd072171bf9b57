r"""Reading a verdict from a judge's reply. Never raises, and takes time linear in the text.

Safe parity (the default) takes the last well-formed verdict outside thinking:

* A rating is a number alone in double brackets, or in single brackets after the word "Rating".
  Marks around the number do not matter: ``[[**7**]]``, ``[[ 7 ]]``, ``[[Rating: 7]]``,
  ``[[7/10]]``, ``\[\[7\]\]`` are all 7. ``x[[7]]`` is an index, not a rating.
* A number outside the scale is no rating (``out_of_range``), it is not clamped.
* Two verdicts joined as a range, a choice or a comparison are none: ``[[7]] or [[8]]``,
  ``[[A]] > [[B]]``, ``[[7]] out of [[10]]``. ``[[8]][[9]]`` is 9.
* In a reply that was cut off (``finish_reason="length"``) a verdict counts only at the very end:
  the judge may have been about to give another one.

Parity ``fastchat`` does what FastChat 0.2.36 does (``common.py``, ``one_score_pattern`` and the
winner tests): the first number in double brackets, else the first in single brackets, anywhere and
on no scale; ``[[A]]`` before ``[[B]]`` before ``[[C]]`` anywhere in the text.
"""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

THINKING = ("<think>", "</think>")
"""Tags around the thinking of a judge that thinks in its reply."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a reply says.

    Attributes:
        value: A rating; ``A``, ``B`` or ``tie``; None where there is no verdict.
        reason: Empty where there is a value, else ``no_rating``, ``no_winner``, ``out_of_range``,
            ``truncated``, ``refused`` or ``empty``.
        label: The verdict as the judge wrote it: the rating as a number
            without a dot where the judge wrote none, or the value.
    """

    value: float | str | None
    reason: str = ""
    label: str | None = None


@dataclass(frozen=True, slots=True)
class _Mark:
    """A well-formed verdict and where it stands."""

    start: int
    end: int
    label: str


# Possessive quantifiers and bounded contents keep every pattern linear on hostile text.
_FASTCHAT_DOUBLE = re.compile(r"\[\[(\d++(?:\.\d*+)?)\]\]")
_FASTCHAT_SINGLE = re.compile(r"\[(\d++(?:\.\d*+)?)\]")

_INDEX = r"(?:(?<![A-Za-z0-9_])|(?<=rating)|(?<=score))"
_DOUBLE = _INDEX + r"\[[ *]{0,4}\[([^\[\]]{1,60})\][ *]{0,4}\]"
_BRACKETS = re.compile(
    rf"{_DOUBLE}|(?<![A-Za-z])rating(?: is| of)?[\s:=*_`-]{{0,8}}\[?\[([^\[\]]{{1,60}})\]\]?",
    re.IGNORECASE,
)
_WINNER_BRACKETS = re.compile(_DOUBLE, re.IGNORECASE)
_TAGS = re.compile(r"<score>([^<>]{1,60})</score>", re.IGNORECASE)
_NUMBER = re.compile(
    r"(?:[a-z ]{0,20}(?:rating|score)[\s:=*_`]{0,8})?"
    r"([+-]?\d{1,20}(?:\.\d{0,20})?)"
    r"(?: ?(?:/|out of) ?(\d{1,20})(?:\.0)?)?",
    re.IGNORECASE,
)
_WINNER = re.compile(r"(?:(?i:assistant|answer|model|winner:?) )?([ABC])|((?i:tie))")
_DRESSING = " \t\r\n*_`$"
_DEGREE = r"(?:(?:much|slightly|clearly|far|a bit|a little) )?"
_JOINED = "|".join(
    (
        r"[-–—~/|<>=≤≥≈≻≺+&:→]{1,3}",
        r"to|or|and|and/or|out of|of|vs\.?|versus|but|through",
        r"(?:and |but )?not|rather than|instead of|over|beats|beat|wins over|loses to",
        rf"(?:(?:is|was) )?{_DEGREE}(?:better|worse|stronger|weaker|higher|lower|more|less) than",
    )
)
_AROUND = r"[\s*_`,;(]{0,8}"
_CHOICE = re.compile(rf"{_AROUND}(?:{_JOINED}){_AROUND}", re.IGNORECASE)
_TAIL = re.compile(r"[\s*_`.!)\]\"'>$]*(?:</\w{1,20}>\s*)?|[\s*_`]*/ ?\d+[\s*_`.]*")


def parse_rating(
    text: str | None,
    finish_reason: str | None = None,
    parity: str = "safe",
    *,
    scale: tuple[float, float] = (1, 10),
    style: str = "brackets",
    thinking: tuple[str, str] = THINKING,
) -> Verdict:
    """Read a rating.

    Args:
        text: The judge's reply.
        finish_reason: Why the reply ended; ``length`` means that it was cut off.
        parity: ``safe`` or ``fastchat``, see the module's text.
        scale: Lowest and highest rating that count; parity ``fastchat`` has no scale in brackets.
        style: ``brackets``, or ``tags``: the number stands in ``<score>`` (same in both parities).
        thinking: Opening and closing tag of the judge's thinking.
    """
    if not text or not text.strip():
        return _nothing(text or "", finish_reason, "empty")
    if parity == "fastchat" and style == "brackets":
        return _fastchat_rating(text)
    seen = _plain(outside_thinking(text, thinking))
    pattern = _TAGS if style == "tags" else _BRACKETS
    mark = _last(seen, pattern, lambda content: _number(content, scale[1]))
    if mark is None or not _final(seen, mark, finish_reason):
        return _nothing(seen, finish_reason, "no_rating")
    value = float(mark.label)
    if not scale[0] <= value <= scale[1]:
        return Verdict(None, "out_of_range")
    return Verdict(value, label=mark.label)


def parse_winner(
    text: str | None,
    finish_reason: str | None = None,
    parity: str = "safe",
    *,
    thinking: tuple[str, str] = THINKING,
) -> Verdict:
    """Read the winner of one game: ``A``, ``B`` or ``tie``. Arguments as in parse_rating."""
    if not text or not text.strip():
        return _nothing(text or "", finish_reason, "empty")
    if parity == "fastchat":
        for letter, value in (("A", "A"), ("B", "B"), ("C", "tie")):
            if f"[[{letter}]]" in text:
                return Verdict(value, label=value)
        return Verdict(None, "no_winner")
    seen = _plain(outside_thinking(text, thinking))
    mark = _last(seen, _WINNER_BRACKETS, _winner)
    if mark is None or not _final(seen, mark, finish_reason):
        return _nothing(seen, finish_reason, "no_winner")
    return Verdict(mark.label, label=mark.label)


def outside_thinking(text: str, tags: tuple[str, str] = THINKING) -> str:
    """The text without its thinking.

    An unclosed block runs to the end. A closing tag without an opening one ends a block that the
    chat template opened, so all before it goes. A tag quoted in backticks is only talked about,
    and so is an opening tag within a sentence that nothing closes ("it leaks its <think> tag").
    """
    opening, closing = tags
    if not opening or not closing or (opening not in text and closing not in text):
        return text
    kept: list[str] = []
    inside, begin, position = False, 0, 0
    for match in _tag_pattern(opening, closing).finditer(text):
        opens = match.group() == opening
        if inside and not opens:
            inside = False
        elif not inside and opens:
            kept.append(text[position : match.start()])
            inside, begin = True, match.start()
        elif not inside:
            kept.clear()
        position = match.end()
    if not inside:
        kept.append(text[position:])
    elif _is_mentioned(text, begin, begin + len(opening)):
        kept.append(text[begin:])
    return "".join(kept)


def _is_mentioned(text: str, start: int, end: int) -> bool:
    """Whether a tag has words before it on its line, and no word directly after it.

    A block that a judge thinks in begins its own line or runs straight on into its first word.
    """
    before = text[:start].rpartition("\n")[2].strip()
    return bool(before) and re.match(r"[^\w\r\n]", text[end : end + 1]) is not None


@lru_cache(maxsize=16)
def _tag_pattern(opening: str, closing: str) -> re.Pattern[str]:
    tag = f"(?:{re.escape(opening)}|{re.escape(closing)})"
    return re.compile(f"(?<!`){tag}|{tag}(?!`)")


def _plain(text: str) -> str:
    """Without the backslashes that Markdown puts before brackets."""
    return text.replace("\\[", "[").replace("\\]", "]")


def _last(text: str, pattern: re.Pattern[str], read: Callable[[str], str | None]) -> _Mark | None:
    """The last well-formed verdict, or None where there is none or it is one of two choices."""
    last: _Mark | None = None
    for match in reversed(list(pattern.finditer(text))):
        label = read(match[match.lastindex or 0])
        if label is None:
            continue
        if last is None:
            last = _Mark(match.start(), match.end(), label)
            continue
        hedged = label != last.label and _CHOICE.fullmatch(text, match.end(), last.start)
        return None if hedged else last
    return last


def _number(content: str, top: float) -> str | None:
    """A number that stands alone but for its dressing, as a plain literal; else None."""
    match = _NUMBER.fullmatch(content.strip(_DRESSING + "[]"))
    if match is None or (match[2] is not None and float(match[2]) != top):
        return None
    return str(float(match[1]) if "." in match[1] else int(match[1]))


def _winner(content: str) -> str | None:
    match = _WINNER.fullmatch(content.strip(_DRESSING))
    if match is None:
        return None
    return match[1] if match[1] in ("A", "B") else "tie"


def _final(text: str, mark: _Mark, finish_reason: str | None) -> bool:
    """Whether nothing but marks follows the verdict of a reply that was cut off."""
    return finish_reason != "length" or _TAIL.fullmatch(text, mark.end) is not None


def _nothing(text: str, finish_reason: str | None, reason: str) -> Verdict:
    """No verdict; the way the reply ended says more than its text."""
    if finish_reason == "length":
        return Verdict(None, "truncated")
    if finish_reason == "content_filter":
        return Verdict(None, "refused")
    return Verdict(None, reason if text.strip() else "empty")


def _fastchat_rating(text: str) -> Verdict:
    match = _FASTCHAT_DOUBLE.search(text) or _FASTCHAT_SINGLE.search(text)
    if match is None:
        return Verdict(None, "no_rating")
    try:
        value = ast.literal_eval(match[1])
        label, value = str(value), float(value)
    except (SyntaxError, ValueError, OverflowError, MemoryError, RecursionError):
        return Verdict(None, "no_rating")  # FastChat itself dies here, for example on [[05]]
    if not math.isfinite(value):
        return Verdict(None, "out_of_range")
    return Verdict(value, label=label)
