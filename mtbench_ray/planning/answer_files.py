"""Answers from and to other tools: JSON lines of a question and its response.

A line names its question by ``question_id`` (or ``key``, ``id``) or by its ``prompt``, and has a
``response``: a text, or a list. To a question of one turn a list is of several samples; to one of
more turns it is of the turns, or a list of such lists. Further lines of a question are further
samples.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mtbench_ray.benchmarks import get_benchmark
from mtbench_ray.config import BenchmarkConfig, JudgeConfig, RunConfig
from mtbench_ray.errors import UserError
from mtbench_ray.models.messages import split_thinking
from mtbench_ray.models.thinking import ThinkingSpec
from mtbench_ray.planning.evaluations import identified
from mtbench_ray.planning.plan import good_turns
from mtbench_ray.planning.questions import load_data
from mtbench_ray.schema import (
    ANSWERS_ONLY,
    AnswerSet,
    Evaluation,
    Question,
    QuestionId,
    Turn,
    Unit,
    canonical,
    content_id,
    question_hash,
)
from mtbench_ray.system.json_lines import json_lines
from mtbench_ray.validate import validate
from mtbench_ray.workspace.filenames import safe_names
from mtbench_ray.workspace.journal import replacing
from mtbench_ray.workspace.workspace import Workspace

_IDS = ("question_id", "key", "id")
_RESPONSES = ("response", "responses", "answer", "output")
_SPLIT = ThinkingSpec(split=True, lead_only=True)
"""A block of thinking that leads is no part of the answer, as in a run."""


@dataclass(frozen=True, slots=True)
class Imported:
    """What an import found.

    Attributes:
        answers: Conversations in the file; ``new`` of them were not in the workspace.
        samples: Of the question that has most.
        without: Questions of the benchmark that have none.
    """

    evaluation: Evaluation
    answers: int
    new: int
    samples: int
    without: int


def import_answers(
    path: Path,
    workspace: Workspace,
    *,
    benchmark: str,
    model: str,
    question_path: str | None,
    rows: Iterable[tuple[str, dict[str, Any]]] | None = None,
) -> Imported:
    """Read the answers of a model; importing the same file again adds nothing.

    Args:
        rows: What the file holds, each with where it stands, where it is no such file itself.
        workspace: Open for writing.
        benchmark: Registered name of the benchmark.
        model: Label of the model.
        question_path: Its questions, instead of the official ones.

    Raises:
        UserError: A line cannot be read; the message names it and its field. Nothing was added.
    """
    get_benchmark(benchmark)
    config = RunConfig(
        benchmark=BenchmarkConfig(benchmark),
        judge=JudgeConfig(kind="none"),
        question_path=question_path,
        stage="answers",
    )
    data = load_data(validate(config)).data
    found: dict[QuestionId, list[tuple[str, ...]]] = {}
    by_id = {str(question.question_id): question for question in data.questions}
    by_prompt: dict[str, list[Question]] = {}
    for question in data.questions:
        by_prompt.setdefault(question.turns[0].strip(), []).append(question)
    for where, row in _rows(path) if rows is None else rows:
        question = _question(row, where, by_id, by_prompt)
        found.setdefault(question.question_id, []).extend(_samples(row, where, question))
    if not found:
        raise UserError(f"{path} holds no answers", "it is JSON lines: question_id, response")
    record = workspace.new_run({"import": str(path)}, [], ["import", "answers", str(path)])
    units, new = [], 0
    for question in data.questions:
        for sample, texts in enumerate(found.get(question.question_id, ())):
            turns = turns_of(question, sample, texts, model, record.run_id)
            new += (turns[0].answer_id, len(turns)) not in workspace.turns
            for turn in turns:
                if (turn.answer_id, turn.turn) not in workspace.turns:
                    workspace.append(turn)
            asked = question_hash(question)
            units.append(Unit(question.question_id, sample, turns[0].answer_id, asked))
    settings = canonical({"import": str(path.resolve()), "model": {"name": model}})
    evaluation = identified(
        Evaluation(
            answers=AnswerSet(model, settings, tuple(units), source="import"),
            judge="",
            judge_settings="{}",
            mode=ANSWERS_ONLY,
            data=workspace.save_data(data),
            source="import",
            benchmark=benchmark,
        )
    )
    record.evaluations = [evaluation]
    record.counts = {"turns": new}
    record.status, record.finished, record.exit_code = "finished", time.time(), 0
    workspace.save_run(record)
    workspace.write_parquet()
    return Imported(
        evaluation,
        len(units),
        new,
        max(map(len, found.values())),
        len(data.questions) - len(found),
    )


def export_answers(
    workspace: Workspace, folder: Path, evaluations: Sequence[Evaluation]
) -> list[Path]:
    """Write ``<benchmark>/<model>.jsonl``, which :func:`import_answers` reads: a line an answer.

    An answer that lacks a turn is left out. Of several answers of a model to a question and sample
    the newest is written.

    Returns:
        The files written.

    Raises:
        UserError: The disk refuses.
    """
    lines: dict[tuple[str, str], dict[tuple[str, int], str]] = {}
    for row in evaluations:
        if not row.data:
            continue
        questions = {one.question_id: one for one in workspace.load_data(row.data).questions}
        for answers in filter(None, (row.opponent, row.answers)):
            mine = lines.setdefault((row.benchmark, answers.model), {})
            for unit in answers.units:
                question = questions.get(unit.question_id)
                good = good_turns(unit.answer_id, workspace.turns)
                if question is None or len(good) < len(question.turns):
                    continue
                texts = [turn.content for turn in good]
                told = {
                    "question_id": unit.question_id,
                    "sample": unit.sample,
                    "prompt": question.turns[0],
                    "response": texts[0] if len(texts) == 1 else texts,
                }
                mine[str(unit.question_id), unit.sample] = workspace.scrub(json.dumps(told))
    names = safe_names({model for _, model in lines})
    paths = []
    for (benchmark, model), mine in lines.items():
        path = folder / benchmark / f"{names[model]}.jsonl"
        with replacing(path) as part:
            part.write_text("".join(f"{line}\n" for line in mine.values()), "utf-8")
        paths.append(path)
    return paths


def _rows(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path} cannot be read: {error}") from None
    for line, row in json_lines(text, path.name):
        yield f"{path.name} line {line}", row


def _question(
    row: Mapping[str, Any],
    where: str,
    by_id: Mapping[str, Question],
    by_prompt: Mapping[str, Sequence[Question]],
) -> Question:
    for name in _IDS:
        if row.get(name) is not None:
            if str(row[name]) in by_id:
                return by_id[str(row[name])]
            raise UserError(
                f"{where}: {name} {row[name]!r} is no question of the benchmark",
                "name your own questions by question_path=FILE",
            )
    prompt = row.get("prompt")
    if not isinstance(prompt, str):
        raise UserError(f"{where} names no question: it needs question_id or prompt")
    if prompt.strip() not in by_prompt:
        raise UserError(
            f"{where}: prompt is of no question of the benchmark: {prompt[:60]!r}",
            "name the question by question_id, or your own questions by question_path=FILE",
        )
    found, *others = by_prompt[prompt.strip()]
    if others:
        raise UserError(
            f"{where}: prompt is of {len(others) + 1} questions of the benchmark: {prompt[:60]!r}",
            "name the question by question_id",
        )
    return found


def _samples(row: Mapping[str, Any], where: str, question: Question) -> list[tuple[str, ...]]:
    """The samples in a row, each with a text for each turn."""
    name = next((name for name in _RESPONSES if name in row), "")
    if not name:
        raise UserError(f"{where} has no response")
    value, wanted = row[name], len(question.turns)
    one_turn = wanted == 1
    samples = [value]
    if isinstance(value, list):
        nested = all(isinstance(one, list) for one in value)
        samples = value if one_turn or nested else [value]
    found = [tuple(one) if isinstance(one, list) else (one,) for one in samples]
    if not found:
        raise UserError(f"{where}: {name} is empty")
    for texts in found:
        if not all(isinstance(text, str) for text in texts):
            raise UserError(f"{where}: {name} must be a text or a list of texts")
        if len(texts) != wanted:
            raise UserError(
                f"{where}: {name} has {len(texts)} turns, question {question.question_id} has"
                f" {wanted}"
            )
    return found


def turns_of(
    question: Question, sample: int, texts: Sequence[str], model: str, run_id: str = ""
) -> list[Turn]:
    """The rows of an answer that was not generated here; its id is of its content."""
    answer_id = content_id(
        "answer",
        {
            "import": "answers",
            "benchmark": question.benchmark,
            "model": model,
            "question": [str(question.question_id), question_hash(question)],
            "sample": sample,
            "turns": list(texts),
        },
    )
    turns: list[Turn] = []
    for number, text in enumerate(texts, start=1):
        split = split_thinking(text, None, _SPLIT)
        thought = split.reasoning is not None
        turns.append(
            Turn(
                answer_id=answer_id,
                turn=number,
                benchmark=question.benchmark,
                question_id=question.question_id,
                model=model,
                sample=sample,
                content=split.content if thought else text,
                status="ok" if split.content else "empty",
                raw=text if thought else "",
                reasoning=split.reasoning,
                history=tuple(turn.content for turn in turns),
                engine_origin="import",
                run_id=run_id,
            )
        )
    return turns
