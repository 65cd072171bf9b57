"""Keeps API keys out of everything that is written."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

MIN_LENGTH = 8
"""Shorter values ("EMPTY", "none") are placeholders, and replacing them would change texts."""
MIN_WORD = 16
"""A shorter value that is spelt as a word ("anything", "question") may be in any text."""
_WORDS = re.compile(r"([A-Z]?[a-z]+|[A-Z]+)([-_ .]([A-Z]?[a-z]+|[A-Z]+))*")
_NO_SPELLING = re.compile(
    r"[bcdfghjklmnpqrstvwxz]{4}|[aeiou]{4}|q(?!u)|[jvxz][bcdfghjkmnpqtvwxz]|(.)\1\1"
    r"|[bcdfghkmpqtvwx][jx]|^[^aeiouy]{4,}$"
)
"""What random letters have and English words do not."""
HIDDEN = "***"
# fmt: off
_SECRET_WORDS = frozenset(
    ("secret", "secrets", "password", "passwords", "passwd", "passphrase", "pwd", "credential",
     "credentials", "authorization", "bearer", "apikey", "jwt", "cookie", "webhook", "alert")
)
_ENDS_SECRET = {"token", "key", "auth"}
_PLURALS = {"tokens", "keys"}
_SERVICE_WORDS = {"api", "access", "auth", "secret", "refresh", "session", "hf", "private"}
_TEXT_WORDS = frozenset(
    ("eos", "bos", "pad", "unk", "sep", "cls", "mask", "stop", "start", "end", "begin", "image",
     "audio", "video", "special", "per", "max", "min", "num", "next", "new", "first", "last",
     "prompt", "completion", "output", "input", "think", "thinking", "reasoning", "tool", "call",
     "cache", "sort", "primary", "public", "partition", "foreign", "idempotency", "dedup", "group",
     "kv", "safety")
)
# fmt: on
"""Words before "token" or "key" that speak of a model's tokens, or of keys that open nothing."""
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")
_STRING = re.compile(r'"(?:[^"\\]|\\.)*+"(\s*:)?')


def redactor(secrets: Iterable[str]) -> Callable[[str], str]:
    """A function that replaces every secret in a text by ``***``.

    A secret is found as it is and as it stands inside a JSON string. What may be an ordinary word
    is left alone: values below :data:`MIN_LENGTH` characters (spaces around them not counted), and
    those below :data:`MIN_WORD` that can be read as words ("anything", "no-key-needed").
    """
    forms = {
        form
        for secret in (secret.strip() for secret in secrets)
        if len(secret) >= (MIN_WORD if _is_words(secret) else MIN_LENGTH)
        for form in (secret, json.dumps(secret)[1:-1])
    }
    longest_first = sorted(forms, key=len, reverse=True)

    def redact(text: str) -> str:
        for form in longest_first:
            text = text.replace(form, "***")
        return text

    return redact


def _is_words(value: str) -> bool:
    return bool(_WORDS.fullmatch(value)) and not any(
        _NO_SPELLING.search(re.sub("tch|ng|th|sh|ch|ck|ph", "t", part))
        for part in re.split(r"[-_ .]", value.lower())
    )


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


def is_secret_name(name: str) -> bool:
    """Whether a setting or field of this name holds a secret: hf_token, apiKey, Authorization.

    ``max_tokens``, ``stop_token_ids``, ``eos_token``, ``api_key_env``, ``prompt_cache_key`` do not.
    """
    words = [word.lower() for word in _WORD.findall(name)]
    if not words:
        return False
    before = words[-2] if len(words) > 1 else ""
    return (
        (bool(_SECRET_WORDS & set(words)) and words[-1] not in ("env", "file", "path"))
        or (words[-1] in _ENDS_SECRET and not _TEXT_WORDS & set(words[:-1]))
        or (words[-1] in _PLURALS and before in _SERVICE_WORDS)
    )


def hidden(value: Any) -> Any:
    """Settings as JSON values, with ``***`` for what stands under the name of a secret."""
    if isinstance(value, Mapping):
        return {
            key: HIDDEN if _holds_secret(key, item) else hidden(item) for key, item in value.items()
        }
    return [hidden(item) for item in value] if isinstance(value, list | tuple) else value


def without_secrets(value: Any) -> Any:
    """The same settings without what stands under the name of a secret."""
    if isinstance(value, Mapping):
        return {
            key: without_secrets(item)
            for key, item in value.items()
            if not _holds_secret(key, item)
        }
    return [without_secrets(item) for item in value] if isinstance(value, list) else value


def secrets_in(value: Any) -> Iterator[str]:
    """The texts that :func:`hidden` hides."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from _texts(item) if _holds_secret(key, item) else secrets_in(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from secrets_in(item)


def _holds_secret(key: Any, value: Any) -> bool:
    # The name of a variable, a switch and an unset setting tell nothing.
    return value not in (None, "", True, False) and is_secret_name(str(key))


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, list | tuple):
        for item in value:
            yield from _texts(item)
    elif value is not None:
        yield str(value)
