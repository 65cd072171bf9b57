"""Intervals clustered by question, paired differences and variance parts."""

import math
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mtbench_ray.stats.clusters import LEAST_CLUSTERS
from mtbench_ray.stats.means import clustered_mean
from mtbench_ray.stats.paired import detectable, holm, paired_difference
from mtbench_ray.stats.variance import variance_parts


def two_turns(rng, questions, sd_question=1.0, sd_row=1.0):
    """Rows and clusters of a bench whose two turns share a part of their score."""
    base = rng.normal(5, sd_question, questions)
    rows = base[:, None] + rng.normal(0, sd_row, (questions, 2))
    return rows.ravel().tolist(), np.repeat(np.arange(questions), 2).tolist()


def test_the_mean_is_pooled_over_rows():
    interval = clustered_mean([9, 5, 4], [81, 82, 82])
    assert (interval.mean, interval.n, interval.clusters) == (6.0, 3, 2)


def test_the_standard_error_of_single_rows_is_the_usual_one():
    values = np.random.default_rng(0).normal(size=40)
    usual = values.std(ddof=1) / math.sqrt(len(values))
    assert clustered_mean(values.tolist(), range(40)).se == pytest.approx(usual)


def test_rows_that_repeat_a_cluster_add_no_evidence():
    values = np.random.default_rng(0).normal(size=40).tolist()
    once = clustered_mean(values, range(40))
    thrice = clustered_mean(values * 3, [*range(40)] * 3)
    assert thrice.se == pytest.approx(once.se)
    assert (thrice.low, thrice.high) == pytest.approx((once.low, once.high))


def test_a_fixed_seed_gives_the_same_interval_in_any_row_order():
    values, clusters = two_turns(np.random.default_rng(0), 30)
    one = clustered_mean(values, clusters, seed=3)
    assert one == clustered_mean(values[::-1], clusters[::-1], seed=3)
    assert one != clustered_mean(values, clusters, seed=4)


@pytest.mark.parametrize("questions", [10, 80])
def test_the_interval_covers_the_truth(questions):
    rng = np.random.default_rng(7)
    trials = 400
    covered = 0
    for _ in range(trials):
        values, clusters = two_turns(rng, questions)
        interval = clustered_mean(values, clusters, resamples=1000)
        covered += interval.low <= 5 <= interval.high
    # 95% give or take 2.6 standard errors of 400 trials; a plain percentile interval has 91% at 10
    assert 0.92 < covered / trials < 0.98


def test_the_interval_of_normal_data_is_as_wide_as_the_t_interval():
    rng = np.random.default_rng(5)
    widths = []
    for _ in range(100):
        interval = clustered_mean(rng.normal(size=10).tolist(), range(10))
        widths.append((interval.high - interval.low) / (2 * 2.262 * interval.se))
    assert 0.955 < np.mean(widths) < 1.02  # without the factor sqrt(10 / 9): 0.93


def test_the_interval_stays_within_the_scores():
    interval = clustered_mean([10] * 19 + [7], range(20))
    assert 7 <= interval.low < interval.mean <= interval.high <= 10
    same = clustered_mean([0.1] * 30, range(30))
    assert (same.low, same.mean, same.high) == pytest.approx((0.1, 0.1, 0.1))
    assert same.low <= same.mean <= same.high


@pytest.mark.parametrize(
    ("values", "clusters", "mean"),
    [
        ([], [], None),
        ([5.0], [1], 5.0),
        ([5.0, 7.0], [1, 1], 6.0),
        ([5.0, math.nan], [1, 2], None),
        ([5.0, math.inf], [1, 2], None),
        ([math.inf, -math.inf], [1, 1], None),
    ],
)
def test_what_cannot_be_computed_is_none(values, clusters, mean):
    interval = clustered_mean(values, clusters)
    assert interval.mean == mean
    assert interval.low is interval.high is interval.se is None
    assert interval.method == (
        f"none: {len(set(clusters))} question{'s' * (len(set(clusters)) > 1)}, 5 are needed"
        if mean
        else ""
    )
    assert paired_difference(values, values, clusters).p_value is None


@given(
    st.lists(st.tuples(st.sampled_from([1.0, 2.5, 10.0]), st.integers(0, 8)), min_size=1),
    st.integers(0, 3),
)
def test_the_mean_lies_in_its_interval(rows, seed):
    interval = clustered_mean([v for v, _ in rows], [c for _, c in rows], 50, seed)
    assert (interval.low is None) == (len({c for _, c in rows}) < LEAST_CLUSTERS)
    if interval.low is not None:
        assert 1 <= interval.low <= interval.mean <= interval.high <= 10


def test_many_intervals_are_fast():
    values, clusters = two_turns(np.random.default_rng(0), 80)
    started = time.process_time()
    for _ in range(100):
        clustered_mean(values, clusters)
    assert time.process_time() - started < 3


def test_paired_difference_finds_what_unpaired_noise_hides():
    rng = np.random.default_rng(1)
    b, clusters = two_turns(rng, 40, sd_question=3, sd_row=0.1)
    a = [value + 0.3 + noise for value, noise in zip(b, rng.normal(0, 0.3, len(b)), strict=True)]
    better = paired_difference(a, b, clusters)
    assert better.mean == pytest.approx(0.3, abs=0.1)
    assert 0 < better.low < better.mean < better.high
    assert better.p_value < 0.01
    assert (better.n, better.clusters) == (80, 40)
    worse = paired_difference(b, a, clusters)
    assert worse.mean == pytest.approx(-better.mean)
    assert worse.p_value == better.p_value


def test_equal_rows_differ_by_nothing():
    same = paired_difference([5, 6, 7, 8, 9], [5, 6, 7, 8, 9], range(5))
    assert (same.mean, same.low, same.high, same.p_value) == (0, 0, 0, 1)


def test_the_p_value_of_few_questions_is_that_of_all_sign_flips():
    # 5 questions with the same sign: 2 of the 32 sign patterns are as extreme
    result = paired_difference([2, 3, 4, 5, 6], [1, 1, 1, 1, 1], range(5))
    assert result.p_value == 2 / 32


def test_p_values_are_uniform_where_nothing_differs():
    rng = np.random.default_rng(2)
    below = 0
    for _ in range(300):
        a, clusters = two_turns(rng, 20)
        b, _ = two_turns(rng, 20)
        below += paired_difference(a, b, clusters, resamples=10).p_value < 0.1
    assert 0.05 < below / 300 < 0.16


def test_variance_parts_of_a_balanced_design_by_hand():
    # question means 2 and 6; answer means 1, 3 and 5, 7; judgments 1 away from theirs
    values = [[[0, 2], [2, 4]], [[4, 6], [6, 8]]]
    parts = variance_parts(values)
    # mean squares: judge 2, answer 4, question 32
    assert parts.judge == pytest.approx(2)
    assert parts.answer == pytest.approx((4 - 2) / 2)
    assert parts.question == pytest.approx((32 - 4) / 4)


@pytest.mark.parametrize("ragged", [False, True])
def test_variance_parts_are_recovered(ragged):
    rng = np.random.default_rng(3)
    values = []
    for _ in range(3000):
        question = rng.normal(0, 2)
        answers = [question + rng.normal(0, 1) for _ in range(rng.integers(1, 5) if ragged else 3)]
        values.append(
            [
                (answer + rng.normal(0, 0.5, rng.integers(1, 4) if ragged else 2)).tolist()
                for answer in answers
            ]
        )
    parts = variance_parts(values)
    assert parts.question == pytest.approx(4, rel=0.1)
    assert parts.answer == pytest.approx(1, rel=0.1)
    assert parts.judge == pytest.approx(0.25, rel=0.1)


def test_a_part_without_repeats_is_none():
    answers_only = variance_parts([[[1.0], [3.0]], [[5.0], [9.0]]])
    assert answers_only.judge is None
    assert answers_only.answer == pytest.approx((2 + 8) / 2)
    judges_only = variance_parts([[[1.0, 3.0]], [[5.0, 9.0]]])
    assert judges_only.answer is None
    assert judges_only.judge == pytest.approx((2 + 8) / 2)
    plain = variance_parts([[[1.0]], [[5.0]]])
    assert (plain.question, plain.answer, plain.judge) == (8.0, None, None)
    for empty in ([], [[]], [[[]]], [[[math.nan]]], [[[3.0]]]):
        parts = variance_parts(empty)
        assert parts.question is parts.answer is parts.judge is None


def test_no_negative_variance():
    parts = variance_parts([[[0, 10], [0, 10]], [[0, 10], [0, 10]]])
    assert (parts.question, parts.answer) == (0, 0)


@pytest.mark.parametrize("questions", [1, 2, 4, 5])
def test_below_five_questions_there_is_no_interval_and_it_says_why(questions):
    """Two equal questions would give an interval without width, which looks certain."""
    found = clustered_mean([7.0] * 2 * questions, [n // 2 for n in range(2 * questions)])
    gap = paired_difference([7.0] * questions, [6.0] * questions, range(questions))
    assert found.mean == 7.0
    if questions < 5:
        assert (found.low, found.high, found.se) == (None, None, None)
        assert (gap.low, gap.high, gap.p_value) == (None, None, None)
        assert found.method.startswith(f"none: {questions} question")
        assert gap.method == found.method
    else:
        assert (found.low, found.high) == (7.0, 7.0)
        assert gap.p_value == 2 / 2**5


def test_holm_is_the_step_down_correction_by_its_definition():
    p_values = [0.04, None, 0.001, 0.03, 0.5, 0.011]
    found = holm(p_values)
    known = [p for p in p_values if p is not None]
    for p, corrected in zip(p_values, found, strict=True):
        if p is None:
            assert corrected is None
            continue
        # the largest, over all tests not above it, of p times how many tests are not below that
        wanted = max(min(1.0, q * sum(r >= q for r in known)) for q in known if q <= p)
        assert corrected == pytest.approx(wanted)
    assert holm([]) == []
    assert holm([0.02]) == [0.02]


def test_a_detectable_difference_is_found_as_often_as_it_says():
    rng = np.random.default_rng(4)
    se = 1.0 / math.sqrt(30)
    least = detectable(se, 30)
    # known: (2.0452 + 0.8542) / sqrt(30)
    assert least == pytest.approx((2.04523 + 0.85424) * se, rel=1e-3)
    found = 0
    for _ in range(400):
        gaps = rng.normal(least, 1.0, 30).tolist()
        found += paired_difference(gaps, [0.0] * 30, range(30), 10, flips=999).p_value < 0.05
    assert 0.74 < found / 400 < 0.86
    assert detectable(None, 80) is None
    assert detectable(0.1, 4) is None


def test_pass_at_k_is_the_chance_that_some_of_k_samples_passes():
    from itertools import combinations

    from mtbench_ray.stats.pass_at import pass_at

    passed = [[True, False, False, True, False], [False] * 5, [True] * 5, [True, True]]
    found = pass_at(passed)
    assert list(found) == [1, 2, 4, 5]
    for k, rate in found.items():
        whole = passed[:3]  # the last one has too few samples
        chances = [
            sum(map(any, drawn)) / len(drawn)
            for samples in whole
            for drawn in (list(combinations(samples, k)),)
        ]
        assert abs(rate - sum(chances) / 3) < 1e-12
    assert pass_at([]) == {}
