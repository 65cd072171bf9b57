"""Comparisons as people see them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mtbench_ray.benchmarks import get_benchmark
from mtbench_ray.reports.differences import (
    LEVEL,
    told_apart,
)
from mtbench_ray.reports.tables import (
    MARK,
    common_folder,
    grid,
    interval,
    label,
    no_interval_note,
    number,
    said,
    short,
)


def ranking_text(found: Mapping[str, Any], format: str) -> str:
    """Several models: their ranking, and each pair."""
    names = [model["model"] for model in found["models"]]
    folder, digits = common_folder(names), found["digits"]
    best = [
        [short(one["model"], folder), number(one["mean"], digits), "yes" if one["model"] in
         found["with_best"] else "no"]
        for one in found["models"]
    ]  # fmt: skip
    cells = [
        [
            short(pair["a"], folder),
            short(pair["b"], folder),
            _signed(pair["mean"], digits),
            interval(pair, digits),
            p_text(pair["p_value"]),
            p_text(pair["p_holm"]),
            "yes" if told_apart(pair) else "no",
        ]
        for pair in found["pairs"]
    ]
    head = [f"{MARK} is {label(folder)}"] * bool(folder)
    head.append(
        f"{_of(found)}: judge {label(found['judge'])}, "
        f"{found['models'][0]['n_turns']} items that all have"
    )
    notes = [
        "best: the best one, and those that it cannot be told from",
        f"p, Holm: corrected for {len(cells)} pairs; apart: below {LEVEL:g}",
        no_interval_note(found["pairs"]),
        *map(label, found["notes"]),
    ]
    tables = [
        grid(["model", "mean", "best"], best, format),
        grid(["model", "minus", "difference", "95% interval", "p", "p, Holm", "apart"], cells,
             format),
    ]  # fmt: skip
    return _joined(head, tables, [note for note in notes if note], format)


def _joined(head: Sequence[str], blocks: Sequence[str], notes: Sequence[str], format: str) -> str:
    top, below = said(head, format), "\n".join(said(notes, format))
    return "\n\n".join(block for block in (*top, *blocks, below) if block)


def comparison_text(found: Mapping[str, Any], format: str) -> str:
    """Two models: the difference, by category, and what it says."""
    rows = [("all", found["all"]), *found["categories"].items()]
    digits = found["digits"]
    cells = [
        [
            name,
            _signed(item["mean"], digits),
            interval(item, digits),
            p_text(item["p_value"]),
            p_text(item["p_holm"]) if "p_holm" in item else "",
            number(item["detectable"], digits),
            number(item["n_questions"], 0),
            number(item["n_turns"], 0),
        ]
        for name, item in rows
    ]
    headers = [found["by"], "difference", "95% interval", "p", "p, Holm", "detectable",
               "questions", "items"]  # fmt: skip
    a, b = short_names(found["a"], found["b"])
    head = [f"{_of(found)}: {a} minus {b}, judge {label(found['judge'])}"]
    if folder := common_folder([found["a"], found["b"]]):
        head.insert(0, f"{MARK} is {label(folder)}")
    notes = [label(note) for note in found["notes"]]
    if len(found["categories"]) > 1:
        notes.append(f"p, Holm: corrected for {len(found['categories'])} parts")
    notes.append("interval and p: paired, over whole questions")
    notes.append("detectable: the smallest difference found with 80% power")
    notes.append(no_interval_note(item for _, item in rows))
    blocks = [grid(headers, cells, format)]
    verdicts = [found["verdict"]]
    if found["gate"]:
        margin, verdict = found["gate"]["margin"], found["gate"]["verdict"]
        verdicts.append(f"gate {margin:g}: {verdict}")
    if found["needed"]:
        verdicts.append(_needed_text(found["needed"]))
    blocks.append("\n".join(said(verdicts, format)))
    if found["flips"]:
        blocks.append(_flips_table(found["flips"], a, b, format))
    return _joined(head, blocks, [note for note in notes if note], format)


def _needed_text(found: Mapping[str, Any]) -> str:
    """What would detect a difference, in one line."""
    if found["questions"] is None:
        return f"to detect {found['difference']:g}: cannot be told from so few questions"
    samples = found["samples"]
    if samples is None:
        by_samples = "no number of samples is enough"
    elif found["samples_known"]:
        by_samples = f"or {samples} samples of each answer"
    else:
        by_samples = f"or at least {samples} samples of each answer (sampling.samples={samples})"
    return f"to detect {found['difference']:g}: {found['questions']} questions, {by_samples}"


def _flips_table(found: Sequence[Mapping[str, Any]], a: str, b: str, format: str) -> str:
    headers = ["question", "turn", "category", a, b, f"{a} answers", f"{b} answers"]
    return grid(
        headers,
        [
            [
                str(one["question_id"]),
                f"{one['turn']}{' ' * bool(one['criterion'])}{one['criterion']}",
                one["category"],
                number(one["a"]),
                number(one["b"]),
                one["answer_a"] or "n/a",
                one["answer_b"] or "n/a",
            ]
            for one in found
        ],
        format,
    )


def csv_lines(found: Mapping[str, Any]) -> list[dict[str, Any]]:
    """A line for each part of a comparison of two models."""
    who = {name: found[name] for name in ("benchmark", "mode", "metric", "a", "b", "judge")}
    parts = {"all": found["all"] | {"p_holm": None}, **found["categories"]}
    return [who | {"part": name} | item for name, item in parts.items()]


def plain(value: Any) -> str:
    """A cell of a CSV file."""
    return "" if value is None else str(value)


def _signed(value: float | None, digits: int) -> str:
    return "n/a" if value is None else f"{value:+.{digits}f}"


def _of(found: Mapping[str, Any]) -> str:
    """The benchmark, with its mode where it has several, and the metric if it is no headline."""
    several = len(get_benchmark(found["benchmark"]).graders) > 1
    name = f"{found['benchmark']} {found['mode']}" if several else found["benchmark"]
    return f"{name}, {found['header']}" if found["header"] else str(name)


def short_names(*models: str) -> list[str]:
    """Models without the folder that they share."""
    folder = common_folder(models)
    return [short(model, folder) for model in models]


def p_text(value: float | None) -> str:
    """A p-value as tables show it."""
    if value is None:
        return "n/a"
    return f"{value:.3f}" if value >= 0.001 else "below 0.001"
