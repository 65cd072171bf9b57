"""``report noise``: where the spread of an average comes from, and what to buy against it.

Generalizability theory (Brennan 2001, "Generalizability Theory", chapters 3 and 4): answers are
nested in questions and judgments in answers, so that one judgment of a question (over its turns)
is ``mean + question + answer + judge``, with the variances q, a and j. They are estimated from
repeats (``sampling.samples``, ``judge.samples``) by
:func:`mtbench_ray.stats.variance.variance_parts`, whose unit here is the whole question: its turns
are not independent.

The D study: with Q questions, A answers to each and J judgments of each the average varies by

    a / (Q A) + j / (Q A J)              asked, answered and judged again: these very questions
    q / Q + a / (Q A) + j / (Q A J)      other questions of this kind

and the half-width of its 95% interval is 1.96 times the root. Of all (A, J) that reach a wanted
half-width the cheapest is proposed (for fixed prices the best J is near the root of price of an
answer over price of a judgment times j / a: Cochran 1977, "Sampling Techniques", section 10.6).
"""

from __future__ import annotations

import json
import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from mtbench_ray.errors import EXIT_OK, UserError
from mtbench_ray.judges.base import Item
from mtbench_ray.planning.evaluations import distinguishing_settings, named
from mtbench_ray.reports.results import Results, judged_alone
from mtbench_ray.reports.tables import grid, label, number, said
from mtbench_ray.schema import Evaluation
from mtbench_ray.stats.clusters import LEAST_CLUSTERS
from mtbench_ray.stats.variance import VarianceParts, variance_parts

Z = 1.96
MOST_ANSWERS, MOST_JUDGMENTS = 256, 64
"""More repeats than these are not proposed."""
Cells = list[list[list[float]]]
"""``cells[question][answer][judgment]``."""


@dataclass(frozen=True)
class Budget:
    """What one more of each costs, in dollars.

    Attributes:
        judgment: One judge call; None where no price is known, and calls are counted.
        answer: One answer, all of its turns.
    """

    judgment: float | None = None
    answer: float = 0.0


@dataclass(frozen=True)
class Design:
    """How often each question is answered and judged.

    Attributes:
        items: Judge calls that one judgment of a question is made of (its turns).
    """

    questions: int
    answers: int
    judgments: int
    items: float = 1.0

    def half_width(self, parts: VarianceParts, *, other_questions: bool) -> float:
        """Of the 95% interval of the average, see the head of this module."""
        every = self.questions * self.answers
        variance = (parts.answer or 0.0) / every + (parts.judge or 0.0) / (every * self.judgments)
        if other_questions:
            variance += (parts.question or 0.0) / self.questions
        return Z * math.sqrt(variance)


@dataclass(frozen=True)
class Purchase:
    """The cheapest way to a wanted half-width.

    Attributes:
        answers: New answers.
        calls: Judge calls.
        dollars: None where a price is not known.
    """

    design: Design
    answers: int
    calls: int
    dollars: float | None


def purchase(
    have: Design, parts: VarianceParts, target: float, budget: Budget, *, other_questions: bool
) -> Purchase | None:
    """What to buy so that the half-width is at most ``target``; None where no repeats reach it.

    More of what is not repeated so far is not proposed where its part is not known.
    """
    found: list[tuple[float, int, Purchase]] = []
    most_answers = have.answers if parts.answer is None else max(have.answers, MOST_ANSWERS)
    most_judgments = have.judgments if parts.judge is None else max(have.judgments, MOST_JUDGMENTS)
    for each in range(have.judgments, most_judgments + 1):
        for count in range(have.answers, most_answers + 1):
            design = Design(have.questions, count, each, have.items)
            if design.half_width(parts, other_questions=other_questions) > target:
                continue
            new = have.questions * (count - have.answers)
            more = count * each - have.answers * have.judgments
            calls = round(have.questions * more * have.items)
            dollars = None
            if budget.judgment is not None:
                dollars = calls * budget.judgment + new * budget.answer
            price = calls + 0.0 if dollars is None else dollars
            found.append((price, new, Purchase(design, new, calls, dollars)))
            break  # more answers with as many judgments cost more
    return min(found, key=lambda one: one[:2])[2] if found else None


def questions_needed(have: Design, parts: VarianceParts, target: float) -> int:
    """Questions of this kind, with the repeats that there are, that reach a half-width."""
    width = have.half_width(parts, other_questions=True)
    return max(1, math.ceil(have.questions * (width / target) ** 2 - 1e-9))


def cells_of(items: Sequence[Item]) -> tuple[Cells, float]:
    """What was given to each question, answer and judgment: the mean over its turns.

    A judgment that lacks a turn is left out: its mean would be another figure.

    Returns:
        The cells, and how many items a question has on average.
    """
    wanted: dict[str, set[Hashable]] = {}
    values: dict[str, dict[int, dict[int, dict[Hashable, float]]]] = {}
    for item in items:
        slot = item.slot
        part = (slot.question_id, slot.turn, slot.criterion)
        wanted.setdefault(slot.group, set()).add(part)
        if item.value is not None:
            answer = values.setdefault(slot.group, {}).setdefault(slot.sample, {})
            answer.setdefault(slot.judge_sample, {})[part] = item.value
    cells = [
        [
            [fmean(one.values()) for one in answer.values() if len(one) == len(wanted[group])]
            for answer in answers.values()
        ]
        for group, answers in values.items()
    ]
    cells = [[answer for answer in question if answer] for question in cells]
    return [question for question in cells if question], (
        fmean(map(len, wanted.values())) if wanted else 0.0
    )


def figures(
    row: Evaluation, results: Results, target: float | None, answer_price: float
) -> dict[str, Any] | None:
    """The noise of one evaluation, as JSON; None where nothing is repeated.

    Returns:
        ``parts``, variances (null where not repeated; then in the part before it), ``shares`` of
        them; ``half_width`` of the average for ``these`` and for ``other`` questions; with a
        target ``buy`` for each of them (null where no repeats reach it) and ``questions_needed``.
    """
    cells, items = cells_of(results.items(row))
    answers = max((len(question) for question in cells), default=0)
    judgments = max((len(one) for question in cells for one in question), default=0)
    if len(cells) < LEAST_CLUSTERS or max(answers, judgments) < 2:
        return None
    parts = variance_parts(cells)
    have = Design(len(cells), answers, judgments, items)
    total = sum(part or 0.0 for part in (parts.question, parts.answer, parts.judge))
    found: dict[str, Any] = {
        "model": row.model,
        "judge": row.judge,
        "questions": have.questions,
        "answers": answers,
        "judgments": judgments,
        "parts": {"question": parts.question, "answer": parts.answer, "judge": parts.judge},
        "shares": {
            name: None if part is None or not total else part / total
            for name, part in (
                ("question", parts.question),
                ("answer", parts.answer),
                ("judge", parts.judge),
            )
        },
        "half_width": {
            "these": have.half_width(parts, other_questions=False),
            "other": have.half_width(parts, other_questions=True),
        },
    }
    if target is not None:
        prices = [
            one.judgment.cost_usd
            for one in results.outcomes(row)
            if one.judgment is not None and one.judgment.cost_usd is not None
        ]
        budget = Budget(fmean(prices) if prices else None, answer_price)
        found["target"] = target
        found["buy"] = {
            name: _json(purchase(have, parts, target, budget, other_questions=other))
            for name, other in (("these", False), ("other", True))
        }
        found["questions_needed"] = questions_needed(have, parts, target)
    return found


def _json(bought: Purchase | None) -> dict[str, Any] | None:
    if bought is None:
        return None
    return {
        "samples": bought.design.answers,
        "judge_samples": bought.design.judgments,
        "new_answers": bought.answers,
        "judge_calls": bought.calls,
        "dollars": bought.dollars,
    }


def report(
    results: Results, rows: Sequence[Evaluation], format: str, target: str, answer_price: str
) -> int:
    """Print the parts of the spread of each repeated evaluation, and what to buy next.

    Args:
        target: Wanted half-width of the 95% interval in points; empty for none.
        answer_price: Dollars for one answer; empty for 0.

    Raises:
        UserError: Nothing is repeated, or a setting is no number.
    """
    wanted = _number("target", target) if target else None
    if wanted == 0:
        raise UserError("target=0 would need endless repeats", "target=0.1")
    price = _number("answer_price", answer_price) if answer_price else 0.0
    alone = judged_alone(rows)
    found = []
    apart = distinguishing_settings(alone)
    for row in alone:
        if one := figures(row, results, wanted, price):
            one["model"] = named(row.model, apart[row.evaluation_id])
            one["judge"] = named(row.judge, apart[row.evaluation_id], judge=True)
            found.append(one)
    if not found:
        raise UserError(
            f"no model has repeats of {LEAST_CLUSTERS} questions or more, which alone show noise",
            "the same line with sampling.samples=2 judge.samples=2",
        )
    if format == "json":
        print(json.dumps(found, indent=1))
    else:
        print(_text(found, format))
    return EXIT_OK


def _number(key: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value >= 0):
        raise UserError(f"{key}={text} is no number from 0", f"{key}=0.1")
    return value


def _text(found: Sequence[dict[str, Any]], format: str) -> str:
    headers = ["model", "judge", "questions", "answers x judgments", "question", "answer", "judge",
               "± these questions", "± other questions"]  # fmt: skip
    cells = [
        [
            one["model"],
            one["judge"],
            str(one["questions"]),
            f"{one['answers']} x {one['judgments']}",
            *(_part(one, name) for name in ("question", "answer", "judge")),
            number(one["half_width"]["these"], 3),
            number(one["half_width"]["other"], 3),
        ]
        for one in found
    ]
    if format == "csv":
        return grid(headers, cells, format)
    advice = [line for one in found for line in _advice(one)]
    notes = [
        "question, answer, judge: standard deviations of one judgment of a question (the mean over"
        " its turns), and their shares of the variance; n/a: not repeated, and then part of the one"
        " before it",
        "± these questions: half the 95% interval of the average, were the same questions answered"
        " and judged again; a difference of two models has 1.4 times as much",
        "± other questions: the same for other questions of this kind",
    ]
    blocks = [grid(headers, cells, format), "\n".join(said(advice, format))]
    return "\n\n".join(block for block in (*blocks, "\n".join(said(notes, format))) if block)


def _part(one: dict[str, Any], name: str) -> str:
    """The standard deviation of a part, and its share."""
    variance, share = one["parts"][name], one["shares"][name]
    return "n/a" if variance is None else f"{math.sqrt(variance):.2f} ({100 * (share or 0):.0f}%)"


def _advice(one: dict[str, Any]) -> list[str]:
    """What to buy, in a line for these and one for other questions."""
    if "target" not in one:
        return []
    lines = []
    who = f"{label(one['model'])}, judge {label(one['judge'])}, ±{one['target']:g}"
    for name, of in (("these", "these questions"), ("other", "other questions")):
        bought = one["buy"][name]
        if bought is None:
            line = "no number of repeats is enough"
        elif not bought["judge_calls"]:
            line = "there already"
        else:
            line = (
                f"sampling.samples={bought['samples']} judge.samples={bought['judge_samples']}:"
                f" {bought['new_answers']} answers and {bought['judge_calls']} judge calls more"
            )
            line += "" if bought["dollars"] is None else f", ${bought['dollars']:.2f}"
        if name == "other" and bought is None:
            line += f"; {one['questions_needed']} questions with these repeats would be"
        lines.append(f"{who} on {of}: {line}")
    return lines
