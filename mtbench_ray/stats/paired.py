"""Paired differences: intervals, p-values, and what a test of this size can find."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from mtbench_ray.stats.clusters import CONFIDENCE, LEAST_CLUSTERS, Floats, by_cluster, t_quantile
from mtbench_ray.stats.means import clustered_mean

SIGN_FLIPS = 9999
"""Random sign flips of a permutation test; where all of them are no more, all are taken."""
_SIGNS_AT_ONCE = 2048
_POWER = 0.8


@dataclass(frozen=True, slots=True)
class Difference:
    """A mean paired difference ``a - b`` with its interval and p-value.

    Attributes:
        p_value: Two-sided, by flipping the signs of whole clusters; None where ``low`` is.
    """

    mean: float | None
    low: float | None
    high: float | None
    se: float | None
    p_value: float | None
    method: str
    n: int
    clusters: int


def paired_difference(
    a: Sequence[float],
    b: Sequence[float],
    clusters: Sequence[Hashable],
    resamples: int = 2000,
    seed: int = 0,
    flips: int = SIGN_FLIPS,
) -> Difference:
    """Mean of ``a - b`` over paired rows, clustered by question.

    The p-value is that of a sign-flip permutation test on whole clusters: how often signs give a
    sum at least as far from 0. All sign patterns are taken where there are no more than ``flips``
    of them, else as many random ones, the observed one counted in.

    Args:
        a: One value per row.
        b: The value paired with it.
        clusters: The cluster (question) of each row.
        resamples: Bootstrap resamples of the interval.
        seed: Seed of the bootstrap and of the test.
        flips: Sign patterns; the smallest p-value is one of so many.
    """
    gaps = [x - y for x, y in zip(a, b, strict=True)]
    (found,) = paired_differences([gaps], clusters, resamples, seed, flips)
    return found


def paired_differences(
    gaps: Sequence[Sequence[float]],
    clusters: Sequence[Hashable],
    resamples: int = 2000,
    seed: int = 0,
    flips: int = SIGN_FLIPS,
) -> list[Difference]:
    """:func:`paired_difference` of many comparisons of the same rows, in much less time.

    Args:
        gaps: For each comparison the difference in each row.
    """
    intervals = [clustered_mean(one, clusters, resamples, seed) for one in gaps]
    tested = [at for at, interval in enumerate(intervals) if interval.low is not None]
    p_values: dict[int, float] = {}
    if tested:
        sums = np.column_stack([by_cluster(gaps[at], clusters)[0] for at in tested])
        p_values = dict(zip(tested, map(float, _sign_flip_test(sums, flips, seed)), strict=True))
    return [
        Difference(
            one.mean, one.low, one.high, one.se, p_values.get(at), one.method, one.n, one.clusters
        )
        for at, one in enumerate(intervals)
    ]


def _sign_flip_test(sums: Floats, flips: int, seed: int) -> Floats:
    """P-values of many comparisons.

    Args:
        sums: Of each cluster (row) in each comparison (column).
    """
    signs = _signs(len(sums), flips, seed)
    observed = np.abs(sums.sum(axis=0))
    # The tolerance keeps equal sums equal after rounding.
    bound = observed - 1e-9 * np.maximum(1.0, observed)
    as_far = np.zeros(sums.shape[1])
    for start in range(0, len(signs), _SIGNS_AT_ONCE):
        as_far += (np.abs(signs[start : start + _SIGNS_AT_ONCE] @ sums) >= bound).sum(axis=0)
    return as_far / len(signs)


@lru_cache(maxsize=4)
def _signs(k: int, flips: int, seed: int) -> Floats:
    """Sign patterns of ``k`` clusters: all of them, or the observed one and ``flips`` random ones.

    Kept, because all pairs of models of a table are tested with the same patterns.
    """
    if 2**k <= flips:
        patterns = (np.arange(2**k)[:, None] >> np.arange(k)) & 1
    else:
        patterns = np.random.default_rng(seed).integers(0, 2, (flips + 1, k))
        patterns[0] = 0
    signs: Floats = patterns * 2.0 - 1.0
    return signs


def holm(p_values: Sequence[float | None]) -> list[float | None]:
    """P-values corrected for their number (Holm 1979); None stays, and is no test.

    With them the chance of any false finding among all is at most the level at which they are read.
    """
    known = sorted((p, place) for place, p in enumerate(p_values) if p is not None)
    corrected: list[float | None] = [None] * len(p_values)
    worst = 0.0
    for rank, (p, place) in enumerate(known):
        worst = max(worst, min(1.0, (len(known) - rank) * p))
        corrected[place] = worst
    return corrected


def detectable(se: float | None, clusters: int, power: float = _POWER) -> float | None:
    """The smallest true difference that a two-sided test at 5% finds with this power.

    That of the t test with the same standard error: ``(t[0.975] + t[power]) * se``.

    Args:
        se: Standard error of the difference; None gives None.
        clusters: Questions behind it.
        power: Chance of finding it.
    """
    if se is None or clusters < LEAST_CLUSTERS:
        return None
    df = clusters - 1
    return (t_quantile((1 + CONFIDENCE) / 2, df) + t_quantile(power, df)) * se
