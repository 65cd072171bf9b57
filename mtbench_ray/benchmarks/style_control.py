"""Style control: a logistic Bradley-Terry fit of models against one baseline, with style beside.

Each battle is a model's answer against the baseline's to a question. How much longer, and how much
more marked up, one of the two is explains a part of who wins; what is left is the model.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from mtbench_ray.endpoint.tokens import estimate_tokens

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

_STEPS = 50
_CONVERGED = 1e-9
_STEPS_ROUGH = 12
_CONVERGED_ROUGH = 1e-4
"""Of a resample, whose strength is but one of many: a hundredth of a point at most."""
_RIDGE = 1e-4
"""Holds a model that wins (or loses) everything at a finite strength; less than 1e-6 else."""

# Line starts and pairs of marks, as the official script counts them.
_HEADER = re.compile(r"^#{1,6}\s", re.MULTILINE)
_ORDERED = re.compile(r"^\s*\d+\.\s", re.MULTILINE)
_UNORDERED = re.compile(r"^\s*[-*+]\s", re.MULTILINE)
_STARS = re.compile(r"\*\*[^*\n]+\*\*")
_UNDERSCORES = re.compile(r"__[^_\n]+__")
_CODE = re.compile(r"```([^`]*)```")


@dataclass(frozen=True, slots=True)
class Style:
    """Counts of one answer.

    Attributes:
        tokens: Estimated, as of all texts here: only ratios of two answers are looked at.
        headers: Of Markdown.
        lists: Items of lists.
        bold: Bold spans.
    """

    tokens: int
    headers: int = 0
    lists: int = 0
    bold: int = 0


def style_of(text: str, tokens: int | None = None) -> Style:
    """The style of an answer; marks inside blocks of code do not count.

    Args:
        tokens: Of the answer, where they were counted.
    """
    prose = text
    for block in _CODE.findall(text):
        prose = prose.replace(block, "")
    return Style(
        estimate_tokens(text) if tokens is None else tokens,
        len(_HEADER.findall(prose)),
        len(_ORDERED.findall(prose)) + len(_UNORDERED.findall(prose)),
        len(_STARS.findall(prose)) + len(_UNDERSCORES.findall(prose)),
    )


def difference(mine: Style, theirs: Style) -> tuple[float, float, float, float]:
    """Of two answers: the relative difference of lengths, and of the density of each mark."""
    total = mine.tokens + theirs.tokens
    found = [(mine.tokens - theirs.tokens) / total if total else 0.0]
    for name in ("headers", "lists", "bold"):
        one = getattr(mine, name) / (mine.tokens + 1)
        two = getattr(theirs, name) / (theirs.tokens + 1)
        found.append((one - two) / (one + two + 1))
    length, headers, lists, bold = found
    return length, headers, lists, bold


@dataclass(frozen=True)
class Battles:
    """Battles of some models with one baseline.

    Attributes:
        model: Which model, by number.
        style: Its four differences, a row each.
        won: 1, 0.5 or 0 for the model.
        weight: How many battles a row stands for.
    """

    model: Ints
    style: Floats
    won: Floats
    weight: Floats

    @property
    def models(self) -> int:
        """How many there are."""
        return int(self.model.max()) + 1 if len(self.model) else 0


def standardised(battles: Battles) -> Floats:
    """The differences with mean 0 and variance 1 over all battles; one that never varies is 0."""
    weight = battles.weight
    total = weight.sum()
    mean = weight @ battles.style / total
    centred = battles.style - mean
    spread = np.sqrt(weight @ centred**2 / max(total - 1, 1))
    return np.asarray(np.divide(centred, spread, out=np.zeros_like(centred), where=spread > 1e-12))


@dataclass(frozen=True)
class Strengths:
    """What a fit found.

    Attributes:
        models: Log-odds of each model against the baseline at equal style.
        style: Log-odds of a standard deviation of each difference.
    """

    models: Floats
    style: Floats

    @property
    def win_rates(self) -> Floats:
        """Of each model against the baseline at equal style, in [0, 1]."""
        return np.asarray(1 / (1 + np.exp(-self.models)))


def converged(
    battles: Battles, style: Floats, weight: Floats | None = None, start: Strengths | None = None
) -> Strengths:
    """The maximum-likelihood fit, by Newton's method.

    The matrix has a diagonal block for the models, so that a step costs little for any number of
    them.

    Args:
        style: Of :func:`standardised`.
        weight: Instead of the battles' own: of a resample.
        start: A fit to begin from; the new one is then found roughly.
    """
    steps, enough = (_STEPS_ROUGH, _CONVERGED_ROUGH) if start else (_STEPS, _CONVERGED)
    count, index = battles.models, battles.model
    weight = battles.weight if weight is None else weight
    own = start.models.copy() if start else np.zeros(count)
    beta = start.style.copy() if start else np.zeros(style.shape[1])

    def by_model(values: Floats) -> Floats:
        return np.asarray(np.bincount(index, values, minlength=count), float)

    for _ in range(steps):
        chance = 1 / (1 + np.exp(-(own[index] + style @ beta)))
        pull = weight * (battles.won - chance)
        curve = weight * chance * (1 - chance)
        diagonal = by_model(curve) + _RIDGE
        cross = np.column_stack([by_model(curve * column) for column in style.T])
        block = style.T @ (curve[:, None] * style) + _RIDGE * np.eye(style.shape[1])
        down_own = by_model(pull) - _RIDGE * own
        down_beta = style.T @ pull - _RIDGE * beta
        # Schur complement of the diagonal block.
        ratio = cross / diagonal[:, None]
        step_beta = np.linalg.solve(block - cross.T @ ratio, down_beta - ratio.T @ down_own)
        step_own = (down_own - cross @ step_beta) / diagonal
        largest = max(np.abs(step_own).max(initial=0.0), np.abs(step_beta).max(initial=0.0))
        scale = min(1.0, 2.0 / largest) if largest else 1.0
        own, beta = own + scale * step_own, beta + scale * step_beta
        if largest < enough:
            break
    return Strengths(own, beta)


def early_stopped(battles: Battles, style: Floats, weight: Floats | None = None) -> Strengths:
    """The official script's fit, which ends before it has converged.

    As ``torch.optim.LBFGS`` does it with a learning rate of 0.1 and 50 iterations, without a line
    search: every coefficient starts at 0.5, the baseline's among them.
    """
    count, index = battles.models, battles.model
    weight = battles.weight if weight is None else weight

    def slope(x: Floats) -> tuple[float, Floats]:
        logit = x[index] - x[count] + style @ x[count + 1 :]
        chance = 1 / (1 + np.exp(-logit))
        loss = weight @ (np.logaddexp(0, logit) - battles.won * logit)
        push = weight * (chance - battles.won)
        own = np.bincount(index, push, minlength=count)
        return float(loss), np.concatenate([own, [-push.sum()], style.T @ push])

    x = _lbfgs(slope, np.full(count + 1 + style.shape[1], 0.5))
    return Strengths(x[:count] - x[count], x[count + 1 :])


def _lbfgs(
    slope: Callable[[Floats], tuple[float, Floats]], x: Floats, rate: float = 0.1, most: int = 50
) -> Floats:
    """Plain L-BFGS with a fixed step."""
    tolerance = 1e-9
    loss, gradient = slope(x)
    history: list[tuple[Floats, Floats, float]] = []
    scale, evaluations = 1.0, 1
    direction, before, step = -gradient, gradient, 0.0
    for iteration in range(1, most + 1):
        if iteration == 1:
            direction = -gradient
            step = min(1.0, 1.0 / float(np.abs(gradient).sum())) * rate
        else:
            change, moved = gradient - before, direction * step
            curvature = float(change @ moved)
            if curvature > 1e-10:
                history.append((moved, change, 1.0 / curvature))
                scale = curvature / float(change @ change)
            direction = _two_loops(-gradient, history, scale)
            step = rate
        before, last = gradient, loss
        if float(gradient @ direction) > -tolerance:
            break
        x = x + step * direction
        if iteration == most:
            break
        loss, gradient = slope(x)
        evaluations += 1
        still = float(np.abs(direction * step).max()) <= tolerance
        if (
            evaluations >= most * 5 // 4
            or float(np.abs(gradient).max()) <= tolerance
            or still
            or abs(loss - last) < tolerance
        ):
            break
    return x


def _two_loops(
    pull: Floats, history: Sequence[tuple[Floats, Floats, float]], scale: float
) -> Floats:
    """The direction that the remembered steps and slopes make of a gradient."""
    shares = []
    for moved, change, inverse in reversed(history):
        share = float(moved @ pull) * inverse
        shares.append(share)
        pull = pull - share * change
    found = pull * scale
    for (moved, change, inverse), share in zip(history, reversed(shares), strict=True):
        found = found + moved * (share - float(change @ found) * inverse)
    return found
