"""Reading one chat completion, in the shapes that services really send."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from mtbench_ray.endpoint.api_errors import error_in_body, malformed
from mtbench_ray.schema import Status

# Finish reasons of many services, in lower case. What no pattern knows is kept and noted.
_WHOLE = re.compile(r"(?:finish_reason_)?(?:stop|end|eos|complete|done|finish|normal)")
_CUT = re.compile(
    r"length|max.?(?:output.?|new.?)?tokens|token.?(?:limit|budget)|error.limit|context.?window"
    r"|truncat|repetition"
)
_REFUSED = re.compile(
    r"filter|safety|sensitive|recitation|prohibited|blocklist|spii|refus|moderation|guardrail|toxic"
    r"|language"
)
_BROKEN = re.compile(
    r"abort|error|insufficient|cancel|fail|time.?out|overload|unavailable|interrupt|malformed"
    r"|disconnect|incomplete|evict|preempt|kill|exception|deadline"
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
        served_model: The model that the service says it answered with; empty where it does not.
        system_fingerprint: The service's own name for the version that answered.
        odd_finish: The finish reason is none that is known.
        logprobs: JSON of the choice's log-probabilities; empty where there are none.
        limit: Requests a minute that the service says it permits.
        cached_tokens: Of the prompt's, those that the service had cached.
    """

    status: Status
    reason: str | None
    text: str
    reasoning: str | None
    finish_reason: str | None
    prompt_tokens: int | None
    output_tokens: int | None
    served_model: str = ""
    system_fingerprint: str = ""
    odd_finish: bool = False
    logprobs: str = ""
    limit: float | None = None
    cached_tokens: int = 0


def read_reply(body: str) -> Reply:
    """Read the body of a 200: JSON, JSON between lines of a stream, or a stream alone.

    Raises:
        Fault: It is none of these, has no choices, holds an error, or ended in one.
    """
    data = _parse(body)
    choices = data.get("choices")
    if not isinstance(choices, list) or not choices or not isinstance(choices[0], dict):
        if data.get("error"):
            raise error_in_body(data, time.time())
        raise malformed("no choices:", body)
    for holder in (choices[0], data):
        if holder.get("error"):
            raise error_in_body(holder, time.time())
    message = choices[0].get("message")
    if not isinstance(message, dict):
        raise malformed("no message:", body)
    finish, odd = _finish(choices[0].get("finish_reason"))
    text, thought = _content(message.get("content"))
    given = message.get("reasoning_content") or message.get("reasoning")
    reasoning = given if isinstance(given, str) else thought or None
    refusal = message.get("refusal")
    status, reason = _status(text, finish)
    if status == "empty" and isinstance(refusal, str) and refusal:
        text, status, reason = refusal, "refused", "refusal"
    usage = data.get("usage")
    usage = usage if isinstance(usage, dict) else {}
    output = _output_tokens(usage)
    return Reply(
        status,
        reason,
        text,
        reasoning,
        finish,
        # No prompt is empty: a service that says 0 did not count (or not what it had cached).
        _prompt_tokens(usage) or None,
        output or (None if text or reasoning else output),
        _text(data.get("model")),
        _text(data.get("system_fingerprint")),
        odd,
        _logprobs(choices[0]),
        cached_tokens=_cached_tokens(usage),
    )


def _logprobs(choice: Mapping[str, Any]) -> str:
    found = choice.get("logprobs")
    return json.dumps(found) if isinstance(found, dict) and found else ""


def _parse(body: str) -> dict[str, Any]:
    """The object in a body, whatever stands around it.

    Raises:
        Fault: There is none.
    """
    text = body.lstrip("\ufeff \t\r\n")
    while text.startswith(":"):  # a comment of a stream, sent to keep the connection open
        text = text.partition("\n")[2].lstrip()
    if re.match(r"(?:data|event|id|retry):", text):
        return _from_stream(text)
    try:
        data, _ = json.JSONDecoder().raw_decode(text)
    except (ValueError, RecursionError):
        raise malformed("not JSON:", body) from None
    if not isinstance(data, dict):
        raise malformed("not an object:", body)
    return data


def _from_stream(text: str) -> dict[str, Any]:
    """The reply whose pieces a stream of server-sent events holds.

    Raises:
        Fault: It holds an error, or ends early.
    """
    whole: dict[str, Any] = {}
    message: dict[str, Any] = {"content": ""}
    finish, ended = None, False
    for event in _events(text):
        if event is None:
            ended = True
            continue
        whole |= {k: v for k, v in event.items() if k != "choices" and v is not None}
        choices = event.get("choices")
        if not isinstance(choices, list) or not choices or not isinstance(choices[0], dict):
            continue
        finish = choices[0].get("finish_reason") or finish
        if choices[0].get("error"):
            whole["error"] = choices[0]["error"]
        piece = choices[0].get("message") or choices[0].get("delta")
        for name, value in piece.items() if isinstance(piece, dict) else ():
            if "message" in choices[0] or not isinstance(value, str):
                message[name] = value if value is not None else message.get(name)
            else:
                message[name] = (message.get(name) or "") + value
    if not (finish or ended or whole.get("error")):
        raise malformed("a stream that ended early:", text)
    return whole | {"choices": [{"message": message, "finish_reason": finish}]}


def _events(text: str) -> Iterator[dict[str, Any] | None]:
    """The objects of a stream; None for its end mark.

    Raises:
        Fault: One is cut off or no JSON.
    """
    for line in text.splitlines():
        name, _, value = line.partition(":")
        if name != "data":
            continue
        if value.strip() == "[DONE]":
            yield None
            continue
        try:
            event = json.loads(value)
        except (ValueError, RecursionError):
            raise malformed("a stream that cannot be read:", value) from None
        if isinstance(event, dict):
            yield event


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _finish(given: Any) -> tuple[str | None, bool]:
    """Why a reply ended, in OpenAI's words where there is one; and whether the word is unknown.

    Raises:
        Fault: Something failed on the way; what is there is no whole reply.
    """
    if not isinstance(given, str) or not given.strip():
        return None, False
    word = given.strip().lower()
    if _REFUSED.search(word):
        return "content_filter", False
    if _CUT.search(word):
        return "length", False
    if _BROKEN.search(word):
        raise malformed(f"ended by {word}")
    return word, _WHOLE.match(word) is None


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
    prompt, total = _prompt_tokens(usage), _count(usage, "total_tokens")
    counted = _count(usage, "completion_tokens", "output_tokens")
    if not prompt or total is None:
        return counted
    return max(counted or 0, total - prompt)


def _prompt_tokens(usage: Mapping[str, Any]) -> int | None:
    whole = _count(usage, "prompt_tokens")
    if whole is not None:
        return whole
    # Anthropic's form: what was read from the cache, or written to it, stands beside.
    beside = ("cache_read_input_tokens", "cache_creation_input_tokens")
    new = _count(usage, "input_tokens")
    return None if new is None else new + sum(_count(usage, name) or 0 for name in beside)


def _cached_tokens(usage: Mapping[str, Any]) -> int:
    """Tokens of the prompt that the service had cached: OpenAI's form, Anthropic's, DeepSeek's."""
    for name in ("prompt_tokens_details", "input_tokens_details"):
        details = usage.get(name)
        if isinstance(details, dict) and (found := _count(details, "cached_tokens")):
            return found
    return _count(usage, "cache_read_input_tokens", "prompt_cache_hit_tokens") or 0


def _count(usage: Mapping[str, Any], *names: str) -> int | None:
    """A count under the first of these names that is there; 7.0 is 7."""
    value = next((usage[name] for name in names if name in usage), None)
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None
