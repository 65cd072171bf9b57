"""``report compare A B``: are two models different under the same judge, or can it not be told?"""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mtbench_ray.config import science
from mtbench_ray.errors import EXIT_OK, UserError, unknown_name
from mtbench_ray.judges.base import Item, ScoreOptions
from mtbench_ray.planning.evaluations import (
    answer_settings,
    differing,
    distinguishing_settings,
    grader_settings,
    judge_of,
    named,
)
from mtbench_ray.reports.results import Results, in_order, judged_alone
from mtbench_ray.reports.tables import MARK, common_folder, grid, interval, label, number, short
from mtbench_ray.schema import Evaluation
from mtbench_ray.stats import paired_difference

_WHICH_MODEL = ("model.path", "model.revision", "model.adapter", "fingerprint")
Fields = Callable[[Evaluation], dict[str, Any]]
LEVEL = 0.05
"""A difference is called one where p is below this and the 95% interval leaves out 0."""


@dataclass(frozen=True)
class Pair:
    """The values of one item for both models, each the mean over its repeats."""

    a: float
    b: float
    group: str
    category: str


def report(
    words: Sequence[str],
    results: Results,
    rows: Sequence[Evaluation],
    format: str,
) -> int:
    """Print the paired difference of two models for each judge that rated both.

    Args:
        words: Two models by their names, or by the ends of their paths.

    Raises:
        UserError: An unknown or ambiguous model, or no judge that rated both.
    """
    if len(words) != 2:
        raise UserError("compare what?", "report compare MODEL MODEL")
    rated = judged_alone(rows)
    settings = distinguishing_settings(rated)
    models: dict[str, list[Evaluation]] = {}
    for row in rated:
        models.setdefault(named(row.model, settings[row.evaluation_id]), []).append(row)
    first, second = (_find(word, models) for word in words)
    if first == second:
        raise UserError(f"both names mean {first}", "name two models")
    pairs = _pairs(models[first], models[second])
    if not pairs:
        raise UserError(
            f"no judge rated both {first} and {second}",
            "judges of the first: {}; of the second: {}".format(
                *(", ".join(row.judge for row in models[name]) for name in (first, second))
            ),
        )
    found = []
    for a, b in pairs:
        mine, other = results.items(a), results.items(b)
        found.append(compare(a, b, mine, other, results.options) | {"a": first, "b": second})
        one, two = (results.grader(row).scale(results.view(row)) for row in (a, b))
        if one != two:
            found[-1]["verdict"] = (
                f"not to be compared: scores from {one[0]:g} to {one[1]:g} and from {two[0]:g} to"
                f" {two[1]:g}"
            )
    if format == "json":
        print(json.dumps(found, indent=1))
    else:
        print("\n\n".join(_text(item, format == "markdown") for item in found))
    return EXIT_OK


def _pairs(
    first: Sequence[Evaluation], second: Sequence[Evaluation]
) -> list[tuple[Evaluation, Evaluation]]:
    """Evaluations of one benchmark by one judge; with the same settings where there are such."""
    pairs = []
    for grader in dict.fromkeys(map(_grader, first)):
        mine, other = ([row for row in rows if _grader(row) == grader] for rows in (first, second))
        alike = [(a, b) for a in mine for b in other if grader_settings(a) == grader_settings(b)]
        pairs += alike or [(a, b) for a in mine[-1:] for b in other[-1:]]
    return pairs


def _grader(row: Evaluation) -> tuple[str, str, str]:
    return row.benchmark, row.mode, row.judge


def compare(
    a: Evaluation,
    b: Evaluation,
    items_a: Iterable[Item],
    items_b: Iterable[Item],
    options: ScoreOptions,
) -> dict[str, Any]:
    """The paired difference ``a - b`` over all and by category, clustered by question.

    Only items that both have a value for are compared; how many are left out is in the result.

    Returns:
        A JSON-able object with ``all`` and ``categories``, each holding ``mean``, ``ci_low``,
        ``ci_high``, ``p_value`` (two-sided, sign flips of whole questions), ``n_questions`` and
        ``n_turns``; ``verdict`` says it in words, ``notes`` what to mind.
    """
    mine, other = _values(items_a), _values(items_b)
    pairs = [
        Pair(value, other[key][0], group, category)
        for key, (value, group, category) in mine.items()
        if key in other
    ]
    categories = in_order(a.benchmark)(dict.fromkeys(pair.category for pair in pairs))
    total = _difference(pairs, options)
    left_out = len(mine) + len(other) - 2 * len(pairs)
    notes = []
    if left_out:
        notes.append(f"{left_out} rated turns of only one of the two are left out")
    if other_judge := _differing(a, b, _judge_fields):
        notes.append(f"the judge had other settings for one of them: {', '.join(other_judge)}")
    if other_answers := _differing(a, b, _answer_fields):
        notes.append(f"the two answered with different settings: {', '.join(other_answers)}")
    if (a.prompts, a.references) != (b.prompts, b.references):
        notes.append("questions, references or judge prompts are not the same for both")
    if a.demo or b.demo:
        notes.append("demo judge: not comparable")
    short_a, short_b = _names(a.model, b.model)
    return {
        "a": a.model,
        "b": b.model,
        "judge": a.judge,
        "all": total,
        "categories": {
            name: _difference([pair for pair in pairs if pair.category == name], options)
            for name in categories
        },
        "verdict": verdict(short_a, short_b, total),
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


def verdict(a: str, b: str, total: Mapping[str, Any]) -> str:
    """What a difference means, in one sentence."""
    count = total["n_questions"]
    questions = f"{count} question{'' if count == 1 else 's'}"
    if total["mean"] is None:
        return "the two have no rated turn in common"
    if total["p_value"] is None:
        if count > 1:
            return f"{questions}: no test was made, for want of resamples"
        return f"no difference can be told from {questions}"
    there = total["ci_low"] > 0 or total["ci_high"] < 0
    if not there or total["p_value"] >= LEVEL:
        return f"no difference can be told from these {questions}"
    better, worse = (a, b) if total["mean"] > 0 else (b, a)
    return (
        f"{better} is better than {worse} by {abs(total['mean']):.2f} points on {questions}"
        f" (p {'= ' * (total['p_value'] >= 0.001)}{_p(total['p_value'])})"
    )


def _find(word: str, models: Mapping[str, Sequence[Evaluation]]) -> str:
    """The model that a word names: by its name, its label, the end of its path, or an id."""
    known = set(models)
    if word in known:
        return word
    labelled = [
        name
        for name, rows in models.items()
        if any(row.model == word or _is_id(word, row) for row in rows)
    ]
    if len(labelled) > 1:
        raise UserError(
            f"'{word}' may be any of {', '.join(labelled)}", "write one of these, in quotes"
        )
    if labelled:
        return labelled[0]
    ends = [name for name in sorted(known) if name.rstrip("/").endswith(f"/{word.strip('/')}")]
    if len(ends) > 1:
        raise UserError(f"'{word}' may be any of {', '.join(ends)}", "write more of the path")
    if not ends:
        raise unknown_name("rated model of this workspace", word, known)
    return ends[0]


def _is_id(word: str, row: Evaluation) -> bool:
    return len(word) >= 6 and row.evaluation_id.startswith(word)


def _values(items: Iterable[Item]) -> dict[Hashable, tuple[float, str, str]]:
    """Mean over repeats, group and category of each item that has any value."""
    values: dict[Hashable, list[float]] = {}
    about: dict[Hashable, tuple[str, str]] = {}
    for item in items:
        if item.value is not None:
            key = (item.slot.question_id, item.slot.turn, item.slot.criterion)
            values.setdefault(key, []).append(item.value)
            about[key] = (item.slot.group, item.slot.category)
    return {key: (statistics.fmean(found), *about[key]) for key, found in values.items()}


def _difference(pairs: Sequence[Pair], options: ScoreOptions) -> dict[str, Any]:
    found = paired_difference(
        [pair.a for pair in pairs],
        [pair.b for pair in pairs],
        [pair.group for pair in pairs],
        resamples=options.resamples,
        seed=options.seed,
    )
    return {
        "mean": found.mean,
        "ci_low": found.low,
        "ci_high": found.high,
        "p_value": found.p_value,
        "n_questions": found.clusters,
        "n_turns": found.n,
    }


def _text(found: Mapping[str, Any], markdown: bool) -> str:
    rows = [("all", found["all"]), *found["categories"].items()]
    cells = [
        [
            name,
            "n/a" if item["mean"] is None else f"{item['mean']:+.2f}",
            interval(item),
            "n/a" if item["p_value"] is None else _p(item["p_value"]),
            number(item["n_questions"], 0),
            number(item["n_turns"], 0),
        ]
        for name, item in rows
    ]
    headers = ["", "difference", "95% interval", "p", "questions", "turns"]
    a, b = _names(found["a"], found["b"])
    head = f"{a} minus {b}, judge {label(found['judge'])}"
    if folder := common_folder([found["a"], found["b"]]):
        head = f"{MARK} is {label(folder)}\n\n{head}"
    notes = [label(note) for note in found["notes"]]
    if len(found["categories"]) > 1:
        notes.append(
            f"{len(found['categories'])} categories are as many tests: one p below {LEVEL:g}"
            " among them means little"
        )
    notes.append("interval and p: paired, over whole questions")
    table = grid(headers, cells, markdown=markdown)
    return "\n\n".join([head, table, found["verdict"], "\n".join(notes)])


def _names(*models: str) -> list[str]:
    folder = common_folder(models)
    return [short(model, folder) for model in models]


def _p(value: float) -> str:
    return f"{value:.3f}" if value >= 0.001 else "below 0.001"
