"""One run in the driver: the stream of answers, the judges, the single writer.

The main thread owns the workspace. Everything else (the Ray Data stream, judge loops, servers that
come up) runs in threads that put events into one queue; the main thread writes each row, tells the
board, and passes on what can now be judged.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import queue
import secrets
import signal
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from mtbench_ray import pipeline
from mtbench_ray.config import JudgeConfig, RunConfig
from mtbench_ray.engines.base import ShardUnit
from mtbench_ray.errors import (
    EXIT_INTERRUPTED,
    EXIT_OK,
    EXIT_PARTIAL,
    EngineFault,
    UserError,
)
from mtbench_ray.jobs import Job, evaluations, model_of, prepare, settle
from mtbench_ray.judges.base import Reading
from mtbench_ray.judges.stage import Budget, JudgeStage, check_budget
from mtbench_ray.plan import Board, Setting, good_turns, owed_turns, setting, shortened
from mtbench_ray.progress import Progress
from mtbench_ray.runs import RunRecord
from mtbench_ray.schema import ANSWERED, EngineEvent, Evaluation, Judgment, Request, Turn
from mtbench_ray.store import Workspace

GRACE_S = 5.0
"""Seconds that judge calls in flight may take to finish after the first Ctrl-C or SIGTERM; with the
tear-down after it the run is gone within ten."""


@dataclass
class RunResult:
    """What a run leaves behind for its caller.

    Attributes:
        exit_code: See :mod:`mtbench_ray.errors`.
        values: For each config the average of its model, or None; Hydra's return values.
    """

    exit_code: int
    values: list[float | None]


@dataclass(frozen=True)
class _Ended:
    """A background thread is done; ``error`` where it did not end well."""

    what: str
    error: BaseException | None = None


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
    from mtbench_ray.endpoint.keys import resolve_key
    from mtbench_ray.reports.estimate import print_plan
    from mtbench_ray.reports.main import finish

    first = configs[0]
    if any(config.workspace != first.workspace for config in configs):
        raise UserError("the jobs of one run share a workspace", "set workspace once, for all jobs")
    configs = [settle(config) for config in configs]
    keys: dict[str, str | None] = {}
    if not plan_only:
        for config in configs:
            if config.judge.kind == "openai" and config.stage != "answers":
                keys[config.judge.label] = resolve_key(config.judge)
                check_budget(config.judge, config.budget_usd)
            if config.engine.kind == "openai" and config.stage != "judge":
                keys["engine"] = resolve_key(config.engine)
    hidden = [key for key in keys.values() if key]
    with Workspace.open(first.workspace, write=not plan_only, secrets=hidden) as workspace:
        if first.fresh:
            workspace.start_over(command)
        jobs = prepare(configs, workspace)
        rows = evaluations(jobs, workspace)
        if plan_only:
            print_plan(jobs, rows, workspace, show=first.show)
            return RunResult(EXIT_OK, [None for _ in configs])
        session = Session(jobs, rows, workspace, command)
        code = session.run()
        summary = finish(workspace, session.record, rows, first, session.owes_nothing)
    averages = {result["model"]: result["average"]["mean"] for result in summary["results"]
                if "average" in result}  # fmt: skip
    if code == EXIT_OK and not summary["complete"]:
        code = EXIT_PARTIAL
    by_config = [averages.get(config.model.label) for config in configs]
    return RunResult(code, by_config)


@dataclass
class _Judge:
    """One judge of the run, with the settings (by index) that it serves."""

    config: JudgeConfig
    stage: JudgeStage
    server: Any = None
    key: str | None = None


@dataclass
class Session:
    """The run of prepared jobs on an open workspace."""

    jobs: Sequence[Job]
    evaluations: Sequence[Evaluation]
    workspace: Workspace
    command: Sequence[str]
    record: RunRecord = field(init=False)
    owes_nothing: bool = field(init=False, default=False)
    _events: queue.SimpleQueue[Any] = field(init=False, default_factory=queue.SimpleQueue)
    _stop: threading.Event = field(init=False, default_factory=threading.Event)
    _signals: int = field(init=False, default=0)
    _judges: dict[int, _Judge] = field(init=False, default_factory=dict)
    _ray_is_ours: bool = field(init=False, default=False)
    _announced: set[str] = field(init=False, default_factory=set)
    _received: set[tuple[str, int]] = field(init=False, default_factory=set)

    def __post_init__(self) -> None:
        self.config = self.jobs[0].config
        self.settings: list[Setting] = []
        for row in self.evaluations:
            if row.judge and row.error is None:
                self.settings.append(setting(row, self.workspace.load_data(row.data)))
        self.board = Board(self.settings, self.workspace.turns, self.workspace.judgments)
        self.budget = Budget(self.config.budget_usd)
        self.record = self.workspace.new_run(
            {"jobs": [dataclasses.asdict(job.config) for job in self.jobs]},
            self.evaluations,
            self.command,
        )
        self.record.notes += [note for job in self.jobs for note in job.notes]

    def run(self) -> int:
        """Do what is owed; returns the exit code so far (0, 3 or 130)."""
        work = self._owed_work() if self.config.stage != "judge" else []
        requests = self.board.ready()
        if not work and not requests:
            self.owes_nothing = True
            return EXIT_OK
        self.workspace.save_run(self.record)
        self.timeline = self.workspace.timeline(self.record.run_id)
        self.progress = Progress(
            self.evaluations, self.settings, self.workspace, quiet=self.config.quiet
        )
        previous = {
            number: signal.signal(number, self._on_signal)
            for number in (signal.SIGINT, signal.SIGTERM)
            if threading.current_thread() is threading.main_thread()
        }
        try:
            with self.progress:
                self._drive(work, requests)
        finally:
            self._tear_down()
            for number, handler in previous.items():
                signal.signal(number, handler)
            self.timeline.close()
        if self._signals:
            self.record.status = "interrupted"
            return EXIT_INTERRUPTED
        return EXIT_OK

    # What is owed -------------------------------------------------------------------------

    def _owed_work(self, only_missing: bool = False) -> list[pipeline.Work]:
        """Conversations to have, by model; ``only_missing`` leaves out rows that failed."""
        work: list[pipeline.Work] = []
        # Jobs that share answers (another judge, say) have the same ids: asked once.
        seen: set[str] = set()
        for job in self.jobs:
            if job.error is not None:
                continue
            questions = {question.question_id: question for question in job.questions}
            owed = owed_turns(job.answers, questions, self.workspace.turns)
            units = tuple(
                ShardUnit(
                    questions[unit.question_id],
                    unit.sample,
                    unit.answer_id,
                    tuple(owed[unit.answer_id]),
                )
                for unit in job.answers.units
                if unit.answer_id in owed
                and unit.answer_id not in seen
                and not (only_missing and self._failed(unit.answer_id, owed))
            )
            seen.update(unit.answer_id for unit in units)
            if units:
                work.append(
                    pipeline.Work(model_of(job), job.config.sampling, job.config.engine, units)
                )
        return work

    def _failed(self, answer: str, owed: dict[str, list[Turn]]) -> bool:
        """Whether this run has a row of the next owed turn: then it failed, and is not lost."""
        return (answer, len(owed[answer]) + 1) in self._received

    # The loop -----------------------------------------------------------------------------

    def _drive(self, work: list[pipeline.Work], requests: list[tuple[int, Request]]) -> None:
        self._start_services(bool(work))
        for index, request in requests:
            self._submit(index, request)
        rounds = 0
        while True:
            before = len(self._received)
            if work:
                self._generate(work)
            self._pump(lambda: self._generating)
            work = self._owed_work(only_missing=True) if self.config.stage != "judge" else []
            rounds += 1
            # A dead actor loses rows; another round gets them, as long as that helps.
            if self._stop.is_set() or not work or len(self._received) == before:
                break
            self.record.notes.append(f"round {rounds + 1}: rows of a lost engine actor are redone")
        for judge in self._served():
            judge.stage.close_when_idle()
            if judge.server is None and judge.config.kind == "local":
                self._start_server(judge, beside_engines=False)
        self._pump(lambda: any(judge.stage.busy for judge in self._served()))

    def _pump(self, busy: Callable[[], bool]) -> None:
        """Handle events while ``busy``, and then those that are left."""
        deadline = None
        while True:
            try:
                self._handle(self._events.get(timeout=0.2))
                continue
            except queue.Empty:
                pass
            self.progress.tick()
            self._announce()
            if self._stop.is_set():
                deadline = deadline or time.monotonic() + GRACE_S + 1.0
                if time.monotonic() > deadline or not any(
                    judge.stage.in_flight for judge in self._served()
                ):
                    return
            elif not busy() and self._events.empty():
                return

    def _handle(self, event: Any) -> None:
        if isinstance(event, Turn):
            self._on_turn(event)
        elif isinstance(event, Judgment):
            row = event
            self.workspace.append(row)
            self.timeline.add(
                "judgment", id=row.judgment_id, answers=list(row.answer_ids), turn=row.turn,
                started=row.started, judged=row.created, status=row.status,
            )  # fmt: skip
            self.progress.judgment(row)
        elif isinstance(event, EngineEvent):
            self.record.events.append(event)
            self.timeline.add("engine", kind=event.kind, model=event.model,
                              seconds=round(event.seconds, 3), detail=event.detail)  # fmt: skip
            self.progress.engine(event)
        elif isinstance(event, _Ended):
            self._on_end(event)

    def _on_turn(self, turn: Turn) -> None:
        """Write a turn and judge what it makes possible; rows that a replay doubled are dropped."""
        good = good_turns(turn.answer_id, self.workspace.turns)
        if len(good) >= turn.turn:
            return
        self._received.add((turn.answer_id, turn.turn))
        row = dataclasses.replace(turn, run_id=self.record.run_id)
        self.workspace.append(row)
        self.timeline.add("turn", answer=row.answer_id, turn=row.turn, generated=row.created,
                          status=row.status)  # fmt: skip
        self.progress.turn(row)
        if row.status in ANSWERED:
            for index, request in self.board.ready([row.answer_id]):
                self._submit(index, request)

    def _on_end(self, event: _Ended) -> None:
        if event.what == "answers":
            self._generating = False
        if event.error is None:
            return
        words = str(event.error).strip() or type(event.error).__name__
        self.record.notes.append(f"{event.what}: {words}")
        # The whole text, often a remote traceback, is in the run record.
        self.progress.message(f"{event.what} stopped: {words.splitlines()[-1]}")
        if isinstance(event.error, UserError):
            self._failure = event.error
            self._stop.set()

    # Answers ------------------------------------------------------------------------------

    _generating: bool = False
    _failure: UserError | None = None

    def _generate(self, work: list[pipeline.Work]) -> None:
        self._generating = True

        def produce() -> None:
            error: BaseException | None = None
            try:
                engine = work[0].engine
                units = sum(len(item.units) for item in work)
                replicas = pipeline.count_replicas(engine, self.config.cluster, len(work), units)
                shards = pipeline.make_shards(
                    self._with_threads(work, replicas), replicas, self.record.run_id
                )
                for output in pipeline.stream(shards, replicas, self.config.cluster, self._stop):
                    self._events.put(output)
            except BaseException as caught:
                error = caught
            self._events.put(_Ended("answers", error))

        threading.Thread(target=produce, name="answers", daemon=True).start()

    def _with_threads(self, work: list[pipeline.Work], replicas: int) -> list[pipeline.Work]:
        """Engines without a GPU get their share of the cores.

        Threads of two engines on one core wait for each other in busy loops: both then crawl.
        """
        threads = work[0].engine.cpu_threads or self._cpu_share(replicas)
        return [
            dataclasses.replace(item, engine=dataclasses.replace(item.engine, cpu_threads=threads))
            for item in work
        ]

    def _cpu_share(self, replicas: int) -> int:
        """Cores over the engines and judge servers that run at the same time on one node."""
        servers = sum(
            judge.config.replicas
            for judge in self._served()
            if judge.config.kind == "local" and self._together(judge.config)
        )
        return max(1, (os.cpu_count() or 1) // max(1, replicas + servers))

    # Judges -------------------------------------------------------------------------------

    def _start_services(self, answers: bool) -> None:
        """Start Ray where it is needed, and the judges that may run from the start."""
        local = any(what.judge.kind == "local" for what in self.settings)
        if local or (answers and pipeline.needs_ray(self.config.engine, self.config.cluster)):
            self._start_ray()
        groups: dict[str, _Judge] = {}
        for index, what in enumerate(self.settings):
            name = f"{what.evaluation.judge_settings}{what.evaluation.mode}{what.evaluation.data}"
            if name not in groups:
                groups[name] = self._judge(what)
            self._judges[index] = groups[name]
        for judge in self._served():
            if judge.config.kind == "openai":
                judge.stage.begin()
            elif self._together(judge.config) or not answers:
                self._start_server(judge, beside_engines=answers)

    def _judge(self, what: Setting) -> _Judge:
        from mtbench_ray.endpoint.keys import resolve_key

        judge = what.judge
        key = secrets.token_urlsafe(24) if judge.kind == "local" else resolve_key(judge)

        def read(request: Request, text: str, finish_reason: str | None) -> Reading:
            return what.mode.read(request.order, text, finish_reason, what.prompts, "safe")

        def shorten(request: Request, tokens: int) -> Request:
            return shortened(what, self.board.slots[request.judgment_id], request, tokens,
                             self.workspace.turns)  # fmt: skip

        stage = JudgeStage(
            judge,
            key=key,
            read=read,
            emit=self._events.put,
            budget=self.budget,
            run_id=self.record.run_id,
            verdict=what.prompts.verdict,
            shorten=shorten,
        )
        return _Judge(judge, stage, key=key)

    def _submit(self, index: int, request: Request) -> None:
        self._judges[index].stage.submit(request)

    def _served(self) -> list[_Judge]:
        return list({id(judge): judge for judge in self._judges.values()}.values())

    def _together(self, judge: JudgeConfig) -> bool:
        """Whether a local judge runs beside the engines rather than after them."""
        if judge.schedule != "auto":
            return judge.schedule == "together"
        import ray

        gpus = int(ray.cluster_resources().get("GPU", 0))
        engine = self.config.engine
        engines = engine.tensor_parallel * engine.pipeline_parallel * (engine.replicas or 1)
        return gpus == 0 or gpus >= engines + judge.replicas * judge.tensor_parallel

    def _start_server(self, judge: _Judge, *, beside_engines: bool) -> None:
        """Start a local judge in the background; its stage begins once it is up."""
        from mtbench_ray.judges.server import start_servers

        threads = self.config.engine.cpu_threads or (
            self._cpu_share(self.config.engine.replicas or 1) if beside_engines else None
        )
        log_dir = self.workspace.root / "runs" / self.record.run_id
        judge.server = start_servers(
            judge.config, judge.key or "", cpu_threads=threads, log_dir=str(log_dir.resolve())
        )
        self.progress.message(f"starting the local judge {judge.config.label}")

        def wait() -> None:
            try:
                judge.server.wait_ready(judge.config.start_timeout_s)
                judge.stage.begin(judge.server.base_urls)
                self._events.put(_Ended("judge server"))
            except (EngineFault, UserError) as error:
                judge.stage.fail(f"the local judge did not start: {error}")
                self._events.put(_Ended("judge server", error))

        threading.Thread(target=wait, name="judge-server", daemon=True).start()

    def _announce(self) -> None:
        """Say once, when it happens, that a judge ended early."""
        for judge in self._served():
            label = judge.config.label
            if judge.stage.fatal and label not in self._announced:
                self._announced.add(label)
                self.progress.message(f"judge {label} stopped: {judge.stage.fatal}")
                self.record.notes.append(f"judge {label}: {judge.stage.fatal}")
        if self.budget.exhausted and "budget" not in self._announced:
            self._announced.add("budget")
            text = (
                f"budget_usd={self.budget.limit_usd:g}: ${self.budget.spent_usd:.2f} are spent and"
                " the next call might exceed it; what is left stays owed"
            )
            self.progress.message(text)
            self.record.notes.append(text)

    # Ray and signals ----------------------------------------------------------------------

    def _start_ray(self) -> None:
        import ray

        self._ray_is_ours = not ray.is_initialized()
        pipeline.start_ray(self.config.cluster)

    def _on_signal(self, number: int, frame: Any) -> None:
        self._signals += 1
        self._stop.set()
        if self._signals > 1:
            _exit_now()
        for judge in self._served():
            judge.stage.stop(GRACE_S)

    def _tear_down(self) -> None:
        for judge in self._served():
            judge.stage.stop(0.0)
            self.record.learned.update(
                {
                    f"{judge.config.label}.{name}": value
                    for name, value in judge.stage.learned.items()
                }
            )
            if judge.server is not None:
                judge.server.stop()
        while not self._events.empty():
            self._handle(self._events.get())
        self._announce()
        if self._ray_is_ours:
            import ray

            ray.shutdown()
        if self._failure is not None:
            raise self._failure


def _exit_now() -> None:
    """Leave at once, with every process of the run; rows on disk are whole lines already."""
    import psutil

    for child in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            child.kill()
    os._exit(EXIT_INTERRUPTED)
