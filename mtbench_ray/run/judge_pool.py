"""The judges of a run, and the servers of local ones: started, watched, started again, ended."""

from __future__ import annotations

import dataclasses
import os
import secrets
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from mtbench_ray.config import JudgeConfig, RunConfig
from mtbench_ray.endpoint.served import ServedModels
from mtbench_ray.errors import EngineFault, UserError
from mtbench_ray.generate.cluster import fits, gpus_by_node, require_gpus
from mtbench_ray.judges.base import EvaluationView, Reading, Reply
from mtbench_ray.judges.budget import Budget
from mtbench_ray.planning.plan import Board, counts, shortened
from mtbench_ray.schema import Judgment, Request, canonical
from mtbench_ray.system.threads import start_thread
from mtbench_ray.workspace.batch_ledger import BatchLedger

if TYPE_CHECKING:
    from mtbench_ray.judges.stage import JudgeStage

MAX_CRASHES = 3
"""Times that the servers of a local judge are started again."""
_LOOK_S = 2.0
"""Between two looks at whether a server lives."""


@dataclass
class WarmServers:
    """Servers of local judges that are up, with their keys: one round leaves them for the next."""

    _left: list[tuple[JudgeConfig, Any, str]] = field(default_factory=list)

    def leave(self, config: JudgeConfig, server: Any, key: str) -> None:
        """Keep the servers of a judge."""
        self._left.append((config, server, key))

    def take(self, config: JudgeConfig) -> tuple[Any, str] | None:
        """The servers of such a judge, and their key; None where there are none."""
        for place, (kept, server, key) in enumerate(self._left):
            if kept == config:
                del self._left[place]
                return server, key
        return None

    def close(self) -> None:
        """End them all."""
        left, self._left = self._left, []
        for _, server, _ in left:
            server.stop()


@dataclass
class Judge:
    """One judge of the run.

    Attributes:
        warm: Its servers are up, as far as is known.
    """

    config: JudgeConfig
    make_stage: Callable[[], JudgeStage]
    key: str | None
    stage: JudgeStage = field(init=False)
    server: Any = None
    warm: bool = False
    started: bool = False
    restarting: bool = False
    pending: dict[str, Request] = field(default_factory=dict)
    """Requests handed to the stage whose judgments have not come back."""

    def __post_init__(self) -> None:
        self.stage = self.make_stage()


@dataclass(frozen=True)
class ServerNews:
    """What happened to the servers of a local judge: ``up``, ``down`` or ``gone`` for good."""

    judge: Judge
    what: str
    reason: str = ""


class Judges:
    """All judges of a run. Its methods are for the main thread.

    Args:
        views: The judged evaluations, by index.
        post: Takes judgments and :class:`ServerNews` from other threads.
        tell: Takes lines for the user.
        log_dir: Where servers write their logs.
        batches: Of the workspace, for judges with ``judge.batch``.
        budget: What earlier rounds have left of it; None for a fresh one.
        servers: Left by earlier rounds, and for later ones; None where there are none.
    """

    def __init__(
        self,
        views: Sequence[EvaluationView],
        board: Board,
        config: RunConfig,
        *,
        run_id: str,
        log_dir: str,
        post: Callable[[Any], None],
        tell: Callable[[str], None],
        batches: BatchLedger | None = None,
        budget: Budget | None = None,
        servers: WarmServers | None = None,
    ) -> None:
        self._batches = batches
        self._warm = servers
        self.notes: list[str] = []
        self._board = board
        self._config = config
        self._run_id = run_id
        self._log_dir = log_dir
        self._post = post
        self._tell = tell
        self._budget = budget or Budget(config.budget_usd)
        self._served = ServedModels()
        self._served.known(
            (f"judge {row.judge}", row.served_model, row.system_fingerprint)
            for row in list(board.judgments.values())
            if row.source == "run"
        )
        self._announced: set[str] = set()
        self._closed = threading.Event()
        self._last_call = False
        self._by_view: list[Judge] = []
        groups: dict[str, Judge] = {}
        for view in views:
            row = view.evaluation
            name = canonical(
                [row.judge, row.judge_settings, row.mode, row.data, row.protocol, row.benchmark]
            )
            if name not in groups:
                groups[name] = self._judge(view)
            self._by_view.append(groups[name])
        self._judges = list(groups.values())
        if servers is not None:
            servers.close()  # those that nobody takes any more, of a model that is another by now
        self._beside: list[Judge] | None = None

    @property
    def local(self) -> bool:
        """Whether some judge is a server of the run's own."""
        return any(judge.config.kind == "local" for judge in self._judges)

    @property
    def busy(self) -> bool:
        """Whether more judgments may come."""
        return any(judge.stage.busy or judge.restarting for judge in self._judges)

    @property
    def in_flight(self) -> int:
        """Calls under way."""
        return sum(judge.stage.in_flight for judge in self._judges)

    @property
    def learned(self) -> dict[str, str]:
        """Parameters that services made us change, for the run record."""
        return {
            f"{judge.config.label}.{name}": value
            for judge in self._judges
            for name, value in judge.stage.learned.items()
        }

    def start(self, answers: bool) -> None:
        """Start the judges that may run from the start; ``answers``: engines run too.

        A local judge that nothing is pending for is not started.
        """
        waiting = {id(self._by_view[one.view]) for one in self._board.unnamed if answers}
        for judge in self._judges:
            if judge.config.kind != "local":
                judge.stage.begin()
            elif not (judge.pending or id(judge) in waiting):
                continue
            elif answers and not self._together(judge):
                # It has to wait for the engines' cards; much of its start need not.
                if judge.server is not None:  # nodes are gone since it was left
                    judge.server.stop()
                judge.server, judge.warm = self._servers(judge, None), False
                judge.server.make_ready()
            else:
                self._start_server(judge, beside_engines=answers)

    def check_gpus(self) -> None:
        """Compare what the local judges need with what the cluster has.

        Raises:
            UserError: They could never all run, even without the engines.
        """
        if sum(gpus_by_node()):  # without a GPU they run on the cores
            require_gpus(0, 1, self._gpus(self._local()), self._config.cluster)

    def submit(self, index: int, request: Request) -> None:
        """Have the judge of a view judge something."""
        judge = self._by_view[index]
        if judge.server is not None and not (judge.started or judge.warm):
            # From now on the disk has nothing better to do.
            judge.server.read_ahead()
        if not judge.restarting:
            judge.stage.submit(request)
        judge.pending[request.judgment_id] = request

    def judged(self, row: Judgment) -> None:
        """A judgment came back."""
        for judge in self._judges:
            judge.pending.pop(row.judgment_id, None)
        label = f"judge {row.judge}"
        if line := self._served.note(label, row.served_model, row.system_fingerprint):
            self._note(f"{line}; their verdicts may not be comparable")

    def last_call(self) -> None:
        """No more requests will come: end when idle; servers that had to wait start now."""
        self._last_call = True
        for judge in self._judges:
            judge.stage.close_when_idle()
        self.start_rest()

    def start_rest(self) -> None:
        """No more answers will come: servers that had to wait start now."""
        for judge in self._judges:
            if not judge.started and judge.config.kind == "local" and judge.pending:
                self._start_server(judge, beside_engines=False)

    def stop(self, grace_s: float) -> None:
        """Start no further call; those in flight may take so long."""
        self._closed.set()
        for judge in self._judges:
            judge.stage.stop(grace_s)
            judge.restarting = False

    def close(self) -> None:
        """End all calls, and all servers that are not left for another round."""
        self.stop(0.0)
        for judge in self._judges:
            if judge.server is None:
                continue
            if self._warm is not None and judge.warm and self._together(judge):
                self._warm.leave(judge.config, judge.server, judge.key or "")
            else:
                judge.server.stop()

    @property
    def after_answers(self) -> bool:
        """Whether some local judge waits for the GPUs of the engines."""
        return any(not self._together(judge) for judge in self._local())

    def cpu_share(self, replicas: int) -> int:
        """Cores over the engines and judge servers that run at the same time on one node."""
        from mtbench_ray.engines.cpu import thread_share

        servers = sum(judge.config.replicas for judge in self._local() if self._together(judge))
        return thread_share(os.cpu_count() or 1, replicas + servers)

    def gpus_beside(self) -> list[int]:
        """GPUs of each judge server that runs while engines run."""
        return self._gpus([judge for judge in self._local() if self._together(judge)])

    def announce(self) -> None:
        """Say once, when it happens, that a judge ended early."""
        for judge in self._judges:
            if judge.stage.fatal:
                label = judge.config.label
                self._once(label, f"judge {label} stopped: {judge.stage.fatal}")
        if self._budget.exhausted:
            self._once(
                "budget",
                f"budget_usd={self._budget.limit_usd:g}: ${self._budget.spent_usd:.2f} spent"
                " and the next call might exceed it; what is left stays pending",
            )

    def hear(self, news: ServerNews) -> None:
        """Act on what happened to a server."""
        judge, label = news.judge, news.judge.config.label
        if self._closed.is_set():
            return
        judge.warm = news.what == "up"
        if news.what == "gone":
            judge.restarting = False
            judge.stage.fail(f"the local judge {news.reason}")
            judge.stage.stop(0.0)
        elif news.what == "down":
            # What was in flight is lost with the server; it costs nothing to ask it again.
            judge.restarting = True
            judge.stage.stop(0.0)
            self._note(f"restarting the local judge {label}: {news.reason}")
        else:
            if judge.restarting:
                judge.restarting = False
                judge.stage = judge.make_stage()
            for remark in judge.server.remarks:
                self._once(f"{label} {remark}", f"judge {label}: {remark}")
            judge.stage.begin(judge.server.base_urls, judge.server.at_once)
            for request in judge.pending.values():
                judge.stage.submit(request)
            if self._last_call:
                judge.stage.close_when_idle()

    def _judge(self, view: EvaluationView) -> Judge:
        from mtbench_ray.endpoint.keys import resolve_key

        config, grader = view.judge, view.grader
        key: str | None = None
        server: Any = None
        if config.kind == "local":
            left = self._warm.take(config) if self._warm is not None else None
            server, key = left or (None, secrets.token_urlsafe(24))
        elif config.kind != "none":
            key = resolve_key(config)
        pattern = grader.pattern(view) if config.constrain else None
        # What is stored is read in safe parity, in any run.
        safely = dataclasses.replace(view, parity="safe")

        def read(request: Request, reply: Reply) -> Reading:
            return grader.read(request, safely, reply)

        def enough(judgment: Judgment) -> bool:
            return counts(view, judgment)

        def shorten(request: Request, tokens: int) -> Request:
            return shortened(view, self._board.named[request.judgment_id].slot, request, tokens)

        def make_stage() -> JudgeStage:
            from mtbench_ray.judges.stage import JudgeStage

            return JudgeStage(
                config,
                key=key,
                read=read,
                emit=self._post,
                budget=self._budget,
                run_id=self._run_id,
                enough=enough,
                pattern=pattern,
                shorten=shorten,
                batches=self._batches,
                without_logprobs=grader.without_logprobs,
            )

        return Judge(config, make_stage, key, server, server is not None)

    def _local(self) -> list[Judge]:
        return [judge for judge in self._judges if judge.config.kind == "local"]

    def _gpus(self, judges: Sequence[Judge]) -> list[int]:
        return [j.config.tensor_parallel for j in judges for _ in range(j.config.replicas)]

    def _together(self, judge: Judge) -> bool:
        """Whether a local judge runs beside the engines rather than after them."""
        if self._beside is None:
            local, engine, nodes = self._local(), self._config.engine, gpus_by_node()
            self._beside = [judge for judge in local if judge.config.schedule == "together"]
            per_engine = engine.tensor_parallel * engine.pipeline_parallel
            engines = [per_engine] * (engine.replicas or 1) if engine.kind == "vllm" else []
            for one in (judge for judge in local if judge.config.schedule == "auto"):
                if not sum(nodes) or fits(nodes, engines + self._gpus([*self._beside, one])):
                    self._beside.append(one)
        return any(one is judge for one in self._beside)

    def _start_server(self, judge: Judge, *, beside_engines: bool) -> None:
        """Start a local judge in the background; its stage begins once it is up."""
        engine = self._config.engine
        threads = engine.cpu_threads or (
            self.cpu_share(engine.replicas or 1) if beside_engines else None
        )
        judge.started = True
        judge.server = judge.server or self._servers(judge, threads)
        if not judge.warm:
            judge.server.begin()
            self._tell(f"starting the local judge {judge.config.label}")

        def ended(error: BaseException | None) -> None:
            if error is not None:
                reason = f"is not watched any more ({type(error).__name__}: {error})"
                self._post(ServerNews(judge, "gone", reason))

        start_thread("judge-server", lambda: self._watch_server(judge), ended)

    def _servers(self, judge: Judge, threads: int | None) -> Any:
        from mtbench_ray.judges.local_server.server import local_servers

        return local_servers(
            judge.config, judge.key or "", cpu_threads=threads, log_dir=self._log_dir
        )

    def _watch_server(self, judge: Judge) -> None:
        """In a thread: wait for a server, and start it again when it dies, a few times."""
        timeout = judge.config.start_timeout_s
        crashes, doing = 0, "did not start"
        try:
            if judge.warm and judge.server.dead():  # while nobody looked
                judge.server.restart(timeout)
            judge.server.wait_ready(timeout)
            while True:
                self._post(ServerNews(judge, "up"))
                while not (dead := judge.server.dead()):
                    if self._closed.wait(_LOOK_S):
                        return
                if self._closed.is_set():
                    return  # it may be another round's by now
                crashes += 1
                reason = next(iter(dead.values()))
                doing = f"died {crashes} times"
                if crashes > MAX_CRASHES:
                    raise EngineFault(reason)
                self._post(ServerNews(judge, "down", reason))
                judge.server.restart(timeout)
        except (EngineFault, UserError) as error:
            self._post(ServerNews(judge, "gone", f"{doing}: {error}"))

    def _note(self, text: str) -> None:
        self._tell(text)
        self.notes.append(text)

    def _once(self, name: str, text: str) -> None:
        if name not in self._announced:
            self._announced.add(name)
            self._note(text)
