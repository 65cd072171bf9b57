"""What all intervals share: questions as the unit of resampling, its draws and quantiles."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from functools import lru_cache
from statistics import NormalDist

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
LEAST_CLUSTERS = 5
"""Fewer say too little of how clusters differ: two equal ones give an interval without width, which
looks certain. Below it there is no interval, no standard error and no p-value."""
CONFIDENCE = 0.95


def no_interval(clusters: int) -> str:
    """Why so few clusters have no interval."""
    return f"none: {clusters} question{'' if clusters == 1 else 's'}, {LEAST_CLUSTERS} are needed"


def by_cluster(values: Sequence[float], clusters: Sequence[Hashable]) -> tuple[Floats, Floats]:
    """Sum and number of rows per cluster, in an order that does not depend on the rows' order."""
    groups: dict[Hashable, list[float]] = {}
    for value, cluster in zip(values, clusters, strict=True):
        groups.setdefault(cluster, []).append(value)
    ordered = [groups[key] for key in sorted(groups, key=repr)]
    sums = np.array([_sum(group) for group in ordered], dtype=float)
    return sums, np.array([len(group) for group in ordered], dtype=float)


def _sum(values: Sequence[float]) -> float:
    """Exactly rounded sum, in any order; NaN where a value is not finite."""
    return math.fsum(values) if all(map(math.isfinite, values)) else math.nan


def standard_error(sums: Floats, counts: Floats) -> float | None:
    """Cluster-robust, of a pooled mean; None with fewer than two clusters."""
    k = len(sums)
    if k < 2 or not np.isfinite(sums).all():
        return None
    residuals = sums - sums.sum() / counts.sum() * counts
    return float(math.sqrt(k / (k - 1) * float((residuals**2).sum())) / counts.sum())


@lru_cache(maxsize=16)
def cluster_weights(k: int, resamples: int, seed: int) -> Floats:
    """How often each of ``k`` clusters is drawn, per resample: shape (resamples, k).

    Kept, because all models and parts of a table with as many clusters use the same draws.
    """
    draws = np.random.default_rng(seed).multinomial(k, np.full(k, 1.0 / k), size=resamples)
    return draws.astype(np.float64)


def expanded_tail(k: int) -> float:
    """The lower percentile of an expanded interval, see :mod:`mtbench_ray.stats.means`."""
    wider = math.sqrt(k / (k - 1)) * t_quantile((1 + CONFIDENCE) / 2, k - 1)
    return NormalDist().cdf(-wider)


def t_quantile(p: float, df: int) -> float:
    """Quantile of Student's t by its expansion around the normal (Abramowitz, Stegun 26.7.5).

    Off by less than 0.1% from 6 degrees of freedom on. Below that it is too small; the interval
    then nearly spans its resamples anyway.
    """
    z = NormalDist().inv_cdf(p)
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160,
    )
    return z + sum(term / float(df) ** power for power, term in enumerate(terms, start=1))
