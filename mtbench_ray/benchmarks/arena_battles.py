"""Arena-Hard's grader: five labels in two games, and win rates at equal style."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from mtbench_ray.benchmarks import style_control
from mtbench_ray.benchmarks.official_tokens import tokenizer
from mtbench_ray.benchmarks.style_control import Battles, Style, style_of
from mtbench_ray.benchmarks.style_rates import ROUNDS, Rates, official_rates, rates_of
from mtbench_ray.config import JudgeConfig
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
from mtbench_ray.judges.judge_prompt import (
    judgment_id,
    opposing,
    request_of,
    short_reply,
    slot_of,
    units,
)
from mtbench_ray.judges.matches import GAMES
from mtbench_ray.judges.parse import outside_thinking
from mtbench_ray.judges.prompts import fill
from mtbench_ray.judges.scores import judge_label, mean_scores
from mtbench_ray.schema import (
    Judgment,
    Message,
    Outcome,
    Request,
    Score,
    Slot,
    canonical,
    text_hash,
)

HARD, CREATIVE = "hard_prompt", "creative_writing"
STRONG = {CREATIVE: "gemini-2.0-flash-001"}
OTHER_STRONG = "o3-mini-2025-01-31"
"""The baseline of a category: that of :data:`STRONG`, or this one."""
BASELINE = "o3-mini+gemini-2.0-flash"
"""Their answers as one model, each to its own categories."""
DOUBLE = 3
"""Battles that a double label counts."""
MAX_TOKENS = 16000
"""Of a judge's reply, where none is set: it may write an answer of its own first."""
LEAST = 5.0
"""Below this win rate (and above its mirror image) verdicts hardly tell models apart."""
_RAW, _STYLE = "win_rate", "style_win_rate"
_LABELS = {"A>>B": 1.0, "A>B": 1.0, "A=B": 0.5, "B>A": 0.0, "B>>A": 0.0,
           "B<<A": 1.0, "B<A": 1.0, "B=A": 0.5, "A<B": 0.0, "A<<B": 0.0}  # fmt: skip
"""What a label is worth for what is shown as A; the last five are the first ones mirrored."""
_PATTERNS = (re.compile(r"\[\[([AB<>=]+)\]\]"), re.compile(r"\[([AB<>=]+)\]"))


@dataclass(frozen=True, slots=True)
class Label:
    """What was read from a reply: a label, or why there is none."""

    text: str = ""
    reason: str = ""


def read_label(text: str, *, last: bool = False) -> Label:
    """The label of a reply without its thinking.

    Double brackets are looked for before single ones, and the last label counts.

    Args:
        last: Also where the line that it stands in has other labels too, as the official script
            does.
    """
    text = text.upper()
    found: list[re.Match[str]] = []
    for pattern in _PATTERNS:
        if found := list(pattern.finditer(text)):
            break
    if not found:
        return Label(reason="no_label")
    label = found[-1][1]
    if label not in _LABELS:
        return Label(reason="no_such_label")
    line = text.rfind("\n", 0, found[-1].start())
    beside = {one[1] for one in found if one.start() > line}
    if len(beside) > 1 and not last:
        return Label(reason="two_labels")
    return Label(label)


def worth(label: str, order: int) -> float:
    """What a label is worth for the model, in percent: it is A in game 1 and B in game 2."""
    value = _LABELS[label]
    return 100 * (value if order == 1 else 1 - value)


def battles_of(label: str) -> int:
    """How many battles a label counts."""
    return DOUBLE if ">>" in label or "<<" in label else 1


class ArenaHardGrader(Grader):
    """Two games for each answer; a double label counts three times.

    A question whose games have not both a label counts nowhere.
    """

    name = "battles"
    against = "baseline"
    scored = "battles"
    reply_tokens = 900
    note = (
        "win rates in percent over battles: two games a question, a double label counts three;"
        " style: at equal length and markup"
    )
    columns = (
        Column(_RAW, "win rate", _RAW, headline=True, digits=1),
        Column("hard_style", "hard, style", _STYLE, "category", HARD, digits=1, interval=True,
               of_set=True),
        Column("creative_style", "creative, style", _STYLE, "category", CREATIVE, digits=1,
               interval=True, of_set=True),
        Column("categories", "", _RAW, "category", digits=1),
    )  # fmt: skip
    dimensions: Mapping[str, Callable[[Slot], str]] = {"category": lambda slot: slot.category}

    def wanted(self, view: EvaluationView) -> list[Slot]:
        """Two games for each answer and judge sample."""
        opponent, theirs = view.evaluation.opponent, opposing(view)
        if opponent is None or theirs is None:
            return []
        return [
            slot_of(
                view,
                unit,
                question,
                answer_ids=(unit.answer_id, theirs(unit)),
                order=order,
                opponent=opponent.model,
                judge_sample=judge_sample,
            )
            for unit, question, samples in units(view)
            for judge_sample in range(samples)
            for order in GAMES
        ]

    def grade(self, slot: Slot, view: EvaluationView) -> Request:
        """The judge call of a game."""
        question = view.questions[slot.question_id]
        system = view.kept[CREATIVE if slot.category == CREATIVE else HARD]
        template = view.kept["template"]
        games = []
        for order in GAMES:
            first, second = slot.answer_ids if order == 1 else slot.answer_ids[::-1]
            shown = {
                "QUESTION": question.turns[0],
                "ANSWER_A": view.content(first, 1),
                "ANSWER_B": view.content(second, 1),
            }
            messages = (Message("system", system), Message("user", fill(template, shown)))
            name = judgment_id(messages, view.judge, slot, prompt="arena_hard",
                               family="arena_hard", verdict=["labels"])  # fmt: skip
            games.append((name, messages))
        identity, messages = games[slot.order - 1]
        # A local judge's window may be smaller than the official cap.
        own_cap = view.judge.max_tokens != JudgeConfig.max_tokens or view.judge.kind == "local"
        return request_of(
            slot,
            view,
            judgment_id=identity,
            match_id=text_hash(canonical(sorted(name for name, _ in games))),
            judge_prompt="arena_hard",
            messages=messages,
            prompt_hash=text_hash(canonical([system, template])),
            params=canonical({} if own_cap else {"max_tokens": MAX_TOKENS}),
        )

    def read(self, asked: Asked, view: EvaluationView, reply: Reply) -> Reading:
        """A label, and what it is worth for the model."""
        text = outside_thinking(reply.text, view.thinking)
        if reply.finish_reason == "length" and not view.official:
            # What came before the cut may be about an answer, and is not the verdict.
            return Reading(None, None, "truncated", "truncated")
        found = read_label(text, last=view.official)
        if found.reason:
            status = "unparsed" if text.strip() else "empty"
            return Reading(None, None, status, found.reason)
        return Reading(found.text, worth(found.text, asked.order), "ok")

    def value_for(self, slot: Slot, judgment: Judgment) -> float | None:
        """Of the slot's game: equal answers make equal calls in both."""
        label = judgment.label or ""
        return worth(label, slot.order) if label in _LABELS else judgment.value

    def pattern(self, view: EvaluationView) -> str | None:
        """One of the five labels."""
        return short_reply(r"\[\[(A>>B|A>B|A=B|B>A|B>>A)\]\]")

    def scale(self, view: EvaluationView) -> tuple[float, float]:
        """Percent."""
        return 0.0, 100.0

    def items(
        self, outcomes: Sequence[Outcome], metric: str = "", parity: str = "safe"
    ) -> list[Item]:
        """The battles; one for a question of which a game failed."""
        found = []
        for games in games_of_questions(outcomes):
            reason = next((one.reason or "missing" for one in games if not label_of(one)), "")
            if reason or len(games) < len(GAMES):
                found.append(Item(games[0].slot, None, reason or "missing"))
                continue
            for one in games:
                value = worth(label_of(one), one.slot.order)
                found += [Item(one.slot, value)] * battles_of(label_of(one))
        return found

    def reduce(
        self, views: Sequence[EvaluationView], outcomes: Sequence[Outcome], options: ScoreOptions
    ) -> list[Score]:
        """Win rates of all models over all and by category, and at equal style by category."""
        judge = judge_label(outcomes, options)
        view = views[0]
        items = self.items(outcomes)
        raw = mean_scores(self.name, _RAW, items, self.dimensions, options, judge)
        if view.official:
            raw = [_as_printed(one, items, self.dimensions, options) for one in raw]
        scores = list(raw)
        parts = {one.name: one for one in raw if one.dimension == "category"}
        for category in parts:
            rates, why = _style_controlled(view, outcomes, category, options)
            for one in raw:
                if (one.dimension, one.name) != ("category", category):
                    continue
                plain = replace(one, metric=_STYLE, mean=None, ci_low=None, ci_high=None,
                                method=f"none: {why}" if why else "")  # fmt: skip
                if found := rates.get(one.model):
                    mean, low, high, method = found
                    plain = replace(plain, mean=mean, ci_low=low, ci_high=high, method=method)
                scores.append(plain)
        return scores

    def remarks(self, view: EvaluationView, scores: Sequence[Score]) -> list[str]:
        """What scores of a set hang on, and where the baseline is too strong."""
        notes = [
            f"no style-controlled win rate: {one.method.removeprefix('none: ')}"
            for one in scores
            if one.metric == _STYLE and one.mean is None and one.method.startswith("none: ")
        ]
        digests = {one.set_digest for one in scores if one.metric == _STYLE and one.set_digest}
        notes += [
            f"style-controlled win rates are fitted over all models here (set {digest[:8]}): they"
            " change with the set, and are not to be compared with those of another one"
            for digest in digests
        ]
        whole = next((one for one in scores if one.place == (_RAW, "all", "")), None)
        if whole and whole.mean is not None and not LEAST <= whole.mean <= 100 - LEAST:
            notes.append(
                f"{view.evaluation.model} wins {whole.mean:.1f}% against {view.evaluation.baseline}"
                ": too far apart to tell models from one another; baseline=MODEL names another one"
            )
        if view.evaluation.baseline == BASELINE:
            notes.append(
                f"published tables are by category: hard_prompt against {OTHER_STRONG},"
                f" creative_writing against {STRONG[CREATIVE]}"
            )
        return notes


def label_of(outcome: Outcome) -> str:
    """The label of a game that counts, empty where it has none."""
    if outcome.reason or outcome.judgment is None:
        return ""
    label = outcome.judgment.label or ""
    return label if label in _LABELS else ""


def games_of_questions(outcomes: Sequence[Outcome]) -> list[list[Outcome]]:
    """The games of each question, answer and judge sample of each model."""
    found: dict[tuple[Any, ...], list[Outcome]] = {}
    for one in outcomes:
        slot = one.slot
        key = (slot.model, slot.question_id, slot.sample, slot.judge_sample)
        found.setdefault(key, []).append(one)
    return list(found.values())


def _as_printed(
    score: Score,
    items: Sequence[Item],
    dimensions: Mapping[str, Callable[[Slot], str]],
    options: ScoreOptions,
) -> Score:
    """A win rate as the official script prints it: the mean of means of resampled battles."""
    values = np.array(
        [
            item.value
            for item in items
            if item.value is not None
            and item.slot.model == score.model
            and (score.dimension == "all" or dimensions[score.dimension](item.slot) == score.name)
        ]
    )
    if not len(values) or not options.resamples:
        return score
    drawn = np.random.default_rng(options.seed)
    means = [drawn.choice(values, len(values)).mean() for _ in range(ROUNDS)]
    low, high = np.quantile(means, [0.05, 0.95])
    method = f"{ROUNDS} resamples of battles, 5 to 95%"
    return replace(score, mean=float(np.mean(means)), ci_low=float(low), ci_high=float(high),
                   method=method)  # fmt: skip


def _style_controlled(
    view: EvaluationView, outcomes: Sequence[Outcome], category: str, options: ScoreOptions
) -> tuple[Rates, str]:
    """Win rates of all models at equal style in one category, with intervals; or why not."""
    games = [
        pair
        for pair in games_of_questions([one for one in outcomes if one.slot.category == category])
        if len(pair) == len(GAMES) and all(map(label_of, pair))
    ]
    if not games:
        return {}, ""
    counted: Callable[[str], Style] = _style
    if view.official:
        try:
            tokens = tokenizer()
        except UserError as error:
            return {}, " ".join(str(error).split())
        counted = functools.cache(lambda text: style_of(text, tokens(text)))
    models = list(dict.fromkeys(pair[0].slot.model for pair in games))
    rows = []
    for pair in games:
        for one in pair:
            mine, theirs = (counted(view.content(name, 1)) for name in one.slot.answer_ids)
            rows.append(
                (
                    models.index(one.slot.model),
                    style_control.difference(mine, theirs),
                    worth(label_of(one), one.slot.order) / 100,
                    float(battles_of(label_of(one))),
                    one.slot.group,
                )
            )
    index, style, won, weight, groups = zip(*rows, strict=True)
    battles = Battles(np.array(index), np.array(style), np.array(won), np.array(weight))
    if view.official:
        return official_rates(battles, models, options), ""
    return rates_of(battles, models, groups, options), ""


@functools.lru_cache(maxsize=65536)
def _style(text: str) -> Style:
    return style_of(text)
