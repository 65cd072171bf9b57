"""Checkpoints that are worse than the best before them by more than noise."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from mtbench_ray.models.naming import run_of, step_of
from mtbench_ray.planning.evaluations import against, answer_settings, grader_settings
from mtbench_ray.reports.comparison import grader_of_row
from mtbench_ray.reports.differences import valued
from mtbench_ray.reports.results import Results
from mtbench_ray.schema import Evaluation, canonical
from mtbench_ray.stats.best import against_reference

_WHICH_MODEL = ("model.path", "model.revision", "model.adapter", "fingerprint")
_ENOUGH = 0.9
"""An earlier checkpoint counts where it has so large a share of the newer one's items."""


@dataclass(frozen=True)
class Fall:
    """A checkpoint's score is lower than the best one before it.

    Attributes:
        row: The checkpoint, judged by one judge.
        best: The best before it, on the items that all of them have.
        low: Of the difference of both: simultaneous over all earlier ones, so that it holds for
            whichever of them came out best.
    """

    row: Evaluation
    best: Evaluation
    score: float
    best_score: float
    low: float
    high: float

    def as_json(self) -> dict[str, Any]:
        """For programs, with a sentence for people as ``text``."""
        gap = self.score - self.best_score
        text = (
            f"{self.row.model} fell to {self.score:.2f} from {self.best_score:.2f} of"
            f" {self.best.model}: {gap:+.2f} (95% interval {self.low:+.2f} to {self.high:+.2f}),"
            f" judge {self.row.judge}"
        )
        return {
            "event": "score_fell",
            "text": text,
            "evaluation_id": self.row.evaluation_id,
            "benchmark": self.row.benchmark,
            "mode": self.row.mode,
            "judge": self.row.judge,
            "run": run_of(self.row.model),
            "model": self.row.model,
            "step": step_of(self.row.model),
            "score": self.score,
            "best": {"model": self.best.model, "step": step_of(self.best.model),
                     "score": self.best_score},
            "difference": gap,
            "ci_low": self.low,
            "ci_high": self.high,
        }  # fmt: skip


def new_falls(
    results: Results, rows: Sequence[Evaluation], every: Sequence[Evaluation]
) -> list[Fall]:
    """Where checkpoints fell; of several low ones in a row the first.

    Args:
        rows: The checkpoints that are asked about.
        every: All evaluations of the workspace.
    """
    asked = {row.evaluation_id for row in rows}
    lines: dict[str, list[Evaluation]] = {}
    for row in every:
        compared = row.judge and against(row) != "all"
        if compared and step_of(row.model) is not None and row.error is None:
            lines.setdefault(_line(row), []).append(row)
    found = []
    for line in lines.values():
        line.sort(key=lambda row: (step_of(row.model) or 0, row.model))
        for place, row in enumerate(line):
            if row.evaluation_id not in asked or not place:
                continue
            now = fall(results, row, line[:place])
            if now and not fall(results, line[place - 1], line[: place - 1]):
                found.append(now)
    return found


def fall(results: Results, row: Evaluation, before: Sequence[Evaluation]) -> Fall | None:
    """Whether a checkpoint is lower than the best of those before it; None where that cannot be
    told."""
    mine = valued(results.items(row))
    items = {one.evaluation_id: valued(results.items(one)) for one in before}
    before = [
        one for one in before
        if mine and len(items[one.evaluation_id].keys() & mine.keys()) >= _ENOUGH * len(mine)
    ]  # fmt: skip
    shared = [key for key in mine if all(key in items[one.evaluation_id] for one in before)]
    if not before or not shared:
        return None
    sign = -1 if results.column(row).lower_is_better else 1
    clusters = [mine[key].slot.group for key in shared]
    values = [[items[one.evaluation_id][key].mean for key in shared] for one in before]
    own = [mine[key].mean for key in shared]
    options = results.options
    half = against_reference(values, own, clusters, options.resamples, options.seed)
    if half is None or not math.isfinite(half):
        return None
    means = [statistics.fmean(one) for one in values]
    best = max(range(len(before)), key=lambda place: sign * means[place])
    gap = statistics.fmean(own) - means[best]
    if sign * gap + half >= 0:
        return None
    return Fall(row, before[best], statistics.fmean(own), means[best], gap - half, gap + half)


def _line(row: Evaluation) -> str:
    """Equal for checkpoints of one run that can be compared."""
    answers = answer_settings(row.answers)
    own = {name: value for name, value in answers.items() if name not in _WHICH_MODEL}
    return canonical(
        [run_of(row.model), grader_of_row(row), grader_settings(row), own, row.data, row.selection]
    )
