"""``watch=true``: beside a training run, each checkpoint is taken as it lands.

The watch looks at the folder, and does what is new as a round of work like any run: its rows go to
the same workspace, which knows what is done. So a watch that is killed and started again goes on
where it was. What is costly outlives a round (:mod:`mtbench_ray.run.kept`): Ray and the engines.
"""

from __future__ import annotations

import dataclasses
import math
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from mtbench_ray.config import ModelConfig, RunConfig
from mtbench_ray.errors import EXIT_INTERRUPTED, EXIT_OK, EXIT_PARTIAL, UserError
from mtbench_ray.judges.base import ScoreOptions
from mtbench_ray.models.arrivals import Arrival, Arrivals
from mtbench_ray.models.discovery import model_at
from mtbench_ray.models.whole import Signature
from mtbench_ray.planning.jobs import Job, has_pending, names_a_run, prepare
from mtbench_ray.planning.run_evaluations import evaluations
from mtbench_ray.planning.settings_diff import describe_changes
from mtbench_ray.run.after_round import after_run, between_rounds
from mtbench_ray.run.kept import Kept
from mtbench_ray.run.progress import report_while_long
from mtbench_ray.run.ray_runtime import head_lost
from mtbench_ray.run.round import run_round, tell
from mtbench_ray.run.signals import Interrupts
from mtbench_ray.schema import Evaluation, canonical
from mtbench_ray.validate import watch_until
from mtbench_ray.workspace.workspace import Workspace

DONE = "DONE"
"""A file of this name in the root, or in each of its runs, says that the training is over."""
MOST = 8
"""Checkpoints of a round that have work to do: so table and curve follow a long list, too."""
TRIES = 3
"""Rounds in which a checkpoint is tried whose answers or verdicts failed."""
RETRY_S = 300.0
"""Seconds until it is tried again."""
_PATIENCE = 10
"""Times ``watch.settle_s`` after which a folder that is not whole counts as broken."""


@dataclass
class _Root:
    """A folder that is watched, and what is known of its checkpoints."""

    model: ModelConfig
    arrivals: Arrivals
    configs: list[RunConfig] = field(default_factory=list)
    done: dict[Path, Signature] = field(default_factory=dict)
    failed: dict[Path, str] = field(default_factory=dict)
    tries: dict[Path, int] = field(default_factory=dict)
    retry_at: dict[Path, float] = field(default_factory=dict)
    told: dict[Path, Signature] = field(default_factory=dict)
    order: dict[str, dict[Path, int]] = field(default_factory=dict)
    """Of each run, the checkpoints by their number, for ``model.every``."""
    contents: dict[Path, Signature] = field(default_factory=dict)
    """Of all folders at the last look."""
    seen: list[Arrival] = field(default_factory=list)
    """Those of them that are wanted."""


@dataclass(frozen=True)
class _Due:
    root: _Root
    arrival: Arrival

    @property
    def folder(self) -> Path:
        return self.arrival.candidate.folder


def watch(
    configs: Sequence[RunConfig],
    workspace: Workspace,
    command: Sequence[str],
    interrupts: Interrupts,
) -> int:
    """Watch until the training is over; returns the exit code.

    Raises:
        UserError: No folder is named, the disk is full and the like; rows so far are kept.
    """
    return Watch(configs, workspace, command, interrupts).run()


def _step(one: Arrival) -> float:
    """The step of a checkpoint; a final one is after all others."""
    return math.inf if one.candidate.step is None else float(one.candidate.step)


class Watch:
    """One watch.

    Args:
        now: Seconds of a clock that only goes forward.
        clock: Unix seconds.
        wait: Waits for so many seconds, or until the watch is to end.

    Raises:
        UserError: No folder is named.
    """

    def __init__(
        self,
        configs: Sequence[RunConfig],
        workspace: Workspace,
        command: Sequence[str],
        interrupts: Interrupts,
        now: Callable[[], float] = time.monotonic,
        clock: Callable[[], float] = time.time,
        wait: Callable[[float], object] | None = None,
    ) -> None:
        self._config = configs[0]
        self._workspace = workspace
        self._command = command
        self._interrupts = interrupts
        self._now, self._clock = now, clock
        self._wait = wait or interrupts.stop.wait
        self._until_step, self._idle_s = watch_until(self._config.watch.until)
        self._news = now()
        self._rows: dict[str, Evaluation] = {}
        self._said = ""
        self._plain = [config for config in configs if not names_a_run(config)]
        roots: dict[str, _Root] = {}
        for config in configs:
            if names_a_run(config):
                if not config.model.root:
                    raise UserError("watch=true needs a folder", "model.root=/path/of/the/run")
                key = canonical(dataclasses.asdict(config.model))
                if key not in roots:
                    arrivals = Arrivals(config.model, config.watch.settle_s)
                    roots[key] = _Root(config.model, arrivals)
                roots[key].configs.append(config)
        if not roots:
            raise UserError(
                "watch=true waits for checkpoints, and no folder of them is named",
                "model=checkpoints model.root=/path/of/the/run",
            )
        self._roots = list(roots.values())

    def run(self) -> int:
        """Watch; returns the exit code.

        Raises:
            UserError: The disk is full and the like; rows so far are kept.
        """
        self._interrupts.be_orderly()
        stop = self._interrupts.stop
        try:
            with Kept(self._config, self._interrupts) as kept:
                while not stop.is_set():
                    self._look()
                    ending = self._ending()
                    due = self._due(hurry=bool(ending))
                    if due or self._plain:
                        self._round(due, kept)
                        if kept.budget.exhausted:
                            break
                        continue
                    if ending and not self._changing():
                        tell(f"the watch ends: {ending}")
                        break
                    self._say_waiting()
                    self._wait(self._config.watch.look_s)
                    between_rounds(self._config)
                    if kept.ray.lost:
                        raise head_lost(kept.ray.lost)
        finally:
            after_run(self._config, tell, self._interrupts.happened)
        return self._end()

    # Looking ------------------------------------------------------------------------------

    def _look(self) -> None:
        now = self._now()
        for root in self._roots:
            try:
                seen = root.arrivals.look(now, self._clock())
            except UserError:
                if Path(root.model.root or "").expanduser().is_dir():
                    raise
                seen = []  # it is made once the training begins
            contents = {one.candidate.folder: one.content for one in seen}
            if contents != root.contents:
                root.contents, self._news = contents, now
            root.seen = self._wanted(root, seen)
            for one in root.seen:
                self._report(root, one)

    def _wanted(self, root: _Root, seen: Sequence[Arrival]) -> list[Arrival]:
        """What of a folder is taken at all: ``model.steps`` and ``every``, and ``watch.until``."""
        every, last = max(1, root.model.every), dict[str, float]()
        for one in seen:
            found = one.candidate
            mine = root.order.setdefault(found.run, {})
            mine.setdefault(found.folder, len(mine))
            if one.state == "whole" and _step(one) >= (self._until_step or math.inf):
                last[found.run] = min(last.get(found.run, math.inf), _step(one))
        return [
            one
            for one in seen
            if (not root.model.steps or one.candidate.step in root.model.steps)
            and root.order[one.candidate.run][one.candidate.folder] % every == 0
            and _step(one) <= last.get(one.candidate.run, math.inf)
        ]

    def _report(self, root: _Root, one: Arrival) -> None:
        """Say once of a folder that it is not taken, and why."""
        patience = _PATIENCE * self._config.watch.settle_s
        broken = one.state == "sharded" or (one.state == "incomplete" and one.quiet_s >= patience)
        if broken and root.told.get(one.candidate.folder) != one.content:
            root.told[one.candidate.folder] = one.content
            hint = f"; convert it: {one.hint}" if one.hint else ""
            self._skipped(one, f"{one.reason}{hint}")

    def _skipped(self, one: Arrival, reason: str) -> None:
        tell(f"{one.candidate.folder} is skipped until it changes: {reason}")

    def _due(self, hurry: bool) -> list[_Due]:
        """Whole checkpoints that are not done, in the order of training.

        Args:
            hurry: What failed is tried again now.
        """
        found: list[_Due] = []
        for root in self._roots:
            runs: dict[str, list[_Due]] = {}
            for one in root.seen:
                folder = one.candidate.folder
                if one.state != "whole" or root.done.get(folder) == one.content:
                    continue
                if not hurry and self._now() < root.retry_at.get(folder, 0.0):
                    continue
                runs.setdefault(one.candidate.run, []).append(_Due(root, one))
            for mine in runs.values():
                if root.model.last is not None and len(mine) > root.model.last:
                    for old in mine[: -root.model.last or None]:
                        root.done[old.folder] = old.arrival.content
                        tell(f"{old.folder} is passed over: model.last={root.model.last}")
                    mine = mine[-root.model.last :] if root.model.last > 0 else []
                found += mine
        return found

    def _changing(self) -> bool:
        """Whether a checkpoint is being written."""
        return any(one.state == "changing" for root in self._roots for one in root.seen)

    def _ending(self) -> str:
        """Why the watch ends once all that is there is done; empty where it goes on."""
        if all(self._is_over(root) for root in self._roots):
            return f"the training is over ({DONE})"
        if self._until_step is not None and all(self._reached(root) for root in self._roots):
            return f"step {self._until_step:g} is there (watch.until)"
        if self._idle_s is not None and self._now() - self._news >= self._idle_s:
            return f"no news for {self._idle_s / 60:g} minutes (watch.until)"
        wanted = [(root, step) for root in self._roots for step in root.model.steps]
        if wanted and all(root.model.steps for root in self._roots):
            there = {(id(root), one.candidate.step) for root in self._roots for one in root.seen
                     if root.done.get(one.candidate.folder) == one.content}  # fmt: skip
            if all((id(root), step) in there for root, step in wanted):
                return "all steps of model.steps are done"
        return ""

    def _is_over(self, root: _Root) -> bool:
        place = Path(root.model.root or "").expanduser()
        runs = {Path(one.candidate.run) for one in root.seen} - {place}
        return (place / DONE).exists() or (
            bool(runs) and all((run / DONE).exists() for run in runs)
        )

    def _reached(self, root: _Root) -> bool:
        """Whether each run has a whole checkpoint of the last step or a later one."""
        runs: dict[str, float] = {one.candidate.run: -1.0 for one in root.seen}
        for one in root.seen:
            if one.state == "whole":
                runs[one.candidate.run] = max(runs[one.candidate.run], _step(one))
        return bool(runs) and all(step >= (self._until_step or 0) for step in runs.values())

    # Working ------------------------------------------------------------------------------

    def _round(self, due: Sequence[_Due], kept: Kept) -> None:
        """Do what is pending of some checkpoints."""
        whose: list[_Due | None] = [None for _ in self._plain]
        configs = list(self._plain)
        for one in due:
            one.root.failed.pop(one.folder, None)
            try:
                made = [
                    dataclasses.replace(config, model=model_at(config.model, one.arrival.candidate))
                    for config in one.root.configs
                ]
            except UserError as error:
                self._fail(one, error)
                continue
            configs += made
            whose += [one] * len(made)
        if not configs:
            return
        with report_while_long("checking settings and models", quiet=self._config.quiet):
            jobs = prepare(configs, self._workspace, alone_raises=False)
        for job in jobs:
            if job.error and (its := whose[job.place]) is not None:
                self._fail(its, job.error)
            elif job.error:
                raise UserError(f"{job.answers.model}: {job.error}")
        good = [job for job in jobs if (its := whose[job.place]) is None
                or its.folder not in its.root.failed]  # fmt: skip
        good = self._at_most(good, whose)
        if not good:
            return
        first = not self._rows
        self._plain = []
        self._said = ""
        wanted = evaluations(good, self._workspace)
        changes = describe_changes(good, self._workspace) if first else []
        if not self._config.quiet:
            print(*changes, sep="\n", end="\n" * bool(changes), file=sys.stderr)
        code, _ = run_round(
            good, wanted, self._config, self._workspace, self._command, self._interrupts,
            changes=changes, kept=kept,
        )  # fmt: skip
        self._rows |= {row.evaluation_id: row for row in wanted.rows}
        self._news = self._now()
        if self._config.watch.release:
            kept.release()
        if self._config.report.format in ("table", "markdown"):
            self._show()
        if code == EXIT_INTERRUPTED:
            return
        for its in {id(its): its for job in good if (its := whose[job.place])}.values():
            mine = [job for job in good if whose[job.place] is its]
            self._settle(its, all(self._is_done(job) for job in mine))

    def _at_most(self, jobs: Sequence[Job], whose: Sequence[_Due | None]) -> list[Job]:
        """The jobs of a round: of all that has work to do, the first ones."""
        chosen, busy = [], set[Path]()
        for job in jobs:
            one = whose[job.place]
            if one is not None and not self._is_done(job):
                if len(busy) >= MOST and one.folder not in busy:
                    continue
                busy.add(one.folder)
            chosen.append(job)
        return chosen

    def _is_done(self, job: Job) -> bool:
        """Whether all answers and verdicts of a job are there."""
        from mtbench_ray.reports.results import Results

        if has_pending(job, self._workspace):
            return False
        results = Results(self._workspace, ScoreOptions(self._config.parity, 0))
        rows = evaluations([job], self._workspace).rows
        return all(not one.reason for row in rows if row.judge for one in results.outcomes(row))

    def _settle(self, one: _Due, complete: bool) -> None:
        root, folder = one.root, one.folder
        root.failed.pop(folder, None)
        tries = root.tries[folder] = root.tries.get(folder, 0) + 1
        if not complete and tries < TRIES:
            root.retry_at[folder] = self._now() + RETRY_S
            return
        root.done[folder] = one.arrival.content
        root.tries.pop(folder)
        root.retry_at.pop(folder, None)
        if not complete:
            root.failed[folder] = "incomplete"
            tell(f"{folder} stays incomplete after {tries} rounds; the same command again"
                       " tries what is missing")  # fmt: skip

    def _fail(self, one: _Due, error: UserError | str) -> None:
        """A checkpoint that cannot be run: it is looked at again when its files change."""
        one.root.failed[one.folder] = str(error)
        one.root.done[one.folder] = one.arrival.content
        self._skipped(one.arrival, " ".join(str(error).split()))

    # Saying -------------------------------------------------------------------------------

    def _say_waiting(self) -> None:
        """What is waited for, once between two rounds."""
        roots = ", ".join(str(root.model.root) for root in self._roots)
        there = sum(one.state == "whole" for root in self._roots for one in root.seen)
        text = (
            f"waiting for checkpoints in {roots} ({there} done); it ends with a file {DONE} in it"
        )
        if text != self._said and not self._config.quiet:
            self._said = text
            tell(text)

    def _show(self) -> None:
        """The table of all that this watch has done."""
        from mtbench_ray.reports.results import Results
        from mtbench_ray.reports.shown import gather, show

        report = self._config.report
        options = ScoreOptions(self._config.parity, report.resamples, report.seed)
        show(gather(Results(self._workspace, options), list(self._rows.values())), report.format)
        sys.stdout.flush()

    def _end(self) -> int:
        if self._rows and self._config.report.format not in ("table", "markdown"):
            self._show()
        if self._interrupts.happened:
            return EXIT_INTERRUPTED
        for root in self._roots:
            for one in root.seen:
                broken = one.state in ("incomplete", "sharded")
                if broken and root.told.get(one.candidate.folder) != one.content:
                    self._skipped(one, one.reason)
        done = all(
            one.state == "whole" and root.done.get(one.candidate.folder) == one.content
            and one.candidate.folder not in root.failed
            for root in self._roots
            for one in root.seen
        )  # fmt: skip
        if not self._rows:
            tell("no checkpoint was there")
        return EXIT_OK if done and self._rows else EXIT_PARTIAL
