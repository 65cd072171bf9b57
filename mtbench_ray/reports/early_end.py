"""Comparisons of models whose judging ended early: what of them is valid at any time."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from mtbench_ray.judges.race import said
from mtbench_ray.reports.compare_text import short_names
from mtbench_ray.reports.comparison import verdict
from mtbench_ray.reports.results import Results
from mtbench_ray.schema import Evaluation


def early_notes(rows: Iterable[Evaluation], results: Results) -> list[str]:
    """What came of the races of these models, whose figures here are not made for an early end."""
    races = [race for row in rows if (race := results.races.get(row.evaluation_id))]
    notes = list(dict.fromkeys(map(said, races)))
    if notes:
        notes.append("intervals and p here are not made for an early end: compare two models by"
                     " their headline for anytime-valid ones")  # fmt: skip
    return notes


def anytime_pair(a: Evaluation, b: Evaluation, results: Results) -> dict[str, Any] | None:
    """The anytime-valid difference ``a - b`` of two that raced each other; else None, as for any
    metric but the headline, which the race was about.

    Returns:
        ``mean``, ``ci_low``, ``ci_high``, ``ci_method``, ``p_value``, ``judged`` (questions of
        both) and ``race``, its record.
    """
    race = None if results.metric else results.races.get(a.evaluation_id)
    if race is None or race is not results.races.get(b.evaluation_id):
        return None
    ids = {a.evaluation_id, b.evaluation_id}
    pair = next(pair for pair in race["differences"] if {pair["a"], pair["b"]} == ids)
    mean, low, high = pair["mean"], pair["ci_low"], pair["ci_high"]
    if pair["a"] != a.evaluation_id:
        mean, low, high = -mean, -high, -low
    return {
        "mean": mean,
        "ci_low": low,
        "ci_high": high,
        "ci_method": "confidence sequence by betting, without replacement, anytime-valid,"
        f" {100 * (1 - race['pair_level']):.3g}%",
        "p_value": pair["p_value"],
        "judged": pair["judged"],
        "race": race,
    }


def end_early(one: dict[str, Any], a: Evaluation, b: Evaluation, results: Results) -> None:
    """Of two that raced: the interval that their early end does not make wrong."""
    pair = anytime_pair(a, b, results)
    if pair is None:
        if results.metric:
            one["notes"] = [*one["notes"], *early_notes((a, b), results)]
        return
    race, total = pair["race"], one["all"]
    total |= {name: pair[name] for name in ("ci_low", "ci_high", "ci_method", "p_value")}
    total["detectable"] = None
    one["needed"] = None
    short_a, short_b = short_names(a.model, b.model)
    one["verdict"] = verdict(short_a, short_b, total, results.column(a))
    one["race"] = {name: race[name] for name in ("select", "judged", "questions", "calls", "saved")}
    one["race"]["pair_judged"] = pair["judged"]
    one["notes"] = [
        *one["notes"],
        said(race),
        f"interval and p of the whole are anytime-valid: of the difference over all"
        f" {race['questions']} questions, of which {pair['judged']} were judged for both in random"
        " order; those of the categories are not made for an early end",
    ]
