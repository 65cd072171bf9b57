"""The report verbs, and what a run leaves behind: files, summary, table."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from mtbench_ray import fastchat
from mtbench_ray.config import RunConfig
from mtbench_ray.errors import EXIT_OK, EXIT_PARTIAL, UserError, unknown_name
from mtbench_ray.judges.base import ScoreOptions
from mtbench_ray.planning.races import races_of
from mtbench_ray.reports import (
    agreement,
    best,
    card,
    compare,
    curve,
    exports,
    judges,
    noise,
    parts,
    pictures,
    timeline,
)
from mtbench_ray.reports.filters import Filter
from mtbench_ray.reports.formats import FORMATS
from mtbench_ray.reports.joined import opened
from mtbench_ray.reports.page import view
from mtbench_ray.reports.results import Results, current
from mtbench_ray.reports.scores import all_scores, judgment_rows
from mtbench_ray.reports.shown import Shown, gather, keep, load, state
from mtbench_ray.reports.shown import show as print_shown
from mtbench_ray.reports.spread import aggregate
from mtbench_ray.reports.summary import Summary, summarise_all
from mtbench_ray.schema import Evaluation
from mtbench_ray.workspace.batch_ledger import open_batches
from mtbench_ray.workspace.run_record import RunRecord
from mtbench_ray.workspace.workspace import Workspace

KINDS = ("", "agreement", "best", "card", "compare", "curve", "html", "judges", "noise", "plots",
         "timeline")  # fmt: skip

_NO_FILES = ("", "best", "compare", "noise")


def finish(
    results: Results,
    record: RunRecord,
    rows: Sequence[Evaluation],
    config: RunConfig,
    nothing_done: bool,
    show: bool = True,
) -> bool:
    """Write a run's files and print its table.

    ``summary_agg.json`` (see :mod:`mtbench_ray.reports.spread`) is written where a judge rated.

    Args:
        results: Of the run's workspace, with its options.
        rows: The run's evaluations; the table shows these, ``summary.json`` the workspace's.
        nothing_done: Everything was there already. A run record is written then only where other
            questions or settings are looked at than last time.
        show: Print the table, and what comes next.

    Returns:
        Whether all that the run wants is there.
    """
    workspace = results.workspace
    recorded = [row for known in workspace.run_records() for row in known.evaluations]
    before = races_of(workspace)
    raced = {name for race in record.races if race["decided"] for name in race["evaluations"]}
    changed = (
        not nothing_done
        or not set(rows) <= set(recorded)
        or any((row.evaluation_id in before) != (row.evaluation_id in raced) for row in rows)
    )
    if changed:
        if record.status == "running":
            record.status = "finished"
        record.finished = time.time()
        workspace.save_run(record)
    every = current(workspace)
    stale = changed or not workspace.tables_current
    fastchat.export_fastchat(workspace, workspace.root, every, only_missing=not stale)
    if stale:
        # Last: their time says that all files were written.
        workspace.write_parquet(judgment_rows(results, every), all_scores(results, every))
    whole = summarise_all(results, every)
    workspace.write_text("summary.json", json.dumps(whole, indent=1) + "\n")
    spreads = aggregate(results, every)
    if spreads["results"]:
        workspace.write_text("summary_agg.json", json.dumps(spreads, indent=1) + "\n")
    shown = gather(results, every, summary=whole)
    keep(workspace, results.options, state(workspace.root, results.options), shown)
    if rows != every:
        shown = gather(results, rows)
    if not show:
        return all(summary["complete"] for summary in shown.tables)
    mine = print_shown(shown, config.report.format)
    complete = all(summary["complete"] for summary in mine)
    if nothing_done and complete:
        print("nothing was pending: no engine was started, no judge was called", file=sys.stderr)
    elif not complete and not config.quiet:
        print(_next_step(mine, config.stage), file=sys.stderr)
    return complete


def _next_step(summaries: Sequence[Summary], stage: str) -> str:
    """What to do where something failed or is missing."""
    results = [result for summary in summaries for result in summary["results"]]
    answers = [result["answers"] for result in results if "answers" in result]
    if stage == "judge" and any(part["answered"] < part["planned"] for part in answers):
        return "Answers are missing. Run the line without stage=judge to generate them."
    return "Incomplete. Re-run the same command to finish the remaining items."


def report(
    words: Sequence[str],
    *,
    workspaces: Sequence[str],
    format: str,
    parity: str,
    mode: str,
    resamples: str,
    seed: str,
    error: str,
    by: str,
    out: str,
    model: str = "",
    judge: str = "",
    category: str = "",
    benchmark: str = "",
    gate: str = "",
    detect: str = "",
    metric: str = "",
    steps: str = "",
    name_pattern: str = "",
    target: str = "",
    answer_price: str = "",
    data: str = "",
    baseline: str = "",
    run: str = "",
) -> int:
    """Print the table (or another report) of one or more workspaces.

    Args:
        words: Nothing, or the name of another report and its words.
        workspaces: Read as one; each is a line of its own in curves.
        error: Curves: what error bars show.
        by: Curves: which pictures. Tables: which parts.
        out: Where files go.
        mode: See :class:`~mtbench_ray.reports.filters.Filter`, like the next four.
        model: The same.
        judge: The same.
        category: The same.
        benchmark: The same.
        gate: Comparisons: how much worse the first model, or the best one, may be.
        detect: Comparisons: a difference to detect.
        metric: Comparisons and judges: of another column than the headline.
        steps: Curves: which steps.
        name_pattern: Curves: how names hold run and step.
        target: Noise: a wanted half-width of the interval.
        answer_price: Noise: dollars for one answer.
        data: Cards: files of votes.
        baseline: Best: a model that the best one is compared with.
        run: Timelines: of which run.

    Raises:
        UserError: There is nothing to report, or an unknown word or format.
    """
    if words[:1] == ["timeline"]:
        with opened(workspaces[-1:]) as workspace:
            return timeline.report(workspace, run=run, format=format, out=out)
    if format not in FORMATS:
        raise UserError(f"format={format} is not known", f"format={'|'.join(FORMATS)}")
    if parity not in ("safe", "fastchat"):
        raise UserError(f"parity={parity} is not known", "parity=safe or parity=fastchat")
    if not (resamples.isdecimal() and seed.isdecimal()):
        raise UserError("resamples and seed are whole numbers from 0", "resamples=2000 seed=0")
    options = ScoreOptions(parity, int(resamples), int(seed))
    kind, *names = words or [""]
    if kind not in KINDS:
        raise unknown_name("report", kind, KINDS[1:])
    if out and kind in _NO_FILES:
        raise UserError(
            f"out={out} is of `report` with {', '.join(k for k in KINDS if k not in _NO_FILES)}",
            "write the table to a file: report format=json > FILE",
        )
    _only_of(kind, "compare", "best", gate=gate)
    _only_of(kind, "compare", detect=detect)
    _only_of(kind, "compare", "judges", metric=metric)
    _only_of(kind, "best", baseline=baseline)
    _only_of(kind, "curve", steps=steps, name_pattern=name_pattern)
    _only_of(kind, "card", data=data)
    _only_of(kind, "timeline", run=run)
    _only_of(kind, "noise", target=target, answer_price=answer_price)
    only = Filter(model, judge, category, benchmark, mode)
    if kind == "curve":
        if format != "table":
            raise UserError("curves are files", "leave format out; curve.csv has the numbers")
        return curve.report(
            workspaces,
            error=error,
            by=by or "both",
            out=out,
            options=options,
            only=only,
            steps=steps,
            name_pattern=name_pattern,
        )
    if kind == "html":
        return view.report(workspaces, out, options, only)
    before = ""
    if kind == "" and not by and not only.given() and len(set(workspaces)) == 1:
        root = Path(workspaces[0]).expanduser()
        if (kept := load(root, options)) is not None:
            return _printed(kept, format, workspaces)
        before = state(root, options)
    with opened(workspaces) as workspace:
        every = current(workspace)
        if not every:
            raise UserError(
                f"the workspace {workspaces[-1]} holds no evaluation",
                "run one first, or `import fastchat DIR`",
            )
        results = Results(workspace, options)
        if kind == "" and not by:
            found = gather(results, only.check(results, every), only)
            if before:
                keep(workspace, options, before, found)
            return _printed(found, format, workspaces)
        results, rows = only.chosen(results, every)
        results, rows = results.measuring(metric, rows)
        if kind == "agreement":
            return agreement.report(names, results, rows, format, out)
        if kind == "compare":
            return compare.report(names, results, rows, format, gate, detect)
        if kind == "judges":
            return judges.report(names, results, rows, format, out)
        if kind == "best":
            return best.report(names, results, rows, format, gate, baseline)
        if kind == "card":
            return card.report(results, rows, format, data, out)
        if kind == "noise":
            return noise.report(results, rows, format, target, answer_price)
        if kind == "plots":
            code = pictures.report(results, rows, out)
            if curve.has_curves(rows):
                folder = out or str(workspace.root / "plots")
                curve.report(workspaces, error="ci95", by="both", out=folder, options=options,
                             only=only)  # fmt: skip
            return code
        return parts.report(results, rows, by, format)


def _printed(shown: Shown, format: str, workspaces: Sequence[str]) -> int:
    """Print the tables, and what batches are open; returns the exit code."""
    found = print_shown(shown, format)
    for folder in dict.fromkeys(workspaces):
        for line in open_batches(Path(folder).expanduser()):
            print(line, file=sys.stderr)
    return EXIT_OK if all(summary["complete"] for summary in found) else EXIT_PARTIAL


def _only_of(kind: str, *whose: str, **settings: str) -> None:
    for key, value in settings.items():
        if value and kind not in whose:
            raise UserError(f"{key}={value} is of `report {' or '.join(whose)}`", "leave it out")


def import_files(folder: str, *, workspace: str, question_path: str, baseline: str) -> int:
    """The verb ``import fastchat``."""
    with Workspace.open(workspace, write=True) as opened:
        result = fastchat.import_fastchat(
            Path(folder),
            opened,
            question_path=Path(question_path) if question_path else None,
            baseline=baseline or None,
        )
    print(result.text())
    return EXIT_OK


EXPORTS = ("fastchat", *exports.KINDS)


def export_files(kind: str, folder: str, *, workspace: str, **filters: str) -> int:
    """The verb ``export``: one of :data:`EXPORTS`.

    Raises:
        UserError: An unknown kind, nothing to export, or the disk refused it.
    """
    if kind not in EXPORTS:
        raise unknown_name("export", kind, EXPORTS)
    with Workspace.open(workspace, write=False) as opened:
        rows = current(opened)
        if not rows:
            raise UserError(f"the workspace {workspace} holds no evaluation", "run one first")
        results, rows = Filter(**filters).chosen(Results(opened, ScoreOptions()), rows)
        if kind == "fastchat":
            paths = fastchat.export_fastchat(opened, Path(folder), rows)
        elif not any(row.judge for row in rows):
            raise UserError(f"nothing in {workspace} is judged", "judge the answers first")
        else:
            paths = exports.KINDS[kind](results, rows, Path(folder))
    for path in paths:
        print(path)
    return EXIT_OK
