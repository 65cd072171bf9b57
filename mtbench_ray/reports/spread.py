"""``summary_agg.json``: mean@N of every model, and where the spread of its verdicts comes from.

Definitions, for one model under one judge with N answer samples and M judge samples:

- ``mean``: over all scored verdicts, pooled; the average of ``summary.json``. A row judged 8, 9, 8
  counts as its mean, 8.33.
- ``std``: standard deviation of single verdicts around that mean (n - 1).
- ``sem``: standard error of the mean, clustered by question: what another set of questions of this
  kind would change. ``ci_low``, ``ci_high``: the 95% interval, bootstrap over questions.
- ``parts``: standard deviations; their squares are the parts of the variance of one verdict.
  ``question`` is between turns of questions, ``answer`` between samples of an answer, ``judge``
  between judgments of one answer (see :func:`mtbench_ray.stats.variance.variance_parts`). A part
  without repeats is null and then lies in the part before it.
- ``per_sample``, ``per_judge_sample``: the mean of each answer sample and of each judge sample;
  null where nothing of it is scored.
- ``repeat_std``: standard deviation of the averages of repeats: how far the average moves when the
  same checkpoint is answered and judged again, or with N = 1 only judged again. Over turns that
  every repeat has a verdict on. Null where nothing is repeated.
- ``pass_at``: pass@k by k, where a value is 1 or 0; see :func:`mtbench_ray.stats.pass_at.pass_at`.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from typing import Any

from mtbench_ray.judges.base import Grader, Item, ScoreOptions
from mtbench_ray.planning.evaluations import distinguishing_settings
from mtbench_ray.reports.results import Results, judged_alone
from mtbench_ray.schema import Evaluation, Slot
from mtbench_ray.stats.means import clustered_mean
from mtbench_ray.stats.pass_at import pass_at
from mtbench_ray.stats.variance import variance_parts

NOTE = (
    "spread: std is over single verdicts, sem clustered by question; the parts are standard"
    " deviations of one verdict; repeats: standard deviation of the repeated averages"
)


def aggregate(results: Results, evaluations: Iterable[Evaluation]) -> dict[str, Any]:
    """The content of ``summary_agg.json``; see the head of this module for its figures.

    Args:
        evaluations: Those that compare a model with others have no mean and are left out.
    """
    rows = list(evaluations)
    settings = distinguishing_settings(rows)
    return {
        "schema": 1,
        "results": [
            {"id": row.evaluation_id, "settings": settings[row.evaluation_id]}
            | spread(row, results.items(row), results.options)
            | _passes(results.grader(row), results.items(row))
            for row in judged_alone(rows)
        ],
    }


def spread(row: Evaluation, items: Sequence[Item], options: ScoreOptions) -> dict[str, Any]:
    """The figures of one evaluation, with their coverage."""
    found = [(item.slot, item.value) for item in items if item.value is not None]
    values = [value for _, value in found]
    interval = clustered_mean(
        values,
        [slot.group for slot, _ in found],
        resamples=options.resamples,
        seed=options.seed,
    )
    cells: dict[Hashable, dict[int, list[float]]] = {}
    for slot, value in found:
        cell = cells.setdefault(_unit(slot), {})
        cell.setdefault(slot.sample, []).append(value)
    parts = variance_parts([list(cell.values()) for cell in cells.values()])
    samples = sorted({item.slot.sample for item in items})
    judge_samples = sorted({item.slot.judge_sample for item in items})
    by_sample = _means((slot.sample, value) for slot, value in found)
    by_judge_sample = _means((slot.judge_sample, value) for slot, value in found)
    return {
        "model": row.model,
        "judge": row.judge,
        "mean": interval.mean,
        "std": statistics.stdev(values) if len(values) > 1 else None,
        "sem": interval.se,
        "ci_low": interval.low,
        "ci_high": interval.high,
        "ci_method": interval.method,
        "n_questions": interval.clusters,
        "samples": len(samples),
        "judge_samples": len(judge_samples),
        "parts": {
            name: None if part is None else math.sqrt(part)
            for name, part in (
                ("question", parts.question),
                ("answer", parts.answer),
                ("judge", parts.judge),
            )
        },
        "per_sample": [by_sample.get(sample) for sample in samples],
        "per_judge_sample": [by_judge_sample.get(sample) for sample in judge_samples],
        "repeat_std": _repeat_std(found, samples, judge_samples),
        "planned": len(items),
        "scored": len(values),
        "failed": dict(sorted(Counter(item.reason for item in items if item.reason).items())),
    }


def _passes(grader: Grader, items: Sequence[Item]) -> dict[str, Any]:
    """pass@k, where the grader says yes or no."""
    if not grader.binary:
        return {}
    by_question: dict[Hashable, list[bool]] = {}
    for item in items:
        if item.value is not None:
            by_question.setdefault(_unit(item.slot), []).append(item.value == 1.0)
    return {"pass_at": {str(k): rate for k, rate in pass_at(list(by_question.values())).items()}}


def is_repeated(row: Evaluation) -> bool:
    """Whether an evaluation repeats answers or judgments: only then it is worth a table."""
    return row.judge_samples > 1 or any(unit.sample for unit in row.answers.units)


def _repeat_std(
    found: Iterable[tuple[Slot, float]], samples: Sequence[int], judge_samples: Sequence[int]
) -> float | None:
    units: dict[Hashable, dict[tuple[int, int], float]] = {}
    for slot, value in found:
        item = units.setdefault(_unit(slot), {})
        item[slot.sample, slot.judge_sample] = value
    whole = [item for item in units.values() if len(item) == len(samples) * len(judge_samples)]
    if not whole or max(len(samples), len(judge_samples)) < 2:
        return None
    means = [
        [statistics.fmean(item[sample, judged] for item in whole) for sample in samples]
        for judged in judge_samples
    ]
    # Judgments of one answer share it: only repeats with answers of their own are independent.
    apart = means if len(samples) > 1 else [[mean for (mean,) in means]]
    return math.sqrt(statistics.fmean(map(statistics.variance, apart)))


def _unit(slot: Slot) -> Hashable:
    """What is repeated."""
    return slot.question_id, slot.turn, slot.criterion


def _means(rows: Iterable[tuple[Hashable, float]]) -> dict[Hashable, float]:
    """Mean by key."""
    groups: dict[Hashable, list[float]] = {}
    for key, value in rows:
        groups.setdefault(key, []).append(value)
    return {key: math.fsum(values) / len(values) for key, values in groups.items()}
