"""WritingBench's grader: each answer has a score by each criterion of its task.

The criterion comes first in the official prompt, so that the five calls on an answer share little
that a service could keep.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any

from mtbench_ray.benchmarks.criterion import Criterion
from mtbench_ray.config import JudgeConfig
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
from mtbench_ray.judges.json_verdict import JSON_TEXT, only_json, read_json, whole_number
from mtbench_ray.judges.judge_prompt import (
    judgment_id,
    messages_of,
    rated,
    request_of,
    slot_of,
    units,
)
from mtbench_ray.judges.parse import Verdict
from mtbench_ray.judges.prompts import fill
from mtbench_ray.judges.scores import judge_label, mean_scores, tag_value, weighted_items
from mtbench_ray.schema import (
    Outcome,
    Question,
    Request,
    Score,
    Slot,
    canonical,
    text_hash,
)

NAME = "writingbench"
REQUIREMENTS = ("style", "format", "length")
SCALE = (1, 10)
SCORE, CRITERION = "score", "criterion"
OFFICIAL_CALL = canonical({"temperature": 1.0, "top_p": 0.95, "max_tokens": 2048})
_TABLES = (
    (re.compile(r"claude-3[-.]7-sonnet"), "April 2025"),
    (re.compile(r"claude-sonnet-4[-.]5|claude-4[-.]5-sonnet"), "November 2025"),
    (re.compile(r"claude-sonnet-4(?![-.]\d\b)|claude-4-sonnet"), "September 2025"),
    (re.compile(r"critic-model|writingbench-critic", re.IGNORECASE), "its own 7B critic"),
)
"""Judges with the published table that each belongs to."""
_BY_DOMAIN: Mapping[str, Callable[[Slot], str]] = {"category": lambda slot: slot.category}
_THOUGHT = "</think>\n\n"


class Checklist(Grader):
    """Scores each answer from 1 to 10 by each criterion of its task."""

    name = "criteria"
    note = (
        "score: mean over the criteria of all answers, 1 to 10 (published tables show ten times"
        " that); requirements: answers to tasks with one, then the criteria that are about it"
    )
    scored = "answers"
    columns = (
        Column(SCORE, "score", SCORE, headline=True),
        Column("domains", "", SCORE, "category"),
        Column("requirements", "", SCORE, "requirement"),
        Column("requirement_criteria", "", CRITERION, "requirement"),
    )
    dimensions = _BY_DOMAIN
    reply_tokens = 150

    def judge_warnings(self, judge: JudgeConfig) -> list[str]:
        """That a judge has no published table."""
        return [] if _table(judge) else [_incomparable(judge)]

    def wanted(self, view: EvaluationView) -> list[Slot]:
        """One verdict per answer, criterion and judge sample."""
        return [
            slot_of(
                view,
                unit,
                question,
                judge_sample=judge_sample,
                criterion=str(Criterion(place, _about(question, place))),
            )
            for unit, question, samples in units(view)
            for place in range(len(checklist(question)))
            for judge_sample in range(samples)
        ]

    def grade(self, slot: Slot, view: EvaluationView) -> Request:
        """Render the judge call of a criterion, which is shown as Python writes a dictionary."""
        question = view.questions[slot.question_id]
        prompts = json.loads(view.kept["prompts"])
        answer = view.content(slot.answer_ids[0], 1)
        if view.official:
            answer = answer.split(_THOUGHT, 1)[-1]
        criterion = checklist(question)[Criterion.of(slot.criterion).place]
        shown = {"query": question.turns[0], "response": answer, "criteria": str(criterion)}
        sent = messages_of(prompts["system"], fill(prompts["user"], shown))
        identity = judgment_id(
            sent,
            view.judge,
            slot,
            prompt="criterion",
            family=NAME,
            verdict=["whole reply" if view.official else "object", SCORE, *SCALE],
        )
        return request_of(
            slot,
            view,
            judgment_id=identity,
            judge_prompt="criterion",
            messages=sent,
            prompt_hash=text_hash(canonical([prompts["system"], prompts["user"]])),
            want="json",
            params=OFFICIAL_CALL if view.official else "{}",
        )

    def read(self, asked: Asked, view: EvaluationView, reply: Reply) -> Reading:
        """Read a score; officially the reply is the object, and has a reason in it."""
        if view.official:
            verdict = _official(reply.text)
        else:
            verdict = read_json(
                reply.text, SCORE, whole_number(*SCALE), reply.finish_reason, thinking=view.thinking
            )
        return rated(verdict)

    def pattern(self, view: EvaluationView) -> str | None:
        """A score and a short reason."""
        return rf'\{{"score": (10|[1-9]), "reason": "{JSON_TEXT}"\}}'

    def scale(self, view: EvaluationView) -> tuple[float, float]:
        """1 to 10."""
        return float(SCALE[0]), float(SCALE[1])

    def criterion_text(self, criterion: str, question: Question) -> str:
        """The name of the criterion."""
        return str(checklist(question)[Criterion.of(criterion).place]["name"])

    def items(
        self, outcomes: Sequence[Outcome], metric: str = "", parity: str = "safe"
    ) -> list[Item]:
        """The means of answers over their criteria, each only where all of them are judged."""
        return weighted_items(outcomes)

    def reduce(
        self, views: Sequence[EvaluationView], outcomes: Sequence[Outcome], options: ScoreOptions
    ) -> list[Score]:
        """Means over all answers, and by domain, kind of text, language and requirement."""
        judge = judge_label(outcomes, options)
        tags = {key: one.tags for view in views for key, one in view.questions.items()}
        parts: dict[str, Callable[[Slot], str]] = {
            **_BY_DOMAIN,
            "domain2": lambda slot: tag_value(tags[slot.question_id], "domain2"),
            "lang": lambda slot: tag_value(tags[slot.question_id], "lang"),
        }
        items = self.items(outcomes)
        scores = mean_scores(self.name, SCORE, items, parts, options, judge)
        for requirement in REQUIREMENTS:
            tag = f"requirement:{requirement}"
            with_it = [item for item in items if tag in tags[item.slot.question_id]]
            about = [
                Item(one.slot, value_of(one), one.reason)
                for one in outcomes
                if requirement in Criterion.of(one.slot.criterion).tags
            ]
            for metric, mine in ((SCORE, with_it), (CRITERION, about)):
                by: Mapping[str, Callable[[Slot], str]] = {"requirement": _always(requirement)}
                found = mean_scores(self.name, metric, mine, by, options, judge)
                scores += [one for one in found if one.dimension == "requirement"]
        return [one for one in scores if one.name or one.dimension == "all"]

    def remarks(self, view: EvaluationView, scores: Sequence[Score]) -> list[str]:
        """Which published table the scores may be compared with."""
        if not (table := _table(view.judge)):
            return [_incomparable(view.judge)]
        return [
            f"judge {view.judge.label}: to be compared with the published table of {table} alone;"
            " those of the other judges have other scores"
        ]


@lru_cache(maxsize=2048)
def _grading(grading: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(grading)
    return found


def checklist(question: Question) -> list[dict[str, str]]:
    """The criteria of a task; the order of their keys, that of its file, is part of the prompt."""
    found: list[dict[str, str]] = _grading(question.grading)["checklist"]
    return found


def _about(question: Question, place: int) -> tuple[str, ...]:
    """The requirements that a criterion is about."""
    name = checklist(question)[place]["name"]
    named = _grading(question.grading)["requirements"]
    return tuple(one for one in REQUIREMENTS if name in named.get(one, ()))


def _official(text: str) -> Verdict:
    """A score where the reply is JSON but for a fence, and has a text as its reason."""
    found = only_json(text.strip().strip("json|`"))
    if found is None:
        return Verdict(None, "bad_json" if text.strip() else "empty")
    score = found.get("score")
    if not isinstance(score, int | float) or score not in range(SCALE[0], SCALE[1] + 1):
        return Verdict(None, "out_of_range" if isinstance(score, int | float) else "wrong_type")
    if not isinstance(found.get("reason"), str):
        return Verdict(None, "no_reason")
    return Verdict(float(score), label=str(int(score)))


def _table(judge: JudgeConfig) -> str:
    """The published table of a judge; empty for one that has none."""
    return next((table for judges, table in _TABLES if judges.search(judge.model.lower())), "")


def _incomparable(judge: JudgeConfig) -> str:
    return (
        f"{NAME}: judge {judge.label} has no published table (Claude Sonnet 3.7, 4 and"
        " 4.5 and the authors' critic have one each): compare only scores of the same judge"
    )


def _always(name: str) -> Callable[[Slot], str]:
    return lambda slot: name
