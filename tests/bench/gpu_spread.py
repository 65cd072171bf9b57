"""Parts of ``gpu.py`` side by side, each in a process of its own on cards of its own."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

import psutil
from gpu_bench import visible_cards


@dataclass
class Running:
    """One part on its way; ``seen`` is how much of its log was looked at."""

    part: str
    cards: list[str]
    process: subprocess.Popen[bytes]
    log: Path
    began: float
    seen: int = 0
    rows: list[tuple[str, str, str]] = field(default_factory=list)

    def read(self) -> None:
        """Show the lines of the table that came since."""
        with self.log.open("rb") as file:
            file.seek(self.seen)
            # A line that is being written is left for the next time.
            whole, newline, _ = file.read().rpartition(b"\n")
        self.seen += len(whole + newline)
        for line in whole.decode("utf-8", "replace").splitlines():
            if line.startswith("## "):
                self.add(*line.removeprefix("## ").split(" | "))

    def add(self, what: str, value: str, aim: str = "") -> None:
        self.rows.append((what, value, aim))
        print(f"{self.part}: {what} | {value} | {aim}", flush=True)

    def kill(self) -> None:
        """End the process with all that it started, also what left its process group."""
        try:
            below = psutil.Process(self.process.pid).children(recursive=True)
        except psutil.NoSuchProcess:
            below = []
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        for process in below:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        self.process.wait()


def spread(
    parts: list[str], needs: dict[str, int], options: list[str], logs: Path, limit_s: float
) -> list[tuple[str, list[tuple[str, str, str]]]]:
    """Run parts in the order named, each as soon as there are cards for it.

    Args:
        parts: Their names.
        needs: GPUs of those that need other than one; more than there are means all.
        options: Further arguments of ``gpu.py``.
        logs: Folder for the output of each part.
        limit_s: Seconds from now after which whatever runs is ended.

    Returns:
        The rows of each part.
    """
    began = time.monotonic()
    logs.mkdir(parents=True, exist_ok=True)
    # Without a GPU there is one place.
    free = visible_cards() or [""]
    total = len(free)
    waiting, running, ended = list(parts), list[Running](), list[Running]()
    try:
        while waiting or running:
            while waiting and len(free) >= (need := min(needs.get(waiting[0], 1), total)):
                running.append(_start(waiting.pop(0), free[:need], options, logs))
                del free[:need]
            time.sleep(0.5)
            for item in list(running):
                # First asked, then read: so the last lines are read too.
                code = item.process.poll()
                item.read()
                if code is not None:
                    item.kill()
                    _end(item, f"exit {code}")
                    running.remove(item)
                    ended.append(item)
                    free += item.cards
            if time.monotonic() - began > limit_s:
                break
    finally:
        for item in running:
            item.kill()
            item.read()
            _end(item, "not finished: ended for lack of time")
    done = {item.part: item.rows for item in [*ended, *running]}
    missed = [("part", "not begun for lack of time", "")]
    return [(part, done.get(part, missed)) for part in parts]


def _end(item: Running, words: str) -> None:
    cards = ", ".join(item.cards)
    item.add("part", f"{words}, {time.monotonic() - item.began:.0f} s", f"on {cards or 'the CPU'}")


def _start(part: str, cards: list[str], options: list[str], logs: Path) -> Running:
    env = dict(os.environ) | {"PYTHONUNBUFFERED": "1"}
    if cards != [""]:
        env["CUDA_VISIBLE_DEVICES"] = ",".join(cards)
        # Two engines that compile the same model at once must not share a compile cache; what runs
        # on a card later may find what was compiled for it before.
        env["VLLM_CACHE_ROOT"] = str(logs.resolve() / f"cache-{cards[0]}")
    log = logs / f"{part}.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("gpu.py")), part, *options],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=env,
            start_new_session=True,
        )
    print(f"{part}: begun on {', '.join(cards) or 'the CPU'}, see {log}", flush=True)
    return Running(part, cards, process, log, time.monotonic())
