"""Means with intervals."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from mtbench_ray.stats.clusters import (
    LEAST_CLUSTERS,
    by_cluster,
    cluster_weights,
    expanded_tail,
    no_interval,
    standard_error,
)

METHOD = "cluster bootstrap, expanded percentile, 95%"


@dataclass(frozen=True, slots=True)
class Interval:
    """A pooled mean with its 95% interval.

    Attributes:
        mean: Mean over all rows; None without rows or with a value that is not finite.
        low: Lower end; None with fewer than :data:`LEAST_CLUSTERS`.
        high: Upper end.
        se: Cluster-robust standard error; None with fewer clusters likewise.
        method: How the interval was made, or ``none: `` and why there is none; empty without rows.
        n: Rows.
        clusters: Clusters.
    """

    mean: float | None
    low: float | None
    high: float | None
    se: float | None
    method: str
    n: int
    clusters: int


def clustered_mean(
    values: Sequence[float],
    clusters: Sequence[Hashable],
    resamples: int = 2000,
    seed: int = 0,
) -> Interval:
    """Pooled mean with a 95% interval from resampling whole clusters.

    The interval is the expanded percentile interval of Hesterberg (2015, "What Teachers Should
    Know About the Bootstrap"): the percentiles are moved outwards so that, for normal data, it is
    about as wide as the t interval. A plain percentile interval is too narrow by a factor of about
    sqrt((k - 1) / k) * 1.96 / t for k clusters, 18% at the 10 questions of a category; BCa mends
    skewness but not that, and the studentised bootstrap leaves the scale of the scores and breaks
    down where resamples have no spread (a model that nearly always wins). This one
    stays within the range of the data. Where all rows are equal it has no width: a bootstrap knows
    nothing of what it has not seen.

    Args:
        values: One per row.
        clusters: The cluster (question) of each row.
        resamples: Bootstrap resamples.
        seed: Seed of the bootstrap; the same numbers give the same interval in any row order.
    """
    sums, counts = by_cluster(values, clusters)
    k, n = len(sums), len(values)
    if n == 0 or not np.isfinite(sums).all():
        return Interval(None, None, None, None, "", n, k)
    mean = math.fsum(values) / n
    if k < LEAST_CLUSTERS:
        return Interval(mean, None, None, None, no_interval(k), n, k)
    if resamples < 1:
        return Interval(mean, None, None, standard_error(sums, counts), "none: resamples=0", n, k)
    weights = cluster_weights(k, resamples, seed)
    means = (weights @ sums) / (weights @ counts)
    tail = expanded_tail(k)
    low, high = np.quantile(means, [tail, 1 - tail])
    # Rounding in the sums must not put the mean outside its own interval.
    return Interval(
        mean,
        min(float(low), mean),
        max(float(high), mean),
        standard_error(sums, counts),
        METHOD,
        n,
        k,
    )


def mean_of_means(
    strata: Mapping[str, tuple[Sequence[float], Sequence[Hashable]]],
    resamples: int = 2000,
    seed: int = 0,
) -> Interval:
    """The plain mean of the means of some strata, such as a benchmark's tasks.

    Its 95% interval is as that of :func:`clustered_mean`, from resampling the clusters of each
    stratum by themselves; it is as wide as the stratum with fewest clusters asks for.

    Args:
        strata: By name the values of a stratum and the cluster of each.
        resamples: Bootstrap resamples.
        seed: Seed of the bootstrap.

    Returns:
        Without a mean where a stratum has no value: what is left would be another figure.
    """
    rows = sum(len(values) for values, _ in strata.values())
    found = [by_cluster(*strata[name]) for name in sorted(strata)]
    clusters = sum(len(sums) for sums, _ in found)
    empty = [name for name in sorted(strata) if not strata[name][0]]
    if not strata or empty:
        why = f"none: nothing of {', '.join(empty)}" if rows else ""
        return Interval(None, None, None, None, why, rows, clusters)
    means = [float(sums.sum() / counts.sum()) for sums, counts in found]
    mean = math.fsum(means) / len(means)
    if not math.isfinite(mean):
        return Interval(None, None, None, None, "", rows, clusters)
    fewest = min(len(sums) for sums, _ in found)
    if fewest < LEAST_CLUSTERS:
        why = f"none: a part has {fewest} question{'' if fewest == 1 else 's'}, "
        return Interval(mean, None, None, None, f"{why}{LEAST_CLUSTERS} are needed", rows, clusters)
    errors = [standard_error(sums, counts) or 0.0 for sums, counts in found]
    se = math.sqrt(math.fsum(one**2 for one in errors)) / len(errors)
    if resamples < 1:
        return Interval(mean, None, None, se, "none: resamples=0", rows, clusters)
    drawn = np.zeros(resamples)
    for place, (sums, counts) in enumerate(found):
        weights = cluster_weights(len(sums), resamples, seed + place)
        drawn += (weights @ sums) / (weights @ counts) / len(found)
    tail = expanded_tail(fewest)
    low, high = np.quantile(drawn, [tail, 1 - tail])
    return Interval(mean, min(float(low), mean), max(float(high), mean), se, METHOD, rows, clusters)
