"""MT-Bench: two-turn questions in FastChat's files, with references for three categories."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Iterator, Mapping
from typing import Any

from mtbench_ray.errors import UserError
from mtbench_ray.schema import Question, QuestionId

CATEGORIES = (
    "writing",
    "roleplay",
    "reasoning",
    "math",
    "coding",
    "extraction",
    "stem",
    "humanities",
)
"""In the order of FastChat's radar plot."""

NEEDS_REFERENCE = frozenset({"math", "reasoning", "coding", "arena-hard-200"})
"""Categories whose judge prompt shows a reference answer (FastChat ``NEED_REF_CATS``)."""

_TEMPERATURES = {
    "writing": 0.7,
    "roleplay": 0.7,
    "extraction": 0.0,
    "math": 0.0,
    "coding": 0.0,
    "reasoning": 0.0,
    "stem": 0.1,
    "humanities": 0.1,
    "arena-hard-200": 0.0,
}
_OTHER_TEMPERATURE = 0.7
_MAX_TURNS = 2  # the judge prompts have no form for a longer conversation


class MTBench:
    """MT-Bench, and any question set in its file format with one or two turns."""

    name = "mt_bench"
    categories: tuple[str, ...] = CATEGORIES

    def read(
        self, questions: str, references: str | None, names: Mapping[str, str]
    ) -> tuple[Question, ...]:
        """Parse a question file and a reference answer file (FastChat's answer records).

        References are attached to the questions of math, reasoning and coding only, as FastChat
        shows them to the judge. The ``reference`` key of a question row is ignored, as there.

        Args:
            questions: Text of the question file, JSON lines; BOM, CRLF and blank lines are fine.
            references: Text of the reference answer file, or None.
            names: File names under ``questions`` and ``references``, for messages.

        Raises:
            UserError: A row is malformed, an id comes twice, a question has no turn or more than
                two, or a reference file for these questions lacks one that the judge needs.
        """
        where = names.get("questions", "questions")
        revision = hashlib.sha256(questions.encode("utf-8", "surrogatepass")).hexdigest()
        found: dict[QuestionId, Question] = {}
        for line, row in _rows(questions, where):
            question = _question(row, f"{where} line {line}", revision)
            if question.question_id in found:
                raise UserError(f"{where} line {line}: question {question.question_id} comes twice")
            found[question.question_id] = question
        if not found:
            raise UserError(f"{where} holds no questions")
        if references is not None:
            found = _attach(found, references, names.get("references", "references"))
        return tuple(found.values())

    def temperature(self, question: Question) -> float:
        """FastChat's temperature by category, unless the question brings its own."""
        if question.temperature is not None:
            return question.temperature
        return _TEMPERATURES.get(question.category, _OTHER_TEMPERATURE)


def _rows(text: str, where: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """Line number and object of each line; splits on newline only, as JSON lines does."""
    for line, part in enumerate(text.removeprefix("\ufeff").split("\n"), start=1):
        if not part.strip():
            continue
        try:
            row = json.loads(part)
        except ValueError as error:
            raise UserError(f"{where} line {line} is not JSON: {error}") from None
        if not isinstance(row, dict):
            raise UserError(f"{where} line {line} is not a JSON object")
        yield line, row


def _question(row: Mapping[str, Any], where: str, revision: str) -> Question:
    question_id = _id(row, where)
    turns = _texts(row.get("turns"), f"{where}: turns")
    if not 1 <= len(turns) <= _MAX_TURNS:
        raise UserError(
            f"{where}: question {question_id} has {len(turns)} turns; the judge prompts can show "
            f"1 or {_MAX_TURNS}",
            "split longer conversations into questions of their own",
        )
    category = row.get("category")
    if not isinstance(category, str) or not category:
        raise UserError(f"{where}: category must be a text")
    temperature = row.get("required_temperature")
    if temperature is not None:
        if isinstance(temperature, bool) or not isinstance(temperature, (int, float)):
            raise UserError(f"{where}: required_temperature must be a number")
        temperature = float(temperature)
    return Question(
        benchmark=MTBench.name,
        question_id=question_id,
        category=category,
        turns=turns,
        group=str(question_id),
        temperature=temperature,
        revision=revision,
    )


def _attach(
    questions: Mapping[QuestionId, Question], text: str, where: str
) -> dict[QuestionId, Question]:
    answers: dict[QuestionId, tuple[str, ...]] = {}
    for line, row in _rows(text, where):
        question_id = _id(row, f"{where} line {line}")
        if question_id in answers:
            raise UserError(f"{where} line {line}: question {question_id} comes twice")
        choices = row.get("choices")
        if not isinstance(choices, list) or not choices or not isinstance(choices[0], dict):
            raise UserError(f"{where} line {line}: choices must be a list with one answer")
        answers[question_id] = _texts(choices[0].get("turns"), f"{where} line {line}: turns")

    needing = [q for q in questions.values() if q.category in NEEDS_REFERENCE]
    lacking = [q for q in needing if len(answers.get(q.question_id, ())) < len(q.turns)]
    # A file that knows none of the questions belongs to another question set: then the judge
    # gets no references. One that knows some but not all is torn or out of date.
    if lacking and any(q.question_id in answers for q in questions.values()):
        ids = ", ".join(str(q.question_id) for q in lacking[:5])
        more = ", ..." if len(lacking) > 5 else ""
        raise UserError(
            f"{where} has no reference answer to every turn of question {ids}{more} "
            f"(category {lacking[0].category} is judged with references)",
            "add the rows, or name another file with reference_path=<file>",
        )
    return {
        key: _with_references(question, answers.get(key, ())) for key, question in questions.items()
    }


def _with_references(question: Question, references: tuple[str, ...]) -> Question:
    if question.category not in NEEDS_REFERENCE or not references:
        return question
    return dataclasses.replace(question, references=references[: len(question.turns)])


def _id(row: Mapping[str, Any], where: str) -> QuestionId:
    value = row.get("question_id")
    if isinstance(value, bool) or not isinstance(value, (int, str)):
        raise UserError(f"{where}: question_id must be a number or a text")
    return value


def _texts(value: Any, where: str) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise UserError(f"{where} must be a list of texts")
    return tuple(value)
