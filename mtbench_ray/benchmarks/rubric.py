"""HealthBench's grader: which of the physicians' criteria does an answer meet?

An answer's score is the points of what is met over the sum of the positive points, and may be
negative; the mean over answers is clipped to 0..1.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

from mtbench_ray.benchmarks.criterion import Criterion
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
    rated,
    request_of,
    slot_of,
    units,
)
from mtbench_ray.judges.parse import Verdict
from mtbench_ray.judges.scores import (
    joined_items,
    judge_label,
    mean_scores,
    of_answer,
    tag_value,
    weighted,
)
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

NAME = "healthbench"
SYSTEM = "You are a helpful assistant."
"""What the official program tells the model and the judge."""
OFFICIAL_CALL = canonical({"temperature": 0.5, "max_tokens": 2048})
CONSENSUS = "level:cluster"
"""Tag of the criteria that several physicians agreed on."""
SCORE = "score"
_KINDS = ("axis", "level", "cluster")
"""Of the tags of a criterion, in the order of the score rows."""
_MANY_CALLS = 1000
_WHOLE = 5000
_BY_THEME: Mapping[str, Callable[[Slot], str]] = {"category": lambda slot: slot.category}
_FENCE = r"^```json\s*|\s*```$"


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
            f"{NAME}: {calls:,} judge calls for each model, one for each criterion;"
            " `plan` shows what they cost"
        ]

    def wanted(self, view: EvaluationView) -> list[Slot]:
        """One verdict per answer, criterion and judge sample; those of an answer together."""
        return [
            slot_of(
                view,
                unit,
                question,
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
            family=NAME,
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
        return rated(verdict)

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


@lru_cache(maxsize=8192)
def _rubric(grading: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(grading)["rubrics"]
    return found


def rubric(question: Question) -> list[dict[str, Any]]:
    """The criteria of an example: ``criterion``, ``points``, ``tags``."""
    return _rubric(question.grading)


def _kind(tag: str) -> str:
    return tag.partition(":")[0]


def _said_by(tags: Mapping[QuestionId, Sequence[str]], kind: str) -> Callable[[Slot], str]:
    """What the tags of an item's question say."""
    return lambda slot: tag_value(tags[slot.question_id], kind)


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
