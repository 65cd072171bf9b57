"""``report noise``: parts of the variance against REML, the D study against simulation."""

import json
import math

import numpy as np
import pytest
from verdict_rows import evaluation, verdict

from mtbench_ray.judges.base import ScoreOptions
from mtbench_ray.reports import noise
from mtbench_ray.reports.noise import Budget, Design, cells_of, purchase, questions_needed
from mtbench_ray.stats.variance import VarianceParts, variance_parts

Q, A, J = 1.5, 0.9, 0.6
"""Variances of question, answer, judge."""


def simulated(rng, questions, answers, judgments, question=None):
    """values[question][answer][judgment] around 6 by the nested model."""
    effects = rng.normal(0, math.sqrt(Q), questions) if question is None else question
    answer = rng.normal(0, math.sqrt(A), (questions, answers))
    judge = rng.normal(0, math.sqrt(J), (questions, answers, judgments))
    return 6 + effects[:, None, None] + answer[:, :, None] + judge


def test_parts_of_balanced_data_are_those_of_restricted_maximum_likelihood():
    """The likelihood of the model by itself, maximised by SciPy; for balanced data both agree."""
    from scipy.optimize import minimize

    values = simulated(np.random.default_rng(0), 60, 3, 2)
    rows, ones = values.reshape(60, 6), np.ones(6)
    same_answer = np.kron(np.eye(3), np.ones((2, 2)))

    def minus_likelihood(logs):
        question, answer, judge = np.exp(logs)
        cover = question * np.ones((6, 6)) + answer * same_answer + judge * np.eye(6)
        inverse = np.linalg.inv(cover)
        weight = 60 * ones @ inverse @ ones
        rest = rows - (rows @ inverse @ ones).sum() / weight
        square = np.einsum("qi,ij,qj->", rest, inverse, rest)
        return 60 * np.linalg.slogdet(cover)[1] + math.log(weight) + square

    fit = minimize(minus_likelihood, np.zeros(3), method="Nelder-Mead",
                   options={"xatol": 1e-6, "fatol": 1e-8, "maxiter": 2000})  # fmt: skip
    found = variance_parts(values.tolist())
    assert (found.question, found.answer, found.judge) == pytest.approx(np.exp(fit.x), rel=1e-3)


def test_parts_of_balanced_data_are_those_of_the_textbooks_mean_squares():
    values = simulated(np.random.default_rng(1), 40, 3, 4)
    questions, answers, judgments = values.shape
    by_answer, by_question = values.mean(axis=2), values.mean(axis=(1, 2))
    ms_judge = ((values - by_answer[:, :, None]) ** 2).sum() / (questions * answers * 3)
    ms_answer = judgments * ((by_answer - by_question[:, None]) ** 2).sum() / (questions * 2)
    ms_question = answers * judgments * by_question.var(ddof=1)
    found = variance_parts(values.tolist())
    assert found.judge == pytest.approx(ms_judge)
    assert found.answer == pytest.approx((ms_answer - ms_judge) / judgments)
    assert found.question == pytest.approx((ms_question - ms_answer) / (answers * judgments))


@pytest.mark.parametrize(("answers", "judgments"), [(1, 1), (4, 1), (1, 6), (3, 2)])
def test_half_widths_are_those_of_repeated_simulations(answers, judgments):
    rng, design = np.random.default_rng(2), Design(50, answers, judgments)
    parts = VarianceParts(Q, A, J)
    fixed = rng.normal(0, math.sqrt(Q), 50)
    again = [simulated(rng, 50, answers, judgments, fixed).mean() for _ in range(2000)]
    other = [simulated(rng, 50, answers, judgments).mean() for _ in range(2000)]
    # a standard deviation of 2000 draws is right to 1.6%
    assert design.half_width(parts, other_questions=False) == pytest.approx(
        1.96 * np.std(again), rel=0.06
    )
    assert design.half_width(parts, other_questions=True) == pytest.approx(
        1.96 * np.std(other), rel=0.06
    )


def test_what_to_buy_is_the_cheapest_of_all_that_reach_the_target():
    parts, have = VarianceParts(Q, A, J), Design(80, 1, 2, items=2)
    budget = Budget(judgment=0.01, answer=0.05)
    found = purchase(have, parts, 0.1, budget, other_questions=False)
    every = [
        (80 * 2 * (a * j - 2) * 0.01 + 80 * (a - 1) * 0.05, a, j)
        for a in range(1, 60)
        for j in range(2, 60)
        if 1.96 * math.sqrt(A / (80 * a) + J / (80 * a * j)) <= 0.1
    ]
    dollars, answers, judgments = min(every)
    assert (found.design.answers, found.design.judgments) == (answers, judgments)
    assert found.dollars == pytest.approx(dollars)
    assert found.answers == 80 * (answers - 1)
    assert found.calls == 80 * 2 * (answers * judgments - 2)
    # free answers: never judge one twice more than it is
    assert purchase(have, parts, 0.1, Budget(0.01), other_questions=False).design.judgments == 2
    # dear answers: judge each more often
    dear = purchase(have, parts, 0.22, Budget(0.001, 10.0), other_questions=False)
    assert (dear.design.answers, dear.design.judgments) == (1, 6)


def test_repeats_do_not_help_against_too_few_questions_and_how_many_would():
    parts, have = VarianceParts(Q, A, J), Design(80, 2, 2)
    assert purchase(have, parts, 0.1, Budget(), other_questions=True) is None
    needed = questions_needed(have, parts, 0.1)
    variance = Q + A / 2 + J / 4
    assert needed == math.ceil(1.96**2 * variance / 0.1**2)
    assert Design(needed, 2, 2).half_width(parts, other_questions=True) <= 0.1


def test_what_is_not_repeated_is_not_proposed():
    only_judge = VarianceParts(Q, None, J)
    found = purchase(Design(80, 1, 2), only_judge, 0.05, Budget(), other_questions=False)
    assert found.design.answers == 1
    assert found.design.judgments == math.ceil(1.96**2 * J / (80 * 0.05**2))


def test_a_question_is_the_mean_of_its_turns_and_a_judgment_without_one_is_left_out():
    items = [
        verdict(8, 1, turn=1), verdict(6, 1, turn=2),
        verdict(9, 1, turn=1, judge_sample=1), verdict("no_rating", 1, turn=2, judge_sample=1),
        verdict(5, 2, turn=1, sample=1), verdict(3, 2, turn=2, sample=1),
    ]  # fmt: skip
    assert cells_of(items) == ([[[7.0]], [[4.0]]], 2.0)


class Stored:
    """Results of one evaluation from plain numbers."""

    def __init__(self, items):
        self._items, self.options = items, ScoreOptions()

    def items(self, row):
        return self._items

    def outcomes(self, row):
        return []


def test_the_report_says_shares_and_what_to_buy(capsys):
    values = simulated(np.random.default_rng(3), 200, 2, 2)
    items = [
        verdict(values[q, a, j], q, sample=a, judge_sample=j)
        for q, a, j in np.ndindex(values.shape)
    ]
    row = evaluation(samples=2, judge_samples=2, questions=tuple(range(200)))
    assert noise.report(Stored(items), [row], "json", "0.08", "") == 0
    (found,) = json.loads(capsys.readouterr().out)
    assert found["shares"]["question"] == pytest.approx(Q / 3, abs=0.12)
    assert found["shares"]["answer"] == pytest.approx(A / 3, abs=0.08)
    assert found["shares"]["judge"] == pytest.approx(J / 3, abs=0.04)
    bought = found["buy"]["these"]
    assert (bought["judge_samples"], bought["dollars"]) == (2, None)
    assert bought["samples"] > 2
    assert found["buy"]["other"] is None
    noise.report(Stored(items), [row], "table", "0.08", "")
    out = capsys.readouterr().out
    assert f"sampling.samples={bought['samples']} judge.samples=2" in out
    assert f"{found['questions_needed']} questions with these repeats would be" in out


def test_without_repeats_the_line_that_makes_them_is_named(cli):
    cli("model=org/m")
    assert cli.verb("report", "noise") == 2
    assert "sampling.samples=2 judge.samples=2" in cli.err
    assert cli.verb("report", "noise", "target=much") == 2
    assert cli.verb("report", "target=0.1") == 2
    assert "target=0.1 is of `report noise`" in cli.err
