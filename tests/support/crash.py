"""Runs as processes that can be killed at any moment, and the count of what they left."""

from __future__ import annotations

import contextlib
import json
import os
import random
import secrets
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import psutil
from paths import ROOT
from stub_server import StubServer

from mtbench_ray.schema import ANSWERED

MARK = "MTBENCH_TEST_RUN"
CONCURRENCY = 4
"""Judge calls in flight at most, in these runs."""


class Run:
    """One command line in a process of its own, in its own session."""

    def __init__(self, *args: str, env: dict[str, str] | None = None) -> None:
        self.mark = secrets.token_hex(8)
        self._known: dict[int, psutil.Process] = {}
        clean = {k: v for k, v in os.environ.items() if k != "MTBENCH_RAY_MARK"}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "mtbench_ray", *args],
            cwd=ROOT,
            env=clean | {"RAY_AUTH_MODE": "disabled", MARK: self.mark} | (env or {}),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def wait(self, timeout: float = 90.0) -> int:
        """Exit code; the texts are in ``out`` and ``err`` then."""
        self.out, self.err = self.process.communicate(timeout=timeout)
        return self.process.returncode

    def signal(self, number: int) -> None:
        """As a terminal sends Ctrl-C: to the whole group."""
        self.look()
        os.killpg(self.process.pid, number)

    def kill(self) -> None:
        """kill -9 of the driver alone."""
        self.look()
        self.process.kill()
        self.process.wait()

    def look(self) -> None:
        """Remember the processes below the driver; some of Ray's overwrite their environment."""
        try:
            children = psutil.Process(self.process.pid).children(recursive=True)
        except psutil.NoSuchProcess:
            return
        self._known |= {child.pid: child for child in children}

    def processes(self) -> list[psutil.Process]:
        """All processes of the run that are alive, by mark or because they were seen."""
        wanted = f"{MARK}={self.mark}".encode()
        found = {}
        for process in psutil.process_iter():
            try:
                environ = Path(f"/proc/{process.pid}/environ").read_bytes().split(b"\0")
            except OSError:
                continue
            if wanted in environ:
                found[process.pid] = process
        for process in self._known.values():
            with contextlib.suppress(psutil.NoSuchProcess):  # it ended between the two
                if process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
                    found[process.pid] = process
        return list(found.values())

    def gone_after(self, patience_s: float) -> float:
        """Seconds until no process of the run is left.

        Raises:
            AssertionError: Some stay; they are named, and ended.
        """
        began = time.monotonic()
        while left := self.processes():
            if time.monotonic() - began > patience_s:
                names = [" ".join(process.cmdline())[:80] for process in left]
                for process in left:
                    process.kill()
                raise AssertionError(f"left after {patience_s} s: {names}")
            time.sleep(0.1)
        return time.monotonic() - began


def rows(workspace: Path, name: str) -> list[dict]:
    """Whole rows of a journal; a killed run may leave one torn line at the end."""
    path = workspace / name
    lines = path.read_bytes().split(b"\n") if path.exists() else []
    return [json.loads(line) for line in lines[:-1]]


def has_engine(raylet: int, workspace: Path) -> bool:
    """Whether an engine below this process has begun: losing it then is a crash of that engine, and
    before that Ray only starts it elsewhere."""
    events = [
        json.loads(line)
        for path in workspace.glob("runs/*/timeline.jsonl")
        for line in path.read_bytes().split(b"\n")[:-1]
    ]
    engines = {
        int(event["replica"].rpartition("-")[2]) for event in events if event["event"] == "engine"
    }
    return bool(engines & {child.pid for child in psutil.Process(raylet).children(recursive=True)})


@dataclass
class Tally:
    """What many killed runs came to, over all workspaces."""

    kills: int = 0
    planned: int = 0
    lost: int = 0
    doubled: int = 0
    paid_again: int = 0
    most_paid_again: int = 0
    seconds_to_clean: list[float] = field(default_factory=list)

    def count(self, workspace: Path, stub: StubServer, kills: int) -> None:
        """Add a finished workspace."""
        record = json.loads(max(workspace.glob("runs/*/record.json")).read_text())
        units = [unit for row in record["evaluations"] for unit in row["answers"]["units"]]
        answers = {unit[2] if isinstance(unit, list) else unit["answer_id"] for unit in units}
        turns = Counter(
            (row["answer_id"], row["turn"])
            for row in rows(workspace, "answers.jsonl")
            if row["status"] in ANSWERED
        )
        judged = Counter(
            row["judgment_id"]
            for row in rows(workspace, "judgments.jsonl")
            if row["status"] == "ok"
        )
        planned = {(answer, turn) for answer in answers for turn in (1, 2)}
        self.planned += 2 * len(planned)
        self.lost += len(planned - turns.keys()) + len(planned) - len(judged)
        self.doubled += turns.total() - len(turns) + judged.total() - len(judged)
        again = stub.seen.good.total() - len(stub.seen.good)
        self.paid_again += again
        self.most_paid_again = max(self.most_paid_again, again / max(kills, 1))
        stub.seen.good.clear()
        stub.seen.tries.clear()


def settings(questions: Path, stub: StubServer, workspace: Path, *more: str) -> list[str]:
    """A run of about three seconds with the fake engine and a real HTTP judge."""
    own_model = [] if any(word.startswith("model=") for word in more) else ["model=org/m"]
    return [
        *own_model, "engine=fake", "judge=openai", "judge.model=stub",
        f"judge.base_url={stub.url}", "judge.api_key_env=null",
        f"judge.concurrency={CONCURRENCY}", f"question_path={questions}",
        f"workspace={workspace}", "sampling.samples=4", "sampling.max_tokens=150",
        "engine.fake_seconds_per_token=0.004", "engine.max_num_seqs=4", *more,
    ]  # fmt: skip


def drill(
    questions: Path,
    folder: Path,
    *more: str,
    kills: int,
    seed: int,
    longest_s: float,
    patience_s: float = 15.0,
) -> Tally:
    """Kill runs at random moments until ``kills`` have hit; each workspace is then finished."""
    chance, tally, number = random.Random(seed), Tally(), 0
    with StubServer(latency=0.15) as stub:
        while tally.kills < kills:
            workspace = folder / f"work{number}"
            line = settings(questions, stub, workspace, *more)
            number, here = number + 1, 0
            while True:
                run = Run(*line)
                if tally.kills < kills:
                    moment = chance.uniform(0.0, longest_s)
                    try:
                        run.process.wait(moment)
                    except subprocess.TimeoutExpired:
                        run.kill()
                        tally.seconds_to_clean.append(run.gone_after(patience_s))
                        tally.kills += 1
                        here += 1
                        continue
                assert run.wait() == 0, run.err
                break
            tally.count(workspace, stub, here)
    return tally


def until(condition, timeout: float = 30.0) -> None:
    """Wait for something that another process does."""
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.02)


def own_questions(folder: Path) -> Path:
    """A question file of four own questions, where there is no fixture."""
    from questions import QUESTIONS

    path = folder / "own_questions.jsonl"
    lines = [
        json.dumps({"question_id": number, "category": category, "turns": turns})
        for number, category, turns in QUESTIONS
    ]
    path.write_text("\n".join(lines) + "\n")
    return path
