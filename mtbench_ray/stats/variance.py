"""The parts of a variance."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True)
class VarianceParts:
    """Variance of single judgments, split by where it comes from; in squared score units.

    Attributes:
        question: Between questions; None with fewer than two questions.
        answer: Between answers to one question; None without repeated answers.
        judge: Between judgments of one answer; None without repeated judgments.
    """

    question: float | None
    answer: float | None
    judge: float | None


def variance_parts(values: Sequence[Sequence[Sequence[float]]]) -> VarianceParts:
    """Split the variance of judgments into question, answer and judge.

    Moment (ANOVA) estimates of the unbalanced nested random-effects model (Searle, Casella and
    McCulloch 1992, "Variance Components"): question, answers within it, judgments within those.
    A part that has no repeats is None and its variance is then contained in the part above it.
    Negative estimates are 0.

    Args:
        values: ``values[question][answer_sample][judge_sample]``; sizes may differ, empty and
            non-finite entries are left out.
    """
    cells = [
        [row for answer in question if (row := [v for v in answer if math.isfinite(v)])]
        for question in values
    ]
    cells = [question for question in cells if question]
    answers = [np.asarray(answer, dtype=float) for question in cells for answer in question]
    if not answers:
        return VarianceParts(None, None, None)
    owner = np.repeat(np.arange(len(cells)), [len(question) for question in cells])
    n_answer = np.array([len(answer) for answer in answers], dtype=float)
    mean_answer = np.array([answer.mean() for answer in answers])
    n_question = np.bincount(owner, n_answer)
    mean_question = np.bincount(owner, n_answer * mean_answer) / n_question
    n = float(n_answer.sum())
    grand = float((n_answer * mean_answer).sum()) / n

    within_answer = sum(float(((x - x.mean()) ** 2).sum()) for x in answers)
    within_question = float((n_answer * (mean_answer - mean_question[owner]) ** 2).sum())
    between = float((n_question * (mean_question - grand) ** 2).sum())
    # Mean sizes that multiply the parts in the expected mean squares.
    nested = float((n_answer**2 / n_question[owner]).sum())
    pooled = float((n_answer**2).sum()) / n

    df_judge, df_answer, df_question = n - len(answers), len(answers) - len(cells), len(cells) - 1
    judge = within_answer / df_judge if df_judge else None
    answer = None
    if df_answer:
        size = (n - nested) / df_answer
        answer = max(0.0, (within_question / df_answer - (judge or 0.0)) / size)
    question = None
    if df_question:
        size = (n - float((n_question**2).sum()) / n) / df_question
        below = (judge or 0.0) + (nested - pooled) / df_question * (answer or 0.0)
        question = max(0.0, (between / df_question - below) / size)
    return VarianceParts(question, answer, judge)
