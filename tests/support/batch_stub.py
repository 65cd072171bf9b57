"""A service with the files and batches endpoints, which fails on demand.

A batch is worked on while it is looked at: after ``looks`` of them it has ended as the next of
``outcomes`` says, ``completed`` where there is none: ``expired:0.5`` and ``cancelled:0.5`` have
answered half of the lines, ``failed:CODE`` none.

Phases: upload, create, list, look, content, cancel. ``http`` has faults of the first requests of a
phase: a status, or a status with ``-done`` where all is done before the service answers with it.
``kill`` names a phase, perhaps with ``-done``: then ``pid`` gets SIGKILL, once.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

from aiohttp import web
from stub_server import StubServer, completion

Handler = Callable[[web.Request], Awaitable[web.Response]]


class BatchStub(StubServer):
    """The server in a thread of this process.

    Attributes:
        paid: Replies written, by prompt.
        lines: ``custom_id`` of all lines worked on.
        batches: What the service holds, by id.
        files: Contents, by id.
        met: Requests of each phase.
    """

    def __init__(
        self,
        *,
        looks: int = 1,
        outcomes: tuple[str, ...] = (),
        line_faults: tuple[str, ...] = (),
        http: dict[str, list[str]] | None = None,
        kill: str = "",
        queue: int = 0,
        **script: Any,
    ) -> None:
        super().__init__(**script)
        self.looks = looks
        self.outcomes = list(outcomes)
        self.line_faults = list(line_faults)
        self.http = http or {}
        self.kill = kill
        self.pid = 0
        self.queue = queue
        self.paid: Counter[str] = Counter()
        self.lines: list[str] = []
        self.batches: dict[str, dict[str, Any]] = {}
        self.files: dict[str, bytes] = {}
        self.met: Counter[str] = Counter()
        self._looked: Counter[str] = Counter()

    def add_routes(self, app: web.Application) -> None:
        add, part = app.router.add_route, self._phase
        add("POST", "/v1/files", part("upload", self._upload))
        add("GET", "/v1/files/{id}/content", part("content", self._content))
        add("POST", "/v1/batches", part("create", self._create))
        add("GET", "/v1/batches", part("list", self._list))
        add("GET", "/v1/batches/{id}", part("look", self._look))
        add("POST", "/v1/batches/{id}/cancel", part("cancel", self._cancel))

    def _phase(self, name: str, handler: Handler) -> Handler:
        async def handle(request: web.Request) -> web.Response:
            self.met[name] += 1
            self._kill(name)
            faults = self.http.get(name)
            fault = faults.pop(0) if faults else ""
            if fault and not fault.endswith("-done"):
                return self._error(int(fault))
            response = await handler(request)
            self._kill(f"{name}-done")
            return self._error(int(fault.removesuffix("-done"))) if fault else response

        return handle

    def _kill(self, moment: str) -> None:
        if self.pid and self.kill == moment:
            os.kill(self.pid, signal.SIGKILL)
            self.pid, self.kill = 0, ""

    def _error(self, code: int) -> web.Response:
        return web.json_response({"error": {"message": "as the script says"}}, status=code)

    async def _upload(self, request: web.Request) -> web.Response:
        form = await request.post()
        assert form["purpose"] == "batch"
        name = f"file-{len(self.files)}"
        self.files[name] = form["file"].file.read()
        data = {"id": name, "object": "file", "bytes": 1, "created_at": 1, "filename": "x",
                "purpose": "batch", "status": "processed"}  # fmt: skip
        return web.json_response(data)

    async def _content(self, request: web.Request) -> web.Response:
        data = self.files.get(request.match_info["id"])
        return self._error(404) if data is None else web.Response(body=data)

    async def _create(self, request: web.Request) -> web.Response:
        given = await request.json()
        lines = self.files[given["input_file_id"]].splitlines()
        name = f"batch_{len(self.batches)}"
        too_much = 0 < self.queue < len(lines)
        self.batches[name] = batch = {
            "id": name, "object": "batch", "endpoint": given["endpoint"],
            "completion_window": given["completion_window"], "created_at": len(self.batches),
            "input_file_id": given["input_file_id"], "metadata": given.get("metadata"),
            "status": "in_progress",
            "request_counts": {"total": len(lines), "completed": 0, "failed": 0},
            "outcome": "failed:token_limit_exceeded" if too_much else (
                self.outcomes.pop(0) if self.outcomes else "completed"),
        }  # fmt: skip
        return web.json_response(batch)

    async def _list(self, request: web.Request) -> web.Response:
        found = list(self.batches.values())[::-1]
        if after := request.query.get("after"):
            place = [one["id"] for one in found].index(after)
            found = found[place + 1 :]
        limit = int(request.query.get("limit", 20))
        return web.json_response(
            {"object": "list", "data": found[:limit], "has_more": len(found) > limit}
        )

    async def _look(self, request: web.Request) -> web.Response:
        batch = self.batches.get(request.match_info["id"])
        if batch is None:
            return self._error(404)
        self._looked[batch["id"]] += 1
        if self._looked[batch["id"]] >= self.looks:
            self.finish(batch)
        return web.json_response(batch)

    async def _cancel(self, request: web.Request) -> web.Response:
        batch = self.batches[request.match_info["id"]]
        batch["outcome"] = "cancelled:0.5"
        batch["status"] = "cancelling"
        return web.json_response(batch)

    def finish(self, batch: dict[str, Any]) -> None:
        """Work on a batch until it has ended."""
        if batch["status"] not in ("in_progress", "cancelling"):
            return
        status, _, detail = batch["outcome"].partition(":")
        batch["status"] = status
        if status == "failed":
            batch["errors"] = {"data": [{"code": detail, "message": "Enqueued too much."}]}
            return
        lines = [json.loads(line) for line in self.files[batch["input_file_id"]].splitlines()]
        share = float(detail or 1)
        good, bad = [], []
        for number, line in enumerate(lines):
            if number >= share * len(lines):
                error = {"code": f"batch_{status}", "message": "This request was not executed."}
                bad.append(self._line(line, None, error))
                continue
            found = self._work(line)
            (good if found["response"]["status_code"] == 200 else bad).append(found)
        # In an order of their own.
        for kind, found in (("output_file_id", good[::-1]), ("error_file_id", bad)):
            if found:
                batch[kind] = f"file-{len(self.files)}"
                self.files[batch[kind]] = "".join(json.dumps(x) + "\n" for x in found).encode()
        batch["request_counts"] |= {"completed": len(good), "failed": len(bad)}

    def _work(self, line: dict[str, Any]) -> dict[str, Any]:
        self.lines.append(line["custom_id"])
        fault = self.line_faults.pop(0) if self.line_faults else "ok"
        if fault.isdigit():
            error = {"message": "as the script says", "code": None}
            return self._line(line, {"status_code": int(fault), "body": {"error": error}})
        body = line["body"]
        prompt = "\n".join(str(message["content"]) for message in body["messages"])
        self.paid[prompt] += 1
        if fault == "unreadable":
            data = completion("I cannot say.", "stop", 9, 9)
        else:
            data, _ = self.written(body, prompt, hashlib.sha256(prompt.encode()).hexdigest())
        return self._line(line, {"status_code": 200, "request_id": "r", "body": data})

    def _line(self, line: dict[str, Any], response: Any, error: Any = None) -> dict[str, Any]:
        return {"id": "x", "custom_id": line["custom_id"], "response": response, "error": error}
