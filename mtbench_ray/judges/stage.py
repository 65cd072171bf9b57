"""The judge stage: requests in, judgments out, beside the stream of answers.

All stages run on one event loop in a background thread of the driver. So answers are on disk before
they are judged, the key never leaves the driver, and one limiter is exact.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait

from mtbench_ray.config import JudgeConfig
from mtbench_ray.endpoint.batch import MOST_REQUESTS, BatchTransport
from mtbench_ray.endpoint.client import Closing, EndpointClient
from mtbench_ray.endpoint.keys import scrub
from mtbench_ray.endpoint.loop import background_loop
from mtbench_ray.endpoint.rate_limit import Limiter, RateLimiter
from mtbench_ray.endpoint.shared_limit import shared_limiter
from mtbench_ray.errors import EndpointStopped
from mtbench_ray.judges.budget import Budget, check_budget
from mtbench_ray.judges.judge_call import Asker, BudgetSpent, Read, Shorten, is_ok
from mtbench_ray.judges.shared_prefixes import SharedPrefixes
from mtbench_ray.schema import Judgment, Request
from mtbench_ray.workspace.batch_ledger import BatchLedger

__all__ = ["Budget", "JudgeStage", "check_budget"]

log = logging.getLogger(__name__)

_CLOSING_S = 5.0
_FATAL_GRACE_S = 3.0
"""Where no call can succeed any more, those in flight may take so long to end."""


class JudgeStage:
    """One judge at work.

    Every submitted request is emitted exactly once, unless the stage ends before (``fatal``, an
    exhausted budget, :meth:`stop`): then it stays pending, and the next run asks it.

    Args:
        judge: Settings; of kind ``none`` where every request is a check.
        key: From ``resolve_key``.
        read: Reads a verdict from a reply, in which thinking may stand.
        emit: Takes finished rows. Called on the loop's thread: ``queue.put``, or as quick.
        base_urls: Replicas of the judge, where they are known already.
        budget: Shared by the judges of a run.
        limiter: Instead of the one that the settings ask for.
        enough: Whether a judgment needs no further call; None: where its status is ``ok``.
        pattern: Regular expression that replies are forced into, for ``judge.constrain``.
        shorten: For ``judge.truncate=answer_tail``.
        batches: For ``judge.batch``: the workspace's.
        without_logprobs: What to type where the judge turns out to give no log-probabilities.
    """

    def __init__(
        self,
        judge: JudgeConfig,
        *,
        key: str | None,
        read: Read,
        emit: Callable[[Judgment], None],
        base_urls: Sequence[str] | None = None,
        budget: Budget | None = None,
        run_id: str = "",
        limiter: RateLimiter | None = None,
        enough: Callable[[Judgment], bool] | None = None,
        pattern: str | None = None,
        shorten: Shorten | None = None,
        batches: BatchLedger | None = None,
        without_logprobs: str = "",
    ) -> None:
        self.judge = judge
        self.fatal: str | None = None
        self._key = key
        self._read = read
        self._emit = emit
        self._base_urls = base_urls
        self._budget = budget
        self._run_id = run_id
        self._limiter = limiter
        self._enough = enough or is_ok
        self._pattern = pattern
        self._shorten = shorten
        self._without_logprobs = without_logprobs
        self._batches = batches if judge.batch and judge.kind == "openai" else None
        self._transport: BatchTransport | None = None
        self._loop = background_loop()
        # In order of coming, but those first that find their prompt's beginning cached now.
        self._queue: asyncio.PriorityQueue[tuple[bool, int, Request]] = asyncio.PriorityQueue()
        self._numbers = itertools.count()
        # A batch goes as a whole. A local server needs no such order: it shares what runs, too.
        alone = judge.kind == "openai" and self._batches is None
        self._prefixes = SharedPrefixes() if alone else None
        self._client: EndpointClient | None = None
        self._workers: list[asyncio.Task[None]] = []
        self._ending: asyncio.Task[None] | None = None
        self._active = 0
        self._at_once = judge.concurrency
        self._halted = False
        self._pending: set[str] = set()
        # Reentrant, since a signal handler may call stop() while the main thread is in submit().
        self._changed = threading.Condition(threading.RLock())

    # From any thread ----------------------------------------------------------------------

    def begin(self, base_urls: Sequence[str] | None = None, at_once: int | None = None) -> None:
        """Start calling; until then requests only queue up.

        Args:
            base_urls: Replicas of the judge, instead of ``judge.base_url``.
            at_once: Calls in flight at most, where that is less than ``judge.concurrency``.

        Raises:
            UserError: The limiter that the settings ask for cannot be had.
        """
        self._base_urls = base_urls or self._base_urls
        self._at_once = min(self.judge.concurrency, at_once or self.judge.concurrency)
        self._call(self._begin()).result()

    def submit(self, request: Request) -> bool:
        """Queue a request; returns at once.

        Returns:
            False where the same judgment is already queued or in flight.
        """
        with self._changed:
            if request.judgment_id in self._pending:
                return False
            self._pending.add(request.judgment_id)
        self._loop.call_soon_threadsafe(self._admit, request)
        return True

    @property
    def pending(self) -> int:
        """Requests submitted and not emitted, those in flight among them."""
        return len(self._pending)

    @property
    def in_flight(self) -> int:
        """Requests that are being asked, waits between tries among them."""
        # What waits for a batch is with the service, and stays there when the run ends.
        return self._transport.in_flight if self._transport else self._active

    @property
    def busy(self) -> bool:
        """Whether more rows may come."""
        return bool(self._active or (self._pending and not self._halted))

    @property
    def learned(self) -> dict[str, str]:
        """Parameters that the service made us change, for the run record."""
        return self._client.learned if self._client else {}

    def drain(self, timeout: float | None = None) -> bool:
        """Wait until no more rows come.

        Returns:
            Whether every submitted request was emitted.
        """
        with self._changed:
            self._changed.wait_for(lambda: not self.busy, timeout)
            return not self._pending

    def fail(self, message: str) -> None:
        """End the stage from outside (its server did not start); what is pending stays pending."""
        self._halt(scrub(message, self._key))

    def stop(self, grace_s: float) -> None:
        """Start no further call.

        Args:
            grace_s: Calls in flight may take so long to end; returns at once. With 0 they are
                cancelled, and no row is emitted after the return.
        """
        self._halt()
        ending = self._call(self._end(grace_s, cancel=grace_s > 0))
        if not grace_s:
            wait([ending], timeout=_CLOSING_S)

    def close_when_idle(self) -> None:
        """No more requests will come: close the connections once all are emitted."""

        async def close() -> None:
            if self._transport is not None:
                self._transport.no_more()
            while self.busy:
                await asyncio.sleep(0.1)
            self._halt()
            await self._end(0.0)

        self._call(close())

    def _call(self, coroutine: object) -> Future[None]:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop)  # type: ignore[arg-type]

    def _halt(self, message: str | None = None) -> None:
        with self._changed:
            self.fatal = self.fatal or message
            self._halted = True
            self._changed.notify_all()

    # On the loop --------------------------------------------------------------------------

    def _admit(self, request: Request) -> None:
        if self._prefixes is None or self._prefixes.admit(request):
            self._queue.put_nowait((True, next(self._numbers), request))

    async def _begin(self) -> None:
        if self._workers or self._halted:
            return
        judge = self.judge
        if judge.kind != "none":
            self._client = self._make_client() if self._batches is None else self._batch_client()
        asker = Asker(
            judge,
            self._client,
            self._read,
            enough=self._enough,
            pattern=self._pattern,
            budget=self._budget,
            run_id=self._run_id,
            shorten=self._shorten,
            without_logprobs=self._without_logprobs,
        )
        if self._batches is not None:
            self._workers = [asyncio.create_task(self._work_all(asker))]
            return
        self._workers = [asyncio.create_task(self._work(asker)) for _ in range(self._at_once)]

    def _make_client(self) -> EndpointClient:
        judge, label = self.judge, f"judge {self.judge.label}"
        if self._limiter is None:
            address = ",".join(self._base_urls or [])
            self._limiter = shared_limiter(judge, judge.model, self._key, label, address)
        return EndpointClient(
            judge,
            judge.model,
            key=self._key,
            limiter=self._limiter,
            label=label,
            base_urls=self._base_urls,
        )

    def _batch_client(self) -> EndpointClient:
        """A client whose calls go into batches; the service's limits on calls are not for them."""
        assert self._batches is not None
        judge, label = self.judge, f"judge {self.judge.label}"
        self._transport = BatchTransport(judge, self._key, self._batches, label)
        return EndpointClient(
            judge,
            judge.model,
            key=self._key,
            limiter=Limiter(None, None, MOST_REQUESTS, label=label),
            label=label,
            transport=self._transport,
        )

    async def _work_all(self, asker: Asker) -> None:
        """Ask all at once: each waits for the batch that it is in."""
        while True:
            _, _, request = await self._queue.get()
            if self._halted:
                return
            self._active += 1
            self._workers.append(asyncio.create_task(self._serve(asker, request)))

    async def _work(self, asker: Asker) -> None:
        while True:
            _, _, request = await self._queue.get()
            if self._halted:
                return
            self._active += 1
            await self._serve(asker, request)

    async def _serve(self, asker: Asker, request: Request) -> None:
        try:
            self._finish(await self._ask(asker, request))
        except EndpointStopped as stopped:
            if self._ending is None:
                self._ending = asyncio.create_task(self._end(_FATAL_GRACE_S))
            self._halt(str(stopped))
        except (BudgetSpent, Closing):
            self._halt()
        finally:
            self._active -= 1
            for freed in self._prefixes.ended(request) if self._prefixes else ():
                self._queue.put_nowait((False, next(self._numbers), freed))
            with self._changed:
                self._changed.notify_all()

    async def _ask(self, asker: Asker, request: Request) -> Judgment:
        try:
            return await asker.ask(request)
        except (EndpointStopped, BudgetSpent, Closing):
            raise
        except Exception as error:
            # A fault of this program may cost one row, and must say so, but not the run.
            reason = scrub(f"internal error: {type(error).__name__}: {error}", self._key)
            trace = scrub(traceback.format_exc(), self._key)
            log.error("judge %s, %s: %s", self.judge.label, request.judgment_id, trace)
            return asker.failed(request, reason)

    def _finish(self, judgment: Judgment) -> None:
        self._emit(judgment)
        with self._changed:
            self._pending.discard(judgment.judgment_id)

    async def _end(self, grace_s: float, cancel: bool = False) -> None:
        if self._client is not None:
            self._client.close_soon()
        if self._transport is not None and cancel and self.judge.batch_cancel:
            await self._transport.cancel()
        end = time.monotonic() + grace_s
        while self._client and self._client.in_flight and time.monotonic() < end:
            await asyncio.sleep(0.02)
        for worker in self._workers:
            worker.cancel()
        await asyncio.gather(*self._workers, return_exceptions=True)
        if self._client is not None:
            await self._client.close()
