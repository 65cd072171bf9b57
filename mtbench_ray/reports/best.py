"""``report best``: the best checkpoint, those that it cannot be told from, and a gate against an
older one."""

from __future__ import annotations

import json
import statistics
from collections.abc import Hashable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

from mtbench_ray.errors import EXIT_OK, UserError, unknown_name
from mtbench_ray.planning.evaluations import against, distinguishing_settings, named
from mtbench_ray.reports.choose_models import find_model
from mtbench_ray.reports.compare import exit_code, points
from mtbench_ray.reports.comparison import grader_of_row
from mtbench_ray.reports.differences import Valued, gate, valued
from mtbench_ray.reports.early_end import anytime_pair, early_notes
from mtbench_ray.reports.results import Results
from mtbench_ray.reports.tables import (
    MARK,
    common_folder,
    grid,
    interval,
    label,
    number,
    said,
    short,
)
from mtbench_ray.schema import Evaluation
from mtbench_ray.stats.best import against_best, against_reference
from mtbench_ray.stats.clusters import LEAST_CLUSTERS

Items = Mapping[Hashable, Valued]


def report(
    words: Sequence[str],
    results: Results,
    rows: Sequence[Evaluation],
    format: str,
    margin: str = "",
    baseline: str = "",
) -> int:
    """Print the best of some models under each judge.

    Args:
        words: Names of models or patterns; none for all (but the baseline).
        margin: ``gate=``: how much worse than the baseline the best may be; empty for none.
        baseline: A model by its name, the end of its path or its id; empty for none.

    Returns:
        0; with a gate 0 where the best model is not worse than the baseline by that much under any
        judge, 1 where it is under one, 3 where it cannot be told.

    Raises:
        UserError: An unknown model, nothing to choose from, or a gate without a baseline.
    """
    allowed = points("gate", margin)
    if allowed is not None and not baseline:
        raise UserError(f"gate={margin} needs what to compare with", "baseline=MODEL gate=0.1")
    rated = [row for row in rows if row.judge and against(row) != "all"]
    apart = distinguishing_settings(rated)
    models: dict[str, list[Evaluation]] = {}
    for row in rated:
        models.setdefault(named(row.model, apart[row.evaluation_id]), []).append(row)
    base = find_model(baseline, models) if baseline else ""
    for word in words:
        if not any(_fits(word, name, models[name]) for name in models):
            raise unknown_name("rated model of this workspace", word, set(models))
    chosen = [
        name
        for name, mine in models.items()
        if name != base and (not words or any(_fits(word, name, mine) for word in words))
    ]
    groups: dict[tuple[str, ...], dict[str, Evaluation]] = {}
    for name in [*chosen, *[base] * bool(base)]:
        for row in models[name]:
            groups.setdefault(grader_of_row(row), {})[name] = row
    found = []
    for (benchmark, mode, judge, *_), mine in groups.items():
        if not set(mine) & set(chosen):
            continue
        one = figures(
            {name: valued(results.items(row)) for name, row in mine.items() if name != base},
            valued(results.items(mine[base])) if base in mine else None,
            allowed,
            results.options.resamples,
            results.options.seed,
        )
        if one is not None:
            _anytime(one, mine, base, results)
            one["notes"] += early_notes(mine.values(), results)
            if base and base not in mine:
                one["notes"].append(f"{base} was not rated by this judge")
            found.append({"benchmark": benchmark, "mode": mode, "judge": judge} | one
                         | {"baseline": base or None})  # fmt: skip
    if not found:
        raise UserError("there is no model with a score to choose from", "judge the answers first")
    if format == "json":
        print(json.dumps(found, indent=1))
    else:
        print("\n\n".join(_text(one, format) for one in found))
    if allowed is None:
        return EXIT_OK
    return exit_code([one["gate"]["verdict"] for one in found])


def _anytime(
    found: dict[str, Any], rows: Mapping[str, Evaluation], base: str, results: Results
) -> None:
    """Of models that raced each other for the best, what the race says: it ended early."""
    names = [line["model"] for line in found["models"]]
    race = results.races.get(rows[names[0]].evaluation_id)
    ids = {rows[name].evaluation_id for name in names}
    if race is None or race["select"] != "best" or not ids <= set(race["evaluations"]):
        return
    by_id = dict(zip(race["evaluations"], race["models"], strict=True))
    may_be = [name for name in names if by_id[rows[name].evaluation_id] in race["best"]]
    if not may_be:  # the race's best is not among the chosen
        return
    found["with_best"] = may_be
    leads = [name for name in may_be if by_id[rows[name].evaluation_id] == race["best"][0]]
    found["best"] = (leads or may_be)[0]
    for line in found["models"]:
        line["may_be_best"] = line["model"] in may_be
        pair = None
        if line["model"] != found["best"]:
            pair = anytime_pair(rows[line["model"]], rows[found["best"]], results)
        line["difference"] = pair["mean"] if pair else None
        line |= {name: pair[name] if pair else None for name in ("ci_low", "ci_high")}
    found["notes"].append("they raced: intervals are of the difference to the best, anytime-valid")
    if base in rows and (pair := anytime_pair(rows[found["best"]], rows[base], results)):
        found["against_baseline"] |= {name: pair[name] for name in ("ci_low", "ci_high")}
        if found["gate"]:
            found["gate"]["verdict"] = gate(pair, found["gate"]["margin"])


def _fits(word: str, name: str, rows: Sequence[Evaluation]) -> bool:
    """Whether a word means a model: its name, a pattern, or the end of its path."""
    labels = [name, *(row.model for row in rows)]
    return any(
        fnmatchcase(one, word) or one.rstrip("/").endswith(f"/{word.strip('/')}") for one in labels
    )


def figures(
    models: Mapping[str, Items], base: Items | None, margin: float | None, resamples: int, seed: int
) -> dict[str, Any] | None:
    """The best of some models under one grader, as JSON; None where none has a value.

    All are compared on the items that each of them (and the baseline) has.

    Returns:
        ``models``, best first: ``mean``, ``difference`` to the best of the others with its
        simultaneous interval (:func:`mtbench_ray.stats.best.against_best`) and ``may_be_best``;
        ``best``; ``with_best``; ``against_baseline``, of the best one, with an interval that holds
        for whichever was chosen; ``gate``, its verdict.
    """
    there = {name: items for name, items in models.items() if items}
    if not there:
        return None
    notes = [f"{name} has no score and is left out" for name in models if name not in there]
    shared = [
        key
        for key in next(iter(there.values()))
        if all(key in items for items in there.values()) and (base is None or key in base)
    ]
    if not shared:
        raise UserError(
            "these models have no rated item in common", "name some of them: report best 'run_a/*'"
        )
    whole = max(len(items) for items in there.values())
    if len(shared) < whole:
        notes.append(f"compared on the {len(shared)} of {whole} items that all of them have")
    clusters = [next(iter(there.values()))[key].slot.group for key in shared]
    values = {name: [items[key].mean for key in shared] for name, items in there.items()}
    means = {name: statistics.fmean(mine) for name, mine in values.items()}
    order = sorted(there, key=lambda name: -means[name])
    every = [values[name] for name in order]
    compared = against_best(every, clusters, resamples, seed)
    best = order[0]
    lines: list[dict[str, Any]] = []
    for place, name in enumerate(order):
        line: dict[str, Any] = {"model": name, "mean": means[name], "difference": None,
                                "ci_low": None, "ci_high": None, "may_be_best": True}  # fmt: skip
        if compared:
            one = compared[place]
            line |= {"difference": one.difference, "ci_low": one.low, "ci_high": one.high,
                     "may_be_best": one.high > 0}  # fmt: skip
        lines.append(line)
    questions = len(set(clusters))
    if len(order) > 1 and not compared:
        why = f"{LEAST_CLUSTERS} questions are needed" if resamples else "resamples=0"
        notes.append(f"no interval, so none can be told from another: {why}")
    found: dict[str, Any] = {
        "best": best,
        "with_best": [line["model"] for line in lines if line["may_be_best"]],
        "models": lines,
        "n_questions": questions,
        "n_turns": len(shared),
        "against_baseline": None,
        "gate": {"margin": margin, "verdict": "cannot tell"} if margin is not None else None,
        "notes": notes,
    }
    if base is not None:
        theirs = [base[key].mean for key in shared]
        half = against_reference(every, theirs, clusters, resamples, seed)
        gap = means[best] - statistics.fmean(theirs)
        total = {
            "mean": gap,
            "ci_low": None if half is None else gap - half,
            "ci_high": None if half is None else gap + half,
        }
        found["against_baseline"] = total
        if margin is not None:
            found["gate"]["verdict"] = gate(total, margin)
    return found


def _text(found: dict[str, Any], format: str) -> str:
    names = [line["model"] for line in found["models"]]
    folder = common_folder([*names, *[found["baseline"]] * bool(found["baseline"])])
    table = grid(
        ["model", "mean", "minus the best other", "95% interval", "may be best"],
        [
            [
                short(line["model"], folder),
                number(line["mean"]),
                "n/a" if line["difference"] is None else f"{line['difference']:+.2f}",
                interval(line),
                "yes" if line["may_be_best"] else "no",
            ]
            for line in found["models"]
        ],
        format,
    )
    if format == "csv":
        return table
    head = [f"{MARK} is {label(folder)}"] * bool(folder)
    head.append(f"judge {label(found['judge'])}, {found['n_turns']} items of"
                f" {found['n_questions']} questions")  # fmt: skip
    best, *others = [short(name, folder) for name in found["with_best"]] or [""]
    lines = [f"best: {short(found['best'], folder)}"]
    if others:
        same = [name for name in (best, *others) if name != short(found["best"], folder)]
        lines[0] += f"; it cannot be told from {', '.join(same)}"
    if total := found["against_baseline"]:
        lines.append(
            f"minus {short(found['baseline'], folder)}: {total['mean']:+.2f} ({interval(total)})"
        )
    if found["gate"]:
        lines.append(f"gate {found['gate']['margin']:g}: {found['gate']['verdict']}")
    notes = [
        "interval: of the difference to the best of the others, all at once (multiple comparisons"
        " with the best, bootstrap over questions)",
        *map(label, found["notes"]),
    ]
    blocks = [*said(head, format), table, "\n".join(said(lines, format)),
              "\n".join(said(notes, format))]  # fmt: skip
    return "\n\n".join(blocks)
