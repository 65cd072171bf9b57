"""One invocation: its settings are checked, its workspace is held, and what is owed is done."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from mtbench_ray.changes import describe_changes
from mtbench_ray.config import RunConfig
from mtbench_ray.errors import EXIT_OK, EXIT_PARTIAL, UserError
from mtbench_ray.jobs import evaluations, prepare
from mtbench_ray.judges.stage import check_budget
from mtbench_ray.progress import told_while_long
from mtbench_ray.session import Session
from mtbench_ray.settle import settle
from mtbench_ray.signals import Interrupts
from mtbench_ray.store import Workspace


@dataclass
class RunResult:
    """What a run leaves behind for its caller.

    Attributes:
        exit_code: See :mod:`mtbench_ray.errors`.
        values: For each config the average of its model under its judge, Hydra's return value;
            None where it has none or where a config stands for several models.
    """

    exit_code: int
    values: list[float | None]


def run_jobs(
    configs: Sequence[RunConfig], *, command: Sequence[str], plan_only: bool = False
) -> RunResult:
    """Run (or only plan) all jobs of one invocation.

    Args:
        configs: One per Hydra job; all with the same workspace.
        command: What was typed, for the run record.

    Raises:
        UserError: A mistake in the settings; nothing has been started.
    """
    with Interrupts() as interrupts:
        return _run_jobs(configs, command, plan_only, interrupts)


def _run_jobs(
    configs: Sequence[RunConfig], command: Sequence[str], plan_only: bool, interrupts: Interrupts
) -> RunResult:
    from mtbench_ray.endpoint.keys import resolve_key
    from mtbench_ray.reports.estimate import print_plan
    from mtbench_ray.reports.main import finish

    first = configs[0]
    if any(config.workspace != first.workspace for config in configs):
        raise UserError("the jobs of one run share a workspace", "set workspace once, for all jobs")
    configs = [settle(config) for config in configs]
    keys: list[str | None] = []
    if not plan_only:
        for config in configs:
            if config.judge.kind == "openai" and config.stage != "answers":
                keys.append(resolve_key(config.judge))
                check_budget(config.judge, config.budget_usd)
            if config.engine.kind == "openai" and config.stage != "judge":
                keys.append(resolve_key(config.engine))
    hidden = [key for key in keys if key]
    with Workspace.open(first.workspace, write=not plan_only, secrets=hidden) as workspace:
        if first.fresh:
            workspace.start_over(command)
        with told_while_long("checking settings and models", quiet=first.quiet):
            jobs = prepare(configs, workspace)
        rows = evaluations(jobs, workspace)
        changes = [] if first.fresh else describe_changes(jobs, workspace)
        if not first.quiet:
            print(*changes, sep="\n", end="\n" * bool(changes), file=sys.stderr)
        if plan_only:
            print_plan(jobs, rows, workspace, show=first.show)
            return RunResult(EXIT_OK, [None for _ in configs])
        session = Session(jobs, rows, workspace, command, interrupts)
        session.record.notes += changes
        try:
            code = session.run()
        except UserError:
            session.record.status = "failed"
            with contextlib.suppress(UserError):  # the disk, perhaps: the first reason is told
                workspace.save_run(session.record)
            raise
        summary = finish(workspace, session.record, rows, first, session.owes_nothing)
    averages = {
        (result["model"], result["judge"]): result["average"]["mean"]
        for result in summary["results"]
        if "average" in result
    }
    if code == EXIT_OK and not summary["complete"]:
        code = EXIT_PARTIAL
    by_config = [averages.get((config.model.label, config.judge.label)) for config in configs]
    return RunResult(code, by_config)
