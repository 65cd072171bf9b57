"""Benchmarks whose answers follow instructions that code checks: no judge is called.

The checkers are if-verifiable's (the extra ``ifeval``), and run in processes of their own, see
:mod:`mtbench_ray.benchmarks.check_pool`. Each instruction has two verdicts, strict and loose; the
loose one forgives Markdown's stars, a first and a last line.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import replace
from importlib import metadata
from typing import Any, NamedTuple

from mtbench_ray.benchmarks.base import Benchmark, Official, QuestionSet
from mtbench_ray.benchmarks.check_pool import TAGGED, TAGGER, Check, fetch_data, pool
from mtbench_ray.benchmarks.question_rows import Row, read_questions
from mtbench_ray.config import ModelConfig
from mtbench_ray.errors import UserError
from mtbench_ray.judges.base import (
    Asked,
    Column,
    EvaluationView,
    Grader,
    Item,
    Reading,
    Reply,
    ScoreOptions,
    value_of,
)
from mtbench_ray.judges.judge_prompt import check_request, slot_of, units
from mtbench_ray.judges.scores import judge_label, mean_scores
from mtbench_ray.schema import Outcome, Question, Request, Score, Slot, canonical

PACKAGE = "if-verifiable"
PATCH = 1
"""Counts what we do otherwise than that package (see check_process.py), where it changes verdicts:
1: seeds are set, an empty answer follows nothing, an unknown instruction is an error."""
STRICT, LOOSE = LEVELS = ("strict", "loose")
MAX_TOKENS = 4096
"""Of the official prompts' answers the longest have some 2,000; lm-eval's 1,280 cut the thinking of
models that think without being told."""
MAX_TOKENS_THINKING = 32768
"""Where thinking is on: what IFBench's authors give it."""


class Criterion(NamedTuple):
    """What one verdict is of: ``<place in the prompt> <instruction id> <level>``."""

    place: int
    instruction: str
    level: str

    def __str__(self) -> str:
        return " ".join(map(str, self))

    @staticmethod
    def of(text: str) -> Criterion:
        """The reverse of ``str``."""
        place, instruction, level = text.split(" ")
        return Criterion(int(place), instruction, level)


_BY_TYPE: Mapping[str, Callable[[Slot], str]] = {
    "type": lambda slot: kind(Criterion.of(slot.criterion).instruction),
    "instruction": lambda slot: Criterion.of(slot.criterion).instruction,
}


class Instructions(Grader):
    """Were the instructions followed?

    Args:
        family: Whose checkers.
        level: The level of the headline and of the tables by type.
    """

    def __init__(self, family: str, level: str) -> None:
        self.name = "instructions"
        self.binary = True
        self.family = family
        self.level = level
        self.note = (
            f"share of prompts with all instructions followed ({level}); loose forgives * and a"
            " first or last line"
        )
        other = LOOSE if level == STRICT else STRICT
        self.columns = (
            Column(f"prompt_{level}", f"prompt {level}", f"prompt_{level}", digits=4,
                   headline=True),
            Column(f"instruction_{level}", f"instr. {level}", f"instruction_{level}", digits=4),
            Column(f"prompt_{other}", f"prompt {other}", f"prompt_{other}", digits=4),
            Column(f"instruction_{other}", f"instr. {other}", f"instruction_{other}", digits=4),
            Column("types", "", f"instruction_{level}", "type", digits=3),
        )  # fmt: skip

    @property
    def checker(self) -> str:  # type: ignore[override]
        """The package with its version, and ours of what we do otherwise."""
        try:
            version = metadata.version(PACKAGE)
        except metadata.PackageNotFoundError:
            version = "(not installed)"
        return f"{PACKAGE} {version} patch {PATCH}"

    def require(self, questions: Sequence[Question]) -> None:
        """Have the checkers and their data, and a checker of each instruction.

        Raises:
            UserError: Something is missing, or a question has an instruction that is unknown.
        """
        try:
            metadata.version(PACKAGE)
        except metadata.PackageNotFoundError:
            raise UserError(
                f"the answers are checked by {PACKAGE}, which is not installed",
                "pip install 'mtbench-ray[ifeval]'",
            ) from None
        fetch_data()
        known = pool().known(self.family)
        for question in questions:
            for one in _instructions(question):
                if one["id"] not in known:
                    raise UserError(
                        f"question {question.question_id}: {PACKAGE} has no checker of the"
                        f" instruction {one['id']}",
                        "correct its id, or take the question out",
                    )

    def warnings(self, questions: Sequence[Question]) -> list[str]:
        """How many prompts need data of NLTK that is not there."""
        needing = [
            question
            for question in questions
            if any(one["id"] in TAGGED for one in _instructions(question))
        ]
        if not needing or pool().has(self.family, TAGGER):
            return []
        count = f"{len(needing)} prompt{'s' * (len(needing) > 1)}"
        return [
            f"{needing[0].benchmark}: {count} ({', '.join(sorted(TAGGED))}) cannot be checked here:"
            f" NLTK's tagger is missing. To install it:"
            f" python -m nltk.downloader {TAGGER.rpartition('/')[2]}"
        ]

    def wanted(self, view: EvaluationView) -> list[Slot]:
        """Two verdicts of each instruction of each answer."""
        return [
            slot_of(view, unit, question, criterion=str(Criterion(place, one["id"], level)))
            for unit, question, _ in units(view)
            for place, one in enumerate(_instructions(question))
            for level in LEVELS
        ]

    def grade(self, slot: Slot, view: EvaluationView) -> Request:
        """A check."""
        return check_request(slot, view)

    def read(self, asked: Asked, view: EvaluationView, reply: Reply) -> Reading:
        """Check the answer."""
        answer = view.content(asked.answer_ids[0], asked.turn)
        criterion = Criterion.of(asked.criterion)
        question = view.questions[asked.question_id]
        kwargs = _instructions(question)[criterion.place]["kwargs"]
        if not answer.strip():
            return _reading(False)
        check = Check(
            self.family, criterion.instruction, canonical(kwargs), question.turns[0], answer
        )
        found = pool().verdict(check)
        if found.error:
            return Reading(None, None, "error", found.error)
        return _reading(found.strict if criterion.level == STRICT else found.loose)

    @property
    def item_metrics(self) -> Sequence[str]:
        """Prompts and instructions at both levels."""
        return tuple(column.metric for column in self.columns if not column.parts)

    def dimensions_of(self, metric: str) -> Mapping[str, Callable[[Slot], str]]:
        """Instructions by their own type, prompts by that of their first one."""
        return _BY_TYPE if metric.startswith("instruction_") else self.dimensions

    def items(
        self, outcomes: Sequence[Outcome], metric: str = "", parity: str = "safe"
    ) -> list[Item]:
        """Whether all instructions of an answer were followed, or each of them."""
        of, level = (metric or self.headline.metric).split("_")
        if of == "prompt":
            return _prompts(outcomes, level)
        return [Item(one.slot, value_of(one), one.reason) for one in _at(outcomes, level)]

    def reduce(
        self, views: Sequence[EvaluationView], outcomes: Sequence[Outcome], options: ScoreOptions
    ) -> list[Score]:
        """Shares of prompts and of instructions at both levels; of the latter by type too.

        Parts: ``type`` is the instruction's kind, what stands before the colon of its id;
        ``instruction`` its whole id; ``category`` of prompts the kind of their first one.
        """
        judge = judge_label(outcomes, options)
        scores: list[Score] = []
        for level in LEVELS:
            by_category = {"category": lambda slot: slot.category} if level == self.level else {}
            for metric, parts in (
                (f"prompt_{level}", by_category),
                (f"instruction_{level}", _BY_TYPE),
            ):
                items = self.items(outcomes, metric)
                scores += mean_scores(self.name, metric, items, parts, options, judge)
        return scores


class InstructionBenchmark(Benchmark):
    """Prompts with instructions in IFEval's file format; answers are greedy."""

    def read(
        self,
        questions: str,
        references: str | None,
        names: Mapping[str, str],
        official: Callable[[], Official | None] = lambda: None,
    ) -> QuestionSet:
        """Parse JSON lines of ``key``, ``prompt``, ``instruction_id_list`` and ``kwargs``."""
        found = read_questions(self.name, questions, references, names, _question)
        return QuestionSet(found)

    def temperature(self, question: Question) -> float:
        """Greedy, as in the papers."""
        return 0.0

    def max_tokens(self, model: ModelConfig) -> int:
        """Room for thinking where it is on."""
        return MAX_TOKENS_THINKING if model.thinking in ("on", "prompt") else MAX_TOKENS


def kind(instruction: str) -> str:
    """What stands before the colon of an instruction's id."""
    return instruction.partition(":")[0]


def _question(row: Row) -> Iterator[Question]:
    name, prompt = row.name("key"), row.text("prompt")
    asked = _asked(row.fields, row.place)
    yield row.question(
        name,
        kind(asked[0]["id"]),
        prompt,
        tags=tuple(dict.fromkeys(f"instruction:{one['id']}" for one in asked)),
        grading=canonical({"instructions": asked}),
    )


def _asked(row: Mapping[str, Any], place: str) -> list[dict[str, Any]]:
    """The instructions of a row with their arguments; null is none, as in Google's program."""
    ids, kwargs = row.get("instruction_id_list"), row.get("kwargs")
    if not isinstance(ids, list) or not ids or not all(isinstance(one, str) for one in ids):
        raise UserError(f"{place}: instruction_id_list must be a list of texts")
    if any(" " in one for one in ids):
        raise UserError(f"{place}: an instruction id has no space")
    if not isinstance(kwargs, list) or len(kwargs) != len(ids):
        raise UserError(f"{place}: kwargs must be a list with one object for each instruction")
    if not all(isinstance(one, dict) for one in kwargs):
        raise UserError(f"{place}: kwargs must be a list of objects")
    return [
        {"id": name, "kwargs": {key: value for key, value in given.items() if value is not None}}
        for name, given in zip(ids, kwargs, strict=True)
    ]


def _instructions(question: Question) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(question.grading)["instructions"]
    return found


def _reading(followed: bool) -> Reading:
    return Reading("yes" if followed else "no", float(followed), "ok")


def _at(outcomes: Sequence[Outcome], level: str) -> list[Outcome]:
    return [one for one in outcomes if Criterion.of(one.slot.criterion).level == level]


def _prompts(outcomes: Sequence[Outcome], level: str) -> list[Item]:
    """One item for each answer: 1 where all its instructions were followed.

    Scored only where all are: of a prompt with some verdicts missing nothing is known.
    """
    groups: dict[Hashable, list[Outcome]] = {}
    for one in _at(outcomes, level):
        groups.setdefault((one.slot.model, one.slot.answer_ids), []).append(one)
    items = []
    for group in groups.values():
        slot = replace(group[0].slot, criterion="")
        values = [value_of(one) for one in group]
        reason = next((one.reason or "unparsed" for one in group if value_of(one) is None), "")
        value = None if reason else math.prod(v or 0.0 for v in values)
        items.append(Item(slot, value, reason))
    return items
