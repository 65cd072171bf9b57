"""The mean of the means of strata, and its interval."""

import math
import random
import statistics

import pytest

from mtbench_ray.stats.means import clustered_mean, mean_of_means


def strata(sizes, seed=0):
    draw = random.Random(seed)
    return {
        str(at): ([draw.gauss(at, 1) for _ in range(size)], [f"{at}-{n}" for n in range(size)])
        for at, size in enumerate(sizes)
    }


def test_each_stratum_counts_the_same_whatever_its_size():
    found = mean_of_means({"a": ([1.0] * 30, range(30)), "b": ([4.0] * 6, range(6))})
    assert (found.mean, found.n, found.clusters) == (2.5, 36, 36)


def test_the_standard_error_is_that_of_independent_means():
    data = strata([40, 10, 7])
    found = mean_of_means(data, resamples=4000)
    errors = [statistics.stdev(values) ** 2 / len(values) for values, _ in data.values()]
    assert found.se == pytest.approx(math.sqrt(sum(errors)) / 3)
    assert found.mean - found.low == pytest.approx(2.2 * found.se, rel=0.25)


def test_one_stratum_is_a_clustered_mean():
    values, clusters = strata([25])["0"]
    one, other = mean_of_means({"x": (values, clusters)}), clustered_mean(values, clusters)
    assert (one.mean, one.low, one.high, one.se) == pytest.approx(
        (other.mean, other.low, other.high, other.se)
    )


def test_an_interval_holds_the_true_mean_about_as_often_as_it_says():
    hits = 0
    for seed in range(200):
        found = mean_of_means(strata([12, 20, 30], seed), resamples=500)
        hits += found.low <= 1.0 <= found.high
    assert 180 <= hits <= 200


@pytest.mark.parametrize(
    ("data", "mean", "why"),
    [
        ({}, None, ""),
        ({"a": ([], [])}, None, ""),
        ({"a": ([1.0] * 9, range(9)), "b": ([], [])}, None, "none: nothing of b"),
        ({"a": ([1.0] * 9, range(9)), "b": ([2.0], [1])}, 1.5,
         "none: a part has 1 question, 5 are needed"),
        ({"a": ([math.nan] * 9, range(9))}, None, ""),
    ],
)  # fmt: skip
def test_what_has_no_mean_or_no_interval_says_why(data, mean, why):
    found = mean_of_means(data)
    assert (found.mean, found.low, found.method) == (mean, None, why)
