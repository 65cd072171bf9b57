"""Strengths of models from games between them (Bradley and Terry 1952)."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np

from mtbench_ray.stats.clusters import (
    LEAST_CLUSTERS,
    Floats,
    cluster_weights,
    expanded_tail,
)

ELO = 400 / math.log(10)


@dataclass(frozen=True, slots=True)
class Strength:
    """A model's strength by Bradley and Terry (1952), on the scale of Elo.

    Attributes:
        value: 1000 is the mean of all models; 400 more are odds of 10 to 1.
        low: Lower end of the 95% interval; None below :data:`LEAST_CLUSTERS` clusters.
        high: Upper end.
    """

    value: float
    low: float | None
    high: float | None


def bradley_terry(
    games: Sequence[tuple[int, int, float, Hashable]],
    models: int,
    resamples: int = 2000,
    seed: int = 0,
) -> list[Strength]:
    """Strengths from games, by maximum likelihood, with intervals from resampling clusters.

    A tie is half a win for each. Each model also has half a won and half a lost game against a
    model of mean strength, so that one that won or lost all of its games has a finite strength.

    Args:
        games: First and second model (from 0), the value for the first (0 to 1), the cluster.
        models: How many there are.
        resamples: Of the bootstrap.
        seed: Of the bootstrap.
    """
    order = sorted({cluster for *_, cluster in games}, key=repr)
    place = {cluster: at for at, cluster in enumerate(order)}
    won = np.zeros((len(order), models, models))
    for one, other, value, cluster in games:
        won[place[cluster], one, other] += value
        won[place[cluster], other, one] += 1 - value
    (values,) = _fit(won.sum(axis=0)[None])
    if len(order) < LEAST_CLUSTERS or resamples < 1:
        return [Strength(1000 + ELO * float(value), None, None) for value in values]
    drawn = _fit(
        np.einsum("rc,cij->rij", cluster_weights(len(order), resamples, seed), won, optimize=True)
    )
    tail = expanded_tail(len(order))
    ends = np.quantile(drawn, [tail, 1 - tail], axis=0)
    return [
        Strength(
            *(1000 + ELO * float(number) for number in (value, min(low, value), max(high, value)))
        )
        for value, low, high in zip(values, *ends, strict=True)
    ]


def _fit(won: Floats, rounds: int = 50) -> Floats:
    """Log strengths, mean 0, of many tables of wins at once, by Newton's method.

    Args:
        won: Wins of row over column: shape (tables, models, models).
    """
    tables, models, _ = won.shape
    played = won + won.transpose(0, 2, 1)
    wins = won.sum(axis=2) + 0.5
    beta: Floats = np.zeros((tables, models))
    diagonal = np.arange(models)
    for _ in range(rounds):
        chance = 1 / (1 + np.exp(beta[:, None, :] - beta[:, :, None]))
        prior = 1 / (1 + np.exp(-beta))
        gradient = wins - (played * chance).sum(axis=2) - prior
        curvature = played * chance * (1 - chance)
        hessian = -curvature
        hessian[:, diagonal, diagonal] += curvature.sum(axis=2) + prior * (1 - prior)
        step = np.linalg.solve(hessian, gradient[..., None])[..., 0]
        beta += np.clip(step, -1.0, 1.0)
        if np.abs(step).max() < 1e-10:
            break
    beta -= beta.mean(axis=1, keepdims=True)
    return beta
