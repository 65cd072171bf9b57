"""Paired differences of models under one grader: how large, how sure, and what could be found.

Values are compared item by item (an item is a question's part that has a value of its own), and
whole questions are resampled.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

from mtbench_ray.judges.base import Item, ScoreOptions
from mtbench_ray.schema import Slot
from mtbench_ray.stats.paired import (
    SIGN_FLIPS,
    Difference,
    detectable,
    holm,
    paired_difference,
    paired_differences,
)

LEVEL = 0.05
"""A difference is called one where p is below this and the 95% interval leaves out 0."""
GATES = ("not worse", "worse", "cannot tell")


@dataclass(frozen=True)
class Valued:
    """An item's values of one model: its repeats.

    Attributes:
        slot: Of the first of them.
    """

    slot: Slot
    values: tuple[float, ...]

    @property
    def mean(self) -> float:
        """Over the repeats."""
        return statistics.fmean(self.values)


@dataclass(frozen=True)
class Pair:
    """One item with its values for both models."""

    a: Valued
    b: Valued

    @property
    def difference(self) -> float:
        """Of the means over repeats."""
        return self.a.mean - self.b.mean


def valued(items: Iterable[Item]) -> dict[Hashable, Valued]:
    """The items that have a value, by what was judged; repeats together."""
    found: dict[Hashable, list[Item]] = {}
    for item in items:
        if item.value is not None:
            slot = item.slot
            found.setdefault((slot.question_id, slot.turn, slot.criterion), []).append(item)
    return {
        key: Valued(same[0].slot, tuple(one.value for one in same if one.value is not None))
        for key, same in found.items()
    }


def paired(a: Mapping[Hashable, Valued], b: Mapping[Hashable, Valued]) -> list[Pair]:
    """The items that both have a value for, in the order of the first."""
    return [Pair(one, b[key]) for key, one in a.items() if key in b]


def difference(pairs: Sequence[Pair], options: ScoreOptions) -> dict[str, Any]:
    """Mean difference with interval, p-value and the smallest one that could be found."""
    found = paired_difference(
        [pair.a.mean for pair in pairs],
        [pair.b.mean for pair in pairs],
        [pair.a.slot.group for pair in pairs],
        resamples=options.resamples,
        seed=options.seed,
    )
    return _json(found)


def _json(found: Difference) -> dict[str, Any]:
    return {
        "mean": found.mean,
        "ci_low": found.low,
        "ci_high": found.high,
        "ci_method": found.method,
        "p_value": found.p_value,
        "detectable": detectable(found.se, found.clusters),
        "n_questions": found.clusters,
        "n_turns": found.n,
    }


def by_part(
    pairs: Sequence[Pair], parts: Sequence[str], part: Callable[[Slot], str], options: ScoreOptions
) -> dict[str, Any]:
    """The differences of the parts of a dimension; ``p_holm`` is corrected for their number."""
    found = {
        name: difference([pair for pair in pairs if part(pair.a.slot) == name], options)
        for name in parts
    }
    corrected = holm([one["p_value"] for one in found.values()])
    return {
        name: one | {"p_holm": p} for (name, one), p in zip(found.items(), corrected, strict=True)
    }


def needed(pairs: Sequence[Pair], total: Mapping[str, Any], wanted: float) -> dict[str, Any]:
    """What would detect a difference of ``wanted`` with 80% power at 5%.

    The variance of the mean difference is that between questions plus that of repeats, which more
    repeats make smaller. How much is which can only be seen where both models have repeats.

    Returns:
        ``difference``; ``questions``, of this kind and with as many repeats as there are;
        ``samples``, answers to each of these questions: null where no number of them is enough;
        ``samples_known``: false where nothing is repeated, and ``samples`` then is the least that
        it could be, were all of the spread that of repeats.
    """
    least, questions = total["detectable"], total["n_questions"]
    if not least or wanted <= 0:
        enough = least is not None and wanted > 0
        return {"difference": wanted, "questions": questions if enough else None,
                "samples": 1 if enough else None, "samples_known": enough}  # fmt: skip
    ratio = (least / wanted) ** 2
    repeats = statistics.fmean(min(len(pair.a.values), len(pair.b.values)) for pair in pairs)
    noise = _noise(pairs)
    if noise is None:
        samples: int | None = max(1, math.ceil(ratio - 1e-9))
    else:
        total_variance = _variance(pairs)
        share = min(1.0, noise / total_variance) if total_variance else 0.0
        # least**2 * ((1 - share) + share / more) <= wanted**2
        room = 1 / ratio - (1 - share)
        more = share / room if room > 0 else math.inf
        samples = max(1, math.ceil(repeats * more - 1e-9)) if math.isfinite(more) else None
    return {
        "difference": wanted,
        "questions": max(1, math.ceil(questions * ratio - 1e-9)),
        "samples": samples,
        "samples_known": noise is not None,
    }


def _variance(pairs: Sequence[Pair]) -> float:
    """Squared standard error of the mean difference, clustered by question."""
    sums: dict[str, list[float]] = {}
    for pair in pairs:
        sums.setdefault(pair.a.slot.group, []).append(pair.difference)
    mean = statistics.fmean(pair.difference for pair in pairs)
    k = len(sums)
    squares = math.fsum((math.fsum(own) - len(own) * mean) ** 2 for own in sums.values())
    return k / (k - 1) * squares / len(pairs) ** 2


def _noise(pairs: Sequence[Pair]) -> float | None:
    """The part of that which is of repeats; None without repeats on either side."""
    parts: list[float] = []
    for cells in ([pair.a.values for pair in pairs], [pair.b.values for pair in pairs]):
        repeated = [cell for cell in cells if len(cell) > 1]
        degrees = sum(len(cell) - 1 for cell in repeated)
        if not degrees:
            return None
        single = sum(statistics.variance(cell) * (len(cell) - 1) for cell in repeated) / degrees
        parts.append(single * math.fsum(1 / len(cell) for cell in cells))
    return sum(parts) / len(pairs) ** 2


def gate(total: Mapping[str, Any], margin: float, lower_is_better: bool = False) -> str:
    """Whether the first model is worse than the second by ``margin`` or more, one of ``GATES``.

    Decided by the 95% interval of the difference: all of it above ``-margin``, all of it at or
    below that, or neither (and where there is no interval).
    """
    low, high = total["ci_low"], total["ci_high"]
    if low is None:
        return "cannot tell"
    if lower_is_better:
        low, high = -high, -low
    if low > -margin:
        return "not worse"
    return "worse" if high <= -margin else "cannot tell"


@dataclass(frozen=True)
class Ranking:
    """Several models under one grader.

    Attributes:
        models: Name, mean over the items that all of them have, and how many; best first.
        pairs: For each two of them, the better one first: ``a``, ``b``, their difference, and
            ``p_holm``, corrected for the number of pairs.
        with_best: The best model and those that it cannot be told from.
    """

    models: list[dict[str, Any]]
    pairs: list[dict[str, Any]]
    with_best: list[str]


def ranking(
    models: Mapping[str, Mapping[Hashable, Valued]],
    options: ScoreOptions,
    lower_is_better: bool = False,
) -> Ranking:
    """Compare all models with each other on the items that all of them have.

    Random sign flips are as many as the smallest p-value times the number of pairs needs to stay
    below the level.
    """
    shared = [
        key
        for key in next(iter(models.values()))
        if all(key in values for values in models.values())
    ]
    rows = {name: [values[key].mean for key in shared] for name, values in models.items()}
    means = {name: statistics.fmean(mine) if mine else None for name, mine in rows.items()}
    sign = 1 if lower_is_better else -1
    order = sorted(
        models, key=lambda name: -math.inf if means[name] is None else sign * (means[name] or 0)
    )
    count = len(order) * (len(order) - 1) // 2
    flips = max(SIGN_FLIPS, 100 * count)
    places = list(combinations(order, 2))
    found = paired_differences(
        [[x - y for x, y in zip(rows[a], rows[b], strict=True)] for a, b in places],
        [models[order[0]][key].slot.group for key in shared],
        resamples=options.resamples,
        seed=options.seed,
        flips=flips,
    )
    pairs = [{"a": a, "b": b} | _json(one) for (a, b), one in zip(places, found, strict=True)]
    for pair, p in zip(pairs, holm([pair["p_value"] for pair in pairs]), strict=True):
        pair["p_holm"] = p
    best = order[0]
    apart = {pair["b"] for pair in pairs if pair["a"] == best and told_apart(pair)}
    return Ranking(
        models=[{"model": name, "mean": means[name], "n_turns": len(shared)} for name in order],
        pairs=pairs,
        with_best=[name for name in order if name not in apart],
    )


def told_apart(pair: Mapping[str, Any]) -> bool:
    """Whether a corrected difference is called one."""
    return pair["p_holm"] is not None and pair["p_holm"] < LEVEL


def flips(pairs: Iterable[Pair], most: int) -> list[Pair]:
    """The items whose values differ most, those in favour of either side."""
    apart = [pair for pair in pairs if pair.difference]
    return sorted(apart, key=lambda pair: -abs(pair.difference))[:most]
