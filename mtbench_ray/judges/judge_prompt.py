"""What the modes share: units with their questions, rendered messages, ids and readings."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from mtbench_ray.config import JudgeConfig, science
from mtbench_ray.errors import UserError
from mtbench_ray.judges.base import Reading
from mtbench_ray.judges.parse import Verdict
from mtbench_ray.judges.prompts import JudgePrompt, fill
from mtbench_ray.schema import (
    AnswerSet,
    Message,
    Question,
    QuestionId,
    Slot,
    Unit,
    canonical,
    content_id,
    text_hash,
)

_LONE_SURROGATE = re.compile("[\ud800-\udfff]")
_STATUS = {
    "no_rating": "unparsed",
    "no_winner": "unparsed",
    "out_of_range": "unparsed",
    "truncated": "truncated",
    "refused": "refused",
    "empty": "empty",
}


def units(
    answers: AnswerSet, questions: Mapping[QuestionId, Question]
) -> Iterator[tuple[Unit, Question]]:
    """The wanted answers with their questions.

    Raises:
        UserError: A question is not in ``questions``.
    """
    for unit in answers.units:
        if unit.question_id not in questions:
            raise UserError(
                f"{answers.model}: question {unit.question_id!r} is not in the question file",
                "use the question file that the answers were made for",
            )
        yield unit, questions[unit.question_id]


def render(
    prompt: JudgePrompt, question: Question, shown: Mapping[str, str]
) -> tuple[Message, ...]:
    """The messages of a judge call.

    Args:
        prompt: The template and its system message; an empty one is not sent.
        question: Gives the user turns and the references.
        shown: The answers by placeholder name.

    Returns:
        Messages that are valid UTF-8: lone surrogates become U+FFFD.
    """
    values = dict(shown)
    values["question"] = question.turns[0]
    for number, text in enumerate(question.turns, start=1):
        values[f"question_{number}"] = text
    for number, text in enumerate(question.references, start=1):
        values[f"ref_answer_{number}"] = text
    messages = [Message("user", _clean(fill(prompt.template, values)))]
    if prompt.system:
        messages.insert(0, Message("system", _clean(prompt.system)))
    return tuple(messages)


def judgment_id(
    messages: Sequence[Message], judge: JudgeConfig, prompt: JudgePrompt, slot: Slot
) -> str:
    """Content id of a judge call, over everything that changes its result.

    Labels, and which side of a match is called the model, are not in it: (m, base) and (base, m)
    are the same two calls. A local judge's address is a free port and says nothing about it; what
    its folder holds and the arguments of its server do.
    """
    settings = science(judge)
    if judge.kind == "local":
        settings["base_url"] = "local"
        # Left out where empty: ids of judgments from before these counted stay as they are.
        settings |= judge.server_science
    if judge.temperature is not None:
        settings["temperature"] = float(judge.temperature)
    return content_id(
        "judgment",
        {
            "family": prompt.role.family,
            "messages": [[message.role, message.content] for message in messages],
            "judge": settings,
            "prompt": prompt.name,
            "verdict": [prompt.verdict, *map(float, prompt.scale)],
            "turn": slot.turn,
            "judge_sample": slot.judge_sample,
        },
    )


def reference_hash(question: Question, turn: int) -> str:
    """Hash of the references that a judge sees at a turn; empty where it sees none."""
    return text_hash(canonical(list(question.references[:turn]))) if question.references else ""


def reading(verdict: Verdict, value: float | None) -> Reading:
    """A verdict as the part of a row that says what was read."""
    if value is None:
        return Reading(None, None, _STATUS[verdict.reason], verdict.reason)
    return Reading(verdict.label, value, "ok")


def _clean(text: str) -> str:
    return _LONE_SURROGATE.sub("\ufffd", text)
