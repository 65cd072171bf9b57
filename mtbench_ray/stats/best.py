"""The best of many: simultaneous intervals for several means."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from mtbench_ray.stats.clusters import (
    CONFIDENCE,
    LEAST_CLUSTERS,
    Floats,
    by_cluster,
    cluster_weights,
    t_quantile,
)


@dataclass(frozen=True, slots=True)
class AgainstBest:
    """One of several means against the best of the others, with simultaneous 95% intervals.

    Attributes:
        difference: Its mean minus the highest of the others.
        low: Lower end for the true difference; 0 or less.
        high: Upper end; 0 or more. 0 is: it is not the best.
    """

    difference: float
    low: float
    high: float


def against_best(
    values: Sequence[Sequence[float]],
    clusters: Sequence[Hashable],
    resamples: int = 2000,
    seed: int = 0,
) -> list[AgainstBest]:
    """Multiple comparisons with the best (Hsu 1984; for unequal variances Edwards and Hsu 1983).

    With 95% all intervals are right at once, so that the best is among those whose ``high`` is
    above 0; fewer comparisons than each with each, and so more are told apart. For each model as
    the reference the critical value is the 95% quantile, over resampled clusters, of the largest
    error of its differences to the others, widened as in :func:`clustered_mean`.

    Args:
        values: Of each model, in the same rows.
        clusters: The cluster of each row.

    Returns:
        Empty with fewer than two models or :data:`LEAST_CLUSTERS` clusters, or without resamples.
    """
    errors, means = _resampled_errors(values, clusters, resamples, seed)
    if errors is None or len(values) < 2:
        return []
    count = len(values)
    critical, upper = [], []
    others = [[j for j in range(count) if j != i] for i in range(count)]
    for i in range(count):
        worst = (errors[:, others[i]] - errors[:, [i]]).max(axis=1)
        critical.append(float(np.quantile(worst, CONFIDENCE)))
        upper.append(min(means[i] - means[j] for j in others[i]) + critical[i])
    may_be = [i for i in range(count) if upper[i] > 0]
    found = []
    for i in range(count):
        rivals = [means[i] - means[j] - critical[j] for j in may_be if j != i]
        low = min([0.0, *rivals])
        best = max(means[j] for j in others[i])
        found.append(AgainstBest(means[i] - best, low, max(0.0, upper[i])))
    return found


def against_reference(
    values: Sequence[Sequence[float]],
    reference: Sequence[float],
    clusters: Sequence[Hashable],
    resamples: int = 2000,
    seed: int = 0,
) -> float | None:
    """Half the width of simultaneous 95% intervals of all means minus that of a reference.

    As of Dunnett (1955): they hold for each of the models, so also for the one that came out best.

    Returns:
        None where there is no interval, as for :func:`against_best`.
    """
    errors, _ = _resampled_errors([*values, reference], clusters, resamples, seed)
    if errors is None:
        return None
    worst = np.abs(errors[:, :-1] - errors[:, [-1]]).max(axis=1)
    return float(np.quantile(worst, CONFIDENCE))


def _resampled_errors(
    values: Sequence[Sequence[float]], clusters: Sequence[Hashable], resamples: int, seed: int
) -> tuple[Floats | None, list[float]]:
    """Means of resampled clusters minus the means, widened: shape (resamples, models)."""
    columns = [by_cluster(one, clusters) for one in values]
    means = [math.fsum(one) / len(one) if len(one) else math.nan for one in values]
    k = len(columns[0][1]) if columns else 0
    if k < LEAST_CLUSTERS or resamples < 1 or not np.isfinite(means).all():
        return None, means
    weights = cluster_weights(k, resamples, seed)
    sums = np.column_stack([sums for sums, _ in columns])
    drawn = (weights @ sums) / (weights @ columns[0][1])[:, None]
    wider = math.sqrt(k / (k - 1)) * t_quantile(0.975, k - 1) / NormalDist().inv_cdf(0.975)
    errors: Floats = (drawn - np.array(means)) * wider
    return errors, means
