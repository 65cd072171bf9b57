"""Length-controlled win rates (Dubois et al., 2024): a logistic fit with the length taken out.

What a model wins is explained by the lengths of both answers, by how hard the instruction is, and
by the model; the figure is the mean prediction at equal lengths. The rows of two versions of the
baseline that were told to be short or long hold the fit where a model plays with lengths alone.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

FOLDS = 5
SEED = 123
GAMED_WEIGHT = 0.1
"""Of each row of the two versions of the baseline: they weigh 0.2 together."""
STRENGTHS = np.logspace(-4, 4, 10)
"""Inverse strengths of the penalty, of which cross-validation takes one."""


@dataclass(frozen=True)
class Gamed:
    """Rows of the versions of the baseline.

    Attributes:
        preference: In [0, 1], 1 where the version wins.
        length: Difference of the lengths over its standard deviation.
        difficulty: Of the instruction.
    """

    preference: Floats
    length: Floats
    difficulty: Floats


@dataclass(frozen=True)
class Fit:
    """A length-controlled win rate.

    Attributes:
        predictions: Of each row at equal lengths, in [0, 1].
        weights: Of length, difficulty and model.
    """

    predictions: Floats
    weights: tuple[float, float, float]

    @property
    def win_rate(self) -> float:
        """In percent."""
        return 100 * float(self.predictions.mean())

    @property
    def standard_error(self) -> float:
        """In percent, over instructions."""
        return 100 * float(self.predictions.std(ddof=1) / np.sqrt(len(self.predictions)))


def length_controlled(
    preference: Sequence[float | None],
    baseline_length: Sequence[int],
    length: Sequence[int],
    difficulty: Sequence[float],
    gamed: Gamed,
) -> Fit | None:
    """Fit one model.

    Args:
        preference: Of each instruction, in the order of the benchmark's file (folds go by it); in
            [0, 1], 1 where the model wins; None where there is no verdict.
        baseline_length: Characters of the baseline's answers.
        length: Of the model's.
        difficulty: Of the instructions.

    Returns:
        None where there are too few rows, or all lengths differ by the same.
    """
    from sklearn.linear_model import LogisticRegression

    differences = np.subtract(baseline_length, length).astype(float)
    known = np.array([value is not None for value in preference], dtype=bool)
    if known.sum() < 2 or not (spread := differences.std(ddof=1)) > 0:
        return None
    hard = np.asarray(difficulty, float)
    mine = np.column_stack([np.tanh(differences / spread), hard, np.ones_like(hard)])
    theirs = np.column_stack(
        [np.tanh(gamed.length), gamed.difficulty, np.zeros_like(gamed.difficulty)]
    )
    rows = np.vstack([theirs, mine[known]])
    wins = np.array([value for value in preference if value is not None], float)
    target = np.concatenate([gamed.preference, wins])
    weight = np.concatenate([np.full(len(theirs), GAMED_WEIGHT), np.ones(len(wins))])
    # A fractional target is a row of each class, weighted.
    rows, group = np.vstack([rows, rows]), np.tile(np.arange(len(target)), 2)
    label = np.repeat([1, 0], len(target))
    share = weight[group] * np.concatenate([target, 1 - target])
    penalty: dict[str, Any] = {"penalty": "l1"}
    if inspect.signature(LogisticRegression).parameters["penalty"].default == "deprecated":
        penalty = {"l1_ratio": 1}

    def fitted(strength: float, taken: Any, drawn: np.random.RandomState) -> Any:
        model = LogisticRegression(
            C=strength, solver="liblinear", fit_intercept=False, random_state=drawn, **penalty
        )
        with warnings.catch_warnings():  # that it did not converge, at the weakest penalties
            warnings.simplefilter("ignore")
            return model.fit(rows[taken], label[taken], sample_weight=share[taken])

    likelihoods = _validated(fitted, rows, target[group], weight[group], group)
    best = float(STRENGTHS[int(np.argmax(likelihoods))])
    model = fitted(best, slice(None), np.random.RandomState(SEED))
    length_weight, hard_weight, own_weight = map(float, model.coef_[0])
    won = model.predict_proba(mine * [0.0, 1.0, 1.0])[:, 1]
    return Fit(won, (length_weight, hard_weight, own_weight))


def _validated(fitted: Any, rows: Floats, target: Floats, weight: Floats, group: Any) -> Floats:
    """How well each strength of the penalty predicts instructions that it was not fitted on."""
    from sklearn.model_selection import GroupKFold

    found: list[list[float]] = []
    for train, test in GroupKFold(n_splits=FOLDS).split(rows, groups=group):
        drawn = np.random.RandomState(SEED)  # goes on through a fold, as in LogisticRegressionCV
        found.append([])
        for strength in STRENGTHS:
            won = fitted(float(strength), train, drawn).predict_proba(rows[test])[:, 1]
            won = np.clip(won, 1e-15, 1 - 1e-15)
            one = target[test] * np.log(won) + (1 - target[test]) * np.log(1 - won)
            found[-1].append(float(np.mean(one * weight[test])))
    return np.asarray(np.mean(found, axis=0))


def far_apart(raw: float, controlled: float) -> bool:
    """Whether the control moves a win rate (in percent) so far that the fit may have failed."""
    down = min(raw - raw / 4, raw - 10)
    up = max(raw + (100 - raw) / 4, raw + 10)
    return not down <= controlled <= up
