"""``report by=...``: scores split by one or two of a grader's dimensions, and figures of answers.

A dimension is what a grader splits its items by; its parts may be compared within a question where
a question has items of several of them: the last part minus the first one, and the spread of that.
"""

from __future__ import annotations

import json
import statistics
from collections import Counter
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mtbench_ray.errors import EXIT_OK, UserError, unknown_name
from mtbench_ray.judges.base import Grader, Item, ScoreOptions
from mtbench_ray.judges.scores import Part
from mtbench_ray.planning.evaluations import against, distinguishing_settings, named
from mtbench_ray.reports.answer_figures import answer_figures
from mtbench_ray.reports.formats import to_csv
from mtbench_ray.reports.results import Results, in_order
from mtbench_ray.reports.scores import tables
from mtbench_ray.reports.summary import rank_of
from mtbench_ray.reports.tables import (
    common_folder,
    grid,
    interval,
    number,
    part_header,
    reasons,
    said,
    short,
)
from mtbench_ray.schema import AnswerSet, Evaluation
from mtbench_ray.stats.means import clustered_mean

ANSWERS = "answers"
"""``by=answers``: speed, memory, thinking and failures of answers."""
_MOST = 2
"""Dimensions that are crossed."""


@dataclass(frozen=True)
class Judged:
    """A model's items under a grader: what a row of a table is made of."""

    model: str
    judge: str
    benchmark: str
    mode: str
    grader: Grader
    items: Sequence[Item]
    scale: tuple[float, float]
    answers: AnswerSet


def report(results: Results, rows: Sequence[Evaluation], by: str, format: str) -> int:
    """Print the parts of each table.

    Args:
        by: One or two names of dimensions with a comma, or :data:`ANSWERS`.

    Raises:
        UserError: An unknown dimension, or nothing is judged.
    """
    if by == ANSWERS:
        _print_answers(results, rows, format)
        return EXIT_OK
    names = [name.strip() for name in by.split(",") if name.strip()]
    found = list(judged(results, rows))
    if not found:
        raise UserError("nothing here is judged", f"by={ANSWERS} shows figures of the answers")
    known = dict.fromkeys(name for one in found for name in one.grader.dimensions)
    for name in names:
        if name not in known:
            raise unknown_name("by", name, [*known, ANSWERS])
    if not 1 <= len(names) <= _MOST or len(set(names)) < len(names):
        raise UserError(f"by={by} is not one or two dimensions", f"by={','.join(known)}")
    groups: dict[tuple[str, str, str], list[Judged]] = {}
    for one in found:
        if all(name in one.grader.dimensions for name in names):
            groups.setdefault((one.benchmark, one.mode, one.judge), []).append(one)
    lines = [
        line
        for (benchmark, _, _), group in groups.items()
        for line in crossed(group, names, results.options, benchmark)
    ]
    if format == "json":
        print(json.dumps(lines, indent=1))
    elif format == "csv":
        flat = [_flat(line) for line in lines]
        print(to_csv(list(flat[0]), [list(line.values()) for line in flat]), end="")
    else:
        for number_, (key, group) in enumerate(groups.items()):
            print("\n" * bool(number_), end="")
            _print_group(key, group, names, results.options, format, len(groups) > 1)
    return EXIT_OK


def judged(results: Results, rows: Sequence[Evaluation]) -> Iterator[Judged]:
    """The items of each judged model; of comparisons of all models, over all of its matches."""
    apart = distinguishing_settings([row for row in rows if row.judge])
    for row in rows:
        if row.judge and against(row) != "all":
            said_ = apart[row.evaluation_id]
            name = named(row.model, said_) + (f" against {row.baseline}" if row.baseline else "")
            judge = named(row.judge, said_, judge=True)
            grader = results.grader(row)
            ends = grader.scale(results.view(row))
            items = results.items(row)
            yield Judged(name, judge, row.benchmark, row.mode, grader, items, ends, row.answers)
    for table in tables(rows, results):
        row, grader = table.rows[0], results.grader(table.rows[0])
        ends = grader.scale(results.view(row))
        by_model: dict[str, list[Item]] = {}
        for item in results.items(row, table.outcomes):
            by_model.setdefault(item.slot.model, []).append(item)
        for side, mine in by_model.items():
            answers = table.models[side][0]
            yield Judged(
                answers.model, row.judge, row.benchmark, row.mode, grader, mine, ends, answers
            )


def crossed(
    group: Sequence[Judged], names: Sequence[str], options: ScoreOptions, benchmark: str
) -> list[dict[str, Any]]:
    """A line for each model and combination of parts, and for each of their margins.

    Args:
        group: Of one table and judge.
        names: The dimensions.

    Returns:
        JSON-able lines: ``parts`` (dimension to part, empty for all of them), mean, interval,
        coverage, ``rank`` (among the models of this judge), and with the last dimension open
        ``difference``: its last part minus its first one within a question, null where no
        question has both.
    """
    dimensions = group[0].grader.dimensions
    every = [item for one in group for item in one.items]
    orders = [parts_of(every, dimensions[name], benchmark) for name in names]
    combinations: list[tuple[str, ...]] = [()]
    for order in orders:
        combinations = [(*head, part) for head in combinations for part in ("", *order)]
    lines = []
    for combination in combinations:
        chosen = [(name, part) for name, part in zip(names, combination, strict=True) if part]
        found = []
        for one in group:
            items = [
                item
                for item in one.items
                if all(dimensions[name](item.slot) == part for name, part in chosen)
            ]
            line = {
                "benchmark": one.benchmark, "mode": one.mode, "judge": one.judge,
                "model": one.model, "parts": dict(zip(names, combination, strict=True)),
                **mean_of(items, options),
                "difference": None if combination[-1] else
                difference_of(items, dimensions[names[-1]], orders[-1], options),
            }  # fmt: skip
            found.append(line)
        for line in found:
            line["rank"] = rank_of(line["mean"], [other["mean"] for other in found])
        lines += found
    return lines


def mean_of(items: Sequence[Item], options: ScoreOptions) -> dict[str, Any]:
    """Mean, interval and coverage of items."""
    valid = [item for item in items if item.value is not None]
    found = clustered_mean(
        [item.value for item in valid if item.value is not None],
        [item.slot.group for item in valid],
        resamples=options.resamples,
        seed=options.seed,
    )
    failed = Counter(item.reason or "unparsed" for item in items if item.value is None)
    return {
        "mean": found.mean,
        "ci_low": found.low,
        "ci_high": found.high,
        "ci_method": found.method,
        "n_questions": found.clusters,
        "planned": len(items),
        "scored": len(valid),
        "failed": dict(sorted(failed.items())),
    }


def difference_of(
    items: Sequence[Item], part: Part, order: Sequence[str], options: ScoreOptions
) -> dict[str, Any] | None:
    """The last part of a dimension minus its first one, within an answer.

    Returns:
        Mean with interval, ``std`` (the standard deviation of single differences, n - 1), ``equal``
        (the share that is 0) and ``n``; None where nothing has both parts.
    """
    if len(order) < 2:
        return None
    cells: dict[Hashable, dict[str, tuple[float, str]]] = {}
    for item in items:
        slot = item.slot
        if item.value is not None:
            unit = (slot.question_id, slot.sample, slot.judge_sample, slot.opponent)
            key = part(slot)
            # Within a part several items (criteria, say) are told apart by what else they are.
            cells.setdefault((unit, slot.criterion), {})[key] = (item.value, slot.group)
    gaps = [
        (cell[order[-1]][0] - cell[order[0]][0], cell[order[0]][1])
        for cell in cells.values()
        if order[0] in cell and order[-1] in cell
    ]
    if not gaps:
        return None
    values = [gap for gap, _ in gaps]
    found = clustered_mean(
        values, [group for _, group in gaps], resamples=options.resamples, seed=options.seed
    )
    return {
        "of": f"{order[-1]} minus {order[0]}",
        "mean": found.mean,
        "ci_low": found.low,
        "ci_high": found.high,
        "ci_method": found.method,
        "std": statistics.stdev(values) if len(values) > 1 else None,
        "equal": sum(value == 0 for value in values) / len(values),
        "n": len(values),
    }


def parts_of(items: Sequence[Item], part: Part, benchmark: str) -> list[str]:
    """The parts of a dimension: numbers by size, else in the order of the benchmark."""
    found = dict.fromkeys(part(item.slot) for item in items)
    if all(name.isdecimal() for name in found):
        return sorted(found, key=int)
    return in_order(benchmark)(found)


def _print_group(
    key: tuple[str, str, str],
    group: Sequence[Judged],
    names: Sequence[str],
    options: ScoreOptions,
    format: str,
    titled: bool,
) -> None:
    lines = crossed(group, names, options, key[0])
    digits = group[0].grader.item_column.digits
    last = names[-1]
    folder = common_folder(one.model for one in group)
    columns = list(dict.fromkeys(line["parts"][last] for line in lines if line["parts"][last]))
    cells: dict[tuple[str, ...], dict[str, dict[str, Any]]] = {}
    for line in lines:
        row = (line["model"], *(line["parts"][name] for name in names[:-1]))
        cells.setdefault(row, {})[line["parts"][last]] = line
    compared = any(row[""]["difference"] for row in cells.values())
    headers = ["model", *names[:-1], "rank", "all", "95% interval"]
    headers += [part_header(last, name) for name in columns]
    headers += [
        f"{part_header(last, columns[-1])} minus {columns[0]}",
        "95% interval",
        "its std",
    ] * compared
    headers += [group[0].grader.scored, "failed"]
    table = []
    order = {name: at for at, name in enumerate(_best_first(cells))}
    for row, found in sorted(cells.items(), key=lambda cell: order[cell[0]]):
        whole = found[""]
        shown = [short(row[0], folder), *(name or "all" for name in row[1:])]
        shown += [
            "n/a" if whole["rank"] is None else str(whole["rank"]),
            number(whole["mean"], digits),
            interval(whole, digits),
            *(number(found[name]["mean"], digits) if name in found else "n/a" for name in columns),
        ]
        if compared:
            gap = whole["difference"]
            shown += (
                [f"{gap['mean']:+.{digits}f}", interval(gap, digits), number(gap["std"], digits)]
                if gap
                else ["n/a"] * 3
            )
        shown += [f"{whole['scored']}/{whole['planned']}", reasons(whole["failed"])]
        table.append(shown)
    head = [f"{key[0]} {key[1]}, judge {key[2]}"] if titled else [f"judge {key[2]}"]
    if folder:
        head.append(f"…/ is {folder}")
    print("\n".join(said(head, format)) + "\n")
    print(grid(headers, table, format))


def _best_first(
    cells: Mapping[tuple[str, ...], Mapping[str, Mapping[str, Any]]],
) -> list[tuple[str, ...]]:
    """Rows by their model's score, the best first, a model's own rows together as they came."""

    def score(row: tuple[str, ...]) -> float:
        whole = cells[(row[0], *[""] * (len(row) - 1))][""]["mean"]
        return float("inf") if whole is None else -whole

    return sorted(cells, key=score)


def _flat(line: Mapping[str, Any]) -> dict[str, Any]:
    """A line as cells of CSV."""
    gap = line["difference"] or {}
    found = {
        name: value for name, value in line.items() if name not in ("parts", "difference", "failed")
    }
    found["failed"] = reasons(line["failed"])
    named_ = {f"by_{name}": part or "all" for name, part in line["parts"].items()}
    gaps = {f"difference_{name}": gap.get(name)
            for name in ("of", "mean", "ci_low", "ci_high", "std", "equal", "n")}  # fmt: skip
    return named_ | found | gaps


def _print_answers(results: Results, rows: Sequence[Evaluation], format: str) -> None:
    events = [event for record in results.workspace.run_records() for event in record.events]
    apart = distinguishing_settings(rows)
    found: dict[Hashable, dict[str, Any]] = {}
    for row in rows:
        figures = answer_figures(results.workspace, row, events)
        name = {"model": named(row.model, apart[row.evaluation_id]), "benchmark": row.benchmark}
        found.setdefault((row.model, row.answers.settings, row.answers.units), name | figures)
    lines = list(found.values())
    if format == "json":
        print(json.dumps(lines, indent=1))
        return
    turns = sorted(
        {turn for line in lines for turn in line["thinking_compliance_by_turn"] or ()}, key=int
    )
    folder = common_folder(line["model"] for line in lines)
    headers = ["model", "answered", "failed", "truncated", "tokens", "tok/s", "s/answer",
               "engine start, s", "GPU memory, GB",
               *(f"thinking kept, turn {turn}" for turn in turns)]  # fmt: skip
    table = [
        [
            short(line["model"], folder),
            f"{line['answered']}/{line['planned']}",
            reasons(line["failed"]),
            "n/a" if line["truncated"] is None else str(line["truncated"]),
            "n/a" if imported else str(line["output_tokens"]),
            number(line["output_tokens_per_s"], 0),
            "n/a" if imported else number(line["seconds_per_answer"], 1),
            number(line["engine_start_s"], 1),
            number(line["peak_gpu_memory_gb"], 1),
            *(number((line["thinking_compliance_by_turn"] or {}).get(turn), 3) for turn in turns),
        ]
        for line in lines
        # Imported answers say neither.
        for imported in [line["truncated"] is None]
    ]
    if folder:
        print("\n".join(said([f"…/ is {folder}"], format)) + "\n")
    print(grid(headers, table, format))
