"""Reading one chat completion, in the shapes that services really send."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mtbench_ray.endpoint.faults import error_in_body, malformed
from mtbench_ray.schema import Status


@dataclass(frozen=True, slots=True)
class Reply:
    """One reply.

    Attributes:
        status: ``ok``, ``truncated``, ``empty`` or ``refused``.
        reason: Why it is not ok.
        text: What was written, without reasoning that the service itself kept apart.
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
        Fault: It is not JSON, has no choices, or holds an error.
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
    finish = choices[0].get("finish_reason")
    if not isinstance(message, dict) or finish == "error":
        raise malformed("no message:", body)
    text, thought = _content(message.get("content"))
    given = message.get("reasoning_content") or message.get("reasoning")
    reasoning = given if isinstance(given, str) else thought or None
    refusal = message.get("refusal")
    status, reason = _status(text, finish, reasoning)
    if status == "empty" and isinstance(refusal, str) and refusal:
        text, status, reason = refusal, "refused", "refusal"
    usage = data.get("usage")
    usage = usage if isinstance(usage, dict) else {}
    return Reply(
        status,
        reason,
        text,
        reasoning,
        finish if isinstance(finish, str) else None,
        _count(usage, "prompt_tokens"),
        _count(usage, "completion_tokens"),
    )


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


def _status(text: str, finish: Any, reasoning: str | None) -> tuple[Status, str | None]:
    if finish == "content_filter":
        return "refused", "content_filter"
    if finish == "length":
        blank = not text.strip()
        return "truncated", "thinking_took_all_tokens" if blank and reasoning else "max_tokens"
    return ("ok", None) if text.strip() else ("empty", "empty_reply")


def _count(usage: Mapping[str, Any], name: str) -> int | None:
    value = usage.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None
