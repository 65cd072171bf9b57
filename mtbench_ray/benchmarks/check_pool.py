"""Checks in processes of their own, with a time limit for each: none can hang or end a run."""

from __future__ import annotations

import atexit
import contextlib
import hashlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
from collections import OrderedDict
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from mtbench_ray.errors import UserError
from mtbench_ray.schema import canonical
from mtbench_ray.system import assets
from mtbench_ray.system.assets import Asset

LIMIT_S = 30.0
"""Seconds that a check may take; the slowest of the official ones take a tenth of a second."""
_START_S = 120.0
"""For the first request of a process, which imports the checkers."""
_PROCESSES = 4
_KEPT = 4096
"""Verdicts in memory: the strict and the loose one of an instruction are asked for apart."""

_SCRIPT = Path(__file__).with_name("check_process.py")
_WHEEL = "llama-index-core==0.14.25"
_PUNKT = "tokenizers/punkt_tab/english"
NLTK_FILES = {
    name: Asset(name, sum_, wheel=_WHEEL, member=f"llama_index/core/_static/nltk_cache/{name}")
    for name, sum_ in (
        (f"{_PUNKT}/abbrev_types.txt",
         "92a3e070f43d9b4c5534758ca40ad7343b04e7e29bfe0c2eb658a39445a4f779"),
        (f"{_PUNKT}/collocations.tab",
         "8e2da1225e4dd2cc9dba261ee231ccb134859e21b46006e7f472c5ee269af0cf"),
        (f"{_PUNKT}/ortho_context.tab",
         "4bbcca25ed3d3f06c02402abf8419b9f033b8adc06e7b482eca4e45f81a5dc4c"),
        (f"{_PUNKT}/sent_starters.txt",
         "f3f8535483e1dba487241b764945168123bca3209a9645e59acd1225dc76edac"),
        ("corpora/stopwords/english",
         "f6d005956f407dbc6ea32e5ff0c7e8e6f71488d3239b9023efdc7fc139d6375b"),
    )
}  # fmt: skip
"""What the checkers need of NLTK's data, by its place there."""


@dataclass(frozen=True, slots=True)
class Check:
    """One instruction, and the answer to check.

    Attributes:
        family: Whose checkers: ``ifeval`` or ``ifbench``.
        id: Of the instruction.
        kwargs: Its arguments; JSON.
    """

    family: str
    id: str
    kwargs: str
    prompt: str
    answer: str

    @property
    def seed(self) -> int:
        """Of what a checker draws: from the instruction alone, so the same in every process."""
        text = canonical([self.family, self.id, self.kwargs, self.prompt])
        return int.from_bytes(hashlib.sha256(text.encode()).digest()[:6], "big")


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether an instruction was followed, or why that is not known."""

    strict: bool = False
    loose: bool = False
    error: str = ""


class CheckPool:
    """Processes that check; all methods may be called from any thread.

    Args:
        limit_s: Seconds that a check may take.
        processes: At most so many at once.
        script: What runs in them.
    """

    def __init__(
        self,
        limit_s: float = LIMIT_S,
        processes: int | None = None,
        script: Path = _SCRIPT,
    ) -> None:
        self._limit_s = limit_s
        self._script = script
        self._idle: queue.LifoQueue[_Process | None] = queue.LifoQueue()
        for _ in range(processes or min(_PROCESSES, os.cpu_count() or 1)):
            self._idle.put(None)
        self._verdicts: OrderedDict[Check, Future[Verdict]] = OrderedDict()
        self._lock = threading.Lock()
        self._running: set[_Process] = set()

    def verdict(self, check: Check) -> Verdict:
        """Check an answer; waits for the verdict and never raises for what a checker does."""
        with self._lock:
            known = self._verdicts.get(check)
            if known is None:
                mine: Future[Verdict] = Future()
                self._verdicts[check] = mine
                if len(self._verdicts) > _KEPT:
                    self._verdicts.popitem(last=False)
        if known is not None:
            return known.result()
        try:
            request = asdict(check) | {"seed": check.seed, "kwargs": json.loads(check.kwargs)}
            found = Verdict(**self._ask(request))
        except BaseException as error:
            mine.set_exception(error)
            raise
        mine.set_result(found)
        return found

    def known(self, family: str) -> frozenset[str]:
        """The instructions that there are checkers of.

        Raises:
            UserError: The checkers cannot be loaded.
        """
        reply = self._ask({"family": family})
        if "known" not in reply:
            raise UserError(
                f"the checkers of {family} cannot be loaded: {reply.get('error')}",
                "pip install 'mtbench-ray[ifeval]'",
            )
        return frozenset(reply["known"])

    def has(self, family: str, data: str) -> bool:
        """Whether NLTK finds some of its data, by its place there."""
        return bool(self._ask({"family": family, "data": data}).get("found"))

    def close(self) -> None:
        """End all processes."""
        with self._lock:
            running = list(self._running)
        for process in running:
            process.end()

    def _ask(self, request: Mapping[str, Any]) -> dict[str, Any]:
        process = self._idle.get()
        try:
            if process is None:
                process = _Process(self._script)
                with self._lock:
                    self._running.add(process)
            reply = process.ask(request, self._limit_s)
            if process.code is not None:
                with self._lock:
                    self._running.discard(process)
                process = None
            return reply
        finally:
            self._idle.put(process)


class _Process:
    """One process of a pool."""

    def __init__(self, script: Path) -> None:
        folders = [str(assets.cache_dir() / "nltk"), os.environ.get("NLTK_DATA", "")]
        environ = os.environ | {
            "NLTK_DATA": os.pathsep.join(filter(None, folders)),
            "PYTHONHASHSEED": "0",
        }
        self._started = False
        self._process = subprocess.Popen(
            [sys.executable, "-P", str(script)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            encoding="ascii",
            env=environ,
        )

    @property
    def code(self) -> int | None:
        """How it ended; None while it runs."""
        return self._process.returncode

    def ask(self, request: Mapping[str, Any], limit_s: float) -> dict[str, Any]:
        """The reply to a request, or what became of the process instead."""
        limit = limit_s if self._started else max(limit_s, _START_S)
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        line = ""
        with contextlib.suppress(OSError):  # it is gone, which its code says
            if not self._started and "id" in request:
                self._send({"family": request["family"]}, limit)
                self._process.stdout.readline()
                limit = limit_s
            self._send(request, limit)
            line = self._process.stdout.readline()
        if line:
            self._started = True
            reply: dict[str, Any] = json.loads(line)
            return reply
        code = self._process.wait()
        if code == -signal.SIGALRM:
            return {"error": f"the check took more than {limit:g} s"}
        how = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        return {"error": f"the check ended its process ({how})"}

    def _send(self, request: Mapping[str, Any], limit_s: float) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({**request, "limit_s": limit_s}) + "\n")
        self._process.stdin.flush()

    def end(self) -> None:
        """End it now."""
        self._process.kill()
        self._process.wait()


_pool: CheckPool | None = None
_making = threading.Lock()


def pool() -> CheckPool:
    """The pool of this process."""
    global _pool
    with _making:
        if _pool is None:
            _pool = CheckPool()
            atexit.register(_pool.close)
        return _pool


TAGGER = "taggers/averaged_perceptron_tagger_eng"
"""NLTK data that no package has: a user may have it."""
TAGGED = frozenset(("words:start_verb",))
"""The instructions whose checkers need it."""


def fetch_data() -> None:
    """Have NLTK's data in the cache, unless the user's own folder of it has it.

    Raises:
        UserError: It cannot be fetched.
    """
    own = filter(None, os.environ.get("NLTK_DATA", "").split(os.pathsep))
    if any(all((Path(folder) / name).is_file() for name in NLTK_FILES) for folder in own):
        return
    assets.fetch("nltk", NLTK_FILES, "set NLTK_DATA to a folder with punkt_tab and stopwords")
