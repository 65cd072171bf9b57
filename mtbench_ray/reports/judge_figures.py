"""Figures of judges: how far they agree, and what sways them. Pure functions."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any

from mtbench_ray.judges.agreement import Rated, value_agreement
from mtbench_ray.judges.base import Item
from mtbench_ray.judges.matches import Match
from mtbench_ray.models.families import family_of
from mtbench_ray.schema import Outcome, Slot
from mtbench_ray.stats.correlation import rank_correlation
from mtbench_ray.stats.strengths import bradley_terry

Values = Mapping[Hashable, Rated]
Parts = Mapping[str, Callable[[Slot], str]]


def two_judges(
    names: tuple[str, str],
    values: tuple[Values, Values],
    slots: Mapping[Hashable, Slot],
    parts: Parts,
    most: int,
) -> dict[str, Any] | None:
    """How two judges differ on the answers that both judged; None where there are none.

    Args:
        slots: What each key of the values is about.
        parts: Ways to split the answers, by name.
        most: Disagreements that are listed.

    Returns:
        A JSON-able object: ``all`` and ``parts`` with ``n``, ``exact``, ``pearson``, ``spearman``
        and ``mean_difference``; ``models``, the rank correlation of the models' means; the
        ``confusion`` (first judge's value, second's, count); and the largest ``disagreements``.
    """
    shared = [key for key in values[0] if key in values[1]]
    whole = _agree(values, shared)
    if not whole["n"]:
        return None
    split: dict[str, dict[str, Any]] = {}
    for name, part in parts.items():
        by_part: dict[str, list[Hashable]] = {}
        for key in shared:
            by_part.setdefault(part(slots[key]), []).append(key)
        split[name] = {one: _agree(values, keys) for one, keys in by_part.items()}
    models: dict[str, list[Hashable]] = {}
    for key in shared:
        models.setdefault(slots[key].model, []).append(key)
    means = [
        [statistics.fmean(side[key].value for key in keys) for keys in models.values()]
        for side in values
    ]
    pairs = [(key, values[0][key].value, values[1][key].value) for key in shared]
    counted = Counter((one, other) for _, one, other in pairs)
    apart = sorted(
        (pair for pair in pairs if pair[1] != pair[2]), key=lambda pair: -abs(pair[1] - pair[2])
    )
    return {
        "judges": list(names),
        "all": whole,
        "parts": split,
        "models": {"n": len(models), "spearman": rank_correlation(*means)},
        "confusion": [[one, other, count] for (one, other), count in sorted(counted.items())],
        "disagreements": [
            {
                "model": slots[key].model,
                "question_id": slots[key].question_id,
                "turn": slots[key].turn,
                "criterion": slots[key].criterion,
                "values": [one, other],
            }
            for key, one, other in apart[:most]
        ],
    }


def _agree(values: tuple[Values, Values], keys: Sequence[Hashable]) -> dict[str, Any]:
    found = value_agreement(*({key: side[key] for key in keys} for side in values))
    return {
        "n": found.n,
        "exact": found.exact,
        "pearson": found.pearson,
        "spearman": found.spearman,
        "mean_difference": found.mean_difference,
    }


def game_figures(
    outcomes: Iterable[Outcome],
    played: Iterable[Match],
    value: Callable[[Outcome], float | None],
    scale: tuple[float, float],
) -> dict[str, Any]:
    """What a judge's games say of itself.

    Args:
        outcomes: Games.
        played: Their matches.
        value: Of a game, for its model.
        scale: Of the values.

    Returns:
        ``games``; of those that are no tie ``first_shown``, the share won by the answer that was
        shown first (0.5 is no bias); ``ties``, the share of games; ``matches`` with both games and
        ``inconsistent``, the share of them in which the order changed the verdict.
    """
    middle = sum(scale) / 2
    firsts = []
    for outcome in outcomes:
        found = value(outcome)
        if found is not None:
            firsts.append(found if outcome.slot.order == 1 else sum(scale) - found)
    decided = [first > middle for first in firsts if first != middle]
    whole = [match.inconsistent for match in played if match.value is not None]
    return {
        "games": len(firsts),
        "first_shown": statistics.fmean(decided) if decided else None,
        "ties": 1 - len(decided) / len(firsts) if firsts else None,
        "matches": len(whole),
        "inconsistent": statistics.fmean(whole) if whole else None,
    }


def length_figures(points: Mapping[str, Sequence[tuple[float, float]]]) -> dict[str, Any]:
    """Correlation of score with answer length.

    Args:
        points: By model: length and value of each answer.

    Returns:
        ``n``; ``spearman`` over all answers; ``within``: the mean of that of each model, in which
        longer answers of better models do not count; null where nothing varies.
    """
    every = [point for mine in points.values() for point in mine]
    within = [
        rho
        for mine in points.values()
        if len(mine) > 2 and (rho := rank_correlation(*zip(*mine, strict=True))) is not None
    ]
    return {
        "n": len(every),
        "spearman": rank_correlation(*zip(*every, strict=True)) if every else None,
        "within": statistics.fmean(within) if within else None,
    }


def self_preference(
    judge: str, name: str, values: Mapping[str, Values], slots: Mapping[Hashable, Slot]
) -> dict[str, Any] | None:
    """How much more a judge favours models of its own family than other judges do.

    On answers that it and at least one judge of another family judged: its value minus the mean of
    theirs, for models of its family minus for the others.

    Args:
        judge: Its key among ``values``.
        name: The judge's model, which tells its family.
        values: By judge; a judge's key begins with its model's name.

    Returns:
        ``family``, ``own`` and ``others`` (answers), ``difference``; None where there is no family,
        no other judge, or no model of either kind.
    """
    family = family_of(name)
    theirs = {
        key: side for key, side in values.items() if key != judge and family_of(key) != family
    }
    if family is None or not theirs:
        return None
    gaps: dict[bool, list[float]] = {True: [], False: []}
    for key, rated in values[judge].items():
        others = [side[key].value for side in theirs.values() if key in side]
        if others:
            own = family_of(slots[key].model) == family
            gaps[own].append(rated.value - statistics.fmean(others))
    if not gaps[True] or not gaps[False]:
        return None
    return {
        "family": family,
        "own": len(gaps[True]),
        "others": len(gaps[False]),
        "difference": statistics.fmean(gaps[True]) - statistics.fmean(gaps[False]),
    }


def strengths(
    items: Sequence[Item], scale: tuple[float, float], resamples: int, seed: int
) -> list[dict[str, Any]]:
    """Bradley-Terry strengths of models from their matches, the best first.

    Args:
        items: Matches, told from both sides; each counts once.
    """
    names = list(dict.fromkeys(item.slot.model for item in items))
    place = {name: at for at, name in enumerate(names)}
    low, high = scale
    games = [
        (
            place[item.slot.model],
            place[item.slot.opponent],
            (item.value - low) / (high - low),
            item.slot.group,
        )
        for item in items
        if item.value is not None
        and item.slot.opponent in place
        and place[item.slot.model] < place[item.slot.opponent]
    ]
    if not games:
        return []
    found = bradley_terry(games, len(names), resamples, seed)
    lines = [
        {"model": name, "strength": one.value, "ci_low": one.low, "ci_high": one.high}
        for name, one in zip(names, found, strict=True)
    ]
    return sorted(lines, key=lambda line: -float(str(line["strength"])))


def values_with_slots(
    items: Iterable[Item],
) -> dict[Hashable, Slot]:
    """What each key of :func:`mtbench_ray.judges.agreement.values_of` is about."""
    return {
        (item.slot.model, item.slot.question_id, item.slot.turn, item.slot.criterion,
         item.slot.sample): item.slot
        for item in items
    }  # fmt: skip
