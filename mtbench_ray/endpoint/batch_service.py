"""A service's batch API: its files and batches, and the lines that a batch leaves."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from mtbench_ray.config import JudgeConfig
from mtbench_ray.endpoint.api_errors import Fault, http_fault
from mtbench_ray.endpoint.reply import Reply, read_reply
from mtbench_ray.workspace.batch_ledger import answered

log = logging.getLogger(__name__)

TRIES = 6
"""Of one request of files or batches; looks are repeated without end."""
OVER = ("completed", "failed", "expired", "cancelled")
QUEUE_FULL = "queue_full"
"""Error of the lines of a batch that was not taken because more is queued than may be."""
_CALL_S = 60.0
_FILE_S = 600.0
"""Seconds that a request, and one with a file, may take."""
_LISTED = 500
"""So many of the newest batches are looked through for one whose creation was not confirmed."""
_MARK = "mtbench_ray"
T = TypeVar("T")


class BatchService:
    """Requests of files and batches.

    Args:
        client: An ``openai.AsyncOpenAI``.
        judge: Says how long to wait between tries.
        label: Begins messages.
    """

    def __init__(self, client: Any, judge: JudgeConfig, label: str) -> None:
        self._client = client.with_options(timeout=_FILE_S, max_retries=0)
        self._judge = judge
        self._label = label

    async def upload(self, name: str, data: bytes) -> str:
        """Id of the file of a new batch.

        Raises:
            Fault: It is not there.
        """
        file = await self._again(
            lambda: self._client.files.create(file=(f"{name}.jsonl", data), purpose="batch"),
            _FILE_S,
        )
        return str(file.id)

    async def create(self, name: str, file: str) -> Any:
        """A new batch; one try, since there may be one after a failure too.

        Raises:
            Fault: Its creation was not confirmed.
        """
        return await self._once(
            lambda: self._client.batches.create(
                completion_window="24h",
                endpoint="/v1/chat/completions",
                input_file_id=file,
                metadata={_MARK: name},
            )
        )

    async def retrieve(self, batch_id: str) -> Any:
        """A batch as it is now; one try.

        Raises:
            Fault: The service does not say.
        """
        return await self._once(lambda: self._client.batches.retrieve(batch_id))

    async def cancel(self, batch_id: str) -> None:
        """Cancel a batch; one try.

        Raises:
            Fault: It is not cancelled.
        """
        await self._once(lambda: self._client.batches.cancel(batch_id))

    async def newest(self) -> list[Any]:
        """The newest batches of the account.

        Raises:
            Fault: There is no such list.
        """

        async def pages() -> list[Any]:
            found: list[Any] = []
            async for one in self._client.batches.list(limit=100):
                found.append(one)
                if len(found) >= _LISTED:
                    break
            return found

        return await self._again(pages)

    async def lines(self, now: Any) -> dict[str, dict[str, Any]]:
        """The lines of a batch that has ended, by the names of the tries."""
        found: dict[str, dict[str, Any]] = {}
        for file in (now.error_file_id, now.output_file_id):
            if not file:
                continue
            try:
                content = await self._again(
                    lambda file=file: self._client.files.content(file),  # type: ignore[misc]
                    _FILE_S,
                )
            except Fault as fault:
                if fault.code != 404:
                    raise
                log.warning("%s: the service has no file %s any more; its calls are sent again",
                            self._label, file)  # fmt: skip
                continue
            for text in content.content.decode("utf-8", "replace").split("\n"):
                try:
                    line = json.loads(text) if text.strip() else None
                except ValueError:
                    log.warning("%s: a line of %s cannot be read", self._label, file)
                    continue
                if isinstance(line, dict) and "custom_id" in line:
                    found[str(line["custom_id"])] = line
        return found

    async def _once(self, make: Callable[[], Awaitable[T]], limit_s: float = _CALL_S) -> T:
        """One request.

        Raises:
            Fault: It gave no result.
        """
        import openai

        try:
            async with asyncio.timeout(limit_s):
                return await make()
        except (TimeoutError, openai.APITimeoutError):
            raise Fault("timeout", f"no reply in {limit_s:g} s", retry=True) from None
        except openai.APIStatusError as error:
            raise http_fault(
                error.status_code, error.response.headers, error.response.text, time.time()
            ) from None
        except openai.APIConnectionError as error:
            raise Fault("connection", str(error.__cause__ or error), retry=True) from None
        except (openai.OpenAIError, ValueError, TypeError, AttributeError) as error:
            raise Fault("bad_reply", f"{type(error).__name__} {error}", retry=True) from None

    async def _again(self, make: Callable[[], Awaitable[T]], limit_s: float = _CALL_S) -> T:
        """A request that changes nothing, tried again where that may help.

        Raises:
            Fault: Of the last try.
        """
        for number in range(TRIES):
            try:
                return await self._once(make, limit_s)
            except Fault as fault:
                if not fault.retry or number + 1 == TRIES:
                    raise
                await asyncio.sleep(fault.wait or self.pause_s(number))
        raise AssertionError

    def pause_s(self, number: int) -> float:
        """Before the next try, after so many."""
        judge = self._judge
        return min(judge.retry_wait_s * judge.retry_factor**number, judge.retry_max_wait_s)


def is_ours(found: Any, name: str, file: str) -> bool:
    """Whether the service's batch is the one that we call so, or of this file."""
    mark = (found.metadata or {}).get(_MARK) if hasattr(found, "metadata") else None
    return bool(mark == name or (file and found.input_file_id == file))


def read_line(line: Any) -> Reply:
    """What a line says.

    Raises:
        Fault: It is no reply.
    """
    line = line if isinstance(line, dict) else {}
    response, error = line.get("response"), line.get("error")
    if isinstance(response, dict) and response.get("status_code"):
        code, body = int(response["status_code"]), response.get("body")
        text = body if isinstance(body, str) else json.dumps(body)
        if answered(line):
            return read_reply(text)
        fault = http_fault(code, {}, text, time.time())
        # The next batch is no hurry, and so often as there are tries.
        fault.limited, fault.wait = False, None
        raise fault
    error = error if isinstance(error, dict) else {}
    reason = str(error.get("code") or "not_answered")
    said = str(error.get("message") or "its batch ended before it")
    raise Fault(reason, said, retry=True, limited=reason == QUEUE_FULL)
