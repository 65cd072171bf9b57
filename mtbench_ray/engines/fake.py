"""An engine for tests: deterministic text, MT-bench-like lengths, scripted faults.

``engine.fake_faults`` may hold (question ids as text or numbers):

- ``models``: labels; the faults below are for these models only.
- ``fail_start``, ``fail_start_fatal``: words of a start that fails; ``fail_start_once`` likewise,
  but the next start in this process works.
- ``slow_start``: seconds.
- ``log``: a line for standard error.
- ``swap_s``: weights can be swapped; seconds that this takes where the model was not prepared.
- ``slow_once``: a file; the first engine that makes it is slow, ``slow_times`` (4) as slow.
- ``asks_for_gpus``: Ray places the engine as a real one; see ``generate/cluster.py``.
- ``die_on``, ``hang_on``: questions that take the engine down, each time; ``die_once_on``,
  ``hang_once_on``: the first time in this process.
- ``die_at_turn``: the turn at which these do so (1).
- ``kill_process_on``: questions at which the process itself is killed, once; ``kill_marker`` is
  the file that remembers it. ``kill_process_always_on``: each time.
- ``error_on``, ``refuse_on``, ``empty_on``, ``long_on``, ``surrogate_on``: answers of that kind.
- ``replies``: question id to the texts of its turns; ``finish``: question id to finish reason.
- ``no_output_on``, ``no_output_once_on``: requests that end with nothing.
- ``block_on``, ``block_once_on``: questions that block the engine's event loop for good.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mtbench_ray.config import EngineConfig, ModelConfig
from mtbench_ray.engines.base import Engine, Generation, NoOutput, Swap, ended_by_model, overflow
from mtbench_ray.engines.phases import phase
from mtbench_ray.engines.watch import Watch
from mtbench_ray.errors import EngineFault
from mtbench_ray.models.messages import thinking_spec
from mtbench_ray.models.sampling import TurnSampling
from mtbench_ray.schema import Message, canonical, text_hash

WINDOW = 8192
_TEXT = """the river was clear and small because a bridge in the first city is often made of light
however that point may cause one more reason for this step as it was with paper music and a letter
from the garden market by which winter water at each window or table is part of a rule list"""
_WORDS = tuple(_TEXT.split())
_FATAL = ("die_on", "die_once_on", "hang_on", "hang_once_on", "block_on", "block_once_on")
_seen: Counter[str] = Counter()
"""Faults that already happened in this process."""


def forget_faults() -> None:
    """Let ``*_once`` faults happen again in this process."""
    _seen.clear()


SEQUENCES = 96
"""Requests at once, where engine.max_num_seqs says nothing; further ones wait."""


class FakeEngine:
    """Answers without a model. Equal messages, seed and model give equal text."""

    origin = "fake"
    template_hash = "fake"
    gpu_memory_gb: float | None = None
    remark = ""
    under_way = 0

    def __init__(self, model: ModelConfig, config: EngineConfig) -> None:
        self._model = model
        self._config = config
        faults = config.fake_faults
        mine = "models" not in faults or model.label in faults["models"]
        self._faults: dict[str, Any] = dict(faults) if mine else {}
        self._watch = Watch(config.stall_s)
        self._prepared: ModelConfig | None = None
        self._room = asyncio.Semaphore(config.max_num_seqs or SEQUENCES)
        self._times = 1.0
        self.thinking = thinking_spec(model, "")

    @classmethod
    async def start(cls, model: ModelConfig, config: EngineConfig) -> FakeEngine:
        """Start one.

        Raises:
            EngineFault: As scripted.
        """
        engine = cls(model, config)
        faults = engine._faults
        with phase("a scripted wait"):
            await asyncio.sleep(faults.get("slow_start", 0.0))
        if "log" in faults:
            print(faults["log"], file=sys.stderr, flush=True)
        with contextlib.suppress(KeyError, FileExistsError):
            Path(faults["slow_once"]).touch(exist_ok=False)
            engine._times = float(faults.get("slow_times", 4))
        for name in ("fail_start", "fail_start_fatal", "fail_start_once"):
            if name in faults and not (name.endswith("once") and _again(model.label + name)):
                await engine.stop()
                raise EngineFault(str(faults[name]), fatal=name.endswith("fatal"))
        return engine

    async def generate(
        self,
        messages: Sequence[Message],
        sampling: TurnSampling,
        request_id: str,
        priority: int = 0,
    ) -> Generation:
        """See :class:`~mtbench_ray.engines.base.Engine`."""
        return await self._watch.guard(self._generate(messages, sampling, request_id))

    async def prepare(self, model: ModelConfig) -> None:
        """See :class:`~mtbench_ray.engines.base.Engine`."""
        self._prepared = model

    async def adopt(self, model: ModelConfig) -> Engine | None:
        """Serves another prompt set-up of the same model; nothing else."""
        if model == self._model:
            return self
        if (model.path, model.adapter) != (self._model.path, self._model.adapter):
            return None
        self._watch.close()
        return FakeEngine(model, self._config)

    async def swap(self, model: ModelConfig) -> Swap:
        """Where it is scripted: there are no weights."""
        if "swap_s" not in self._faults:
            return Swap(None, "")
        ready, self._prepared = self._prepared == model, None
        await asyncio.sleep(0.0 if ready else self._faults["swap_s"])
        self._watch.close()
        swapped = FakeEngine(model, self._config)
        swapped._times = self._times
        return Swap(swapped, "from memory" if ready else "from files")

    async def stop(self) -> None:
        """See :class:`~mtbench_ray.engines.base.Engine`."""
        self._watch.fault(EngineFault("engine was stopped"))
        self._watch.close()

    async def _generate(
        self, messages: Sequence[Message], sampling: TurnSampling, request_id: str
    ) -> Generation:
        question, turn = request_id.split("|")[0], sum(m.role == "user" for m in messages)
        prompt = sum(len(m.content) for m in messages) // 4 + 4 * len(messages)
        room = (self._config.max_model_len or WINDOW) - prompt
        if room < 1:
            return overflow(prompt, prompt + room)
        text, finish = self._script(question, turn) or _text(messages, sampling, self._model.path)
        words = text.split(" ")
        cap = min(sampling.max_tokens, room)
        if len(words) > cap and not self._has("long_on", question):
            text, finish, words = " ".join(words[:cap]), "length", words[:cap]
        async with self._room:
            await self._speak(question, turn, len(words))
        if self._has("error_on", question) or self._has("refuse_on", question):
            status = "error" if self._has("error_on", question) else "refused"
            return Generation("", None, prompt, 0, status=status, error=f"scripted {status}")
        if self._has("no_output_on", question) or (
            self._has("no_output_once_on", question) and not _again(f"no_output {question} {turn}")
        ):
            raise NoOutput("the engine ended the request without output (finish_reason: None)")
        finish = ended_by_model(finish, len(words))
        used = canonical(
            {"temperature": sampling.temperature, "max_tokens": cap, "seed": sampling.seed}
        )
        return Generation(text, finish, prompt, len(words), used)

    async def _speak(self, question: str, turn: int, tokens: int) -> None:
        """Take the time of ``tokens`` tokens, or fail as scripted halfway."""
        seconds = tokens * self._config.fake_seconds_per_token * self._times
        steps = max(1, int(seconds / 0.25))
        for step in range(steps):
            if seconds:
                await asyncio.sleep(seconds / steps)
            self._watch.beat()
            if step == steps // 2 and turn == int(self._faults.get("die_at_turn", 1)):
                await self._fail(question)

    async def _fail(self, question: str) -> None:
        for name in _FATAL:
            if not self._has(name, question):
                continue
            if "once" in name and _again(f"{self._model.label} {name} {question}"):
                continue
            if name.startswith("die"):
                self._watch.fault(EngineFault(f"scripted death at question {question}"))
            if name.startswith("block"):
                time.sleep(3600.0)
            await asyncio.Event().wait()
        if self._has("kill_process_always_on", question):
            os.kill(os.getpid(), signal.SIGKILL)
        if self._has("kill_process_on", question):
            marker = Path(self._faults["kill_marker"])
            if not marker.exists():
                marker.write_text(question)
                os.kill(os.getpid(), signal.SIGKILL)

    def _script(self, question: str, turn: int) -> tuple[str, str] | None:
        replies = {str(k): v for k, v in self._faults.get("replies", {}).items()}
        if question in replies and turn <= len(replies[question]):
            finish = {str(k): v for k, v in self._faults.get("finish", {}).items()}
            return str(replies[question][turn - 1]), str(finish.get(question, "stop"))
        if self._has("empty_on", question):
            return "", "stop"
        if self._has("long_on", question):
            return "word " * 20_000, "stop"
        if self._has("surrogate_on", question):
            return "half \ud83d of a pair, NUL \x00, line separator \u2028.", "stop"
        return None

    def _has(self, fault: str, question: str) -> bool:
        return question in {str(q) for q in self._faults.get(fault, ())}


def _text(messages: Sequence[Message], sampling: TurnSampling, model: str) -> tuple[str, str]:
    """Words from a hash of the conversation; lengths like MT-bench's, 412 tokens in the mean."""
    key = [[m.role, m.content] for m in messages]
    rng = random.Random(text_hash(canonical([key, sampling.seed, model])))
    count = max(8, int(rng.lognormvariate(5.8, 0.7)))
    return " ".join(rng.choices(_WORDS, k=count)) + f" [seed {sampling.seed}].", "stop"


def _again(key: str) -> bool:
    """Whether this fault already happened; counts it."""
    _seen[key] += 1
    return _seen[key] > 1
