"""How thinking is marked in a model's text: tags, and channels. Standard library only.

Shared by the engines (an answer is judged without its thinking) and the judges (a verdict is read
outside of it).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import NamedTuple

THINKING = ("<think>", "</think>")
"""The tags that most models write."""

OTHER_TAGS = (
    ("[THINK]", "[/THINK]"),
    ("<|START_THINKING|>", "<|END_THINKING|>"),
    ("<seed:think>", "</seed:think>"),
    ("<thinking>", "</thinking>"),
    ("<thought>", "</thought>"),
    ("<reasoning>", "</reasoning>"),
    ("<|begin_of_thought|>", "<|end_of_thought|>"),
    ("\u25c1think\u25b7", "\u25c1/think\u25b7"),
)
"""Tags of other models, known by their chat templates."""

CHANNEL = "<|channel|>"
"""Token that begins the header of a message in a model that writes to channels (harmony)."""
CHANNEL_TOKENS = (
    *(CHANNEL, "<|message|>", "<|start|>", "<|end|>", "<|return|>", "<|call|>", "<|constrain|>"),
)

_FINAL = "final"
_HEADER = re.compile(
    r"(?:<\|start\|>[^<]{0,80}+)?<\|channel\|>\s*+([^\s<]*+)[^<]*+(?:<\|constrain\|>[^<]*+)?<\|message\|>"
)
_UNFINISHED = re.compile(r"(?:<\|start\|>[^<]{0,80}+)?<\|channel\|>[^<]*+\Z")
_MESSAGE_END = re.compile(r"<\|(?:end|return|call|start)\|>")
_CHANNELS = re.compile(r"\s*+(?:(?:<\|start\|>)?assistant)?<\|channel\|>")
_NEXT_CHANNEL = re.compile(r"<\|end\|>\s*+<\|start\|>assistant<\|channel\|>")
_BARE = re.compile(r"\s*+analysis(?=\S)")
_BARE_FINAL = "assistantfinal"


class Channels(NamedTuple):
    """What a model wrote to its channels.

    Attributes:
        final: The answer; None where the model did not come to one.
        reasoning: All other channels in order.
    """

    final: str | None
    reasoning: str


def split_channels(text: str) -> Channels | None:
    """Split harmony output, with its tokens or as a server that drops them leaves it.

    Returns:
        None where the text is no such output; one that only shows the tokens is none.
    """
    if _CHANNELS.match(text) is None and _NEXT_CHANNEL.search(text) is None:
        if _BARE.match(text) is None or _BARE_FINAL not in text:
            return None
        thought, _, final = text.strip().removeprefix("analysis").partition(_BARE_FINAL)
        return Channels(final.strip(), thought.strip())
    headers = list(_HEADER.finditer(text))
    finals: list[str] = []
    # Text before the first header is of a message whose header was in the prompt.
    thoughts = [_body(text[: headers[0].start()])] if headers else []
    for number, header in enumerate(headers):
        after = headers[number + 1].start() if number + 1 < len(headers) else len(text)
        body = _body(text[header.end() : after])
        (finals if header[1] == _FINAL else thoughts).append(body)
    reasoning = "\n\n".join(part for part in thoughts if part)
    return Channels("\n\n".join(finals) if finals else None, reasoning)


def _body(text: str) -> str:
    end = _MESSAGE_END.search(text) or _UNFINISHED.search(text)
    return (text[: end.start()] if end else text).strip()


_QUOTES = "`'\"\u2018\u2019\u201c\u201d\u201e\u00ab\u00bb\u300c\u300d"
_TALKED_BEFORE = re.compile(
    r"\b(?:an?|the|its|their|this|that|each|no|of|with|and|or|un\w+|open(?:ing)?|clos(?:ed|ing)"
    r"|stray|tags?|tokens?|markers?)\s+\Z",
    re.IGNORECASE,
)
_TALKED_AFTER = re.compile(
    r"[-\u2010-\u2015]?\s?(?:tags?|blocks?|sections?|tokens?|markers?|elements?|parts?)\b"
    r"|[-,.;:)\]/\u2026](?!\S*\n)(?=[\s\w])",
    re.IGNORECASE,
)


def is_mentioned(text: str, start: int, end: int, *, loose: bool = False) -> bool:
    """Whether the tag at ``start`` to ``end`` is talked about rather than used.

    It is quoted, or stands in a sentence as a noun does ("it leaks its <think> tag"). A tag that
    is used stands at the edge of a line or a sentence.

    Args:
        loose: Any place within a sentence will do.
    """
    before = text[max(0, start - 60) : start].rpartition("\n")[2]
    after = text[end : end + 60].partition("\n")[0]
    if before[-1:] and before[-1] in _QUOTES and after[:1] and after[0] in _QUOTES:
        return True
    if not before.strip():
        return bool(re.match(r" (?:tags?|blocks?|tokens?|markers?)\b", after))
    if _TALKED_BEFORE.search(before):
        return True
    if re.search(r"[\w,]\s?\Z", before) and _TALKED_AFTER.match(after):
        return True
    return loose and bool(re.search(r"[\w,]\s\Z", before) and re.match(r"\s[a-z]", after))


@dataclass(frozen=True, slots=True)
class ThinkingSpec:
    """How the thinking of a model is told from its answer.

    Attributes:
        split: Whether anything is split off at all; False leaves every text as it is.
        required: Thinking was asked for, so that an answer without it breaks the format.
        prefilled: The prompt already ends with the opening tag.
        lead_only: Only a block that begins with its opening tag counts (the template is unknown).
        drop: Thinking is off; a block that leads all the same is split off, nothing else is.
        channels: Output may come in channels (harmony), which are told apart by their tokens.
        stop: Stop strings; they cut the answer, never the thinking before it.
    """

    split: bool = False
    required: bool = False
    prefilled: bool = False
    lead_only: bool = False
    drop: bool = False
    channels: bool = False
    open: str = "<think>"
    close: str = "</think>"
    stop: tuple[str, ...] = ()
