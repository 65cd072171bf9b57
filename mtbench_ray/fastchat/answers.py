"""FastChat's answer records and turn rows, both ways, as of FastChat 0.2.36."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from mtbench_ray.benchmarks import get_benchmark
from mtbench_ray.schema import ANSWERED, QuestionId, Turn, Unit, canonical, content_id
from mtbench_ray.workspace.filenames import safe_name

FAILED_TEXT = "$ERROR$"
"""What FastChat writes for a text that an API never gave."""
FAILED_TURNS = frozenset({FAILED_TEXT, "ERROR"})
"""Whole texts of failed turns: the API's mark, and that of a fault in local generation."""

_KNOWN = ("question_id", "answer_id", "model_id", "choices", "tstamp")
_ALPHABET = "23456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"  # of shortuuid
_ID_LENGTH = 22
_FIRST_ID = 81
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]{0,14})(?:\.[0-9]{1,15})?")
_PER_CATEGORY = 10


def question_id(record: Mapping[str, Any]) -> QuestionId:
    """A record's question id; a whole number as a float (of pandas) or in quotes is an int.

    Raises:
        ValueError: There is none.
    """
    value = as_number(record.get("question_id"))
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, bool) or not isinstance(value, (int, str)):
        raise ValueError("question_id is not a number or a text")
    return value


def as_number(value: Any) -> Any:
    """A number in quotes as the number; anything else as it is."""
    if not isinstance(value, str) or not _NUMBER.fullmatch(value):
        return value
    return float(value) if "." in value else int(value)


def official_category(question: QuestionId) -> str:
    """The category that MT-Bench gives to a question of this id, ``unknown`` for other ids."""
    categories = get_benchmark("mt_bench").categories
    place = (question - _FIRST_ID) // _PER_CATEGORY if isinstance(question, int) else -1
    return categories[place] if 0 <= place < len(categories) else "unknown"


def by_number(question: QuestionId) -> tuple[bool, QuestionId]:
    """Key for FastChat's order of questions: by number; ids that are texts come after."""
    return isinstance(question, str), question


def seconds(record: Mapping[str, Any]) -> float:
    """A record's time, 0.0 where it has none."""
    value = record.get("tstamp")
    if isinstance(value, bool) or not isinstance(value, (int, float)) or abs(value) > 1e15:
        return 0.0
    return float(value) if value == value else 0.0


def answer_turns(record: Mapping[str, Any], model: str, run_id: str) -> dict[Unit, list[Turn]]:
    """The turns of one answer record, by answer; choice n is sample n.

    Raises:
        ValueError: It is no answer record.
    """
    question = question_id(record)
    choices = record.get("choices")
    if not isinstance(choices, list) or not choices:
        raise ValueError("choices is not a list of answers")
    origin = {name: value for name, value in record.items() if name not in _KNOWN}
    origin |= {name: record[name] for name in ("answer_id", "model_id") if name in record}
    answers: dict[Unit, list[Turn]] = {}
    for sample, choice in enumerate(choices):
        texts = choice.get("turns") if isinstance(choice, dict) else None
        if not isinstance(texts, list) or not texts:
            raise ValueError(f"choices[{sample}] has no list of turns")
        texts = [text if isinstance(text, str) else FAILED_TEXT for text in texts]
        identity = {
            "import": "fastchat",
            "model": model,
            "question_id": question,
            "sample": sample,
            "turns": texts,
            "tstamp": seconds(record),
            "origin": origin,
        }
        answer_id = content_id("answer", identity)
        turns: list[Turn] = []
        for number, text in enumerate(texts, start=1):
            failed = text in FAILED_TURNS
            turns.append(
                Turn(
                    answer_id=answer_id,
                    turn=number,
                    benchmark="mt_bench",
                    question_id=question,
                    model=model,
                    sample=sample,
                    content="" if failed else text,
                    status="error" if failed else "ok" if text.strip() else "empty",
                    raw=text if failed else "",
                    history=tuple(turn.content for turn in turns),
                    sampling=canonical(origin),
                    engine_origin="import",
                    error="failed before the import" if failed else None,
                    created=seconds(record),
                    run_id=run_id,
                )
            )
        answers[Unit(question, sample, answer_id)] = turns
    return answers


def answer_record(
    model: str,
    units: Sequence[Unit],
    turns: Mapping[tuple[str, int], Turn],
    good: Callable[[str], Sequence[Turn]],
    wanted: int | None,
) -> dict[str, Any] | None:
    """The answer record of one question, or None where no turn was ever tried.

    Args:
        units: The question's answers.
        turns: All counting turns by (answer_id, turn).
        good: Gives an answer's turns that can be used, from the first one on.
        wanted: Turns of the question; None takes those that are there.
    """
    by_sample = {unit.sample: unit.answer_id for unit in units}
    tried = [turn for answer in by_sample.values() for turn in _stored(answer, turns)]
    if not tried:
        return None
    origin: dict[str, Any] = {}
    texts: list[list[str]] = []
    for sample in range(max(by_sample) + 1):
        answer = by_sample.get(sample, "")
        stored = _stored(answer, turns)
        if stored and stored[0].engine_origin == "import":
            origin = json.loads(stored[0].sampling)
            texts.append([_as_written(turn) for turn in stored])
        else:
            there = [turn.content for turn in good(answer)]
            missing = (wanted or len(there) or 1) - len(there)
            texts.append(there + [FAILED_TEXT] * missing)
    known = by_sample.get(0, tried[0].answer_id)
    # A name that is no file name cannot be read from the file's name, so it goes in here.
    plain = safe_name(model) == model
    return {
        "question_id": tried[0].question_id,
        "answer_id": origin.pop("answer_id", short_id(known)),
        "model_id": origin.pop("model_id", model) if plain else model,
        "choices": [{"index": sample, "turns": turn} for sample, turn in enumerate(texts)],
        "tstamp": max(turn.created for turn in tried),
        **{name: value for name, value in origin.items() if name not in _KNOWN},
    }


def short_id(identity: str) -> str:
    """A content id (hex) in the form of FastChat's ids: 22 characters, the same every time."""
    number = int(identity, 16)
    digits = []
    for _ in range(_ID_LENGTH):
        number, digit = divmod(number, len(_ALPHABET))
        digits.append(_ALPHABET[digit])
    return "".join(reversed(digits))


def _stored(answer: str, turns: Mapping[tuple[str, int], Turn]) -> list[Turn]:
    """The turns of an answer, failed ones too, from the first one on without a gap."""
    found: list[Turn] = []
    while (turn := turns.get((answer, len(found) + 1))) is not None:
        found.append(turn)
    return found


def _as_written(turn: Turn) -> str:
    """An imported turn's text exactly as it was in the file."""
    return turn.content if turn.status in ANSWERED else turn.raw
