"""What graders share: answers with their questions, rendered messages, ids and readings."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from mtbench_ray.config import JudgeConfig, science
from mtbench_ray.errors import UserError
from mtbench_ray.judges.base import EvaluationView, Reading
from mtbench_ray.judges.parse import Verdict
from mtbench_ray.judges.prompts import JudgePrompt, fill
from mtbench_ray.schema import (
    Message,
    Question,
    QuestionId,
    Request,
    Slot,
    Unit,
    canonical,
    content_id,
    text_hash,
)

_LONE_SURROGATE = re.compile("[\ud800-\udfff]")
EXPLANATION_CHARS = 300
"""Of a reply that is forced into a pattern."""
# Printable ASCII without brackets, and without what may begin code or a comment: the rating would
# stand inside.
_EXPLANATION = rf"[ -;=-Z^_a-}}]{{1,{EXPLANATION_CHARS}}}"
_STATUS = frozenset({"truncated", "refused", "empty"})
"""Reasons that are a status; of all others the reply was not understood."""


def short_reply(verdicts: str) -> str:
    """Regular expression of a short explanation that ends in one of some verdicts."""
    return f"{_EXPLANATION} {verdicts}"


def units(view: EvaluationView) -> Iterator[tuple[Unit, Question, int]]:
    """The wanted answers with their questions, and how often each is judged.

    Raises:
        UserError: A question is not there.
    """
    answers, questions = view.evaluation.answers, view.questions
    for unit in answers.units:
        if unit.question_id not in questions:
            raise UserError(
                f"{answers.model}: question {unit.question_id!r} is not in the question file",
                "use the question file that the answers were made for",
            )
        samples = unit.judge_samples or view.evaluation.judge_samples
        yield unit, questions[unit.question_id], samples


def slot_of(view: EvaluationView, unit: Unit, question: Question, **more: Any) -> Slot:
    """The verdict on the first turn of an answer; ``more`` are its other fields."""
    return Slot(
        **{
            "model": view.evaluation.model,
            "question_id": question.question_id,
            "category": question.category,
            "group": question.group,
            "turn": 1,
            "sample": unit.sample,
            "answer_ids": (unit.answer_id,),
        }
        | more
    )


def opposing(view: EvaluationView) -> Callable[[Unit], str] | None:
    """The id of the opponent's answer that one meets: of the same sample, else its first one.

    Empty where the opponent has none, which makes a verdict that fails as missing. None for a model
    against itself, or against nobody.
    """
    opponent = view.evaluation.opponent
    if opponent is None or opponent.model == view.evaluation.model:
        return None
    theirs = {(unit.question_id, unit.sample): unit.answer_id for unit in opponent.units}
    first: dict[QuestionId, str] = {}
    for unit in opponent.units:
        first.setdefault(unit.question_id, unit.answer_id)
    return lambda unit: theirs.get((unit.question_id, unit.sample), first.get(unit.question_id, ""))


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
    return messages_of(prompt.system, fill(prompt.template, values))


def messages_of(system: str, user: str) -> tuple[Message, ...]:
    """The messages of a call, without an empty system message, as valid UTF-8."""
    found = (Message("system", _clean(system)), Message("user", _clean(user)))
    return found if system else found[1:]


def judgment_id(
    messages: Sequence[Message],
    judge: JudgeConfig,
    slot: Slot,
    *,
    prompt: str,
    family: str,
    verdict: Sequence[Any],
    **more: Any,
) -> str:
    """Content id of a judge call, over everything that changes its result.

    Labels, and which side of a match is called the model, are not in it: (m, base) and (base, m)
    are the same two calls. A local judge's address is a free port and says nothing about it; what
    its folder holds and the arguments of its server do.

    Args:
        prompt: Name of the judge prompt.
        family: Type of the judge prompt.
        verdict: How the reply is read.
        more: What else changes the verdict.
    """
    settings = science(judge)
    if judge.kind == "local":
        settings["base_url"] = "local"
        # Left out where empty: ids of judgments from before these counted stay as they are.
        settings |= judge.server_science
    if judge.temperature is not None:
        settings["temperature"] = float(judge.temperature)
    if slot.criterion:
        more["criterion"] = slot.criterion
    return content_id(
        "judgment",
        {
            "family": family,
            "messages": [[message.role, message.content] for message in messages],
            "judge": settings,
            "prompt": prompt,
            "verdict": list(verdict),
            "turn": slot.turn,
            "judge_sample": slot.judge_sample,
        }
        | more,
    )


def prompt_id(
    messages: Sequence[Message],
    judge: JudgeConfig,
    prompt: JudgePrompt,
    slot: Slot,
    **more: Any,
) -> str:
    """:func:`judgment_id` of a call that shows a judge prompt."""
    return judgment_id(
        messages,
        judge,
        slot,
        prompt=prompt.name,
        family=prompt.role.family,
        verdict=[prompt.verdict, *map(float, prompt.scale)],
        **more,
    )


def request_of(slot: Slot, view: EvaluationView, **more: Any) -> Request:
    """A request with all that follows from its slot.

    Args:
        more: The other fields; ``match_id`` is the judgment's id unless it is among them.
    """
    question = view.questions[slot.question_id]
    return Request(
        **{
            "match_id": more["judgment_id"],
            "mode": view.grader.name,
            "benchmark": question.benchmark,
            "question_id": question.question_id,
            "category": question.category,
            "turn": slot.turn,
            "model": slot.model,
            "judge": view.evaluation.judge,
            "order": slot.order,
            "opponent": slot.opponent,
            "answer_ids": slot.answer_ids,
            "sample": slot.sample,
            "judge_sample": slot.judge_sample,
            "criterion": slot.criterion,
            "judge_prompt": "",
            "prompt_hash": "",
            "messages": (),
        }
        | more
    )


def check_request(slot: Slot, view: EvaluationView) -> Request:
    """The request of a rule check: no call, an id over all that its verdict depends on."""
    question = view.questions[slot.question_id]
    turns = range(1, slot.turn + 1)
    identity = content_id(
        "judgment",
        {
            # As it was when the evaluation was planned: another version gives other verdicts.
            "checker": view.evaluation.judge or view.grader.checker,
            "mode": view.grader.name,
            "answers": [[view.content(one, turn) for turn in turns] for one in slot.answer_ids],
            "turns": list(question.turns),
            "context": [[message.role, message.content] for message in question.context],
            "grading": question.grading,
            "references": list(question.references),
            "turn": slot.turn,
            "criterion": slot.criterion,
        },
    )
    return request_of(slot, view, judgment_id=identity, want="check")


def reference_hash(question: Question, turn: int) -> str:
    """Hash of the references that a judge sees at a turn; empty where it sees none."""
    return text_hash(canonical(list(question.references[:turn]))) if question.references else ""


def reading(verdict: Verdict, value: float | None) -> Reading:
    """A verdict as the part of a row that says what was read."""
    if value is None:
        status = verdict.reason if verdict.reason in _STATUS else "unparsed"
        return Reading(None, None, status, verdict.reason)
    return Reading(verdict.label, value, "ok")


def rated(verdict: Verdict) -> Reading:
    """The same of a verdict that is a number."""
    return reading(verdict, verdict.value if isinstance(verdict.value, float) else None)


def _clean(text: str) -> str:
    return text if text.isascii() else _LONE_SURROGATE.sub("\ufffd", text)
