"""The report verbs, and what a run leaves behind: files, summary, table."""

from __future__ import annotations

import json
import shutil
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from mtbench_ray import fastchat
from mtbench_ray.config import RunConfig
from mtbench_ray.errors import EXIT_OK, EXIT_PARTIAL, UserError, unknown_name
from mtbench_ray.judges.base import ScoreOptions
from mtbench_ray.planning.evaluations import distinguishing_settings
from mtbench_ray.reports import agreement, compare, curve, pictures
from mtbench_ray.reports.filters import Filter
from mtbench_ray.reports.page import view
from mtbench_ray.reports.results import Results, current, tables_of
from mtbench_ray.reports.scores import all_scores, judgment_rows
from mtbench_ray.reports.spread import aggregate, is_repeated
from mtbench_ray.reports.suite import suite
from mtbench_ray.reports.summary import Summary, summarise, summarise_all
from mtbench_ray.reports.tables import render
from mtbench_ray.schema import Evaluation
from mtbench_ray.workspace.run_record import RunRecord
from mtbench_ray.workspace.workspace import Workspace

FORMATS = ("table", "json", "markdown")
KINDS = ("", "agreement", "compare", "curve", "html", "plots")


def finish(
    workspace: Workspace,
    record: RunRecord,
    rows: Sequence[Evaluation],
    config: RunConfig,
    nothing_done: bool,
) -> bool:
    """Write a run's files and print its table.

    ``summary_agg.json`` (see :mod:`mtbench_ray.reports.spread`) is written where a judge rated.

    Args:
        rows: The run's evaluations; the table shows these, ``summary.json`` the workspace's.
        nothing_done: Everything was there already. A run record is written then only where other
            questions or settings are looked at than last time.

    Returns:
        Whether all that the run wants is there.
    """
    options = ScoreOptions(config.parity, config.report.resamples, config.report.seed)
    recorded = [row for known in workspace.run_records() for row in known.evaluations]
    changed = not nothing_done or not set(rows) <= set(recorded)
    if changed:
        if record.status == "running":
            record.status = "finished"
        record.finished = time.time()
        workspace.save_run(record)
    every = current(workspace)
    results = Results(workspace, options)
    if changed or not workspace.tables_current:
        fastchat.export_fastchat(workspace, workspace.root, every)
        # Last: their time says that all files were written.
        workspace.write_parquet(judgment_rows(results, every), all_scores(results, every))
    whole = summarise_all(results, every)
    workspace.write_text("summary.json", json.dumps(whole, indent=1) + "\n")
    spreads = aggregate(results, every)
    if spreads["results"]:
        workspace.write_text("summary_agg.json", json.dumps(spreads, indent=1) + "\n")
    mine = _show(results, rows, config.report.format)
    complete = all(summary["complete"] for summary in mine)
    if nothing_done and complete:
        print("nothing was pending: no engine was started, no judge was called", file=sys.stderr)
    elif not complete and not config.quiet:
        print(_next_step(mine, config.stage), file=sys.stderr)
    return complete


def _show(
    results: Results, rows: Sequence[Evaluation], format: str, only: Filter | None = None
) -> list[Summary]:
    """Print the tables of evaluations; in JSON one object."""
    if format == "json":
        whole = summarise_all(results, rows, only)
        print(json.dumps(whole, indent=1))
        return [whole, *whole["other_modes"]]
    tables = tables_of(rows)
    several = len({benchmark for benchmark, _ in tables}) > 1
    found = [summarise(results, rows, *table, only) for table in tables]
    only = only or Filter()
    shown_of = {
        table: only.rows(results, same, distinguishing_settings(same))
        for table, same in _by_table(rows).items()
    }
    own = results.only(only.categories())
    width = shutil.get_terminal_size((160, 24)).columns if sys.stdout.isatty() else None
    every = [row for same in shown_of.values() for row in same]
    if text := suite(own, every, markdown=format == "markdown", width=width):
        print(text)
    for number, (summary, table) in enumerate(zip(found, tables, strict=True)):
        if len(found) > 1:
            title = " ".join(table) if several else summary["mode"]
            print("\n" * bool(number) + f"{'## ' * (format == 'markdown')}{title}\n")
        _print(summary, shown_of[table], own, format)
    return found


def _by_table(rows: Sequence[Evaluation]) -> dict[tuple[str, str], list[Evaluation]]:
    found: dict[tuple[str, str], list[Evaluation]] = {}
    for row in rows:
        found.setdefault((row.benchmark, row.mode), []).append(row)
    return found


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
) -> int:
    """Print the table (or another report) of a workspace.

    Args:
        words: Nothing, or the name of another report and its words.
        workspaces: Curves are drawn of all of them, other reports are of the last.
        error: Curves: what error bars show.
        by: Curves: which pictures.
        out: Curves: folder of the files.
        model: The table: see :class:`~mtbench_ray.reports.filters.Filter`.
        judge: The same.
        category: The same.
        benchmark: The same.

    Raises:
        UserError: There is nothing to report, or an unknown word or format.
    """
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
    if out and kind not in ("agreement", "curve", "html", "plots"):
        raise UserError(
            f"out={out} is of `report` with agreement, curve, html or plots",
            "write the table to a file: report format=json > FILE",
        )
    only = Filter(model, judge, category, benchmark)
    if kind and only.given():
        raise UserError(
            f"{only.given()[0]} is of the table, not of `report {kind}`", "leave it out"
        )
    if kind == "curve":
        if format != "table":
            raise UserError("curves are files", "leave format out; curve.csv has the numbers")
        return curve.report(workspaces, error=error, by=by, out=out, options=options)
    if kind == "html":
        return view.report(workspaces[-1], out, options)
    if kind == "plots":
        return pictures.report(workspaces[-1], out, options)
    with Workspace.open(workspaces[-1], write=False) as opened:
        rows = current(opened)
        if not rows:
            raise UserError(
                f"the workspace {workspaces[-1]} holds no evaluation",
                "run one first, or `import fastchat DIR`",
            )
        modes = list(dict.fromkeys(table[1] for table in tables_of(rows)))
        if mode and mode not in modes:
            raise UserError(
                f"the workspace holds nothing of mode={mode}", f"it holds {', '.join(modes)}"
            )
        results = Results(opened, options)
        if kind == "agreement":
            return agreement.report(names, results, rows, format, mode, out)
        if kind == "compare":
            return compare.report(names, results, rows, format)
        if mode:
            rows = [row for row in rows if row.mode == mode]
        found = _show(results, only.check(results, rows), format, only)
    return EXIT_OK if all(summary["complete"] for summary in found) else EXIT_PARTIAL


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


def export_files(folder: str, *, workspace: str) -> int:
    """The verb ``export fastchat``."""
    with Workspace.open(workspace, write=False) as opened:
        rows = current(opened)
        if not rows:
            raise UserError(f"the workspace {workspace} holds no evaluation", "run one first")
        paths = fastchat.export_fastchat(opened, Path(folder), rows)
    for path in paths:
        print(path)
    return EXIT_OK


def _print(summary: Summary, rows: Sequence[Evaluation], results: Results, format: str) -> None:
    spreads = aggregate(results, [row for row in rows if is_repeated(row)])["results"]
    width = shutil.get_terminal_size((160, 24)).columns if sys.stdout.isatty() else None
    print(render(summary, spreads, markdown=format == "markdown", width=width), end="")
