"""Two evaluations compared, item by item: the difference, its parts and what to mind."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from mtbench_ray.benchmarks import grader_of
from mtbench_ray.config import science
from mtbench_ray.judges.base import Column, Item, ScoreOptions
from mtbench_ray.planning.evaluations import (
    answer_settings,
    differing,
    grader_settings,
    judge_of,
)
from mtbench_ray.reports import differences
from mtbench_ray.reports.compare_text import (
    p_text,
    short_names,
)
from mtbench_ray.reports.differences import (
    LEVEL,
    by_part,
    difference,
    needed,
    paired,
    valued,
)
from mtbench_ray.reports.results import in_order
from mtbench_ray.schema import Evaluation

_WHICH_MODEL = ("model.path", "model.revision", "model.adapter", "fingerprint")
Fields = Callable[[Evaluation], dict[str, Any]]
SHOWN_FLIPS = 5


def pairs_of(
    first: Sequence[Evaluation], second: Sequence[Evaluation]
) -> list[tuple[Evaluation, Evaluation]]:
    """Evaluations of one benchmark by one judge; with the same settings where there are such."""
    pairs = []
    for grader in dict.fromkeys(map(grader_of_row, first)):
        mine, other = (
            [row for row in rows if grader_of_row(row) == grader] for rows in (first, second)
        )
        alike = [(a, b) for a in mine for b in other if grader_settings(a) == grader_settings(b)]
        pairs += alike or [(a, b) for a in mine[-1:] for b in other[-1:]]
    return pairs


def grader_of_row(row: Evaluation) -> tuple[str, ...]:
    """Equal for evaluations that can be compared: of one benchmark by one judge."""
    return row.benchmark, row.mode, row.judge, row.baseline or ""


def compare(
    a: Evaluation,
    b: Evaluation,
    items_a: Iterable[Item],
    items_b: Iterable[Item],
    options: ScoreOptions,
    wanted: float | None = None,
    column: Column | None = None,
) -> dict[str, Any]:
    """The paired difference ``a - b`` over all and by category, clustered by question.

    Only items that both have a value for are compared; how many are left out is in the result.

    Args:
        wanted: A difference that the user would like to detect.
        column: What the items are of; None for that of all comparisons.

    Returns:
        A JSON-able object but for ``flips`` (pairs) with ``all`` and ``categories`` (or the parts
        of the dimension that ``by`` names), each holding
        ``mean``, ``ci_low``, ``ci_high``, ``p_value`` (two-sided, sign flips of whole questions),
        ``detectable``, ``n_questions`` and ``n_turns``; a category also ``p_holm``, corrected for
        the number of categories; ``needed`` as :func:`differences.needed`; ``verdict`` says it in
        words, ``notes`` what to mind.
    """
    mine, other = valued(items_a), valued(items_b)
    pairs = paired(mine, other)
    grader = grader_of(a.benchmark, a.mode)
    column = column or grader.item_column
    dimensions = grader.dimensions_of(column.metric)
    by = "category" if "category" in dimensions else next(iter(dimensions), "")
    parts = {}
    if by:
        part = dimensions[by]
        names = in_order(a.benchmark)(dict.fromkeys(part(pair.a.slot) for pair in pairs))
        parts = by_part(pairs, names, part, options)
    total = difference(pairs, options)
    left_out = len(mine) + len(other) - 2 * len(pairs)
    notes = []
    if left_out:
        notes.append(f"{left_out} scored items of only one of the two are left out")
    if other_judge := _differing(a, b, _judge_fields):
        notes.append(f"the judge had other settings for one of them: {', '.join(other_judge)}")
    if other_answers := _differing(a, b, _answer_fields):
        notes.append(f"the two answered with different settings: {', '.join(other_answers)}")
    if (a.prompts, a.references) != (b.prompts, b.references):
        notes.append("questions, references or judge prompts are not the same for both")
    if a.demo or b.demo:
        notes.append("demo judge: not comparable")
    short_a, short_b = short_names(a.model, b.model)
    return {
        "benchmark": a.benchmark,
        "mode": a.mode,
        **metric_fields(column),
        "a": a.model,
        "b": b.model,
        "judge": a.judge,
        "all": total,
        "by": by,
        "categories": parts,
        "needed": None if wanted is None else needed(pairs, total, wanted),
        "flips": differences.flips(pairs, SHOWN_FLIPS),
        "verdict": verdict(short_a, short_b, total, column),
        "notes": notes,
    }


def _judge_fields(row: Evaluation) -> dict[str, Any]:
    """Settings of the judge that change its verdicts; an import knows of none."""
    if row.source == "import":
        return {}
    return {f"judge.{name}": value for name, value in science(judge_of(row)).items()}


def _answer_fields(row: Evaluation) -> dict[str, Any]:
    """Settings that change answers, but for which model it is; an import knows of none."""
    if row.answers.source == "import":
        return {}
    settings = answer_settings(row.answers)
    return {name: value for name, value in settings.items() if name not in _WHICH_MODEL}


def _differing(a: Evaluation, b: Evaluation, fields: Fields) -> list[str]:
    if "import" in (a.source, b.source):
        return []
    names = sorted(differing(fields(a), fields(b)))
    return [name.partition(".")[2] if fields is _judge_fields else name for name in names]


def metric_fields(column: Column) -> dict[str, Any]:
    """What of a column goes into the result of a comparison."""
    return {
        "metric": column.key,
        "header": "" if column.headline else column.header,
        "digits": column.digits,
        "lower_is_better": column.lower_is_better,
    }


def verdict(a: str, b: str, total: Mapping[str, Any], column: Column) -> str:
    """What a difference means, in one sentence."""
    count = total["n_questions"]
    questions = f"{count} question{'' if count == 1 else 's'}"
    if total["mean"] is None:
        return "the two have no scored item in common"
    if total["p_value"] is None:
        if count > 1:
            return f"{questions}: no test was made ({total['ci_method'].removeprefix('none: ')})"
        return f"no difference can be told from {questions}"
    there = total["ci_low"] > 0 or total["ci_high"] < 0
    if not there or total["p_value"] >= LEVEL:
        return f"no difference can be told from these {questions}"
    better, worse = (a, b) if (total["mean"] > 0) != column.lower_is_better else (b, a)
    return (
        f"{better} is better than {worse} by {abs(total['mean']):.{column.digits}f} on {questions}"
        f" (p {'= ' * (total['p_value'] >= 0.001)}{p_text(total['p_value'])})"
    )
