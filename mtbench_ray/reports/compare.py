"""``report compare A B ...``: are models different under the same judge, or can it not be told?"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from mtbench_ray.errors import EXIT_OK, EXIT_PARTIAL, UserError
from mtbench_ray.planning.evaluations import (
    against,
    distinguishing_settings,
    named,
)
from mtbench_ray.reports.choose_models import choose
from mtbench_ray.reports.compare_text import (
    comparison_text,
    csv_lines,
    plain,
    ranking_text,
)
from mtbench_ray.reports.comparison import compare, grader_of_row, metric_fields, pairs_of
from mtbench_ray.reports.differences import (
    Pair,
    gate,
    ranking,
    valued,
)
from mtbench_ray.reports.early_end import early_notes, end_early
from mtbench_ray.reports.results import Results, answer_ids
from mtbench_ray.reports.tables import grid
from mtbench_ray.schema import Evaluation, QuestionId, Slot

EXIT_WORSE = 1
"""``gate=``: the first model is worse."""
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
    names = choose(words, models)
    if len(names) > 2:
        if gate_at is not None:
            raise UserError("gate= is of two models", "compare NEW OLD gate=0.1")
        _print_ranking(names, models, results, format)
        return EXIT_OK
    first, second = names
    pairs = pairs_of(models[first], models[second])
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
        end_early(one, a, b, results)
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
            {"benchmark": benchmark, "mode": mode, "judge": judge, **metric_fields(column),
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
