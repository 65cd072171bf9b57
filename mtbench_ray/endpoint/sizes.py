"""What a refusal says about sizes: a cap on new tokens, a window, the length of a prompt.

Services word this in dozens of ways. What they share is decided on: whether the text speaks of the
cap that was sent, of the prompt, or of both, and which numbers it names.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

_CAP = re.compile(
    r"max(?:imum)?[_ ]*(?:completion|output|new|generated)?[_ ]*tokens?\b|maximum output"
    r"|(?:output|completion)[_ ]tokens?|(?:in|for) the completion|for output",
    re.I,
)
_PROMPT = re.compile(r"prompts?\b|inputs?\b|\bmessages?\b|conversation|输入|提示", re.I)
_WINDOW = re.compile(
    r"context[_ ](?:length|window|size|limit)|exceed_context|(?:max(?:imum)?[_ ])?model[_ ]len"
    r"|maximum context|model token limit|上下文",
    re.I,
)
_SIZE = re.compile(r"token|length|\blong|large|\bsize|长", re.I)
_EXCESS = re.compile(
    r"\btoo |exceed|maximum|at most|limit|range|[<>\[]|between|above|up to|greater|longer|larger"
    r"|less than|fewer|reduc|超|过长|限",
    re.I,
)
_NUMBER = r"(?<![\w.,-])(\d[\d,]*)(?![\w-]|\.\d)"
_BOUND = re.compile(
    r"(?:at most|less than or equal to|(?:less|lower) than|<=?|up to|[\d.]\s*>|"
    r"(?:maximum|max|limit|output|share)(?: value)?(?: of| is|:)|allowed maximum|between \d+ and"
    r"|\[\s*\d+\s*,)\D{0,20}?" + _NUMBER,
    re.I,
)
_WINDOW_TOKENS = (
    re.compile(r"\d\s*>\s*" + _NUMBER),
    re.compile(
        r"(?:context[_ ](?:length|window|size|limit)|model[_ ]len(?:gth)?|must be <=)\D{0,30}?"
        + _NUMBER,
        re.I,
    ),
)
_PROMPT_TOKENS = (
    re.compile(
        _NUMBER + r"\W{0,3}(?:tokens? )?(?:in (?:the|your) (?:messages|prompt|input)|prompt|input)"
    ),
    re.compile(_NUMBER + r" \+ \d+ >"),
    re.compile(r"(?:prompt|input)[^.\d]{0,30}?" + _NUMBER),
)

SizeKind = Literal["cap", "window", "prompt", ""]


@dataclass(frozen=True, slots=True)
class Window:
    """A model's window and the prompt in it, in the service's own tokens; None where not said."""

    tokens: int | None
    prompt: int | None


def size_kind(message: str) -> SizeKind:
    """What is too large: ``cap`` alone, the ``prompt``, both for the ``window``, or nothing."""
    cap = _CAP.search(message) is not None
    rest = _CAP.sub(" ", message)
    window = _WINDOW.search(rest) is not None
    prompt = _PROMPT.search(rest) is not None and _SIZE.search(rest) is not None
    if not _EXCESS.search(message):
        return ""
    if cap and not prompt:
        return "cap" if re.search(r"\d", message) else ""
    if not (prompt or window):
        return ""
    return "window" if cap else "prompt"


def largest_cap(message: str, sent: int) -> int | None:
    """The largest cap that a refusal allows, where it names one below ``sent``."""
    for found in _BOUND.finditer(message):
        bound = _int(found[1])
        if 0 < bound <= sent:
            # "Lower than 1024" to a cap of 1024.
            return bound if bound < sent else bound - 1 or None
    others = {n for n in map(_int, re.findall(_NUMBER, message)) if 16 <= n < sent}
    return others.pop() if len(others) == 1 else None


def read_window(message: str) -> Window:
    """Window and prompt tokens as a refusal of a request that is too large names them."""
    text = message.replace("`", "")
    return Window(_first(_WINDOW_TOKENS, text), _first(_PROMPT_TOKENS, text))


def _first(patterns: tuple[re.Pattern[str], ...], text: str) -> int | None:
    found = next((found for one in patterns if (found := one.search(text))), None)
    return _int(found[1]) if found else None


def _int(digits: str) -> int:
    return int(digits.replace(",", "")[:12])
