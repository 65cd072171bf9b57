"""Win rates at equal style of a set of models, with their intervals."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mtbench_ray.benchmarks import style_control
from mtbench_ray.benchmarks.style_control import Battles, Floats
from mtbench_ray.judges.base import ScoreOptions

ROUNDS = 100
Rates = dict[str, tuple[float, float | None, float | None, str]]


def rates_of(
    battles: Battles, models: Sequence[str], groups: Sequence[str], options: ScoreOptions
) -> Rates:
    """The converged fit, with intervals from resampled questions: all games of one together."""
    style = style_control.standardised(battles)
    whole = style_control.converged(battles, style)
    names = {name: place for place, name in enumerate(dict.fromkeys(groups))}
    which = np.array([names[name] for name in groups])
    rounds = min(options.resamples, 2 * ROUNDS)
    drawn = np.random.default_rng(options.seed)
    found = []
    for _ in range(rounds if len(names) > 1 else 0):
        times = np.bincount(drawn.integers(len(names), size=len(names)), minlength=len(names))
        weight = battles.weight * times[which]
        found.append(style_control.converged(battles, style, weight, whole).win_rates)
    method = f"{rounds} resamples of questions, refitted" if found else ""
    low, high = _ends(found, 0.025, 0.975)
    return {
        model: (
            100 * float(whole.win_rates[place]),
            None if low is None else 100 * float(low[place]),
            None if high is None else 100 * float(high[place]),
            method,
        )
        for place, model in enumerate(models)
    }


def official_rates(battles: Battles, models: Sequence[str], options: ScoreOptions) -> Rates:
    """The median of early-stopped fits to resampled battles, as the official script prints it."""
    style = style_control.standardised(battles)
    drawn = np.random.default_rng(options.seed)
    each = np.repeat(np.arange(len(battles.weight)), battles.weight.astype(int))
    found = []
    for _ in range(ROUNDS if options.resamples else 0):
        rows = each[drawn.integers(len(each), size=len(each))]
        weight = np.bincount(rows, minlength=len(battles.weight)).astype(float)
        found.append(style_control.early_stopped(battles, style, weight).win_rates)
    whole = found or [style_control.early_stopped(battles, style).win_rates]
    middle = np.quantile(np.array(whole), 0.5, axis=0)
    low, high = _ends(found, 0.05, 0.95)
    method = f"{ROUNDS} resamples of battles, 5 to 95%" if found else ""
    return {
        model: (
            100 * float(middle[place]),
            None if low is None else 100 * float(low[place]),
            None if high is None else 100 * float(high[place]),
            method,
        )
        for place, model in enumerate(models)
    }


def _ends(found: Sequence[Floats], low: float, high: float) -> tuple[Floats | None, Floats | None]:
    if not found:
        return None, None
    ends = np.quantile(np.array(found), [low, high], axis=0)
    return ends[0], ends[1]
