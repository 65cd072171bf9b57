"""Keeps API keys out of everything that is written."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable

MIN_LENGTH = 8
"""Shorter values ("EMPTY", "none") are placeholders, and replacing them would change texts."""


def redactor(secrets: Iterable[str]) -> Callable[[str], str]:
    """A function that replaces every secret in a text by ``***``.

    A secret is found as it is and as it stands inside a JSON string. Values below
    :data:`MIN_LENGTH` characters (spaces around them not counted) are left alone.
    """
    forms = {
        form
        for secret in (secret.strip() for secret in secrets)
        if len(secret) >= MIN_LENGTH
        for form in (secret, json.dumps(secret)[1:-1])
    }
    longest_first = sorted(forms, key=len, reverse=True)

    def redact(text: str) -> str:
        for form in longest_first:
            text = text.replace(form, "***")
        return text

    return redact
