"""Conversations as messages, and thinking told from answers. Pure functions, no tokenizer."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from mtbench_ray.config import ModelConfig
from mtbench_ray.models.thinking import (
    CHANNEL,
    OTHER_TAGS,
    THINKING,
    ThinkingSpec,
    is_mentioned,
    split_channels,
)
from mtbench_ray.schema import Message, Question, Turn

_INSTRUCTION = (
    "Work each request out before you answer it: write your thoughts between {open} and {close}, "
    "and begin your message with {open}. Put only the finished answer after {close}; nobody reads "
    "what stands before it."
)


def build_messages(
    model: ModelConfig, question: Question, answers: Sequence[str]
) -> tuple[Message, ...]:
    """The conversation up to the user message that is to be answered next.

    Args:
        answers: ``content`` of the turns already answered; thinking never comes back as history.
            Turn ``len(answers) + 1`` is the one asked.
    """
    context = list(question.context)
    parts = [model.system_prompt, thinking_instruction(model)]
    if context and context[0].role == "system":
        parts.append(context.pop(0).content)
    system = "\n\n".join(part for part in parts if part)
    messages = [Message("system", system)] if system else []
    messages += context
    for turn, answer in zip(question.turns, answers, strict=False):
        messages += [Message("user", turn), Message("assistant", answer)]
    messages.append(Message("user", question.turns[len(answers)]))
    return tuple(messages)


def thinking_instruction(model: ModelConfig) -> str | None:
    """What tells the model to think: the user's own text, or ours with ``thinking=prompt``."""
    if model.custom_thinking_prompt or model.thinking != "prompt":
        return model.custom_thinking_prompt
    return _INSTRUCTION.format(open=model.thinking_open, close=model.thinking_close)


def thinking_tags(model: ModelConfig, template: str | None) -> tuple[str, str]:
    """Opening and closing tag: as set, or those of other models that only the template has."""
    tags = (model.thinking_open, model.thinking_close)
    told = thinking_instruction(model)
    if tags != THINKING or told or not template or any(tag in template for tag in tags):
        return tags
    return next((pair for pair in OTHER_TAGS if all(tag in template for tag in pair)), tags)


def thinking_compliance(turns: Iterable[Turn]) -> dict[int, float]:
    """Share of turns that kept the thinking format, by turn; only turns where one was expected."""
    kept: dict[int, list[bool]] = {}
    for turn in turns:
        if turn.compliant is not None:
            kept.setdefault(turn.turn, []).append(turn.compliant)
    return {number: sum(rows) / len(rows) for number, rows in sorted(kept.items())}


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
    opening, closing = thinking_tags(model, template)
    tags = [tag for tag in (opening, closing) if tag]
    channels = model.split_thinking != "never" and (template is None or CHANNEL in template)
    required = model.thinking in ("on", "prompt") or (
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
            split = required or (unset and mentioned) or (channels and template is not None)
    return ThinkingSpec(
        split=split and bool(closing),
        required=required,
        prefilled=prefilled,
        lead_only=template is None and unset and model.split_thinking == "auto",
        drop=model.thinking == "off" and model.split_thinking == "auto" and bool(closing),
        channels=channels,
        open=opening,
        close=closing,
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
    """Split leading thinking off an output and cut the answer at its stop strings.

    Only leading blocks count, so an answer that talks about the tags survives. A closing tag that
    nothing opened ends a block whose opening tag was in the prompt. A block that never ends leaves
    no answer: the text is thinking, however it stopped. Channels go by their headers.
    """
    channels = split_channels(raw) if spec.channels else None
    if channels is not None:
        if channels.final is None:
            return Split("", channels.reasoning, "truncated", False)
        thought = bool(channels.reasoning)
        compliant = thought if thought or spec.required else None
        reasoning = channels.reasoning or None
        return _answer(channels.final, reasoning, finish_reason, spec.stop, compliant)
    if not spec.split and not spec.drop:
        return _answer(raw, None, finish_reason, spec.stop, None)
    blocks: list[str] = []
    text, prefilled = raw.lstrip(), spec.prefilled
    while (led := bool(spec.open) and text.startswith(spec.open)) or prefilled:
        if blocks and finish_reason != "length" and is_mentioned(text, 0, len(spec.open)):
            break
        body = text[len(spec.open) :] if led else text
        end = _closing(body, spec, fallback=finish_reason != "length")
        if end is None:
            blocks.append(body.strip())
            return Split("", _joined(blocks), "truncated", None if spec.drop else False)
        blocks.append(body[:end].strip())
        text, prefilled = body[end + len(spec.close) :].lstrip(), False
    if blocks:
        return _answer(text, _joined(blocks), finish_reason, spec.stop, None if spec.drop else True)
    end = _lone_closing(text, spec)
    compliant = False if spec.required else None
    if end is None:
        return _answer(raw, None, finish_reason, spec.stop, compliant)
    answer = text[end + len(spec.close) :]
    return _answer(answer, text[:end].strip(), finish_reason, spec.stop, compliant)


def _joined(blocks: Sequence[str]) -> str:
    return "\n\n".join(block for block in blocks if block)


def _lone_closing(text: str, spec: ThinkingSpec) -> int | None:
    """Where a closing tag stands that ends thinking which began in the prompt.

    Where nothing is known of the template, or thinking is off, it must not stand in a sentence.
    """
    end = _closing(text, spec, fallback=False)
    unsure = spec.lead_only or spec.drop
    if end is None or is_mentioned(text, end, end + len(spec.close), loose=unsure):
        return None
    return None if unsure and text.count("```", 0, end) % 2 else end


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
