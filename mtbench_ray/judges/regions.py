"""What in a judge's reply is the judge's own statement: all but code, comments and links.

Takes time linear in the text, whatever it holds.
"""

from __future__ import annotations

import re
import unicodedata
from bisect import bisect_left
from typing import NamedTuple

FILLER = "\ufffc"
"""Stands for each character of a region that is not read."""

_INVISIBLE = re.compile(
    "[\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180e\u200b-\u200f\u202a-\u202e\u2060-\u2064"
    "\u2066-\u206f\ufe00-\ufe0f\ufeff\u20e3]+"
)
_SLASHES = str.maketrans({"\u2044": "/", "\u2215": "/", "\u29f8": "/", "\u27e6": "[[",
                          "\u27e7": "]]", "\u301a": "[[", "\u301b": "]]", "\u3010": "[",
                          "\u3011": "]"})  # fmt: skip
_ESCAPED = re.compile(r"\\([\[\]])")

_OPENER = re.compile(
    r"<!--|<(code|pre)\b[^<>]{0,200}>|^[ \t]{0,3}(`{3,}|~{3,})[^`\n]*$|(`+)",
    re.IGNORECASE | re.MULTILINE,
)
_CLOSING = {tag: re.compile(f"</{tag}>", re.IGNORECASE) for tag in ("code", "pre")}
_RUN = re.compile(r"`+")
_URL = r"(?:[a-z][a-z0-9+.-]{1,20}:|//?\w|\#|\?|\.\.?/|www\.|[\w-]+(?:\.[\w-]+)+[/)#?])"
_LINK = re.compile(
    rf"\[\[[^\[\]]{{1,60}}\]\](?=\(\s*<?{_URL}|:\s{{0,8}}<?{_URL})"
    rf"|(?<!\[)\[[^\[\]]{{1,60}}\](?=\(\s*<?{_URL})"
    rf"|^[ \t]{{0,3}}\[[^\[\]]{{1,60}}\](?=:\s{{0,8}}<?{_URL})",
    re.IGNORECASE | re.MULTILINE,
)


class Code(NamedTuple):
    """A code span or block, without its marks."""

    text: str
    start: int
    end: int


class Statement(NamedTuple):
    """A reply with what is not the judge's own statement replaced, letter by letter.

    Attributes:
        text: The statement; FILLER stands for code and links, blanks for comments.
        codes: The code that was replaced.
    """

    text: str
    codes: list[Code]


def plain(text: str) -> str:
    """The text in plain characters: wide forms, odd spaces and slashes, Markdown's escapes."""
    if not text.isascii():
        text = unicodedata.normalize("NFKC", _INVISIBLE.sub("", text)).translate(_SLASHES)
    return _ESCAPED.sub(r"\1", text)


def statement(text: str) -> Statement:
    """Replace code, comments and links."""
    runs: dict[int, list[int]] = {}
    for run in _RUN.finditer(text):
        runs.setdefault(len(run[0]), []).append(run.start())
    parts: list[str] = []
    codes: list[Code] = []
    unclosed: set[str] = set()
    done = at = 0
    while (opener := _OPENER.search(text, at)) is not None:
        start, inner = opener.span()
        filler = FILLER
        if opener[0] == "<!--":
            stop = text.find("-->", inner)
            end = len(text) if stop < 0 else stop + 3
            filler = " "
        elif opener[1]:
            tag = opener[1].lower()
            close = None if tag in unclosed else _CLOSING[tag].search(text, inner)
            if close is None:
                unclosed.add(tag)
                at = inner
                continue
            stop, end = close.span()
        elif opener[2]:
            fence = re.compile(
                rf"^[ \t]{{0,3}}{re.escape(opener[2][0])}{{{len(opener[2])},}}[ \t]*$", re.MULTILINE
            )
            close = fence.search(text, inner)
            stop, end = close.span() if close else (len(text), len(text))
        else:
            ticks = len(opener[3])
            places = runs[ticks]
            place = bisect_left(places, inner)
            stop = places[place] if place < len(places) else -1
            if stop < 0 or text.find("\n\n", inner, stop) >= 0:
                at = inner
                continue
            end = stop + ticks
        if filler == FILLER:
            codes.append(Code(text[inner:stop], start, end))
        parts += [text[done:start], filler * (end - start)]
        done = at = end
    parts.append(text[done:])
    return Statement(_LINK.sub(lambda link: FILLER * len(link[0]), "".join(parts)), codes)
