"""Question files of one JSON object a line: what they all are held to."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from mtbench_ray.errors import UserError
from mtbench_ray.schema import Question, QuestionId
from mtbench_ray.system.json_lines import json_lines

Rows = Callable[[str, str], Iterable[tuple[str, dict[str, Any]]]]
"""From a file's text and name: each of its objects with the place where it stands."""


@dataclass(frozen=True, slots=True)
class Row:
    """An object of a question file.

    Attributes:
        place: Where it stands, for messages.
        revision: Of the file.
    """

    fields: Mapping[str, Any]
    place: str
    benchmark: str
    revision: str

    def name(self, key: str) -> QuestionId:
        """A field that names something.

        Raises:
            UserError: It is neither a whole number nor a text.
        """
        value = self.fields.get(key)
        if isinstance(value, bool) or not isinstance(value, int | str):
            raise UserError(f"{self.place}: {key} must be a whole number or a text")
        return value

    def text(self, key: str) -> str:
        """A field with a text in it.

        Raises:
            UserError: It is no text, or a blank one.
        """
        value = self.fields.get(key)
        if not isinstance(value, str) or not value.strip():
            raise UserError(f"{self.place}: {key} must be a text")
        return value

    def question(self, name: QuestionId, category: str, turn: str, **more: Any) -> Question:
        """A question of one turn; ``more`` are its other fields."""
        return Question(
            **{
                "benchmark": self.benchmark,
                "question_id": name,
                "category": category,
                "turns": (turn,),
                "group": str(name),
                "revision": self.revision,
            }
            | more
        )


def lines(text: str, where: str) -> Iterable[tuple[str, dict[str, Any]]]:
    """The objects of a file of JSON lines."""
    return ((f"{where} line {line}", fields) for line, fields in json_lines(text, where))


def read_questions(
    benchmark: str,
    text: str,
    references: str | None,
    names: Mapping[str, str],
    parse: Callable[[Row], Iterable[Question]],
    rows: Rows = lines,
) -> tuple[Question, ...]:
    """The questions of a benchmark that has no reference file.

    Args:
        text: Of the question file.
        references: None; that of a user's reference file is an error.
        names: File names by part, for messages.
        parse: The questions of a row.

    Raises:
        UserError: A row is no question, two have one name, or there are none.
    """
    if references is not None:
        raise UserError(f"{benchmark} has no reference file", "leave reference_path out")
    where = names.get("questions", "questions")
    revision = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
    found: dict[QuestionId, Question] = {}
    for place, fields in rows(text, where):
        for question in parse(Row(fields, place, benchmark, revision)):
            if question.question_id in found:
                raise UserError(f"{place}: question {question.question_id} comes twice")
            found[question.question_id] = question
    if not found:
        raise UserError(f"{where} holds no questions")
    return tuple(found.values())
