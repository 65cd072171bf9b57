"""Calls through a service's batch API: half the price, and replies within hours.

Takes the place of :class:`~mtbench_ray.endpoint.transport.Transport` under the client, so that all
that is above it (other spellings of a request, retries, reading) is the same: a call waits until
the batch that it is in has ended, and a further try goes into a later batch.

Nothing is paid twice. What a batch will hold is on disk before the service is asked to make it; a
batch whose creation was not confirmed is looked for in the service's list. A later run is handed
the replies of earlier batches in the order in which they were asked for.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Callable, Mapping
from typing import Any

from mtbench_ray.config import JudgeConfig
from mtbench_ray.endpoint.api_errors import Fault
from mtbench_ray.endpoint.batch_service import (
    OVER,
    QUEUE_FULL,
    TRIES,
    BatchService,
    is_ours,
    read_line,
)
from mtbench_ray.endpoint.client import Closing
from mtbench_ray.endpoint.keys import fingerprint, scrub
from mtbench_ray.endpoint.reply import Reply
from mtbench_ray.endpoint.transport import Transport
from mtbench_ray.errors import EndpointStopped
from mtbench_ray.workspace.batch_ledger import Batch, BatchLedger, answered

log = logging.getLogger(__name__)

MOST_REQUESTS = 50_000
MOST_BYTES = 190_000_000
"""Limits of a file: OpenAI's are 50,000 requests and 200 MB."""
_QUIET_S = 1.0
"""Once no more answers come, a batch leaves when no request has come for so long."""
_TICK_S = 0.1
_FIRST_LOOK_S = 1.0
_LOOK_FACTOR = 1.5
_LONGEST_LOOK_S = 60.0
"""Pauses between two looks at open batches grow from the first to the longest."""
_LIST_S = 3.0
"""A list may be so much behind; it is looked at three times."""
_TOO_MUCH = ("token_limit", "enqueued", "limit_exceeded", "rate_limit")
"""In the code of a batch that was not taken: more is queued than the account may have."""


class BatchTransport(Transport):
    """Sends requests in batches. To be used on one event loop.

    Args:
        config: Of the judge.
        key: As in :class:`Transport`.
        ledger: Of the workspace.
        label: Begins messages.
    """

    def __init__(
        self, config: JudgeConfig, key: str | None, ledger: BatchLedger, label: str
    ) -> None:
        super().__init__(config, key, None)
        self._judge = config
        self._ledger = ledger
        self._label = label
        self._api = BatchService(self._replicas[0].client, config, label)
        self._service = f"{config.base_url or ''} {fingerprint(key)} {config.model}"
        self._replay: dict[str, list[str]] = {}
        self._gathered: dict[str, tuple[str, bytes]] = {}
        self._waiting: dict[str, asyncio.Future[dict[str, Any] | None]] = {}
        self._last = time.monotonic()
        self._ended_at: float | None = None
        self._busy = 0
        self._most = MOST_REQUESTS
        self._one_at_a_time = False
        self._closed = False
        self._stopped: str | None = None
        self._ready = asyncio.Event()
        self._driver = asyncio.create_task(self._drive())

    @property
    def in_flight(self) -> int:
        """Requests that may be billed once they arrive, and whose outcome is not on disk."""
        return self._busy

    def no_more(self) -> None:
        """No further judgment will be asked for: send what is there, and begin to wait."""
        self._ended_at = self._ended_at or time.monotonic()

    async def send(self, fields: Mapping[str, Any], name: str = "") -> Reply:
        """One request of a judgment, or the reply that an earlier run has paid for.

        Args:
            fields: The body.
            name: Id of the judgment.

        Raises:
            Fault: The line says so, or there is none.
            EndpointStopped: Batches cannot be used.
            Closing: The replies are not waited for any longer.
        """
        await self._ready.wait()
        self._check()
        earlier = self._replay.setdefault(name, self._ledger.tries(name))
        while earlier:
            own = earlier.pop(0)
            batch = self._ledger.batch_of(own)
            if batch.open:
                return read_line(await self._wait(own))
            line = self._ledger.line(own)
            if answered(line) or batch.name not in self._ledger.seen:
                return read_line(line)
            # An error that an earlier run has met cost nothing, and may have passed.
        own = self._ledger.next_try(name)
        line_out = {"custom_id": own, "method": "POST", "url": "/v1/chat/completions"}
        text = json.dumps(line_out | {"body": dict(fields)}) + "\n"
        self._gathered[own] = (name, text.encode())
        self._last = time.monotonic()
        return read_line(await self._wait(own))

    async def cancel(self) -> None:
        """Cancel all open batches; what they have answered is collected by the next run."""
        self._closed = True
        while self._busy:  # one that is being made can be cancelled once it is
            await asyncio.sleep(0.02)
        self._busy += 1
        try:
            for batch in self._mine():
                if batch.batch_id:
                    await self._cancel(batch)
        finally:
            self._busy -= 1

    async def _cancel(self, batch: Batch) -> None:
        try:
            await self._api.cancel(batch.batch_id)
        except Fault as fault:
            said = scrub(fault.text, self._key)
            log.warning("%s: %s is not cancelled: %s", self._label, batch.batch_id, said)
        else:
            log.warning("%s: %s is cancelled", self._label, batch.batch_id)

    async def close(self) -> None:
        """Stop waiting; batches run on at the service."""
        self._closed = True
        while self._busy:  # a batch whose creation is under way is written down
            await asyncio.sleep(0.02)
        self._driver.cancel()
        await asyncio.gather(self._driver, return_exceptions=True)
        for future in self._waiting.values():
            future.cancel()
        await super().close()

    # One task does all that is asked of the service ---------------------------------------

    async def _drive(self) -> None:
        try:
            await self._recover()
            self._ready.set()
            pause, looked = _FIRST_LOOK_S, time.monotonic() - _FIRST_LOOK_S
            while True:
                while (tries := self._due()) and not self._closed:
                    await self._submit(tries)
                    pause = _FIRST_LOOK_S
                if time.monotonic() - looked >= pause:
                    ended = [await self._look(batch) for batch in self._wanted()]
                    looked = time.monotonic()
                    pause = min(pause * _LOOK_FACTOR, _LONGEST_LOOK_S)
                    if any(ended):
                        pause = _FIRST_LOOK_S
                    self._wait_over(any(ended))
                await asyncio.sleep(_TICK_S)
        except Fault as fault:
            self._stop(fault)
        except EndpointStopped as stopped:
            await asyncio.sleep(_TICK_S)  # replies that came with it are read first
            self._fail(stopped)
        except Exception as error:  # the disk, perhaps: nothing may wait for a task that is gone
            self._fail(EndpointStopped(f"{self._label}: {error}"))
        finally:
            self._ready.set()

    def _stop(self, fault: Fault) -> None:
        if fault.code in (404, 405, 501):
            self._fail(
                EndpointStopped(
                    f"{self._label} at {self.where} has no batch API (HTTP {fault.code}); nothing "
                    "was sent. Run the same command with judge.batch=false."
                )
            )
            return
        why = fault.stop or "the batch API fails"
        self._fail(
            EndpointStopped(
                f"{self._label} at {self.where}: {why} ({scrub(fault.text, self._key)}). "
                "Re-run the same command: what was sent is collected then."
            )
        )

    def _fail(self, error: EndpointStopped) -> None:
        self._stopped = str(error)
        self._end(lambda: EndpointStopped(str(error)))

    def _end(self, why: Callable[[], Exception]) -> None:
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(why())
        self._waiting.clear()
        self._gathered.clear()

    def _check(self) -> None:
        if self._stopped:
            raise EndpointStopped(self._stopped)
        if self._closed:
            raise Closing

    def _wait(self, own: str) -> asyncio.Future[dict[str, Any] | None]:
        future = self._waiting[own] = asyncio.get_running_loop().create_future()
        return future

    def _wait_over(self, moved: bool) -> None:
        """End the wait once it has lasted as long as the user wants."""
        longest = self._judge.batch_wait_s
        unsent = self._gathered and not self._one_at_a_time
        if longest is None or self._ended_at is None or moved or unsent:
            return
        if self._waiting and time.monotonic() - self._ended_at >= longest:
            self._closed = True
            self._end(Closing)

    def _mine(self) -> list[Batch]:
        return [one for one in self._ledger.open if one.service == self._service]

    def _wanted(self) -> list[Batch]:
        """Open batches that something waits for."""
        sent = (own for own in self._waiting if own not in self._gathered)
        names = {self._ledger.batch_of(own).name for own in sent}
        return [one for one in self._ledger.open if one.name in names]

    def _due(self) -> list[str]:
        """The lines of the next batch, empty while it is too early for one."""
        if not self._gathered or (self._one_at_a_time and self._wanted()):
            return []
        size, chosen = 0, list[str]()
        for own, (_, line) in self._gathered.items():
            if len(chosen) >= self._most or (chosen and size + len(line) > MOST_BYTES):
                return chosen  # full
            chosen.append(own)
            size += len(line)
        quiet = time.monotonic() - self._last >= _QUIET_S
        return chosen if self._ended_at is not None and quiet else []

    # Batches ------------------------------------------------------------------------------

    async def _recover(self) -> None:
        """See that there is a batch API, and find batches whose creation was not confirmed."""
        known = await self._api.newest()
        for batch in self._mine():
            if batch.batch_id:
                continue
            if batch.asked and not self._adopt(batch, known):
                await self._search(batch)
            if not batch.batch_id:
                self._ledger.note(batch, dropped=True)

    def _adopt(self, batch: Batch, known: list[Any]) -> bool:
        """Take over the service's batch of ours, where a list has it."""
        for one in known:
            if is_ours(one, batch.name, batch.file):
                self._ledger.note(batch, batch_id=one.id, status=str(one.status))
                return True
        return False

    async def _search(self, batch: Batch) -> bool:
        for pause_s in (0.0, _LIST_S, _LIST_S):
            await asyncio.sleep(pause_s)
            if self._adopt(batch, await self._api.newest()):
                return True
        return False

    async def _submit(self, tries: list[str]) -> None:
        """Upload and create a batch. Each step is on disk before the next one is done."""
        self._busy += 1
        try:
            taken = {own: self._gathered.pop(own) for own in tries}
            batch = self._ledger.prepare(
                self._service, self._judge.label, [(name, own) for own, (name, _) in taken.items()]
            )
            data = b"".join(line for _, line in taken.values())
            self._ledger.note(batch, file=await self._api.upload(batch.name, data))
            await self._create(batch)
            log.info("%s: %d calls are in %s", self._label, len(tries), batch.batch_id)
        finally:
            self._busy -= 1

    async def _create(self, batch: Batch) -> None:
        self._ledger.note(batch, asked=True)
        for number in range(TRIES):
            try:
                made = await self._api.create(batch.name, batch.file)
            except Fault as fault:
                # A refusal makes none; after anything else there may be one.
                refused = 400 <= fault.code < 500 and fault.code not in (408, 409)
                if not refused and await self._search(batch):
                    return
                if not fault.retry or number + 1 == TRIES:
                    if refused:
                        self._ledger.note(batch, dropped=True)
                    raise
                await asyncio.sleep(fault.wait or self._api.pause_s(number))
            else:
                self._ledger.note(batch, batch_id=made.id, status=str(made.status))
                return

    async def _look(self, batch: Batch) -> bool:
        """Ask how a batch is; returns whether it has ended.

        Raises:
            Fault: The key has no access any more.
            EndpointStopped: It cannot be collected with this key, or was cancelled by somebody.
        """
        if not batch.batch_id:
            raise self._other_key(batch)
        try:
            now = await self._api.retrieve(batch.batch_id)
        except Fault as fault:
            if fault.code == 404 and batch.service == self._service:
                log.warning("%s: the service has no batch %s any more; its calls are sent again",
                            self._label, batch.batch_id)  # fmt: skip
                self._collected(batch, {}, "unknown")
                return True
            if batch.service != self._service and fault.code in (401, 403, 404):
                raise self._other_key(batch) from None
            if fault.stop:
                raise
            return False
        status = str(now.status).lower()
        counts = now.request_counts
        self._ledger.note(batch, status=status, done=counts.completed if counts else 0)
        if status not in OVER:
            return False
        if status == "failed" and not now.output_file_id:
            self._failed(batch, now)
            return True
        try:
            lines = await self._api.lines(now)
        except Fault as fault:
            if fault.stop:
                raise
            return False  # looked at again
        self._collected(batch, lines, status)
        left = sum(not lines.get(own, {}).get("response") for own in batch.tries)
        if status == "cancelled" and left:
            raise EndpointStopped(
                f"batch {batch.batch_id} was cancelled; {left} of its calls have no reply. "
                "Re-run the same command to send them again."
            )
        return True

    def _collected(self, batch: Batch, lines: Mapping[str, dict[str, Any]], status: str) -> None:
        mine = {own: lines[own] for own in batch.tries if own in lines}
        self._ledger.collect(batch, mine, status)
        for own in batch.tries:
            future = self._waiting.pop(own, None)
            if future is not None and not future.done():
                future.set_result(mine.get(own))

    def _other_key(self, batch: Batch) -> EndpointStopped:
        return EndpointStopped(
            f"batch {batch.batch_id or batch.name} was made with another key; set "
            f"{self._judge.api_key_env} to that one and re-run the same command"
        )

    def _failed(self, batch: Batch, now: Any) -> None:
        """A batch that the service did not take, of which nothing is paid.

        Raises:
            EndpointStopped: It would not take the next one either.
        """
        errors = list(now.errors.data or []) if now.errors else []
        said = "; ".join(f"{e.code or ''} {e.message or ''}".strip() for e in errors[:3])
        said = scrub(said, self._key) or "the service does not say why"
        if any(word in said for word in _TOO_MUCH) and len(batch.tries) > 1:
            self._most = max(1, len(batch.tries) // 2)
            self._one_at_a_time = True
            log.warning("%s: %s; batches of %d calls from now on, one after the other",
                        self._label, said, self._most)  # fmt: skip
            full = {"error": {"code": QUEUE_FULL, "message": said}}
            self._collected(
                batch, {own: full | {"custom_id": own} for own in batch.tries}, "failed"
            )
            return
        self._ledger.collect(batch, {}, "failed")
        raise EndpointStopped(
            f"{self._label} at {self.where}: batch {batch.batch_id} failed: {said}. "
            "Fix it and re-run the same command, or run it with judge.batch=false."
        )
