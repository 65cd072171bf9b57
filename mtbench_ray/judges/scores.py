"""Scores that are means over items, with their coverage; shared by graders."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import replace

from mtbench_ray.judges.base import Item, ScoreOptions, value_of
from mtbench_ray.schema import Outcome, Score, Slot
from mtbench_ray.stats.means import clustered_mean

Part = Callable[[Slot], str]
"""The part of a dimension that an item belongs to."""


def judge_label(outcomes: Sequence[Outcome], options: ScoreOptions) -> str:
    """The judge's label: as given, else of the first judgment."""
    return options.judge or next((one.judgment.judge for one in outcomes if one.judgment), "")


def weighted_items(outcomes: Sequence[Outcome]) -> list[Item]:
    """One item for each turn of an answer: the mean over its verdicts by their weights.

    An item is scored only where all its verdicts are: a mean over some of them would be another
    figure.
    """
    groups: dict[Hashable, list[Outcome]] = {}
    for one in outcomes:
        slot = one.slot
        key = (slot.model, slot.answer_ids, slot.question_id, slot.turn, slot.order,
               slot.judge_sample)  # fmt: skip
        groups.setdefault(key, []).append(one)
    items = []
    for group in groups.values():
        slot = replace(group[0].slot, criterion="", weight=1.0)
        values = [(value_of(one), one.slot.weight) for one in group]
        total = math.fsum(weight for _, weight in values)
        reason = next((one.reason or "unparsed" for one in group if value_of(one) is None), "")
        mean = None if reason else math.fsum((v or 0.0) * w for v, w in values) / total
        items.append(Item(slot, mean, reason))
    return items


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
    valid = [(item.value, item.slot.group) for item in items if item.value is not None]
    failed = Counter(item.reason or "unparsed" for item in items if item.value is None)
    interval = clustered_mean(
        [value for value, _ in valid],
        [group for _, group in valid],
        resamples=options.resamples,
        seed=options.seed,
    )
    return Score(
        model=model,
        judge=judge,
        mode=mode,
        metric=metric,
        dimension=dimension,
        name=name,
        planned=len(items),
        scored=len(valid),
        failed=json.dumps(dict(sorted(failed.items()))),
        mean=interval.mean,
        ci_low=interval.low,
        ci_high=interval.high,
        method=interval.method,
    )
