"""Conversations as messages, and thinking told from answers. Pure functions, no tokenizer."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from mtbench_ray.config import ModelConfig
from mtbench_ray.engines.base import ThinkingSpec
from mtbench_ray.schema import Message, Question


def build_messages(
    model: ModelConfig, question: Question, answers: Sequence[str]
) -> tuple[Message, ...]:
    """The conversation up to the user message that is to be answered next.

    Args:
        answers: ``content`` of the turns already answered; thinking never comes back as history.
            Turn ``len(answers) + 1`` is the one asked.
    """
    context = list(question.context)
    parts = [model.system_prompt, model.custom_thinking_prompt]
    if context and context[0].role == "system":
        parts.append(context.pop(0).content)
    system = "\n\n".join(part for part in parts if part)
    messages = [Message("system", system)] if system else []
    messages += context
    for turn, answer in zip(question.turns, answers, strict=False):
        messages += [Message("user", turn), Message("assistant", answer)]
    messages.append(Message("user", question.turns[len(answers)]))
    return tuple(messages)


def merge_system(messages: Sequence[Message]) -> tuple[Message, ...]:
    """For templates that refuse the system role: its text goes before the first user message."""
    if not messages or messages[0].role != "system":
        return tuple(messages)
    system, rest = messages[0], list(messages[1:])
    for index, message in enumerate(rest):
        if message.role == "user":
            rest[index] = Message("user", f"{system.content}\n\n{message.content}")
            break
    return tuple(rest)


def thinking_spec(
    model: ModelConfig,
    template: str | None,
    *,
    prefilled: bool = False,
    stop: Sequence[str] = (),
) -> ThinkingSpec:
    """How to read a model's output.

    Args:
        template: Source of its chat template; None where it is unknown (an endpoint): then a
            model whose thinking is unset is split only at a leading opening tag.
        prefilled: The rendered prompt ends with the opening tag.
        stop: Stop strings of the template, beside the model's own.
    """
    tags = [tag for tag in (model.thinking_open, model.thinking_close) if tag]
    required = model.thinking == "on" or (
        bool(model.custom_thinking_prompt) and model.thinking != "off"
    )
    unset = model.thinking == "unset" and not required
    match model.split_thinking:
        case "always":
            split = True
        case "never":
            split = False
        case _:
            mentioned = template is None or any(tag in template for tag in tags)
            split = required or (unset and mentioned)
    return ThinkingSpec(
        split=split and bool(model.thinking_close),
        required=required,
        prefilled=prefilled,
        lead_only=template is None and unset and model.split_thinking == "auto",
        open=model.thinking_open,
        close=model.thinking_close,
        stop=(*model.stop, *stop),
    )


@dataclass(frozen=True, slots=True)
class Split:
    """One output, read.

    Attributes:
        status: ``ok``, ``truncated`` (cut at the cap, or thinking that never ended) or ``empty``.
        compliant: Whether the thinking format was kept; None where none is expected.
    """

    content: str
    reasoning: str | None
    status: str
    compliant: bool | None


def split_thinking(raw: str, finish_reason: str | None, spec: ThinkingSpec) -> Split:
    """Split a leading thinking block off an output and cut the answer at its stop strings.

    Only a leading block counts, so an answer that talks about the tags survives. A closing tag
    that nothing opened ends a block whose opening tag was in the prompt. A block that never ends
    leaves no answer: the text is thinking, however it stopped.
    """
    if not spec.split:
        return _answer(raw, None, finish_reason, spec.stop, None)
    text = raw.lstrip()
    led = bool(spec.open) and text.startswith(spec.open)
    body = text[len(spec.open) :] if led else text
    inside = led or spec.prefilled
    if not inside and spec.lead_only:
        return _answer(raw, None, finish_reason, spec.stop, False if spec.required else None)
    end = _closing(body, spec, fallback=inside and finish_reason != "length")
    if end is not None:
        answer = body[end + len(spec.close) :]
        return _answer(answer, body[:end].strip(), finish_reason, spec.stop, inside)
    if inside:
        return Split("", body.strip(), "truncated", False)
    return _answer(raw, None, finish_reason, spec.stop, False if spec.required else None)


def _closing(body: str, spec: ThinkingSpec, *, fallback: bool) -> int | None:
    """Where the closing tag of the block stands that ``body`` begins inside of.

    Tags quoted in pairs within the thinking are skipped. Where thinking quotes an opening tag
    alone the count never comes out; ``fallback`` then takes the first closing tag.
    """
    depth, first = 1, None
    tags = "|".join(re.escape(tag) for tag in (spec.close, spec.open) if tag)
    for tag in re.finditer(tags, body):
        if tag[0] == spec.close:
            first = tag.start() if first is None else first
            depth -= 1
            if depth == 0:
                return tag.start()
        else:
            depth += 1
    return first if fallback else None


def _answer(
    text: str,
    reasoning: str | None,
    finish_reason: str | None,
    stop: Sequence[str],
    compliant: bool | None,
) -> Split:
    content, stopped = cut_at_stop(text, stop)
    content = content.strip()
    if finish_reason == "length" and not stopped:
        status = "truncated"
    else:
        status = "ok" if content else "empty"
    return Split(content, reasoning, status, compliant)


def cut_at_stop(text: str, stop: Sequence[str]) -> tuple[str, bool]:
    """``text`` up to its earliest stop string, and whether there was one."""
    found = [at for at in (text.find(string) for string in stop if string) if at >= 0]
    return (text[: min(found)], True) if found else (text, False)
