"""What an engine actor does with a shard: keep an engine, walk conversations, survive faults.

:meth:`ShardWorker.run` is a plain generator over a queue that coroutines on another thread's event
loop fill, since only a plain generator streams in Ray Data. It never raises for anything an engine
or a row does: every planned turn comes out as exactly one row.

When an engine dies, any of the rows in flight may have killed it. The rows that were there are
suspects: they run again in small company (an eighth of those that died together), and after a
second death alone. So the innocent are done, and a row that still kills its engine when nobody else
is there is failed by itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import platform
import queue
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace

from mtbench_ray.config import EngineConfig, ModelConfig
from mtbench_ray.engines.base import Engine, Output, Shard, Swap
from mtbench_ray.engines.phases import Phase, phases
from mtbench_ray.errors import EngineFault, UserError
from mtbench_ray.generate.claims import Following
from mtbench_ray.generate.rounds import Ledger, company, run_round, views_of, width
from mtbench_ray.models.fingerprint import check_content
from mtbench_ray.schema import EngineEvent, Turn
from mtbench_ray.system.threads import start_loop

StartEngine = Callable[[ModelConfig, EngineConfig], Awaitable[Engine]]
BEAT_S = 5.0
"""The longest silence of an event loop that works on a shard."""
_CLOSE_S = 60.0
"""Patience with an engine that is stopped, when its worker ends: more than the engine's own."""

_PROCESS = f"{platform.node()} {os.getpid()}"
_PATIENCE = 4.0
"""Times longer, after an engine that counted as hung, until the next one does: it may only be slow,
and would take as long again for what was thrown away."""
_ORIGINS = {"openai": "endpoint", "fake": "fake"}


async def start_engine(model: ModelConfig, config: EngineConfig) -> Engine:
    """Start an engine of ``config.kind`` with ``model`` loaded.

    Raises:
        EngineFault: It did not start; carries what it said.
        UserError: The settings cannot work.
    """
    if config.kind == "fake":
        from mtbench_ray.engines.fake import FakeEngine

        return await FakeEngine.start(model, config)
    if config.kind == "openai":
        from mtbench_ray.engines.endpoint_engine import EndpointEngine

        return EndpointEngine(model, config)
    if config.kind == "vllm":
        from mtbench_ray.engines.vllm.engine import VllmEngine

        return await VllmEngine.start(model, config)
    raise UserError(f"engine.kind={config.kind}: no such engine", "one of vllm, openai, fake")


_BEAT, _END = "beat", "end"
_NO_NEWS = ("beat", "phase")
_Item = Output | str
"""What the event loop hands over: outputs, signs of life, and its end."""


class ShardWorker:
    """Answers shards, one at a time, with one engine that outlives them.

    Args:
        replica: Name of this worker in engine events.
        start: Makes engines; tests give their own.
    """

    def __init__(self, replica: str = "0", start: StartEngine = start_engine) -> None:
        self._replica = replica
        self._start = start
        self._engine: Engine | None = None
        self._shard: Shard | None = None
        self._following = Following()
        self._patience = 1.0
        self._outputs: queue.SimpleQueue[_Item] = queue.SimpleQueue()
        self._lost: EngineFault | None = None
        self._closing = False
        self._loop, self._thread = start_loop(f"engine-{replica}", self._on_loop_end)

    def run(self, shard: Shard, following: Following | None = None) -> Iterator[Output]:
        """Rows and engine events of a shard, as they come; one row for every turn it needs. No
        signs of life and no parts of a start.

        Args:
            following: What may come after it; nothing where it is left out.

        Raises:
            EngineFault: As :meth:`run_together`.
        """
        for together in self.run_together(shard, following):
            yield from (o for o in together if isinstance(o, Turn) or o.kind not in _NO_NEWS)

    def run_together(
        self, shard: Shard, following: Following | None = None
    ) -> Iterator[list[Output]]:
        """The same, and what is there at the same moment in one list.

        A whole batch of conversations may end its turn in one step of the engine, and every yield
        costs Ray Data tens of milliseconds. Every so often how many tokens are under way, or an
        empty list: a worker that says nothing is a dead one. These signs of life come from the
        event loop that does the work, not from the thread that waits for it here.

        Raises:
            EngineFault: The event loop has ended, or gave no sign of life for ``engine.stall_s``.
                The worker is lost with its engine; rows that are missing are still pending.
        """
        if self._lost is not None:
            raise self._lost
        outputs = self._outputs = queue.SimpleQueue()
        self._following = following or Following()
        beat_s = min(BEAT_S, shard.engine.stall_s / 4)
        work = asyncio.run_coroutine_threadsafe(self._work_on(shard, outputs, beat_s), self._loop)
        work.add_done_callback(lambda _: outputs.put(_END))
        try:
            while True:
                try:
                    together: list[_Item] = [outputs.get(timeout=shard.engine.stall_s + 2 * beat_s)]
                except queue.Empty:
                    raise self._lose(
                        "engine hangs: its event loop is blocked, no sign of life for "
                        f"{shard.engine.stall_s:.0f} s (engine.stall_s)"
                    ) from None
                with contextlib.suppress(queue.Empty):
                    while together[-1] is not _END:
                        together.append(outputs.get_nowait())
                rows = [item for item in together if isinstance(item, Turn | EngineEvent)]
                if rows or _BEAT in together:
                    yield rows
                if self._lost is not None:
                    raise self._lost
                if together[-1] is _END:
                    if work.cancelled():  # not by us: its loop is ending
                        self._thread.join(_CLOSE_S)
                        raise self._lost or self._lose("the engine's event loop ended")
                    return
        finally:
            work.cancel()

    def close(self) -> None:
        """End the engine with all its processes, and the worker's thread. May be called twice.

        A thread that is blocked cannot be ended; it goes with the process.
        """
        if self._loop.is_closed():
            return
        self._closing = True
        if self._thread.is_alive():
            stopping = asyncio.run_coroutine_threadsafe(self._stop_engine(), self._loop)
            with contextlib.suppress(TimeoutError):
                stopping.result(1.0 if self._lost else _CLOSE_S)
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(1.0 if self._lost else _CLOSE_S)
        else:
            self._loop.run_until_complete(self._stop_engine())
        if not self._thread.is_alive():
            self._loop.close()

    def _lose(self, reason: str) -> EngineFault:
        self._lost = EngineFault(reason)
        return self._lost

    def _on_loop_end(self, error: BaseException | None) -> None:
        """In the loop's thread: it has ended, as asked or not."""
        if not self._closing:
            reason = f"{type(error).__name__}: {error}" if error else "stopped"
            self._lose(f"the engine's event loop ended ({reason})")
            self._outputs.put(_END)

    async def _work_on(
        self, shard: Shard, outputs: queue.SimpleQueue[_Item], beat_s: float
    ) -> None:
        """Answer a shard, and give signs of life meanwhile."""

        async def beat() -> None:
            while True:
                await asyncio.sleep(beat_s)
                outputs.put(self._beat(shard))

        beating = asyncio.create_task(beat())
        try:
            await self._answer(shard, outputs.put)
        finally:
            beating.cancel()

    def _beat(self, shard: Shard) -> _Item:
        tokens = self._engine.under_way if self._engine else 0
        if not tokens:
            return _BEAT
        return replace(self._event("beat", shard, time.monotonic(), _PROCESS, None), tokens=tokens)

    async def _answer(self, shard: Shard, send: Callable[[Output], None]) -> None:
        """All of a shard, to the last row."""
        ledger = Ledger(shard, send)
        reason = ""
        try:
            if ledger.pending:
                reason = await self._work(ledger)
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
            await self._stop_engine()
        origin = _ORIGINS.get(shard.engine.kind, "cold")
        for answer_id in list(ledger.pending):
            ledger.fail(answer_id, reason or "engine stopped early", origin)

    async def _work(self, ledger: Ledger) -> str:
        """Run rounds until nothing is pending; else why the rest cannot be done."""
        shard = ledger.shard
        crashes: Counter[str] = Counter()
        together = 1
        restarts = given_up = 0
        why = ""
        while ledger.pending:
            began = time.monotonic()
            try:
                engine = await self._engine_for(shard, ledger.send, why)
            except EngineFault as error:
                return str(error)
            except UserError as error:
                # Perhaps it is so on this node only: a path that is not shared.
                on = f" (on node {platform.node()})" if shard.engine.kind == "vllm" else ""
                reason = str(UserError(f"{error.message}{on}", error.hint))
                ledger.send(self._event("failed", shard, began, reason, None))
                return reason
            least = min(crashes[answer_id] for answer_id in ledger.pending)
            group = [unit for key, unit in ledger.pending.items() if crashes[key] == least]
            limit = (width(shard.engine), together)[least] if least < 2 else 1
            views, apart = await views_of(engine, group, shard.engine.kind)
            for answer_id, reason in apart.items():
                ledger.fail(answer_id, reason, engine.origin)
            group = [unit for unit in group if unit.answer_id in ledger.pending]
            crash = await run_round(views, group, ledger, limit)
            if crash is None:
                continue
            why = str(crash.fault)
            if crash.fault.hung:
                self._patience = _PATIENCE
            await self._stop_engine()
            if crash.fault.fatal:
                return why
            crashes.update(crash.suspects)
            if least == 0:
                together = company(len(crash.suspects))
            if len(crash.suspects) == 1:
                (culprit,) = crash.suspects
                if crashes[culprit] >= shard.engine.row_attempts:
                    ledger.fail(culprit, f"took its engine down: {why}", engine.origin)
                    # It was this row and not the engine: the others get their restarts back.
                    given_up += 1
            restarts += 1
            if restarts > shard.engine.max_restarts + given_up:
                return f"gave up after {restarts} engine faults (engine.max_restarts): {why}"
        return ""

    async def _engine_for(self, shard: Shard, send: Callable[[Output], None], why: str) -> Engine:
        """The engine at hand where it can answer for the shard's model, else a fresh one."""
        if self._engine is not None and self._shard is shard:
            return self._engine
        await asyncio.to_thread(check_content, shard.model, shard.engine.kind)
        same = self._shard is not None and self._shard.engine == shard.engine
        running = self._engine if same else None
        engine = await running.adopt(shard.model) if running else None
        if engine is None:
            began = time.monotonic()
            swap = await running.swap(shard.model) if running else Swap(None, "")
            engine, kind, detail = swap.engine, "swap", swap.detail
            if engine is None:
                await self._stop_engine()
                began = time.monotonic()
                engine = await self._fresh(shard, send, why)
                kind, detail = ("restart", why) if why else ("start", detail)
                if engine.remark:
                    detail = f"{detail}; {engine.remark}" if detail else engine.remark
                if swap.check:
                    detail = await swap.check(engine)
            # From now on it is stopped like any other; it is the shard's only once it is checked.
            self._engine, self._shard = engine, None
            send(self._event(kind, shard, began, detail, engine.gpu_memory_gb))
            try:
                # The files may have been replaced while they were loaded.
                await asyncio.to_thread(check_content, shard.model, shard.engine.kind)
            except UserError:
                await self._stop_engine()
                raise
        self._engine, self._shard = engine, shard
        coming = await asyncio.to_thread(self._following.claim)
        if coming is not None:
            await engine.prepare(coming)
        return engine

    async def _fresh(self, shard: Shard, send: Callable[[Output], None], why: str) -> Engine:
        """Start an engine; once more where the first start failed by a fault that may pass."""
        tries, config = 2, replace(shard.engine, stall_s=shard.engine.stall_s * self._patience)
        if not self._following.more:
            config = replace(config, next_weights="files")  # no memory is kept for what never comes
        while True:
            began = time.monotonic()
            try:
                with phases() as found:
                    try:
                        return await self._start(shard.model, config)
                    finally:
                        for one in found:
                            send(self._phase(one, shard))
            except UserError:
                raise
            except Exception as error:
                tries -= 1
                fault = error if isinstance(error, EngineFault) else None
                reason = str(fault) if fault else f"{type(error).__name__}: {error}"
                send(self._event("failed", shard, began, reason, None))
                if not tries or (fault and fault.fatal):
                    raise EngineFault(f"engine did not start: {reason}", fatal=True) from error

    async def _stop_engine(self) -> None:
        engine, self._engine, self._shard = self._engine, None, None
        if engine is not None:
            await engine.stop()

    def _phase(self, found: Phase, shard: Shard) -> EngineEvent:
        event = self._event("phase", shard, 0.0, found.name, None)
        return replace(event, seconds=round(found.seconds, 3), created=found.ended)

    def _event(
        self, kind: str, shard: Shard, began: float, detail: str, memory: float | None
    ) -> EngineEvent:
        return EngineEvent(
            kind=kind,
            model=shard.model.label,
            replica=self._replica,
            seconds=round(time.monotonic() - began, 3),
            detail=detail,
            gpu_memory_gb=memory,
            created=time.time(),
        )
