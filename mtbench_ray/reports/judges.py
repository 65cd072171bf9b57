"""``report judges``: any number of judges over the same answers."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import partial
from itertools import combinations
from typing import Any

from mtbench_ray.errors import EXIT_OK, UserError, unknown_name
from mtbench_ray.judges.agreement import Rated, agreement, match_votes, values_of
from mtbench_ray.judges.base import Grader
from mtbench_ray.judges.matches import matches
from mtbench_ray.planning.evaluations import against, judge_names
from mtbench_ray.reports.formats import show
from mtbench_ray.reports.judge_figures import (
    game_figures,
    length_figures,
    self_preference,
    strengths,
    two_judges,
    values_with_slots,
)
from mtbench_ray.reports.parts import Judged, judged
from mtbench_ray.reports.results import Results, judged_alone
from mtbench_ray.reports.scatters import lengths
from mtbench_ray.reports.scores import tables
from mtbench_ray.reports.tables import grid, interval, label, number, said
from mtbench_ray.schema import Evaluation, Outcome, Slot

LISTED = 10
"""Disagreements of two judges that are shown."""


_Graded = tuple[str, str]
"""Benchmark and mode: values of different ones are not compared."""


def report(
    words: Sequence[str], results: Results, rows: Sequence[Evaluation], format: str, out: str = ""
) -> int:
    """Print how judges agree, and what sways them.

    Args:
        words: Names of judges, or patterns; none for all.
        results: Of the headline or of another metric, see ``Results.measuring``.
        out: A file that gets the same as JSON; empty for none.

    Raises:
        UserError: An unknown judge, or nothing is judged.
    """
    rows = [row for row in rows if row.judge]
    names = judge_names(rows)
    for word in words:
        if not any(_fits(word, row, names) for row in rows):
            raise unknown_name("judge of this workspace", word, set(names.values()))
    rows = [row for row in rows if not words or any(_fits(word, row, names) for word in words)]
    if not rows:
        raise UserError("nothing here is judged", "judge the answers first")
    found = figures(results, rows)
    show(found, _text(found, format), format, out)
    return EXIT_OK


def _fits(word: str, row: Evaluation, names: Mapping[str, str]) -> bool:
    return any(
        name == word or fnmatchcase(name, word) for name in (row.judge, names[row.evaluation_id])
    )


def figures(results: Results, rows: Sequence[Evaluation]) -> dict[str, Any]:
    """All figures, as JSON.

    Returns:
        ``metric``: whose values these are; ``values``: of each two judges on the same answers;
        ``votes``: of each two on the same matches, by turn; ``judges``: position bias, inconsistent
        matches, correlation with length and self-preference of each judge and mode;
        ``strengths``: of each comparison of all models.
    """
    names = judge_names(rows)
    options = results.options
    alone = judged_alone(rows)
    values: dict[_Graded, dict[str, dict[Hashable, Rated]]] = {}
    slots: dict[_Graded, dict[Hashable, Slot]] = {}
    parts: dict[_Graded, dict[str, Any]] = {}
    for row in alone:
        items = results.items(row)
        name = names[row.evaluation_id]
        graded = row.benchmark, row.mode
        parts[graded] = {
            "model": lambda slot: slot.model,
            **results.grader(row).dimensions_of(results.column(row).metric),
        }
        values.setdefault(graded, {}).setdefault(name, {}).update(values_of(items))
        slots.setdefault(graded, {}).update(values_with_slots(items))
    compared = []
    for graded, by_judge in values.items():
        for one, other in combinations(by_judge, 2):
            both = by_judge[one], by_judge[other]
            pair = two_judges((one, other), both, slots[graded], parts[graded], LISTED)
            if pair:
                compared.append({"benchmark": graded[0], "mode": graded[1]} | pair)
    votes: dict[str, list[Any]] = {}
    games: dict[tuple[str, str, str], list[Outcome]] = {}
    by_group: dict[tuple[str, str, str], Evaluation] = {}
    for row in rows:
        key = (names[row.evaluation_id], row.mode, row.benchmark)
        by_group.setdefault(key, row)
        if against(row):
            games.setdefault(key, []).extend(results.outcomes(row))
    for (name, _, _), found in games.items():
        votes.setdefault(name, []).extend(match_votes(matches(found, options.parity), name))
    agreed = [
        {"judges": [one, other], "turn": item.turn, "ties": item.ties, "n": item.total,
         "agreement": item.ratio}
        for one, other in combinations(votes, 2)
        for item in agreement(votes[one], votes[other])
        if item.total
    ]  # fmt: skip
    judged_by: dict[tuple[str, str, str], list[Judged]] = {}
    for judged_ in judged(results, rows):
        judged_by.setdefault((judged_.judge, judged_.mode, judged_.benchmark), []).append(judged_)
    about = []
    for key, row in by_group.items():
        name, mode, benchmark = key
        scale = results.grader(row).scale(results.view(row))
        line: dict[str, Any] = {"judge": name, "mode": mode, "benchmark": benchmark}
        if key in games:
            line |= game_figures(
                games[key],
                matches(games[key], options.parity),
                partial(_value, results.grader(row)),
                scale,
            )
        else:
            graded = benchmark, mode
            line["self_preference"] = self_preference(
                name, row.judge, values[graded], slots[graded]
            )
            points = {
                one.model: lengths(one, results.workspace.turns) for one in judged_by.get(key, [])
            }
            line["length"] = length_figures(points)
        about.append(line)
    ranked = []
    for table in tables(rows, results):
        row = table.rows[0]
        scale = results.grader(row).scale(results.view(row))
        items = results.grader(row).items(table.outcomes, parity=options.parity)
        lines = strengths(items, scale, options.resamples, options.seed)
        for line in lines:
            line["model"] = table.models[str(line["model"])][0].model
        ranked.append(
            {"judge": names[row.evaluation_id], "mode": row.mode, "benchmark": row.benchmark,
             "models": lines}
        )  # fmt: skip
    metrics = dict.fromkeys(results.column(row).key for row in alone)
    return {"metric": ", ".join(metrics), "values": compared, "votes": agreed, "judges": about,
            "strengths": ranked}  # fmt: skip


def _value(grader: Grader, outcome: Outcome) -> float | None:
    if outcome.judgment is None or outcome.reason:
        return None
    return grader.value_for(outcome.slot, outcome.judgment)


def _text(found: Mapping[str, Any], format: str) -> list[str]:
    blocks = []
    if found["judges"]:
        blocks.append(_about(found["judges"], found["metric"], format))
    for pair in found["values"]:
        blocks += _pair(pair, format)
    if found["votes"]:
        blocks.append(
            grid(
                ["judge", "judge", "turn", "ties", "compared", "agreement"],
                [
                    [*line["judges"], str(line["turn"]), "with" if line["ties"] else "without",
                     str(line["n"]), number(line["agreement"], 3)]
                    for line in found["votes"]
                ],
                format,
            )
        )  # fmt: skip
    for table in found["strengths"]:
        head = f"strengths (Bradley-Terry, 1000 is the mean), judge {label(table['judge'])}"
        cells = [
            [line["model"], number(line["strength"], 0), interval(line, 0)]
            for line in table["models"]
        ]
        blocks += [
            *said([head], format),
            grid(["model", "strength", "95% interval"], cells, format),
        ]
    return blocks


def _about(lines: Sequence[Mapping[str, Any]], metric: str, format: str) -> str:
    headers = ["judge", "benchmark", "mode", "games", "first shown wins", "ties", "matches",
               "inconsistent", "length", "length, within", "own family"]  # fmt: skip
    cells = []
    for line in lines:
        games, own = "games" in line, line.get("self_preference")
        length = line.get("length") or {}
        cells.append(
            [
                line["judge"],
                line["benchmark"],
                line["mode"],
                str(line["games"]) if games else "",
                number(line["first_shown"], 3) if games else "",
                number(line["ties"], 3) if games else "",
                str(line["matches"]) if games else "",
                number(line["inconsistent"], 3) if games else "",
                "" if games else number(length.get("spearman")),
                "" if games else number(length.get("within")),
                "" if games else f"{own['difference']:+.2f}" if own else "n/a",
            ]
        )
    notes = [
        "first shown wins: share of decided games won by the answer shown first",
        *[f"length, own family and agreement: of {metric}"] * bool(metric),
        "length: rank correlation of score and characters; within: mean of that of each model",
        "own family: how much more it favours models of its family (by name) than other judges do",
    ]
    return grid(headers, cells, format) + "\n\n" + "\n".join(said(notes, format))


def _pair(pair: Mapping[str, Any], format: str) -> list[str]:
    one, other = pair["judges"]
    rows = [("all", "", pair["all"])]
    rows += [(name, part, item) for name, parts in pair["parts"].items()
             for part, item in parts.items()]  # fmt: skip
    cells = [
        [
            name,
            part,
            str(item["n"]),
            number(item["exact"], 3),
            "n/a" if item["mean_difference"] is None else f"{item['mean_difference']:+.2f}",
            number(item["pearson"]),
            number(item["spearman"]),
        ]
        for name, part, item in rows
    ]
    head = f"{pair['benchmark']}: {label(one)} minus {label(other)}"
    models = pair["models"]
    if models["spearman"] is not None:
        head += f"; rank correlation of {models['n']} models' means {models['spearman']:.2f}"
    blocks = said([head], format)
    headers = ["of", "part", "n", "equal", "mean shift", "correlation", "rank correlation"]
    blocks.append(grid(headers, cells, format))
    levels = sorted({value for first, second, _ in pair["confusion"] for value in (first, second)})
    if len(levels) <= 12:
        counts = {(first, second): count for first, second, count in pair["confusion"]}
        table = [
            [f"{first:g}", *(str(counts.get((first, second), "")) for second in levels)]
            for first in levels
        ]
        corner = f"{label(one)} \\ {label(other)}"
        blocks.append(grid([corner, *(f"{level:g}" for level in levels)], table, format))
    if pair["disagreements"]:
        blocks.append(
            grid(
                ["model", "question", "turn", label(one), label(other)],
                [
                    [line["model"], str(line["question_id"]), str(line["turn"]),
                     *(number(value) for value in line["values"])]
                    for line in pair["disagreements"]
                ],
                format,
            )
        )  # fmt: skip
    return blocks
