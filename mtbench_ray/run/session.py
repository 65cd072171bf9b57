"""One run in the driver: the stream of answers, the judges, the single writer.

The main thread owns the workspace. Everything else (the Ray Data stream, judge loops, servers that
come up) runs in threads that put events into one queue; the main thread writes each row, tells the
board, and passes on what can now be judged.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import logging
import queue
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mtbench_ray.endpoint.served import ServedModels
from mtbench_ray.endpoint.shared_limit import learned_rates, remember_rates
from mtbench_ray.engines.base import Shard
from mtbench_ray.errors import EXIT_INTERRUPTED, EXIT_OK, UserError
from mtbench_ray.generate import ray_stream as pipeline
from mtbench_ray.generate.actor_failures import NoRoom, no_room
from mtbench_ray.generate.cluster import (
    asks_for_gpus,
    count_replicas,
    gpus_by_node,
    needs_ray,
)
from mtbench_ray.generate.conversation import failed_turn
from mtbench_ray.generate.crash_retry import CrashRetries, GivenUp
from mtbench_ray.generate.engine_logs import EngineLog
from mtbench_ray.generate.ray_stream import CrashedShard, NeverBegan
from mtbench_ray.generate.shards import Work, make_shards, with_shares
from mtbench_ray.judges.base import EvaluationView
from mtbench_ray.judges.outcomes import with_proof
from mtbench_ray.planning.jobs import Job
from mtbench_ray.planning.plan import Board, good_turns, view_of
from mtbench_ray.planning.run_evaluations import judges_by_settings
from mtbench_ray.run.judge_pool import Judges, ServerNews
from mtbench_ray.run.overview import overview
from mtbench_ray.run.pending_work import pending_work
from mtbench_ray.run.progress import Progress, report_while_long
from mtbench_ray.run.racing import Races
from mtbench_ray.run.ray_runtime import RayRuntime, head_lost
from mtbench_ray.run.signals import Interrupts
from mtbench_ray.schema import ANSWERED, EngineEvent, Evaluation, Judgment, Request, Turn
from mtbench_ray.system.program import program
from mtbench_ray.system.redact import hidden
from mtbench_ray.system.threads import ThreadEnded, listen, start_thread
from mtbench_ray.workspace.batch_ledger import BatchLedger
from mtbench_ray.workspace.parquet import warm_up
from mtbench_ray.workspace.run_record import RunRecord
from mtbench_ray.workspace.workspace import Workspace

if TYPE_CHECKING:
    from mtbench_ray.run.kept import Kept

log = logging.getLogger(__name__)

GRACE_S = 4.0
"""Seconds that judge calls in flight may take to finish after the first Ctrl-C or SIGTERM; with the
tear-down after it the run is gone within ten."""
_TICK_S = 0.05
"""The loop looks around so often while no event comes."""
STREAM_STARTS = 4
"""Times that a stream is started in a row of which Ray gives up each before an engine began."""


@dataclass(frozen=True)
class _Ended:
    """The stream of answers is over; ``error`` where it did not end well."""

    error: BaseException | None = None


@dataclass(frozen=True)
class _HeadLost:
    """The joined cluster has no head any more."""

    address: str


def _prompt(request: Request) -> list[str]:
    return [message.content for message in request.messages]


def _import_reports() -> None:
    import mtbench_ray.reports.main  # noqa: F401

    warm_up()


@dataclass
class Session:
    """The run of prepared jobs on an open workspace.

    Attributes:
        kept: What outlives it, of a watch.
    """

    jobs: Sequence[Job]
    evaluations: Sequence[Evaluation]
    workspace: Workspace
    command: Sequence[str]
    interrupts: Interrupts
    kept: Kept | None = None
    record: RunRecord = field(init=False)
    nothing_pending: bool = field(init=False, default=False)
    _events: queue.SimpleQueue[Any] = field(init=False, default_factory=queue.SimpleQueue)
    _received: set[tuple[str, int]] = field(init=False, default_factory=set)
    _served: ServedModels = field(init=False, default_factory=ServedModels)
    _crash_retries: CrashRetries = field(init=False, default_factory=CrashRetries)
    _generating: bool = field(init=False, default=False)
    _judging: bool = field(init=False, default=False)
    _warm: bool = field(init=False, default=False)
    _never_began: bool = field(init=False, default=False)
    _no_room: bool = field(init=False, default=False)
    _failure: UserError | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        program()  # the files as they are now, and not as somebody edits them later
        self.config = self.jobs[0].config
        self.views: list[EvaluationView] = []
        judges = judges_by_settings(self.jobs)
        for row in self.evaluations:
            if row.judge and row.error is None:
                data = self.workspace.load_data(row.data)
                view = view_of(row, data, self.workspace.turns, self.config.parity)
                # The stored settings are without what the calls may need: secrets.
                self.views.append(dataclasses.replace(view, judge=judges[row.judge_settings]))
        self.board = Board(self.views, self.workspace.verdicts)
        self.races = Races(self.config, self.board)
        self._cluster = self.config.cluster
        self._ray = self.kept.ray if self.kept else RayRuntime(self._cluster, self.interrupts)
        self._ray.head_lost = lambda address: self._events.put(_HeadLost(address))
        self.record = self.workspace.new_run(
            hidden({"jobs": [dataclasses.asdict(job.config) for job in self.jobs]}),
            self.evaluations,
            self.command,
        )
        self.record.notes += [note for job in self.jobs for note in job.notes]
        self._batches = BatchLedger(
            self.workspace.root, self.workspace.verdicts, self.workspace.write_text
        )
        self._served.known(
            (f"engine {turn.model}", turn.served_model, turn.system_fingerprint)
            for turn in self.workspace.turns.values()
        )

    def run(self) -> int:
        """Do what is pending; returns the exit code so far (0 or 130).

        Raises:
            UserError: The disk is full, the cluster too small and the like; rows so far are kept.
        """
        work = pending_work(self.jobs, self.workspace.turns) if self.config.stage != "judge" else []
        requests = self.races.admit(self.board.update().requests)
        if not work and not requests:
            requests = self.races.answers_ended()
        if not work and not requests:
            self.record.races = self.races.records()
            self.nothing_pending = True
            return EXIT_OK
        self._check_batches(requests)
        for known in self.workspace.run_records():
            remember_rates(known.rates)
        self.workspace.save_run(self.record)
        self.timeline = self.workspace.timeline(self.record.run_id)
        self.progress = Progress(
            self.evaluations,
            self.board,
            self.workspace,
            quiet=self.config.quiet,
        )
        self._logs = Path("runs") / self.record.run_id / "logs"
        self.judges = Judges(
            self.views,
            self.board,
            self.config,
            run_id=self.record.run_id,
            log_dir=str((self.workspace.root / "runs" / self.record.run_id).resolve()),
            post=self._events.put,
            tell=self.progress.message,
            batches=self._batches,
            budget=self.kept.budget if self.kept else None,
            servers=self.kept.servers if self.kept else None,
        )
        try:
            # Without a cluster to join, processes of one machine share their limits through a file.
            shared = self._ray.address and any(
                "cluster" in (job.config.judge.limit_scope, job.config.engine.limit_scope)
                for job in self.jobs
            )
            actors = work and needs_ray(self.config.engine, self.config.cluster)
            if self.judges.local or shared or actors:
                if actors and self.kept is None:  # a watch has engines without Ray Data
                    pipeline.import_early()
                with report_while_long("starting Ray", quiet=self.config.quiet):
                    began = time.time()
                    self._ray.start()
                    self.timeline.add("phase", name="Ray", replica="", ended=time.time(),
                                      seconds=round(time.time() - began, 3))  # fmt: skip
                self._check_gpus(work)
            self._introduce(work, requests)
            # Prompts that begin alike one after the other: services keep what they have read.
            for index, request in sorted(requests, key=lambda one: _prompt(one[1])):
                self.judges.submit(index, request)
            with self.progress, listen(self._events.put):
                with contextlib.suppress(CancelledError):  # the endpoints' loop ended: told below
                    self.interrupts.be_orderly()
                    self.judges.start(answers=bool(work))
                    self._drive(work)
                self._pump(lambda: False)
        finally:
            self._tear_down()
        if self.interrupts.happened:
            self.record.status = "interrupted"
            return EXIT_INTERRUPTED
        if self._failure is not None:
            raise self._failure
        return EXIT_OK

    def _check_batches(self, requests: Sequence[tuple[int, Request]]) -> None:
        """See that no call which an earlier run has sent in a batch is made a second time.

        Raises:
            UserError: This run would.
        """
        sent = [
            batch.text()
            for index, request in requests
            if not self.views[index].judge.batch
            and (batch := self._batches.unused(request.judgment_id))
        ]
        if sent:
            raise UserError(
                f"{len(sent)} of the pending judge calls are in batches of an earlier run"
                f" ({', '.join(dict.fromkeys(sent))}), and would be paid twice",
                "collect them first: the same command with judge.batch=true",
            )

    def _introduce(self, work: list[Work], requests: list[tuple[int, Request]]) -> None:
        if self.config.quiet or (self.kept and self.kept.introduced):
            return
        if self.kept:
            self.kept.introduced = True
        turns = sum(
            len(unit.question.turns) - len(unit.done) for item in work for unit in item.units
        )
        verdicts = len(requests) + self.races.held + (len(self.board.unnamed) if work else 0)
        for line in overview(self.jobs, turns=turns, verdicts=verdicts, gpus=self._ray.gpus):
            self.progress.said.append(line)
            print(line, file=sys.stderr)

    # The loop -----------------------------------------------------------------------------

    def _drive(self, work: list[Work]) -> None:
        starts = rounds = 0
        while work:
            before = len(self._received), self._crash_retries.losses
            self._never_began = False
            self._generate(work, again=rounds > 0)
            rounds += 1
            self._pump(lambda: self._generating)
            starts = starts + 1 if self._never_began else 0
            if 0 < starts < STREAM_STARTS and not self._stopping:
                self._note("restarting the engines")
                continue
            # A dead engine process takes rows with it; another round gets them, while that helps.
            after = len(self._received), self._crash_retries.losses
            if self._stopping or self._no_room or after == before:
                break
            work, given_up = self._crash_retries.cut(self._missing())
            self._fail(given_up)
            if work:
                self._note(f"{sum(len(item.units) for item in work)} conversations will be retried")
        if self.races.all and not self._stopping:
            self._submit(self.races.answers_ended())
            self.judges.start_rest()
            self._pump(lambda: self.judges.busy)
        if not self._stopping:
            self.judges.last_call()
            self._pump(lambda: self.judges.busy)

    def _missing(self) -> list[Work]:
        return pending_work(self.jobs, self.workspace.turns, self._received)

    @property
    def _stopping(self) -> bool:
        return self.interrupts.stop.is_set() or self._failure is not None

    def _pump(self, busy: Callable[[], bool]) -> None:
        """Handle events while ``busy``, and then those that are left."""
        deadline = None
        while True:
            # Looked at before it is waited: three such waits would end each run.
            if not self._stopping and not busy() and self._events.empty():
                self.judges.announce()
                return
            try:
                self._handle(self._events.get(timeout=_TICK_S))
                continue
            except queue.Empty:
                self._prepare_the_end()
            self.progress.tick()
            self.judges.announce()
            if self._stopping:
                if deadline is None:
                    deadline = time.monotonic() + GRACE_S
                    if self.interrupts.stop.is_set():
                        self.progress.message("stopping: calls in flight may end")
                    self.judges.stop(GRACE_S)
                if time.monotonic() > deadline or not self.judges.in_flight:
                    return

    def _prepare_the_end(self) -> None:
        """Import what the tables need while the last replies of judges are waited for."""
        if self._judging and not self._generating and not self._warm:
            self._warm = True
            start_thread("tables", _import_reports, ended=lambda _: None)

    def _handle(self, event: Any) -> None:
        if isinstance(event, Turn):
            self._on_turn(event)
        elif isinstance(event, Judgment):
            row = with_proof(self.views[self.board.named[event.judgment_id].view], event)
            self._judging = True
            self.judges.judged(row)
            self.workspace.append(row)
            self.timeline.add(
                "judgment", id=row.judgment_id, answers=list(row.answer_ids), turn=row.turn,
                started=row.started, judged=row.created, status=row.status,
            )  # fmt: skip
            self.progress.judgment(row)
            self._submit(self.races.judged(row))
        elif isinstance(event, EngineEvent) and event.kind == "beat":
            self.progress.beat(event)
        elif isinstance(event, EngineEvent) and event.kind == "phase":
            self.timeline.add("phase", name=event.detail, replica=event.replica,
                              ended=event.created, seconds=event.seconds)  # fmt: skip
        elif isinstance(event, EngineEvent):
            self.record.events.append(event)
            log.debug("engine %s %s: %s %.1f s %s", event.replica, event.model, event.kind,
                      event.seconds, event.detail)  # fmt: skip
            self.timeline.add("engine", kind=event.kind, model=event.model, replica=event.replica,
                              ended=event.created, seconds=round(event.seconds, 3),
                              detail=event.detail)  # fmt: skip
            self.progress.engine(event)
        elif isinstance(event, CrashedShard):
            pending = {unit.answer_id for item in self._missing() for unit in item.units}
            self._crash_retries.note(event, pending)
            self._note(f"an engine of {event.shard.model.label} crashed: {event.reason}")
        elif isinstance(event, EngineLog):
            self.workspace.write_text(self._logs / event.name, event.text)
        elif isinstance(event, ServerNews):
            self.judges.hear(event)
        elif isinstance(event, _Ended):
            self._on_end(event)
        elif isinstance(event, _HeadLost):
            self._failure = head_lost(event.address)
        elif isinstance(event, ThreadEnded):
            self.record.notes.append("".join(traceback.format_exception(event.error)))
            self._failure = UserError(
                f"a part of the program failed: {event}",
                "what is done is kept: run the same command again to go on",
            )

    def _on_turn(self, turn: Turn) -> None:
        """Write a turn and judge what it makes possible; a row that came before is dropped."""
        good = good_turns(turn.answer_id, self.workspace.turns)
        if len(good) >= turn.turn:
            return
        self._received.add((turn.answer_id, turn.turn))
        row = dataclasses.replace(turn, run_id=self.record.run_id)
        self.workspace.append(row)
        self.timeline.add("turn", answer=row.answer_id, turn=row.turn, model=row.model,
                          begun=row.created - row.latency_s, generated=row.created,
                          status=row.status)  # fmt: skip
        self._note_service(row)
        self.races.turn(row, row.status in ANSWERED)
        update = self.board.update([row.answer_id])
        self.progress.turn(row, update.named)
        self._submit(self.races.admit(update.requests))

    def _submit(self, requests: Sequence[tuple[int, Request]]) -> None:
        """Have the judges judge what may be judged now, and say which races are decided."""
        for index, request in requests:
            self.judges.submit(index, request)
        if lines := self.races.decided():
            self.progress.not_needed(self.races.not_needed())
            for line in lines:
                self._note(line)

    def _note_service(self, row: Turn) -> None:
        """What an endpoint's row says of the service: other parameters, another model."""
        label = f"engine {row.model}"
        if line := self._served.note(label, row.served_model, row.system_fingerprint):
            self._note(f"{line}; their answers may not be comparable")
        if row.engine_origin == "endpoint":
            adjusted = json.loads(row.sampling).get("adjusted", {})
            self.record.learned |= {f"{label}.{k}": v for k, v in adjusted.items() if k != "room"}

    def _on_end(self, event: _Ended) -> None:
        self._generating = False
        if event.error is None:
            return
        if isinstance(event.error, UserError):
            self._failure = event.error  # told when all has ended
            return
        self._never_began = isinstance(event.error, NeverBegan)
        self._no_room = isinstance(event.error, NoRoom)
        reason = str(event.error).strip() or type(event.error).__name__
        # The whole text, often a remote traceback, is in the run record.
        self.record.notes.append(f"answers: {reason}")
        where = ""
        if needs_ray(self.config.engine, self.config.cluster):
            where = f" (logs of the engines: {self.workspace.root / self._logs})"
        self.progress.message(f"answers stopped: {reason.splitlines()[-1]}{where}")

    def _note(self, text: str) -> None:
        self.record.notes.append(text)
        self.progress.message(text)

    # Answers ------------------------------------------------------------------------------

    def _generate(self, work: list[Work], again: bool) -> None:
        self._generating = True
        cluster = self._cluster

        def produce() -> None:
            engine = work[0].engine
            units = sum(len(item.units) for item in work)
            beside = self.judges.gpus_beside()
            try:
                replicas = count_replicas(engine, cluster, len(work), units, beside, again)
            except UserError:
                if again:
                    raise no_room(cluster.lost_wait_s) from None
                raise
            threads = engine.cpu_threads or self.judges.cpu_share(replicas)
            shared = with_shares(work, replicas, threads)
            shards = make_shards(shared, replicas, self.record.run_id)
            stream = pipeline.stream
            if self.kept and not self.judges.after_answers:
                stream = self.kept.engines.stream
            for output in stream(shards, replicas, cluster, self.interrupts.stop):
                self._events.put(output)

        start_thread("answers", produce, ended=lambda error: self._events.put(_Ended(error)))

    def _check_gpus(self, work: Sequence[Work]) -> None:
        """Need and have are compared before anything is started: what does not fit would wait.

        Raises:
            UserError: They do not fit.
        """
        self.judges.check_gpus()
        for engine in {id(item.engine): item.engine for item in work}.values():
            count_replicas(engine, self.config.cluster, 1, 1, self.judges.gpus_beside())
            if asks_for_gpus(engine) and (gpus := sum(gpus_by_node())):
                # Their loss does not make engines on CPUs of engines on GPUs.
                stated = self._cluster.num_gpus or gpus
                self._cluster = dataclasses.replace(self._cluster, num_gpus=stated)

    def _fail(self, given_up: Sequence[GivenUp]) -> None:
        """Write the rows of conversations that are not tried again."""
        for work, unit, reason in given_up:
            shard = Shard(work.model, work.sampling, work.engine, (unit,), self.record.run_id)
            history = tuple(turn.content for turn in unit.done)
            for turn in range(len(unit.done) + 1, len(unit.question.turns) + 1):
                self._on_turn(failed_turn(unit, shard, turn, reason, "cold", history))

    # The end ------------------------------------------------------------------------------

    def _tear_down(self) -> None:
        """End everything that this run started; rows that are still waiting are written."""
        try:
            rates = learned_rates()  # the limiters go with the judges
            self.judges.close()
            self.record.learned |= self.judges.learned
            self.record.rates |= rates
            while not self._events.empty():
                self._handle(self._events.get())
            self.record.races = self.races.records()
            self.judges.announce()
            self.record.notes += self.judges.notes
            # A pod's or a job's own log may be gone with it.
            self.workspace.write_text(self._logs / "console.log", "\n".join(self.progress.said))
        finally:
            if self.kept is None:
                self._ray.end()
            self._batches.close()
            self.timeline.close()
