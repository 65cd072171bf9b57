"""What the parts of ``gpu.py`` share: the table, models, commands and the rows that they leave."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from random_models import make_adapter, model_folder

TESTS = Path(__file__).resolve().parents[1]
ENGINES = Path(__file__).with_name("gpu_engines.py")


@dataclass
class Bench:
    """Folders, settings and the rows of the table.

    Attributes:
        stub: Address of the judge.
    """

    args: argparse.Namespace
    stub: str
    table: list[tuple[str, str, str]] = field(default_factory=list)

    @property
    def folder(self) -> Path:
        return Path(self.args.dir)

    @property
    def models(self) -> list[str]:
        """The checkpoints of a sweep."""
        return [str(self.model(seed + 1)) for seed in range(self.args.checkpoints)]

    def row(self, what: str, value: str, aim: str = "") -> None:
        """A line of the final table; printed at once too, in case of a time limit."""
        line = tuple(" ".join(cell.replace("|", "/").split()) for cell in (what, value, aim))
        self.table.append(line)
        print("## " + " | ".join(line), flush=True)

    def model(self, seed: int, shape: str = "") -> Path:
        shape = shape or self.args.shape
        if not model_folder(self.folder, shape, seed).is_dir():
            # In a process of its own: this one is to hold nothing of the card.
            subprocess.run(write_command(self.args.dir, shape, seed), check=True)
        return model_folder(self.folder, shape, seed)

    def adapter(self, base: Path, seed: int) -> Path:
        return make_adapter(base, seed)

    def workspace(self, name: str) -> Path:
        return self.folder / "work" / f"{name}-{int(time.time() * 1000)}-{os.getpid()}"

    def command(self, folder: Path, *settings: str) -> list[str]:
        """A command line of the product."""
        return [sys.executable, "-m", "mtbench_ray", f"workspace={folder}", *settings,
                *self.args.set]  # fmt: skip

    def run(
        self,
        name: str,
        *settings: str,
        judged: bool = False,
        judge: Sequence[str] = ("judge=none",),
        env: dict[str, str] | None = None,
    ) -> Run:
        """One command; its rows and timeline. ``settings`` come after the general ones."""
        folder = self.workspace(name)
        if judged:
            judge = ["judge=openai", "judge.model=stub", f"judge.base_url={self.stub}"]
        command = self.command(folder, *judge, f"sampling.max_tokens={self.args.max_tokens}",
                               f"limit={self.args.limit}", *settings)  # fmt: skip
        began = time.time()
        code, text = self._logged(name, command, env or {})
        if code not in (0, 3):
            print(text[-3000:], flush=True)
        return Run(folder, began, time.time() - began, code, text)

    def engines(self, name: str, *arguments: str) -> Direct:
        """Run ``gpu_engines.py``: engines without the rest of the product around them."""
        settings = [text for setting in self.args.set for text in ("--set", setting)]
        began = time.time()
        code, text = self._logged(
            name,
            [sys.executable, str(ENGINES), *arguments, *settings],
            {"VLLM_LOGGING_LEVEL": "INFO"},
        )
        found = [line for line in text.splitlines() if line.startswith("RESULT ")]
        if code or not found:
            print(text[-4000:], flush=True)
            raise RuntimeError(f"{name} ended with {code}, see its log")
        return Direct(began, json.loads(found[-1].removeprefix("RESULT ")), text)

    def _logged(self, name: str, command: list[str], env: dict[str, str]) -> tuple[int, str]:
        """Run a command with its output in a file: a pipe would stay open as long as a child."""
        print(f"-- running {name}", flush=True)
        log = self.folder / "work" / f"{name}-{int(time.time() * 1000)}-{os.getpid()}.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        paths = [str(TESTS.parent), *filter(None, [os.environ.get("PYTHONPATH")])]
        with log.open("w") as output:
            done = subprocess.run(
                command,
                cwd=TESTS.parent,
                env=os.environ | {"PYTHONPATH": os.pathsep.join(paths)} | env,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        return done.returncode, log.read_text(errors="replace")


@dataclass(frozen=True)
class Direct:
    """What a run of ``gpu_engines.py`` found, and the log of its engines."""

    began: float
    found: Any
    log: str


@dataclass(frozen=True)
class Run:
    """One finished command."""

    folder: Path
    began: float
    seconds: float
    code: int
    output: str

    def rows(self, name: str) -> list[dict[str, Any]]:
        path = self.folder / name
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    @property
    def answers(self) -> list[dict[str, Any]]:
        return self.rows("answers.jsonl")

    @property
    def timeline(self) -> list[dict[str, Any]]:
        return [
            json.loads(line)
            for path in self.folder.glob("runs/*/timeline.jsonl")
            for line in path.read_text().splitlines()
        ]

    @property
    def engine_events(self) -> list[dict[str, Any]]:
        return [event for event in self.timeline if event["event"] == "engine"]

    @property
    def texts(self) -> dict[tuple[str, Any, int], str]:
        return {(r["model"], r["question_id"], r["turn"]): r["raw"] for r in self.answers}

    @property
    def to_last_token(self) -> float:
        """Seconds from the start of the command."""
        return span(self.answers)[1] - self.began


def write_command(folder: str, shape: str, seed: int) -> list[str]:
    """Writes a random model, unless it is there."""
    script = str(Path(__file__).with_name("random_models.py"))
    return [sys.executable, script, folder, shape, str(seed)]


def span(rows: list[dict[str, Any]]) -> tuple[float, float]:
    """First request and last token of some answer rows."""
    return min(r["created"] - r["latency_s"] for r in rows), max(r["created"] for r in rows)


def visible_cards() -> list[str]:
    """Names of the GPUs that this process may use."""
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    if named is not None:
        return [name for name in named.split(",") if name]
    lines = _nvidia_smi("-L").splitlines()
    return [str(number) for number in range(sum(line.startswith("GPU ") for line in lines))]


def gpu_used() -> float:
    """Gigabytes in use on the visible cards; 0 without a card."""
    cards = visible_cards()
    if not cards:
        return 0.0
    text = _nvidia_smi(
        "-i", ",".join(cards), "--query-gpu=memory.used", "--format=csv,noheader,nounits"
    )
    return sum(map(float, text.split())) / 1024


def card_name() -> str:
    """The kind of the cards, and how many."""
    cards = visible_cards()
    if not cards:
        return "no GPU"
    text = _nvidia_smi("-i", ",".join(cards), "--query-gpu=name", "--format=csv,noheader")
    return f"{len(cards)} x {' / '.join(sorted(set(text.splitlines())))}"


def _nvidia_smi(*arguments: str) -> str:
    try:
        return subprocess.run(
            ["nvidia-smi", *arguments], capture_output=True, text=True, check=True
        ).stdout
    except (OSError, subprocess.CalledProcessError):
        return ""


def wait_for(condition: Callable[[], bool], seconds: float) -> bool:
    """Poll a condition for so long."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.2)
    return False
