"""Reading one chat completion, in the shapes that services really send."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mtbench_ray.endpoint.faults import error_in_body, malformed
from mtbench_ray.schema import Status

# Finish reasons of many services, in lower case; every other one is that of a whole reply.
_CUT = re.compile(r"length|max.?(?:output.?)?tokens|token.?limit")
_REFUSED = re.compile(
    r"filter|safety|sensitive|recitation|prohibited|blocklist|spii|refusal|moderation|guardrail"
)
_BROKEN = re.compile(
    r"abort|error|insufficient|cancel|fail|time.?out|overload|unavailable|interrupt|malformed"
)


@dataclass(frozen=True, slots=True)
class Reply:
    """One reply.

    Attributes:
        status: ``ok``, ``truncated``, ``empty`` or ``refused``.
        reason: Why it is not ok.
        text: What was written, without reasoning that the service itself kept apart.
        finish_reason: ``length`` and ``content_filter`` whatever the service calls them; else its
            own word in lower case.
        prompt_tokens: None where the service did not count.
        output_tokens: With hidden reasoning; None where the service did not count.
    """

    status: Status
    reason: str | None
    text: str
    reasoning: str | None
    finish_reason: str | None
    prompt_tokens: int | None
    output_tokens: int | None


def read_reply(body: str) -> Reply:
    """Read the body of a 200.

    Raises:
        Fault: It is not JSON, has no choices, holds an error, or ended in one.
    """
    try:
        data = json.loads(body)
    except (ValueError, RecursionError):
        raise malformed("not JSON:", body) from None
    if not isinstance(data, dict):
        raise malformed("not an object:", body)
    choices = data.get("choices")
    if not isinstance(choices, list) or not choices or not isinstance(choices[0], dict):
        if data.get("error"):
            raise error_in_body(data, time.time())
        raise malformed("no choices:", body)
    message = choices[0].get("message")
    if not isinstance(message, dict):
        raise malformed("no message:", body)
    finish = _finish(choices[0].get("finish_reason"))
    text, thought = _content(message.get("content"))
    given = message.get("reasoning_content") or message.get("reasoning")
    reasoning = given if isinstance(given, str) else thought or None
    refusal = message.get("refusal")
    status, reason = _status(text, finish)
    if status == "empty" and isinstance(refusal, str) and refusal:
        text, status, reason = refusal, "refused", "refusal"
    usage = data.get("usage")
    usage = usage if isinstance(usage, dict) else {}
    return Reply(
        status,
        reason,
        text,
        reasoning,
        finish,
        _count(usage, "prompt_tokens"),
        _output_tokens(usage),
    )


def _finish(given: Any) -> str | None:
    """Why a reply ended, in OpenAI's words where there is one.

    Raises:
        Fault: Something failed on the way; what is there is no whole reply.
    """
    if not isinstance(given, str):
        return None
    word = given.strip().lower()
    if _BROKEN.search(word):
        raise malformed(f"ended by {word}")
    if _REFUSED.search(word):
        return "content_filter"
    return "length" if _CUT.search(word) else word


def _content(content: Any) -> tuple[str, str]:
    """Text and thinking of a message's content: a string, or a list of typed parts."""
    if isinstance(content, str):
        return content, ""
    if not isinstance(content, list):
        return "", ""
    text, thought = "", ""
    for part in content:
        if not isinstance(part, dict):
            continue
        if isinstance(part.get("text"), str):
            text += part["text"]
        elif "thinking" in part:
            inner = part["thinking"]
            thought += inner if isinstance(inner, str) else _content(inner)[0]
    return text, thought


def _status(text: str, finish: str | None) -> tuple[Status, str | None]:
    if finish == "content_filter":
        return "refused", "content_filter"
    if finish == "length":
        # Without any text it was thinking, shown or hidden, that took them.
        return "truncated", "max_tokens" if text.strip() else "thinking_took_all_tokens"
    return ("ok", None) if text.strip() else ("empty", "empty_reply")


def _output_tokens(usage: Mapping[str, Any]) -> int | None:
    """Some services leave thinking out of ``completion_tokens``; the total has what is billed."""
    prompt, total = _count(usage, "prompt_tokens"), _count(usage, "total_tokens")
    counted = _count(usage, "completion_tokens")
    if prompt is None or total is None:
        return counted
    return max(counted or 0, total - prompt)


def _count(usage: Mapping[str, Any], name: str) -> int | None:
    value = usage.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None
