"""Means with intervals, paired differences and the parts of a variance. NumPy only.

Rows of one question are not independent (its two turns, repeats of its answers), so the question
is the unit of resampling everywhere here. Functions do not raise on degenerate input: what cannot
be computed is None.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from statistics import NormalDist

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

METHOD = "cluster bootstrap, expanded percentile, 95%"
LEAST_CLUSTERS = 5
"""Fewer say too little of how clusters differ: two equal ones give an interval without width, which
looks certain. Below it there is no interval, no standard error and no p-value."""
SIGN_FLIPS = 9999
"""Random sign flips of a permutation test; where all of them are no more, all are taken."""
_SIGNS_AT_ONCE = 2048
_CONFIDENCE = 0.95
_POWER = 0.8


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


@dataclass(frozen=True, slots=True)
class VarianceParts:
    """Variance of single judgments, split by where it comes from; in squared score units.

    Attributes:
        question: Between questions; None with fewer than two questions.
        answer: Between answers to one question; None without repeated answers.
        judge: Between judgments of one answer; None without repeated judgments.
    """

    question: float | None
    answer: float | None
    judge: float | None


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
    sums, counts = _by_cluster(values, clusters)
    k, n = len(sums), len(values)
    if n == 0 or not np.isfinite(sums).all():
        return Interval(None, None, None, None, "", n, k)
    mean = math.fsum(values) / n
    if k < LEAST_CLUSTERS:
        return Interval(mean, None, None, None, no_interval(k), n, k)
    if resamples < 1:
        return Interval(mean, None, None, _standard_error(sums, counts), "none: resamples=0", n, k)
    weights = _weights(k, resamples, seed)
    means = (weights @ sums) / (weights @ counts)
    tail = NormalDist().cdf(-math.sqrt(k / (k - 1)) * _t_quantile((1 + _CONFIDENCE) / 2, k - 1))
    low, high = np.quantile(means, [tail, 1 - tail])
    # Rounding in the sums must not put the mean outside its own interval.
    return Interval(
        mean,
        min(float(low), mean),
        max(float(high), mean),
        _standard_error(sums, counts),
        METHOD,
        n,
        k,
    )


def no_interval(clusters: int) -> str:
    """Why so few clusters have no interval."""
    return f"none: {clusters} question{'' if clusters == 1 else 's'}, {LEAST_CLUSTERS} are needed"


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
        sums = np.column_stack([_by_cluster(gaps[at], clusters)[0] for at in tested])
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
    return (_t_quantile((1 + _CONFIDENCE) / 2, df) + _t_quantile(power, df)) * se


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


def variance_parts(values: Sequence[Sequence[Sequence[float]]]) -> VarianceParts:
    """Split the variance of judgments into question, answer and judge.

    Moment (ANOVA) estimates of the unbalanced nested random-effects model (Searle, Casella and
    McCulloch 1992, "Variance Components"): question, answers within it, judgments within those.
    A part that has no repeats is None and its variance is then contained in the part above it.
    Negative estimates are 0.

    Args:
        values: ``values[question][answer_sample][judge_sample]``; sizes may differ, empty and
            non-finite entries are left out.
    """
    cells = [
        [row for answer in question if (row := [v for v in answer if math.isfinite(v)])]
        for question in values
    ]
    cells = [question for question in cells if question]
    answers = [np.asarray(answer, dtype=float) for question in cells for answer in question]
    if not answers:
        return VarianceParts(None, None, None)
    owner = np.repeat(np.arange(len(cells)), [len(question) for question in cells])
    n_answer = np.array([len(answer) for answer in answers], dtype=float)
    mean_answer = np.array([answer.mean() for answer in answers])
    n_question = np.bincount(owner, n_answer)
    mean_question = np.bincount(owner, n_answer * mean_answer) / n_question
    n = float(n_answer.sum())
    grand = float((n_answer * mean_answer).sum()) / n

    within_answer = sum(float(((x - x.mean()) ** 2).sum()) for x in answers)
    within_question = float((n_answer * (mean_answer - mean_question[owner]) ** 2).sum())
    between = float((n_question * (mean_question - grand) ** 2).sum())
    # Mean sizes that multiply the parts in the expected mean squares.
    nested = float((n_answer**2 / n_question[owner]).sum())
    pooled = float((n_answer**2).sum()) / n

    df_judge, df_answer, df_question = n - len(answers), len(answers) - len(cells), len(cells) - 1
    judge = within_answer / df_judge if df_judge else None
    answer = None
    if df_answer:
        size = (n - nested) / df_answer
        answer = max(0.0, (within_question / df_answer - (judge or 0.0)) / size)
    question = None
    if df_question:
        size = (n - float((n_question**2).sum()) / n) / df_question
        below = (judge or 0.0) + (nested - pooled) / df_question * (answer or 0.0)
        question = max(0.0, (between / df_question - below) / size)
    return VarianceParts(question, answer, judge)


def _by_cluster(values: Sequence[float], clusters: Sequence[Hashable]) -> tuple[Floats, Floats]:
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


def _standard_error(sums: Floats, counts: Floats) -> float | None:
    k = len(sums)
    if k < 2 or not np.isfinite(sums).all():
        return None
    residuals = sums - sums.sum() / counts.sum() * counts
    return float(math.sqrt(k / (k - 1) * float((residuals**2).sum())) / counts.sum())


@lru_cache(maxsize=16)
def _weights(k: int, resamples: int, seed: int) -> Floats:
    """How often each of ``k`` clusters is drawn, per resample: shape (resamples, k).

    Kept, because all models and parts of a table with as many clusters use the same draws.
    """
    draws = np.random.default_rng(seed).multinomial(k, np.full(k, 1.0 / k), size=resamples)
    return draws.astype(np.float64)


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


def _t_quantile(p: float, df: int) -> float:
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
        critical.append(float(np.quantile(worst, _CONFIDENCE)))
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
    return float(np.quantile(worst, _CONFIDENCE))


def _resampled_errors(
    values: Sequence[Sequence[float]], clusters: Sequence[Hashable], resamples: int, seed: int
) -> tuple[Floats | None, list[float]]:
    """Means of resampled clusters minus the means, widened: shape (resamples, models)."""
    columns = [_by_cluster(one, clusters) for one in values]
    means = [math.fsum(one) / len(one) if len(one) else math.nan for one in values]
    k = len(columns[0][1]) if columns else 0
    if k < LEAST_CLUSTERS or resamples < 1 or not np.isfinite(means).all():
        return None, means
    weights = _weights(k, resamples, seed)
    sums = np.column_stack([sums for sums, _ in columns])
    drawn = (weights @ sums) / (weights @ columns[0][1])[:, None]
    wider = math.sqrt(k / (k - 1)) * _t_quantile(0.975, k - 1) / NormalDist().inv_cdf(0.975)
    errors: Floats = (drawn - np.array(means)) * wider
    return errors, means


ELO = 400 / math.log(10)


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
        np.einsum("rc,cij->rij", _weights(len(order), resamples, seed), won, optimize=True)
    )
    k = len(order)
    tail = NormalDist().cdf(-math.sqrt(k / (k - 1)) * _t_quantile((1 + _CONFIDENCE) / 2, k - 1))
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


def pass_at(passed: Sequence[Sequence[bool]]) -> dict[int, float]:
    """pass@k for k = 1, 2, 4 ... and the number of samples, by the unbiased estimator.

    That is the chance that some of k samples, drawn without putting back, passes; the mean over
    questions.

    Args:
        passed: For each question whether each sample passed; those with fewer samples than the
            others are left out.

    Returns:
        Empty where there is no question.

    >>> pass_at([[True, False], [False, False]])
    {1: 0.25, 2: 0.5}
    """
    count = max(map(len, passed), default=0)
    whole = [samples for samples in passed if len(samples) == count]
    sizes = sorted({*(2**power for power in range(count.bit_length())), count} - {0})
    return {
        k: sum(1 - math.comb(count - sum(samples), k) / math.comb(count, k) for samples in whole)
        / len(whole)
        for k in sizes
        if count
    }
