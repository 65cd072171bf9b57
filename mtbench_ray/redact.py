"""Keeps API keys out of everything that is written."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable

MIN_LENGTH = 8
"""Shorter values ("EMPTY", "none") are placeholders, and replacing them would change texts."""
MIN_WORD = 16
"""Without a digit a shorter value ("anything", "question") may be a word of any text."""
_STRING = re.compile(r'"(?:[^"\\]|\\.)*+"(\s*:)?')


def redactor(secrets: Iterable[str]) -> Callable[[str], str]:
    """A function that replaces every secret in a text by ``***``.

    A secret is found as it is and as it stands inside a JSON string. What may be an ordinary word
    is left alone: values below :data:`MIN_LENGTH` characters (spaces around them not counted), and
    those below :data:`MIN_WORD` without a digit.
    """
    forms = {
        form
        for secret in (secret.strip() for secret in secrets)
        if len(secret) >= (MIN_LENGTH if re.search(r"\d", secret) else MIN_WORD)
        for form in (secret, json.dumps(secret)[1:-1])
    }
    longest_first = sorted(forms, key=len, reverse=True)

    def redact(text: str) -> str:
        for form in longest_first:
            text = text.replace(form, "***")
        return text

    return redact


def redact_json(redact: Callable[[str], str], text: str) -> str:
    """A JSON text without any secret, which is JSON of the same form still.

    Only strings are looked into: a secret of digits may stand in a number, and one that is a
    word may be the name of a field. A text that is no JSON is redacted as a whole.
    """
    clean = redact(text)
    if clean == text:
        return text
    try:
        json.loads(text)
    except ValueError:
        return clean

    def string(match: re.Match[str]) -> str:
        if match[1]:
            return match[0]
        value = json.loads(match[0])
        return match[0] if redact(value) == value else json.dumps(redact(value))

    return _STRING.sub(string, text)
