"""``report compare A B ...``: are models different under the same judge, or can it not be told?"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

from mtbench_ray.benchmarks import grader_of
from mtbench_ray.config import science
from mtbench_ray.errors import EXIT_OK, EXIT_PARTIAL, UserError, unknown_name
from mtbench_ray.judges.base import Column, Item, ScoreOptions
from mtbench_ray.judges.race import said
from mtbench_ray.planning.evaluations import (
    against,
    answer_settings,
    differing,
    distinguishing_settings,
    grader_settings,
    judge_of,
    named,
)
from mtbench_ray.reports import differences
from mtbench_ray.reports.compare_text import (
    comparison_text,
    csv_lines,
    p_text,
    plain,
    ranking_text,
    short_names,
)
from mtbench_ray.reports.differences import (
    LEVEL,
    Pair,
    by_part,
    difference,
    gate,
    needed,
    paired,
    ranking,
    valued,
)
from mtbench_ray.reports.results import Results, answer_ids, in_order
from mtbench_ray.reports.tables import (
    grid,
)
from mtbench_ray.schema import Evaluation, QuestionId, Slot

_WHICH_MODEL = ("model.path", "model.revision", "model.adapter", "fingerprint")
Fields = Callable[[Evaluation], dict[str, Any]]
EXIT_WORSE = 1
"""``gate=``: the first model is worse."""
SHOWN_FLIPS = 5
_START = 44
"""Characters of an answer that are shown."""


def report(
    words: Sequence[str],
    results: Results,
    rows: Sequence[Evaluation],
    format: str,
    margin: str = "",
    detect: str = "",
) -> int:
    """Print the paired difference of models for each judge that rated them.

    Args:
        results: Of the headline or of another metric, see ``Results.measuring``.
        words: Two or more models by their names, by the ends of their paths, or as patterns.
        margin: ``gate=``; empty for none.
        detect: A difference that the user would like to detect; empty for the gate's.

    Returns:
        0; with a gate 0 where the first model is not worse than the second by that much under any
        judge, 1 where it is under one, 3 where it cannot be told.

    Raises:
        UserError: An unknown or ambiguous model, or no judge that rated all.
    """
    gate_at, wanted = points("gate", margin), points("detect", detect)
    rated = [row for row in rows if row.judge and against(row) != "all"]
    settings = distinguishing_settings(rated)
    models: dict[str, list[Evaluation]] = {}
    for row in rated:
        models.setdefault(named(row.model, settings[row.evaluation_id]), []).append(row)
    only_matches = {
        answers.model: row.mode
        for row in rows
        if row.judge and against(row) == "all"
        for answers in (row.answers, row.opponent)
        if answers is not None
    }
    for word in words:
        if word in only_matches and not any(row.model == word for row in rated):
            raise UserError(
                f"{word} was only compared with other models ({only_matches[word]})",
                f"`report mode={only_matches[word]}` has its table, `report judges` its strength",
            )
    names = _chosen(words, models)
    if len(names) > 2:
        if gate_at is not None:
            raise UserError("gate= is of two models", "compare NEW OLD gate=0.1")
        _print_ranking(names, models, results, format)
        return EXIT_OK
    first, second = names
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
        column = results.column(a)
        one = compare(a, b, mine, other, results.options, wanted=wanted or gate_at, column=column)
        one |= {"a": first, "b": second, "gate": None}
        _anytime(one, a, b, results)
        texts = [answer_ids(row.answers) for row in (a, b)]
        one["flips"] = [_flip(pair, texts, results) for pair in one["flips"]]
        scales = [results.grader(row).scale(results.view(row)) for row in (a, b)]
        alike = scales[0] == scales[1]
        if gate_at is not None:
            verdict = gate(one["all"], gate_at, column.lower_is_better) if alike else "cannot tell"
            one["gate"] = {"margin": gate_at, "verdict": verdict}
        if not alike:
            (low, high), (lowest, highest) = scales
            one["verdict"] = (
                f"not to be compared: scores from {low:g} to {high:g} and from {lowest:g} to"
                f" {highest:g}"
            )
        found.append(one)
    if format == "json":
        print(json.dumps(found, indent=1))
    elif format == "csv":
        lines = [line for one in found for line in csv_lines(one)]
        print(grid(list(lines[0]), [list(map(plain, line.values())) for line in lines], "csv"))
    else:
        print("\n\n".join(comparison_text(item, format) for item in found))
    return exit_code([one["gate"]["verdict"] for one in found if one["gate"]])


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


def _anytime(one: dict[str, Any], a: Evaluation, b: Evaluation, results: Results) -> None:
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


def exit_code(verdicts: Sequence[str]) -> int:
    """Of gates under several judges: the worst counts."""
    if "worse" in verdicts:
        return EXIT_WORSE
    return EXIT_PARTIAL if "cannot tell" in verdicts else EXIT_OK


def points(key: str, text: str) -> float | None:
    """A setting that is a number of points from 0; None where it is empty.

    Raises:
        UserError: It is none.
    """
    if not text:
        return None
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value >= 0):
        raise UserError(f"{key}={text} is no number of points from 0", f"{key}=0.1")
    return value


def _chosen(words: Sequence[str], models: Mapping[str, Sequence[Evaluation]]) -> list[str]:
    """The models that words and patterns name, each once."""
    if len(words) < 2 and not any(sign in word for word in words for sign in "*?["):
        raise UserError("compare what?", "report compare MODEL MODEL")
    found: dict[str, None] = {}
    for word in words:
        fits = [
            name
            for name, rows in models.items()
            if fnmatchcase(name, word) or any(fnmatchcase(row.model, word) for row in rows)
        ]
        pattern = any(sign in word for sign in "*?[") and word not in models and fits
        for name in fits if pattern else [find_model(word, models)]:
            found[name] = None
    if len(words) > 1 and len(found) == 1:
        raise UserError(f"both names mean {next(iter(found))}", "name two models")
    if len(found) < 2:
        raise UserError(f"{words[0]} fits one model alone", "name two models")
    return list(found)


def _flip(
    pair: Pair, answers: Sequence[Mapping[tuple[QuestionId, int], str]], results: Results
) -> dict[str, Any]:
    """An item on which two models differ, with the beginnings of both answers."""
    slot = pair.a.slot
    return {
        "question_id": slot.question_id,
        "turn": slot.turn,
        "criterion": slot.criterion,
        "category": slot.category,
        "a": pair.a.mean,
        "b": pair.b.mean,
        "answer_a": _start(pair.a.slot, answers[0], results),
        "answer_b": _start(pair.b.slot, answers[1], results),
    }


def _start(slot: Slot, answers: Mapping[tuple[QuestionId, int], str], results: Results) -> str:
    answer_id = answers.get((slot.question_id, slot.sample), "")
    found = results.workspace.turns.get((answer_id, slot.turn))
    text = " ".join(found.content[: 4 * _START].split()) if found else ""
    return text if len(text) <= _START else f"{text[: _START - 1]}…"


def _print_ranking(
    names: Sequence[str],
    models: Mapping[str, Sequence[Evaluation]],
    results: Results,
    format: str,
) -> None:
    """The comparisons of each two of several models, for each grader that judged two or more."""
    graders: dict[tuple[str, ...], dict[str, Evaluation]] = {}
    for name in names:
        for row in models[name]:
            graders.setdefault(grader_of_row(row), {})[name] = row
    graders = {key: chosen for key, chosen in graders.items() if len(chosen) > 1}
    if not graders:
        raise UserError("no judge rated two of these models", "judge them with the same judge")
    found: list[dict[str, Any]] = []
    for (benchmark, mode, judge, *_), chosen in graders.items():
        column = results.column(next(iter(chosen.values())))
        ranked = ranking(
            {name: valued(results.items(row)) for name, row in chosen.items()},
            results.options,
            column.lower_is_better,
        )
        scales = {results.grader(row).scale(results.view(row)) for row in chosen.values()}
        notes = ["not to be compared: the scales of their scores differ"] * (len(scales) > 1)
        if len({(row.prompts, row.references) for row in chosen.values()}) > 1:
            notes.append("questions, references or judge prompts are not the same for all")
        notes += early_notes(chosen.values(), results)
        found.append(
            {"benchmark": benchmark, "mode": mode, "judge": judge, **_metric(column),
             "models": ranked.models, "pairs": ranked.pairs,
             "with_best": ranked.with_best, "notes": notes}
        )  # fmt: skip
    if format == "json":
        print(json.dumps(found, indent=1))
    elif format == "csv":
        lines = [
            {key: one[key] for key in ("benchmark", "mode", "judge", "metric")} | pair
            for one in found
            for pair in one["pairs"]
        ]
        print(grid(list(lines[0]), [list(map(plain, line.values())) for line in lines], "csv"))
    else:
        print("\n\n".join(ranking_text(one, format) for one in found))


def _pairs(
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
        **_metric(column),
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


def _metric(column: Column) -> dict[str, Any]:
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


def find_model(word: str, models: Mapping[str, Sequence[Evaluation]]) -> str:
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
