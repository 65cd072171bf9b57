"""AlpacaEval's graders: whose answer is better, by the probabilities of one token."""

from __future__ import annotations

import importlib.util
import json
import math
import random
import re
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from mtbench_ray.benchmarks.length_control import Fit, Gamed, far_apart, length_controlled
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
from mtbench_ray.judges.judge_prompt import (
    check_request,
    judgment_id,
    opposing,
    request_of,
    slot_of,
    units,
)
from mtbench_ray.judges.parse import outside_thinking
from mtbench_ray.judges.prompts import fill
from mtbench_ray.judges.scores import judge_label, mean_scores
from mtbench_ray.schema import (
    Message,
    Outcome,
    Question,
    Request,
    Score,
    Slot,
    canonical,
    text_hash,
)

JUDGE = "gpt-4-1106-preview"
"""The judge of the leaderboard, which the difficulties were fitted to."""
FIRST, SECOND = "m", "M"
"""Identifiers of the answers, as shown from the top."""
TOP = 5
_WIN, _DISCRETE = "win_rate", "discrete_win_rate"
_LC, _LC_ERROR = "lc_win_rate", "lc_standard_error"
_LENGTH = "average_length"
PROMPT, CONTROL, WHY_NOT = "judge_prompt", "length_control", "no_length_control"
CHATML = re.compile(r"<\|im_start\|>(\w+)\n(.*?)<\|im_end\|>", re.DOTALL)


def switched(instruction: str) -> bool:
    """Whether the model's answer is shown first, as alpaca_eval draws it from the text alone."""
    drawn = random.Random(f"is_switched_outputs{instruction}0")
    return drawn.choices([False, True])[0]


def first_is_better(logprobs: str, *, exact: bool = True) -> float | None:
    """Probability of the first identifier against the second as the first token of a reply.

    One of the two that is not among the most probable tokens counts as impossible.

    Args:
        logprobs: JSON of a choice's log-probabilities, in the API's form.
        exact: Tokens count as they are; else also with white space around them, where neither
            identifier is there without any.

    Returns:
        None where neither is there.
    """
    found = _top(logprobs)
    if not exact and not found.keys() & {FIRST, SECOND}:
        bare: dict[str, float] = {}
        for token, value in found.items():
            bare[token.strip()] = bare.get(token.strip(), 0.0) + value
        found = bare
    first, second = found.get(FIRST, 0.0), found.get(SECOND, 0.0)
    return first / (first + second) if first + second > 0 else None


def _top(logprobs: str) -> dict[str, float]:
    """The most probable first tokens with their probabilities; whatever else stands there."""
    try:
        token = json.loads(logprobs)["content"][0]
        rows = [*(token.get("top_logprobs") or ()), *([token] if "logprob" in token else ())]
        return {
            str(row["token"]): math.exp(min(float(row["logprob"]), 0.0))
            for row in reversed(rows)
            if not math.isnan(float(row["logprob"]))
        }
    except (ValueError, TypeError, LookupError, AttributeError, OverflowError):
        return {}


class Preference(Grader):
    """Whose answer is better, in percent: 100 where the model's surely is.

    Args:
        weighted: By log-probabilities; else by the identifier that the judge writes.
    """

    against = "baseline"

    def __init__(self, weighted: bool) -> None:
        self.name = "weighted" if weighted else "clf"
        self.weighted = weighted
        self.reply_tokens = 1
        self.note = (
            "win rates and their standard errors in percent; LC: length-controlled, as on the"
            " leaderboard; length in characters"
        )
        if weighted:
            self.without_logprobs = (
                "mode=clf reads the identifier that the judge writes instead"
                " (alpaca_eval_clf_gpt4_turbo); its figures are not those of the leaderboard"
            )
        self.columns = (
            Column(_LC, "LC win rate", _LC),
            Column(_LC_ERROR, "LC SE", _LC_ERROR),
            Column(_WIN, "win rate", _WIN, headline=True),
            Column("standard_error", "SE", "standard_error"),
            Column(_DISCRETE, "discrete", _DISCRETE),
            Column(_LENGTH, "length", _LENGTH, digits=0),
            Column("categories", "", _WIN, "category", digits=1),
        )

    @property
    def item_metrics(self) -> Sequence[str]:
        """Both win rates."""
        return _WIN, _DISCRETE

    def warnings(self, questions: Sequence[Question]) -> list[str]:
        """That the fit cannot be made here."""
        if importlib.util.find_spec("sklearn") is None:
            return [f"{questions[0].benchmark}: {NO_SKLEARN}"]
        return []

    def judge_warnings(self, judge: JudgeConfig) -> list[str]:
        """That the judge is another one than the leaderboard's."""
        return [_other_judge(judge)] if judge.model != JUDGE else []

    def wanted(self, view: EvaluationView) -> list[Slot]:
        """One verdict for each answer and judge sample, in the order that its text seeds."""
        opponent, theirs = view.evaluation.opponent, opposing(view)
        if opponent is None or theirs is None:
            return []
        return [
            slot_of(
                view,
                unit,
                question,
                answer_ids=(unit.answer_id, theirs(unit)),
                order=1 if switched(question.turns[0]) else 2,
                opponent=opponent.model,
                judge_sample=judge_sample,
            )
            for unit, question, samples in units(view)
            for judge_sample in range(samples)
        ]

    def grade(self, slot: Slot, view: EvaluationView) -> Request:
        """The judge call; equal answers need none."""
        mine, theirs = (view.content(one, 1) for one in slot.answer_ids)
        if mine == theirs:
            return check_request(slot, view)
        template = view.kept[PROMPT]
        first, second = (mine, theirs) if slot.order == 1 else (theirs, mine)
        shown = {
            "instruction": view.questions[slot.question_id].turns[0],
            "output_1": first,
            "output_2": second,
        }
        messages = tuple(
            Message(role, fill(text, shown).strip()) for role, text in CHATML.findall(template)
        )
        params: dict[str, Any] = {}
        if self.weighted:
            params = {"max_tokens": 1, "temperature": 1.0, "logprobs": True, "top_logprobs": TOP}
        return request_of(
            slot,
            view,
            judgment_id=judgment_id(
                messages,
                view.judge,
                slot,
                prompt="alpaca_eval_clf",
                family="alpaca_eval",
                verdict=[self.name],
            ),
            judge_prompt="alpaca_eval_clf",
            messages=messages,
            prompt_hash=text_hash(template),
            want="logprobs" if self.weighted else "text",
            params=canonical(params),
        )

    def read(self, asked: Asked, view: EvaluationView, reply: Reply) -> Reading:
        """How probable it is that the model's answer is better, in percent."""
        if isinstance(asked, Request) and asked.want == "check":
            return Reading("tie", 50.0, "ok")  # equal answers
        if self.weighted:
            if not reply.logprobs:
                return Reading(None, None, "unparsed", "no_logprobs")
            found = first_is_better(reply.logprobs, exact=view.official)
            if found is None:
                return Reading(None, None, "unparsed", "neither_identifier", again=False)
        else:
            found = _written(outside_thinking(reply.text, view.thinking))
            if found is None:
                return Reading(None, None, "unparsed", "no_identifier")
        value = 100 * (found if asked.order == 1 else 1 - found)
        return Reading(FIRST if found > 0.5 else SECOND, value, "ok")

    def pattern(self, view: EvaluationView) -> str | None:
        """One of the identifiers."""
        return f"{FIRST}|{SECOND}"

    def scale(self, view: EvaluationView) -> tuple[float, float]:
        """Percent."""
        return 0.0, 100.0

    def items(
        self, outcomes: Sequence[Outcome], metric: str = "", parity: str = "safe"
    ) -> list[Item]:
        """The verdicts, or whether each is a win (100), a draw (50) or a loss (0)."""
        found = [Item(one.slot, value_of(one), one.reason) for one in outcomes]
        if metric != _DISCRETE:
            return found
        return [
            one if one.value is None else replace(one, value=50 * (1 + _sign(one.value - 50)))
            for one in found
        ]

    def reduce(
        self, views: Sequence[EvaluationView], outcomes: Sequence[Outcome], options: ScoreOptions
    ) -> list[Score]:
        """Win rate, discrete and length-controlled, standard errors and lengths of each model."""
        judge = judge_label(outcomes, options)
        scores: list[Score] = []
        items = self.items(outcomes)
        for metric, by in ((_WIN, self.dimensions), (_DISCRETE, {})):
            some = self.items(outcomes, metric)
            scores += mean_scores(self.name, metric, some, by, options, judge)
        (view,) = views
        for whole in [one for one in scores if one.place == (_WIN, "all", "")]:
            mine = [one for one in outcomes if one.slot.model == whole.model]
            plain = replace(whole, ci_low=None, ci_high=None, method="")
            error = standard_error([one for one in items if one.slot.model == whole.model])
            lengths = [len(view.content(one.slot.answer_ids[0], 1)) for one in _shown(view, mine)]
            scores += [
                replace(plain, metric="standard_error", mean=error),
                replace(plain, metric=_LENGTH, mean=statistics.fmean(lengths) if lengths else None),
                *_controlled(view, mine, plain),
            ]
        return scores

    def remarks(self, view: EvaluationView, scores: Sequence[Score]) -> list[str]:
        """Another judge, no length control, or one that moves the figure far."""
        notes = []
        if view.judge.model != JUDGE:
            notes.append(_other_judge(view.judge))
        if not self.weighted:
            notes.append(
                "mode=clf: the identifier that the judge writes, not its probability; win rates are"
                " not those of the leaderboard"
            )
        found = {one.place: one for one in scores}
        raw, controlled = (found.get((name, "all", "")) for name in (_WIN, _LC))
        if controlled is not None and controlled.mean is None and controlled.method:
            notes.append(f"no LC win rate: {controlled.method.removeprefix('none: ')}")
        means = [one.mean for one in (raw, controlled) if one and one.mean is not None]
        if len(means) == 2 and far_apart(*means):
            length = found[_LENGTH, "all", ""].mean or 0.0
            notes.append(
                f"{view.evaluation.model}: LC {means[1]:.1f} is far from the raw {means[0]:.1f}"
                f" (answers of {length:.0f} characters in the mean); the fit may have failed, and"
                " answers that play with lengths do this too"
            )
        return notes


NO_SKLEARN = (
    "scikit-learn is not installed, and fits the LC win rate: pip install 'mtbench-ray[alpaca]'"
)


def _other_judge(judge: JudgeConfig) -> str:
    return (
        f"judge {judge.label} is not {JUDGE}, which the difficulties of the length control were"
        " fitted to: compare models under this judge, and not with the leaderboard"
    )


def _sign(value: float) -> int:
    return (value > 0) - (value < 0)


def _written(text: str) -> float | None:
    """1 where the judge wrote the first identifier, 0 for the second; None for neither or both."""
    there = set(re.findall(r"(?<![A-Za-z0-9_'])[mM](?![A-Za-z0-9_'])", text))
    return float(there == {FIRST}) if len(there) == 1 else None


def standard_error(items: Sequence[Item]) -> float | None:
    """Of the mean over questions; those of one question are one."""
    by_question: dict[str, list[float]] = {}
    for item in items:
        if item.value is not None:
            by_question.setdefault(item.slot.group, []).append(item.value)
    means = [statistics.fmean(values) for values in by_question.values()]
    return statistics.stdev(means) / math.sqrt(len(means)) if len(means) > 1 else None


def _shown(view: EvaluationView, outcomes: Sequence[Outcome]) -> list[Outcome]:
    """The outcomes whose answers are both there."""
    return [
        one
        for one in outcomes
        if all((answer, 1) in view.turns for answer in one.slot.answer_ids)
        and not one.reason.startswith("answer_")
    ]


def _controlled(view: EvaluationView, outcomes: Sequence[Outcome], plain: Score) -> Iterator[Score]:
    """The length-controlled win rate of a model with its standard error."""
    fit, why = _fit(view, outcomes)
    if fit is None:
        missing = json.dumps({"no_length_control": plain.planned})
        plain = replace(plain, scored=0, failed=missing, method=f"none: {why}")
    yield replace(plain, metric=_LC, mean=fit.win_rate if fit else None)
    yield replace(plain, metric=_LC_ERROR, mean=fit.standard_error if fit else None)


def _fit(view: EvaluationView, outcomes: Sequence[Outcome]) -> tuple[Fit | None, str]:
    """The fit of a model, or why there is none.

    Rows go by their instruction and stand in the order of the benchmark's file, whatever the order
    of ``outcomes``: the folds of the fit go by it.
    """
    if CONTROL not in view.kept:
        return None, view.kept.get(WHY_NOT, "its files could not be had when this was judged")
    if importlib.util.find_spec("sklearn") is None:
        return None, NO_SKLEARN
    kept = json.loads(view.kept[CONTROL])
    difficulty = kept["difficulty"]
    rows = sorted(
        (one for one in _shown(view, outcomes) if one.slot.group in difficulty),
        key=lambda one: (difficulty[one.slot.group][0], one.slot.sample, one.slot.judge_sample),
    )
    if len(rows) < len(_shown(view, outcomes)):
        return None, "some instructions are not those of the benchmark, and have no difficulty"
    values = [value_of(one) for one in rows]
    mine, theirs = (
        [len(view.content(one.slot.answer_ids[side], 1)) for one in rows] for side in (0, 1)
    )
    found = length_controlled(
        [None if value is None else value / 100 for value in values],
        theirs,
        mine,
        [difficulty[one.slot.group][1] for one in rows],
        Gamed(*(np.array(column, float) for column in kept["gamed"])),
    )
    return found, "" if found else "too few verdicts, or all lengths differ by the same"
