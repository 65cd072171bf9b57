"""One invocation: its settings are checked, its workspace is held, and what is pending is done."""

from __future__ import annotations

import dataclasses
import operator
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from mtbench_ray.config import RunConfig, TrackerConfig
from mtbench_ray.errors import EXIT_OK, UserError
from mtbench_ray.judges.budget import check_budget
from mtbench_ray.planning.jobs import prepare
from mtbench_ray.planning.run_evaluations import evaluations
from mtbench_ray.planning.settings_diff import describe_changes
from mtbench_ray.run.after_round import after_run, naming_of
from mtbench_ray.run.progress import report_while_long
from mtbench_ray.run.racing import races
from mtbench_ray.run.round import run_round, tell
from mtbench_ray.run.signals import Interrupts
from mtbench_ray.system.redact import secrets_in
from mtbench_ray.trackers.settings import Checking
from mtbench_ray.validate import validate
from mtbench_ray.workspace.batch_ledger import open_batches
from mtbench_ray.workspace.workspace import Workspace


@dataclass
class RunResult:
    """What a run leaves behind for its caller.

    Attributes:
        exit_code: See :mod:`mtbench_ray.errors`.
        values: For each config the average (or adjusted win rate) of its own evaluation, Hydra's
            return value; None where it has none or where it stands for several.
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

    first = configs[0]
    check_shared(configs)
    configs = [validate(config) for config in configs]
    keys: list[str | None] = []
    if not plan_only:
        for config in configs:
            if config.judge.kind == "openai" and config.stage != "answers":
                keys.append(resolve_key(config.judge))
                check_budget(config.judge, config.budget_usd)
            if config.engine.kind == "openai" and config.stage != "judge":
                keys.append(resolve_key(config.engine))
    secrets = [key for key in keys if key]
    secrets += [text for config in configs for text in secrets_in(dataclasses.asdict(config))]
    folder = Path(first.workspace).expanduser()
    with (
        Checking(TrackerConfig() if plan_only else first.tracker, folder) as tracker,
        Workspace.open(first.workspace, write=not plan_only, secrets=secrets) as workspace,
    ):
        if first.fresh:
            workspace.start_over(command)
        if first.watch.enabled and not plan_only:
            from mtbench_ray.run.watch import watch

            tracker.wait((), naming_of(first), tell)
            code = watch(configs, workspace, command, interrupts)
            return RunResult(code, [None for _ in configs])
        with report_while_long("checking settings and models", quiet=first.quiet):
            jobs = prepare(configs, workspace)
        wanted = evaluations(jobs, workspace)
        rows = wanted.rows
        races(first, rows)
        changes = [] if first.fresh else describe_changes(jobs, workspace)
        if not first.quiet:
            print(*changes, sep="\n", end="\n" * bool(changes), file=sys.stderr)
        if plan_only:
            from mtbench_ray.reports.plan_table import print_plan

            print_plan(jobs, rows, workspace, show=first.show)
            return RunResult(EXIT_OK, [None for _ in configs])
        tracker.wait((job.answers.model for job in jobs), naming_of(first), tell)
        try:
            code, results = run_round(
                jobs, wanted, first, workspace, command, interrupts, changes=changes
            )
        finally:
            after_run(first, tell, interrupts.happened)
        if not first.quiet:
            for line in open_batches(workspace.root):
                print(line, file=sys.stderr)
        values: list[float | None] = []
        for place in range(len(configs)):
            mine = [
                row
                for job, own in zip(jobs, wanted.of_jobs, strict=True)
                for row in own
                if job.place == place
            ]
            values.append(results.headline(mine[0]) if len(mine) == 1 else None)
    return RunResult(code, values)


_SHARED = (
    "workspace", "stage", "parity", "budget_usd", "fresh", "quiet", "show", "select", "gate",
    "select_seed", "engine.kind",
    "engine.replicas", "engine.tensor_parallel", "engine.pipeline_parallel",
)  # fmt: skip
"""Settings of the whole run: its one stream, its one table and its one budget."""


def check_shared(configs: Sequence[RunConfig]) -> None:
    """Raises UserError where a setting of the whole run differs between its jobs."""
    names = [*_SHARED]
    for group in ("report", "cluster", "watch", "tracker"):
        kind = getattr(configs[0], group)
        names += [f"{group}.{item.name}" for item in dataclasses.fields(kind)]
    for name in names:
        values = list(dict.fromkeys(operator.attrgetter(name)(config) for config in configs))
        if len(values) > 1:
            raise UserError(
                f"{name} cannot be swept: it belongs to the whole run"
                f" ({', '.join(map(str, values))})",
                f"one line for each: {name}={values[0]}, then {name}={values[1]}; "
                "what is in the workspace is not done again"
                if name != "parity"
                else "judge once, then `report parity=fastchat` shows the other",
            )
