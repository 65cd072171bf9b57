"""Scores that are means over items, with their coverage; shared by graders."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import replace

from mtbench_ray.judges.base import Item, ScoreOptions, value_of
from mtbench_ray.schema import Outcome, Score, Slot
from mtbench_ray.stats.means import Interval, clustered_mean, mean_of_means

Part = Callable[[Slot], str]
"""The part of a dimension that an item belongs to."""


def judge_label(outcomes: Sequence[Outcome], options: ScoreOptions) -> str:
    """The judge's label: as given, else of the first judgment."""
    return options.judge or next((one.judgment.judge for one in outcomes if one.judgment), "")


def joined_items(
    outcomes: Sequence[Outcome],
    unit: Callable[[Slot], Hashable],
    join: Callable[[Sequence[tuple[float, float]]], float | None],
    part: str = "",
) -> list[Item]:
    """One item for the verdicts of each unit, which has a value only where all of them have one.

    What some of them come to would be another figure: a mean over other criteria, a minimum that is
    too high. The reason of such an item is that of the first verdict that is not there.

    Args:
        unit: Equal for the verdicts that belong together, of one model.
        join: The item's value from its values with their weights; None where the unit has no item.
        part: What of an answer the items are of: their criterion.
    """
    groups: dict[Hashable, list[Outcome]] = {}
    for one in outcomes:
        groups.setdefault((one.slot.model, unit(one.slot)), []).append(one)
    items = []
    for group in groups.values():
        slot = replace(group[0].slot, criterion=part, weight=1.0)
        pairs = [(value_of(one), one.slot.weight) for one in group]
        reason = next((one.reason or "unparsed" for one in group if value_of(one) is None), "")
        value = join([(0.0 if value is None else value, weight) for value, weight in pairs])
        if value is not None:
            items.append(Item(slot, None if reason else value, reason))
    return items


def of_answer(slot: Slot) -> Hashable:
    """Equal for the verdicts on one turn of an answer, or of a match."""
    return slot.answer_ids, slot.question_id, slot.turn, slot.order, slot.judge_sample


def of_group(slot: Slot) -> Hashable:
    """Equal for the verdicts on one sample of a group of questions, such as a dialogue's."""
    return slot.group, slot.sample, slot.judge_sample


def weighted(values: Sequence[tuple[float, float]]) -> float | None:
    """The sum by weights over what can be had at most: the sum of the positive weights.

    With weights that are all positive that is the mean. None where none is.
    """
    total = math.fsum(weight for _, weight in values if weight > 0)
    return math.fsum(value * weight for value, weight in values) / total if total else None


def least(values: Sequence[tuple[float, float]]) -> float:
    """The smallest."""
    return min(value for value, _ in values)


def weighted_items(outcomes: Sequence[Outcome]) -> list[Item]:
    """One item for each turn of an answer: the mean over its verdicts by their weights."""
    return joined_items(outcomes, of_answer, weighted)


def mean_scores(
    mode: str,
    metric: str,
    items: Sequence[Item],
    dimensions: Mapping[str, Part],
    options: ScoreOptions,
    judge: str,
) -> list[Score]:
    """Means of each model: over all its items, then by the parts of each dimension.

    Parts come in order of appearance. The interval is clustered by group, so that repeats of an
    answer or of a judgment do not pass for independent evidence.

    Args:
        mode: The grader's name.
        dimensions: By name, beside ``all``.
    """
    models: dict[str, list[Item]] = {}
    for item in items:
        models.setdefault(item.slot.model, []).append(item)
    scores = []
    for model, mine in models.items():
        parts: dict[tuple[str, str], list[Item]] = {("all", ""): mine}
        for dimension, part in dimensions.items():
            for item in mine:
                parts.setdefault((dimension, part(item.slot)), []).append(item)
        scores += [
            mean_score(model, judge, mode, metric, dimension, name, some, options)
            for (dimension, name), some in parts.items()
        ]
    return scores


def mean_score(
    model: str,
    judge: str,
    mode: str,
    metric: str,
    dimension: str,
    name: str,
    items: Sequence[Item],
    options: ScoreOptions,
) -> Score:
    """The mean of some items."""
    values, groups = _valid(items)
    found = clustered_mean(values, groups, resamples=options.resamples, seed=options.seed)
    return _score(model, judge, mode, metric, dimension, name, items, found)


def mean_of_parts(
    model: str,
    judge: str,
    mode: str,
    metric: str,
    items: Sequence[Item],
    part: Part,
    options: ScoreOptions,
) -> Score:
    """The plain mean of the means of the parts of some items."""
    parts: dict[str, list[Item]] = {}
    for item in items:
        parts.setdefault(part(item.slot), []).append(item)
    valid = {name: _valid(mine) for name, mine in parts.items()}
    found = mean_of_means(valid, resamples=options.resamples, seed=options.seed)
    return _score(model, judge, mode, metric, "all", "", items, found)


def _valid(items: Sequence[Item]) -> tuple[list[float], list[str]]:
    """The values that are there, and their groups."""
    valid = [(item.value, item.slot.group) for item in items if item.value is not None]
    return [value for value, _ in valid], [group for _, group in valid]


def _score(
    model: str,
    judge: str,
    mode: str,
    metric: str,
    dimension: str,
    name: str,
    items: Sequence[Item],
    found: Interval,
) -> Score:
    failed = Counter(item.reason or "unparsed" for item in items if item.value is None)
    return Score(
        model=model,
        judge=judge,
        mode=mode,
        metric=metric,
        dimension=dimension,
        name=name,
        planned=len(items),
        scored=len(items) - failed.total(),
        failed=json.dumps(dict(sorted(failed.items()))),
        mean=found.mean,
        ci_low=found.low,
        ci_high=found.high,
        method=found.method,
    )


def tag_value(tags: Iterable[str], kind: str) -> str:
    """What a question's tag of a kind says (``theme:hedging``: hedging); empty without one."""
    return next((tag.partition(":")[2] for tag in tags if tag.startswith(f"{kind}:")), "")
