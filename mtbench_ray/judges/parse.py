r"""Reading a verdict from a judge's reply. Never raises, and takes time linear in the text.

Safe parity (the default) reads the judge's own statement: the reply without thinking, code,
comments and links (:mod:`~mtbench_ray.judges.regions`). In it, the last verdict that is *labelled*
as one counts (``Rating: [[7]]``, ``My verdict: [[A]]``); where none is labelled, the last one that
stands alone on its line; else the last one.

* A rating is a number alone in double brackets, or in single brackets after the word "Rating".
  Marks around the number do not matter: ``[[**7**]]``, ``[[ 7 ]]``, ``[[Rating: 7]]``,
  ``[[7/10]]``, ``\[\[7\]\]`` are all 7. ``x[[7]]`` is an index, not a rating.
* A number outside the scale is no rating (``out_of_range``), it is not clamped; one on another
  scale (``[[4]]/5`` where 1 to 10 was asked for) is none either.
* What the judge denies, quotes, only supposes or gives as an example is no verdict, nor is a list
  of what the verdicts mean.
* Two verdicts joined as a range, a choice or a comparison are none: ``[[7]] or [[8]]``,
  ``[[A]] > [[B]]``, ``[[7]] out of [[10]]``. ``Rating: [[8]][[9]]`` is 9.
* In a reply that was cut off (``finish_reason="length"``) a verdict counts only at the very end:
  the judge may have been about to give another one.
* A code block that ends the reply is read where the statement has no labelled verdict.

Parity ``fastchat`` does what FastChat 0.2.36 does (``common.py``, ``one_score_pattern`` and the
winner tests): the first number in double brackets, else the first in single brackets, anywhere and
on no scale; ``[[A]]`` before ``[[B]]`` before ``[[C]]`` anywhere in the text.
"""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import lru_cache

from mtbench_ray.judges.regions import FILLER, plain, statement
from mtbench_ray.judges.verdict_marks import (
    EXAMPLE_LEAD,
    LOOK_BACK,
    SCORED,
    WINDOW,
    Mark,
    choose,
    ratings,
    scores,
    text_before,
    winners,
)
from mtbench_ray.judges.verdict_patterns import (
    DOUBLE,
    DRESSING,
    FASTCHAT_DOUBLE,
    FASTCHAT_SINGLE,
    LABEL_END,
    TAIL,
)
from mtbench_ray.models.thinking import THINKING, is_mentioned, split_channels


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


_LONGEST = 200_000
"""Characters from the end of a reply that are looked at."""
_REPLIES = 1 << 17
"""Replies whose verdicts are remembered: a run looks at each several times (what is pending, what
it comes to, its files), and reading one takes a tenth of a millisecond and more. Rows hold their
texts anyway."""


def parse_rating(
    text: str | None,
    finish_reason: str | None = None,
    parity: str = "safe",
    *,
    scale: tuple[float, float] = (1, 10),
    style: str = "brackets",
    thinking: tuple[str, str] = THINKING,
    examples: Collection[str] = (),
) -> Verdict:
    """Read a rating.

    Args:
        text: The judge's reply.
        finish_reason: Why the reply ended; ``length`` means that it was cut off.
        parity: ``safe`` or ``fastchat``, see the module's text.
        scale: Lowest and highest rating that count; parity ``fastchat`` has no scale in brackets.
        style: ``brackets``, or ``tags``: the number stands in ``<score>`` (same in both parities).
        thinking: Opening and closing tag of the judge's thinking.
        examples: Verdicts in the judge prompt itself, see :func:`format_examples`.
    """
    return _rating(text, finish_reason, parity, scale, style, thinking, frozenset(examples))


@lru_cache(maxsize=_REPLIES)
def _rating(
    text: str | None,
    finish_reason: str | None,
    parity: str,
    scale: tuple[float, float],
    style: str,
    thinking: tuple[str, str],
    examples: frozenset[str],
) -> Verdict:
    if not text or not text.strip():
        return _nothing(text or "", finish_reason, "empty")
    if parity == "fastchat" and style == "brackets":
        return _fastchat_rating(text)
    seen = plain(outside_thinking(text, thinking))
    find = scores if style == "tags" else ratings
    mark = _read(seen, finish_reason, examples, lambda part: find(part, scale[1]))
    if mark is None:
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
    examples: Collection[str] = (),
) -> Verdict:
    """Read the winner of one game: ``A``, ``B`` or ``tie``. Arguments as in parse_rating."""
    return _winner(text, finish_reason, parity, thinking, frozenset(examples))


@lru_cache(maxsize=_REPLIES)
def _winner(
    text: str | None,
    finish_reason: str | None,
    parity: str,
    thinking: tuple[str, str],
    examples: frozenset[str],
) -> Verdict:
    if not text or not text.strip():
        return _nothing(text or "", finish_reason, "empty")
    if parity == "fastchat":
        for letter, value in (("A", "A"), ("B", "B"), ("C", "tie")):
            if f"[[{letter}]]" in text:
                return Verdict(value, label=value)
        return Verdict(None, "no_winner")
    seen = plain(outside_thinking(text, thinking))
    mark = _read(seen, finish_reason, examples, winners)
    if mark is None:
        return _nothing(seen, finish_reason, "no_winner")
    return Verdict(mark.label, label=mark.label)


@lru_cache(maxsize=64)
def format_examples(texts: tuple[str, ...]) -> frozenset[str]:
    """The verdicts that a judge prompt shows as examples, each with the text that leads to it.

    A judge that repeats its instructions writes them after the same text again.
    """
    found = set()
    for text in texts:
        seen = plain(text)
        for match in DOUBLE.finditer(seen):
            before = text_before(seen, match.start())
            if len(before) >= EXAMPLE_LEAD:
                found.add(before + match[0])
    return frozenset(found)


def outside_thinking(text: str, tags: tuple[str, str] = THINKING) -> str:
    """The text without its thinking: the final channel, and that without blocks between tags.

    An unclosed block runs to the end. A closing tag without an opening one ends a block that the
    chat template opened, so all before it goes. A tag quoted in backticks is only talked about,
    and so is one within a sentence that nothing closes ("it leaks its <think> tag").
    """
    channels = split_channels(text)
    if channels is not None:
        text = channels.final or ""
    opening, closing = tags
    if not opening or not closing or (opening not in text and closing not in text):
        return text
    kept: list[str] = []
    inside, begin, position, lone = False, 0, 0, 0
    for match in _tag_pattern(opening, closing).finditer(text):
        opens = match.group() == opening
        if inside and not opens:
            inside = False
        elif not inside and opens:
            kept.append(text[position : match.start()])
            inside, begin = True, match.start()
        elif not inside:
            lone += 1
            if lone < LOOK_BACK and is_mentioned(text, match.start(), match.end()):
                continue
            kept.clear()
        position = match.end()
    if not inside:
        kept.append(text[position:])
    elif is_mentioned(text, begin, begin + len(opening)):
        kept.append(text[begin:])
    return "".join(kept)


@lru_cache(maxsize=16)
def _tag_pattern(opening: str, closing: str) -> re.Pattern[str]:
    tag = f"(?:{re.escape(opening)}|{re.escape(closing)})"
    return re.compile(f"(?<!`){tag}|{tag}(?!`)")


def _read(
    seen: str,
    finish_reason: str | None,
    examples: Collection[str],
    find: Callable[[str], list[Mark]],
) -> Mark | None:
    """The verdict of a reply, or None where it states none."""
    seen = seen.rstrip()[-_LONGEST:]
    own = statement(seen)
    text = own.text
    for code in own.codes[-LOOK_BACK // 8 :]:
        # A label outside and the number in code: that code is dressing.
        if DOUBLE.fullmatch(code.text.strip()) and LABEL_END.search(
            text[max(0, code.start - WINDOW) : code.start]
        ):
            text = (
                text[: code.start]
                + seen[code.start : code.end].replace("`", " ")
                + text[code.end :]
            )
            break
    mark = choose(text, find(text), examples)
    if (mark is None or mark.rank < SCORED) and own.codes:
        code = own.codes[-1]
        last = TAIL.fullmatch(text, code.end) is not None
        inner = choose(code.text, find(code.text), examples) if last else None
        whole = inner is not None and not text.replace(FILLER, "").strip(DRESSING)
        if inner is not None and (inner.rank >= SCORED or whole):
            return inner if _final(code.text, inner, finish_reason) else None
    return mark if mark is not None and _final(text, mark, finish_reason) else None


def _final(text: str, mark: Mark, finish_reason: str | None) -> bool:
    """Whether nothing but marks follows the verdict of a reply that was cut off."""
    return finish_reason != "length" or TAIL.fullmatch(text, mark.end) is not None


def _nothing(text: str, finish_reason: str | None, reason: str) -> Verdict:
    """No verdict; the way the reply ended says more than its text."""
    if finish_reason == "length":
        return Verdict(None, "truncated")
    if finish_reason == "content_filter":
        return Verdict(None, "refused")
    return Verdict(None, reason if text.strip() else "empty")


def _fastchat_rating(text: str) -> Verdict:
    match = FASTCHAT_DOUBLE.search(text) or FASTCHAT_SINGLE.search(text)
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
