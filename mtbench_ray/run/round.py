"""A round of work: what is pending of some jobs is done, its files are written, its table shown."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from mtbench_ray.config import RunConfig
from mtbench_ray.endpoint.keys import scrub
from mtbench_ray.errors import EXIT_OK, EXIT_PARTIAL, UserError
from mtbench_ray.judges.base import ScoreOptions
from mtbench_ray.planning.jobs import Job
from mtbench_ray.planning.run_evaluations import RunEvaluations
from mtbench_ray.run.after_round import after_round
from mtbench_ray.run.session import Session
from mtbench_ray.run.signals import Interrupts
from mtbench_ray.system.debugging import debugging
from mtbench_ray.workspace.workspace import Workspace

if TYPE_CHECKING:
    from mtbench_ray.reports.results import Results
    from mtbench_ray.run.kept import Kept


def tell(line: str) -> None:
    """A line for the user."""
    print(line, file=sys.stderr, flush=True)


def run_round(
    jobs: Sequence[Job],
    wanted: RunEvaluations,
    config: RunConfig,
    workspace: Workspace,
    command: Sequence[str],
    interrupts: Interrupts,
    *,
    changes: Sequence[str] = (),
    kept: Kept | None = None,
) -> tuple[int, Results]:
    """Do what is pending.

    Args:
        config: Settings of the whole run.
        command: What was typed, for the run record.
        changes: What the record says of changed settings.
        kept: Of a watch, which shows one table of all its rounds itself.

    Returns:
        The exit code, and the results of the workspace as they are now.

    Raises:
        UserError: The disk is full, the cluster too small and the like; rows so far are kept.
    """
    session = Session(jobs, wanted.rows, workspace, command, interrupts, kept)
    session.record.notes += changes
    try:
        with debugging(config.debug, lambda text: scrub(workspace.scrub(text), None)):
            code = session.run()
    except UserError:
        session.record.status = "failed"
        with contextlib.suppress(UserError):  # the disk, perhaps: the first reason is told
            workspace.save_run(session.record)
        raise
    # Now, when nothing waits for it; a session imports it while the last judge calls run.
    from mtbench_ray.reports.main import finish
    from mtbench_ray.reports.results import Results

    report = config.report
    results = Results(workspace, ScoreOptions(config.parity, report.resamples, report.seed))
    complete = finish(
        results, session.record, wanted.rows, config, session.nothing_pending, show=kept is None
    )
    after_round(results, wanted.rows, config, session.record, tell)
    return EXIT_PARTIAL if code == EXIT_OK and not complete else code, results
