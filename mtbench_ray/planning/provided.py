"""Answers that ship with a benchmark: rows of their model like any other, with ids of content."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

from mtbench_ray.planning.answer_files import turns_of
from mtbench_ray.schema import (
    AnswerSet,
    BenchmarkData,
    QuestionId,
    Turn,
    Unit,
    canonical,
    question_hash,
    text_hash,
)


def provided_answers(
    texts: Mapping[QuestionId, tuple[str, ...]], model: str, data: BenchmarkData
) -> tuple[list[Turn], AnswerSet]:
    """The rows of a model whose answers ship, and the set of all of them.

    What is part of the set's identity is all that ships, so that an evaluation of a few questions
    is part of one of all.

    Args:
        texts: Of the turns of each answer.
        model: Its label.
        data: The questions.
    """
    turns, units = [], []
    for question in data.questions:
        if question.question_id in texts:
            rows = turns_of(question, 0, texts[question.question_id], model)
            turns += rows
            units.append(Unit(question.question_id, 0, rows[0].answer_id, question_hash(question)))
    digest = _digest(tuple(sorted((str(name), told) for name, told in texts.items())))
    settings = canonical({"model": {"name": model}, "provided": digest})
    return turns, AnswerSet(model, settings, tuple(units), source="import")


@lru_cache(maxsize=8)
def _digest(texts: tuple[tuple[str, tuple[str, ...]], ...]) -> str:
    return text_hash(canonical(texts))
