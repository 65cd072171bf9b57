"""Correlations and ranks."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mtbench_ray.stats.clusters import Floats


def rank_correlation(x: Sequence[float], y: Sequence[float]) -> float | None:
    """Spearman's correlation, ties at their mean rank; None where one side never varies."""
    return correlation(ranks(x), ranks(y))


def correlation(x: Sequence[float] | Floats, y: Sequence[float] | Floats) -> float | None:
    """Pearson's correlation; None with fewer than two points or where one side never varies."""
    one, other = np.asarray(x, dtype=float), np.asarray(y, dtype=float)
    if len(one) < 2 or np.ptp(one) == 0 or np.ptp(other) == 0:
        return None
    return float(np.corrcoef(one, other)[0, 1])


def ranks(values: Sequence[float] | Floats) -> Floats:
    """Ranks from 1 for the lowest, ties at their mean rank."""
    _, place, counts = np.unique(np.asarray(values), return_inverse=True, return_counts=True)
    mean_ranks: Floats = np.cumsum(counts) - (counts - 1) / 2
    return mean_ranks[place]
