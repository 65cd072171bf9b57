"""A chat API that misbehaves on demand. Replies depend on nothing but the request and the script.

In a test::

    with StubServer(chaos=0.3, seed=1) as stub:
        ...  # stub.url, stub.stats()

In its own process: ``python tests/support/stub_server.py --latency 2 --rpm 600``, then GET /stats.

Faults, by name: any HTTP status, hang drip reset empty cut thought cut_body garbage no_choices
no_message error_200 filter 400_filter context quota raw (its body text with 200). A fault may carry
headers or a body text, as in ``429;retry-after=2``, ``429;date=3`` (an HTTP date so many seconds
ahead), ``429;body=...``.
"""

from __future__ import annotations

import argparse
import asyncio
import bisect
import hashlib
import json
import math
import random
import threading
import time
from collections import Counter, deque
from dataclasses import dataclass, field, fields
from email.utils import formatdate
from typing import Any

from aiohttp import web

CHAOS = ("429", "500", "503", "hang", "reset", "empty", "cut", "garbage")
WORDS = (
    "clear",
    "short",
    "right",
    "but",
    "one",
    "step",
    "lacks",
    "a",
    "reason",
    "so",
    "it",
    "loses",
)
_UNSUPPORTED = "Unsupported parameter: '{0}' is not supported with this model."


@dataclass
class Script:
    """What the server does.

    Attributes:
        kind: ``judge`` (an explanation and a rating), ``answer`` (words, as many as the prompt's
            hash says, at ``tokens_per_s``) or ``echo``.
        latency: Seconds until a reply.
        first: Faults of the first calls, in order; ``ok`` is none.
        always: Fault of every call, or of those whose prompt holds ``only``.
        chaos: Share of calls that meet a fault of ``CHAOS``, chosen by ``seed``, prompt and try.
        rpm: Calls admitted in any ``window`` seconds; the others get 429.
        bucket: Calls a minute of a bucket that holds one second's worth; a refusal says when the
            next one may come, in whole seconds. After ``bucket_after`` seconds they are
            ``bucket_then``.
        limit_headers: Say the limit in each reply's headers.
        reject: Fields refused with 400, and ``system``, the role.
        context: Tokens (4 characters each) of prompt and reply.
        thinking: How the judge thinks: ``field``, ``tags`` or not at all.
        text: All that the judge says, instead of words and a rating.
        tokens: Two first tokens of replies, with log-probabilities where they are asked for: the
            prompt's hash says how probable each is. Without these none are given.
        worth: The rating is the number after the last "worth" in the prompt.
        served: Models that answer, one after the other; the last one for all further calls.
        root: Folder behind the one model of the list of models.
        capacity: Calls worked on at once; the others wait. 0 is no limit.
        gateway_s: A call that is not worked on after so long is answered with 504. 0: it waits.
        window_says: How a request above ``context`` is refused, with {window}, {prompt}, {cap}.
    """

    kind: str = "judge"
    latency: float = 0.0
    tokens_per_s: float = 0.0
    first: tuple[str, ...] = ()
    always: str = ""
    only: str = ""
    chaos: float = 0.0
    seed: int = 0
    rpm: int = 0
    window: float = 60.0
    bucket: float = 0.0
    bucket_after: float = 0.0
    bucket_then: float = 0.0
    limit_headers: bool = False
    reject: tuple[str, ...] = ()
    context: int = 0
    thinking: str = ""
    text: str = ""
    tokens: tuple[str, ...] = ()
    worth: bool = False
    served: tuple[str, ...] = ("stub",)
    root: str = ""
    capacity: int = 0
    gateway_s: float = 0.0
    window_says: str = ""


@dataclass
class Seen:
    """What the server met."""

    arrivals: list[float] = field(default_factory=list)
    tries: Counter[str] = field(default_factory=Counter)
    good: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    bodies: list[dict[str, Any]] = field(default_factory=list)
    tokens: int = 0
    in_flight: int = 0
    most_in_flight: int = 0


def busiest_window(times: list[float], seconds: float = 60.0) -> int:
    """The most events in any half-open window of so many seconds; times ascend."""
    return max((bisect.bisect_left(times, t + seconds) - i for i, t in enumerate(times)), default=0)


class StubServer:
    """The server in a thread of this process."""

    def __init__(
        self, port: int = 0, keep_bodies: bool = True, host: str = "127.0.0.1", **script: Any
    ) -> None:
        self.script = Script(**script)
        self.seen = Seen()
        self.port = port
        self._host = host
        self._keep_bodies = keep_bodies
        self._admitted: deque[float] = deque()
        self._bucket: tuple[float, float] | None = None
        self._loop = asyncio.new_event_loop()
        self._released = asyncio.Event()
        self._working = asyncio.Semaphore(self.script.capacity or 10_000)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    def __enter__(self) -> StubServer:
        ready = threading.Event()

        def serve() -> None:
            asyncio.set_event_loop(self._loop)
            self._loop.run_until_complete(self.start())
            ready.set()
            self._loop.run_forever()

        self._thread = threading.Thread(target=serve, daemon=True)
        self._thread.start()
        assert ready.wait(10)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._released.set)
        asyncio.run_coroutine_threadsafe(self._runner.cleanup(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    async def start(self) -> None:
        app = web.Application()
        app.router.add_post("/v1/chat/completions", self._chat)
        app.router.add_get("/stats", self._stats)
        app.router.add_get("/v1/models", self._models)
        app.router.add_get("/health", self._models)
        self.add_routes(app)
        self._runner = web.AppRunner(
            app, access_log=None, shutdown_timeout=0.1, handler_cancellation=True
        )
        await self._runner.setup()
        site = web.TCPSite(self._runner, self._host, self.port, backlog=1024)
        await site.start()
        self.port = self._runner.addresses[0][1]

    def add_routes(self, app: web.Application) -> None:
        """Further endpoints, of a subclass."""

    def stats(self) -> dict[str, Any]:
        seen = self.seen
        return {
            "calls": len(seen.arrivals),
            "good": sum(seen.good.values()),
            "distinct": len(seen.tries),
            "most_good_per_request": max(seen.good.values(), default=0),
            "faults": dict(seen.faults),
            "refused": seen.faults["rpm"],
            "busiest_window": busiest_window(seen.arrivals, self.script.window),
            "arrivals": [round(t - seen.arrivals[0], 3) for t in seen.arrivals],
            "most_in_flight": seen.most_in_flight,
        }

    async def _stats(self, _: web.Request) -> web.Response:
        return web.json_response(self.stats())

    async def _models(self, _: web.Request) -> web.Response:
        model = {"id": self.script.served[-1], "object": "model"}
        if self.script.root:
            model["root"] = self.script.root
        return web.json_response({"object": "list", "data": [model]})

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        prompt = "\n".join(str(m["content"]) for m in body["messages"])
        digest = hashlib.sha256(prompt.encode()).hexdigest()
        seen = self.seen
        seen.arrivals.append(time.monotonic())
        seen.tries[digest] += 1
        if self._keep_bodies:
            seen.bodies.append(body)
        seen.in_flight += 1
        seen.most_in_flight = max(seen.most_in_flight, seen.in_flight)
        try:
            fault = self._fault(prompt, digest) or self._complaint(body, prompt)
            if fault:
                seen.faults[fault.split(";")[0]] += 1
                return await self._misbehave(fault, request, body, digest)
            return await self._reply(body, prompt, digest)
        finally:
            seen.in_flight -= 1

    def _fault(self, prompt: str, digest: str) -> str:
        script, number = self.script, len(self.seen.arrivals)
        if script.rpm:
            now = time.monotonic()
            while self._admitted and self._admitted[0] <= now - script.window:
                self._admitted.popleft()
            if len(self._admitted) >= script.rpm:
                return "rpm"
            self._admitted.append(now)
        if script.bucket and (wait := self._bucket_wait()):
            return f"rpm;retry-after={math.ceil(wait)}"
        if number <= len(script.first):
            return script.first[number - 1].removeprefix("ok")
        if script.always and script.only in prompt:
            return script.always
        chance = random.Random(f"{script.seed}{digest}{self.seen.tries[digest]}")
        return chance.choice(CHAOS) if chance.random() < script.chaos else ""

    def _permitted(self) -> float:
        """Calls a minute now."""
        script, now = self.script, time.monotonic()
        since = now - self.seen.arrivals[0] if self.seen.arrivals else 0.0
        return script.bucket_then if 0 < script.bucket_after <= since else script.bucket

    def _bucket_wait(self) -> float:
        """Takes a call out of the bucket: 0, or the seconds until one is in it."""
        now, rate = time.monotonic(), self._permitted() / 60
        most = max(rate, 1.0)
        held, then = self._bucket or (most, now)
        held = min(most, held + (now - then) * rate)
        self._bucket = (held - (held >= 1), now)
        return 0.0 if held >= 1 else (1 - held) / rate

    def _complaint(self, body: dict[str, Any], prompt: str) -> str:
        script = self.script
        for name in script.reject:
            if name in body and name != "temperature":
                return f"400;param={name};body={_UNSUPPORTED.format(name)}"
        if "temperature" in script.reject and body.get("temperature", 1) != 1:
            return (
                "400;param=temperature;body=Unsupported value: only the default (1) is supported."
            )
        if "system" in script.reject and body["messages"][0]["role"] == "system":
            return "400;body=System role not supported"
        cap = body.get("max_tokens") or body.get("max_completion_tokens") or 0
        if not script.context or len(prompt) / 4 + cap <= script.context:
            return ""
        says = {"window": script.context, "prompt": -(-len(prompt) // 4), "cap": cap}
        return f"400;body={script.window_says.format(**says)}" if script.window_says else "context"

    async def _reply(self, body: dict[str, Any], prompt: str, digest: str) -> web.Response:
        data, output = self.written(body, prompt, digest)
        script = self.script
        wait = script.latency + (output / script.tokens_per_s if script.tokens_per_s else 0)
        try:
            await asyncio.wait_for(self._working.acquire(), script.gateway_s or None)
        except TimeoutError:
            self.seen.faults["gateway"] += 1
            return web.json_response({"error": {"message": "upstream timed out"}}, status=504)
        try:
            if wait:
                await asyncio.sleep(wait)
        finally:
            self._working.release()
        number = sum(self.seen.good.values())
        self.seen.good[digest] += 1
        headers = {}
        if script.limit_headers:
            headers["x-ratelimit-limit-requests"] = f"{self._permitted():.0f}"
        data["model"] = script.served[: number + 1][-1]
        return web.json_response(data, headers=headers)

    def written(self, body: dict[str, Any], prompt: str, digest: str) -> tuple[dict[str, Any], int]:
        """The reply to a request, and its tokens."""
        script, number = self.script, int(digest[:8], 16)
        cap = body.get("max_tokens") or body.get("max_completion_tokens") or 10_000
        # Lengths like MT-bench's answers: 330 tokens in the median, some over a thousand.
        length = int(random.Random(number).lognormvariate(5.8, 0.7))
        count = max(8, length) if script.kind == "answer" else 10 + number % 90
        words = [WORDS[(number + i * i) % len(WORDS)] for i in range(count)]
        if script.kind == "judge":
            # A pairwise prompt names the three verdicts that it allows.
            verdict = f"[[{'ABC'[number % 3]}]]" if "[[A]]" in prompt else ""
            text = f"{' '.join(words[:12])}. {verdict or f'Rating: [[{1 + number % 10}]]'}"
        else:
            text = prompt if script.kind == "echo" else " ".join(words)
        if script.worth:
            text = f"Rating: [[{prompt.rpartition('worth ')[2].split('.')[0]}]]"
        text = script.text or text
        reasoning = "let me see" if script.thinking == "field" else None
        if script.thinking == "tags":
            text = f"<think>it may be [[3]], or not</think>{text}"
        pieces = text.split(" ")
        if script.tokens and body.get("logprobs"):
            return token_reply(script.tokens, number, len(prompt) // 4), 1
        finish = "length" if len(pieces) > cap else "stop"
        text, output = " ".join(pieces[:cap]), min(len(pieces), cap)
        return completion(text, finish, len(prompt) // 4, output, reasoning), output

    async def _misbehave(
        self, fault: str, request: web.Request, body: dict[str, Any], digest: str
    ) -> web.StreamResponse:
        name, *options = fault.split(";")
        given = dict(option.split("=", 1) for option in options)
        if name == "hang":
            await self._released.wait()
        if name in ("hang", "reset"):
            if request.transport is not None:
                request.transport.abort()
            return web.Response()
        if name == "drip":
            slow = web.StreamResponse()
            await slow.prepare(request)
            while not self._released.is_set():
                await slow.write(b" ")
                await asyncio.sleep(0.05)
        whole = json.dumps(completion("fine. Rating: [[7]]", "stop", 9, 9))
        odd = {
            "raw": given.get("body", ""),
            "empty": json.dumps(completion("", "stop", 9, 0)),
            "thought": json.dumps(completion("", "length", 9, 0)),
            "cut": json.dumps(completion("The answer is", "length", 9, 9)),
            "cut_body": whole[:60],
            "garbage": "<html>upstream gone</html>",
            "no_choices": json.dumps({"id": "x", "choices": []}),
            "no_message": json.dumps({"choices": [{"index": 0}]}),
            "error_200": json.dumps({"error": {"code": 503, "message": "no provider"}}),
            "filter": json.dumps(completion("", "content_filter", 9, 0)),
        }
        if name in odd:
            return web.Response(text=odd[name], content_type="application/json")
        key = request.headers.get("Authorization", "")
        code, word, message = {
            "rpm": (429, "rate_limit_exceeded", "too many calls"),
            "quota": (429, "insufficient_quota", "You exceeded your quota, see billing."),
            "context": (400, "context_length_exceeded", "the maximum context length is small"),
            "400_filter": (400, "content_filter", "The prompt was filtered."),
            "401": (401, "invalid_api_key", f"Incorrect API key provided: {key}"),
            "403": (403, "forbidden", f"no access for {key}"),
            "404": (404, "model_not_found", f"The model `{body['model']}` does not exist"),
        }.get(name, (int(name) if name.isdigit() else 500, None, "as the script says"))
        message = given.pop("body", message)
        param = given.pop("param", None)
        if "date" in given:
            given["retry-after"] = formatdate(time.time() + float(given.pop("date")), usegmt=True)
        error = {"message": message, "code": word, "param": param}
        return web.json_response({"error": error}, status=code, headers=given)


def completion(
    text: str, finish: str, prompt_tokens: int, output_tokens: int, reasoning: str | None = None
) -> dict[str, Any]:
    """A reply in the API's form."""
    message = {"role": "assistant", "content": text}
    if reasoning is not None:
        message["reasoning_content"] = reasoning
    return {
        "id": "chatcmpl-stub",
        "object": "chat.completion",
        "created": 0,
        "model": "stub",
        "choices": [{"index": 0, "message": message, "finish_reason": finish}],
        "usage": {
            "prompt_tokens": prompt_tokens,
            "completion_tokens": output_tokens,
            "total_tokens": prompt_tokens + output_tokens,
        },
    }


def token_reply(tokens: tuple[str, ...], number: int, prompt_tokens: int) -> dict[str, Any]:
    """A reply of one token, cut there, with the log-probabilities of two."""
    share = (1 + number % 98) / 100
    chances = sorted(zip((share, 1 - share), tokens, strict=True), reverse=True)
    top = [{"token": token, "logprob": math.log(chance)} for chance, token in chances]
    data = completion(str(top[0]["token"]), "length", prompt_tokens, 1)
    data["choices"][0]["logprobs"] = {"content": [top[0] | {"top_logprobs": top}]}
    return data


def main() -> None:
    """Serve until killed."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--port", type=int, default=0)
    for f in fields(Script):
        many = isinstance(f.default, tuple)
        parser.add_argument(
            f"--{f.name.replace('_', '-')}",
            type=str if many else type(f.default),
            nargs="*" if many else None,
            default=f.default,
        )
    script = vars(parser.parse_args())
    server = StubServer(script.pop("port"), keep_bodies=False, **script)

    async def serve() -> None:
        await server.start()
        print(server.url, flush=True)
        await asyncio.Event().wait()

    asyncio.run(serve())


if __name__ == "__main__":
    main()
