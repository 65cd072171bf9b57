"""What a sweep costs beside its answers and judgments: driver time, memory, and waiting.

    python tests/bench/sweep_overhead.py                    200 checkpoints, about 20 minutes
    python tests/bench/sweep_overhead.py --checkpoints 20   a tenth of it
    python tests/bench/sweep_overhead.py --ray              engines in Ray actors
    python tests/bench/sweep_overhead.py --profile FILE     cProfile of the driver's main thread

A fake engine that takes its time per token, and a stub judge in a process of its own. The same work
is done three times: answers alone, judging alone, and both at once. Printed: CPU time of the driver
per row (all its threads, and its main thread, where rows are written; without ``--ray`` the engine
is one of the threads), growth of its memory above what the libraries take, and the time of both at
once over the larger of the two alone. A row is an answered turn or a judgment.
"""

from __future__ import annotations

import argparse
import contextlib
import cProfile
import io
import json
import multiprocessing
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

TESTS = Path(__file__).resolve().parents[1]
CATEGORIES = ("writing", "roleplay", "reasoning", "math", "coding", "extraction", "stem",
              "humanities")  # fmt: skip
AIMS = {"cpu_ms": 5.0, "memory_mb": 300.0, "ratio": 1.1}


def questions(path: Path, count: int = 80) -> None:
    """A question file of two turns each, about as long as real ones."""
    filler = "Say what you think of it, and give an example that a neighbour would know. " * 4
    rows = [
        {
            "question_id": number,
            "category": CATEGORIES[number * len(CATEGORIES) // count],
            "turns": [f"Topic {number}. {filler}", f"Now the opposite of topic {number}."],
        }
        for number in range(count)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def drive(line: list[str], warm_up: list[str], profile: str, send: Any) -> None:
    """One run in this process; sends its figures."""
    from mtbench_ray.cli.main import main

    os.environ.setdefault("RAY_AUTH_MODE", "disabled")
    with contextlib.redirect_stdout(io.StringIO()):
        assert main(warm_up) == 0
        before, cpu, own, began = rss_mb(), time.process_time(), time.thread_time(), time.time()
        profiler = cProfile.Profile(time.thread_time)
        code = profiler.runcall(main, line) if profile else main(line)
    seconds = time.time() - began
    if profile:
        profiler.dump_stats(profile)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    send.send(
        {
            "code": code,
            "seconds": seconds,
            "cpu": time.process_time() - cpu,
            "main": time.thread_time() - own,
            "memory_mb": peak - before,
        }
    )


def rss_mb() -> float:
    """Memory that this process holds now."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def measure(line: list[str], warm_up: list[str], profile: str = "") -> dict[str, float]:
    """Figures of one run in a fresh process."""
    context = multiprocessing.get_context("spawn")
    receive, send = context.Pipe(duplex=False)
    process = context.Process(target=drive, args=(line, warm_up, profile, send))
    process.start()
    send.close()
    figures: dict[str, float] = receive.recv()
    process.join()
    assert figures["code"] == 0, figures
    return figures


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--checkpoints", type=int, default=200)
    parser.add_argument("--seconds-per-token", type=float, default=0.001)
    parser.add_argument("--latency", type=float, default=0.5)
    parser.add_argument("--concurrency", type=int, default=64)
    parser.add_argument("--ray", action="store_true")
    parser.add_argument("--only", choices=("all",), help="skip the two runs alone")
    parser.add_argument("--profile", default="")
    args = parser.parse_args()
    judge = subprocess.Popen(
        [sys.executable, str(TESTS / "support" / "stub_server.py"), "--latency", str(args.latency)],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert judge.stdout is not None
    url = judge.stdout.readline().strip()
    try:
        with tempfile.TemporaryDirectory() as folder:
            run(args, Path(folder), url)
    finally:
        judge.kill()


def run(args: argparse.Namespace, folder: Path, url: str) -> None:
    """The three runs."""
    questions(folder / "questions.jsonl")
    usual = [
        "engine=fake", f"engine.fake_seconds_per_token={args.seconds_per_token}",
        f"question_path={folder}/questions.jsonl", "judge=openai", "judge.model=stub",
        f"judge.base_url={url}", f"judge.concurrency={args.concurrency}",
        f"cluster.ray={'always' if args.ray else 'auto'}",
    ]  # fmt: skip
    names = ",".join(f"/ckpts/run/step_{100 * n}" for n in range(args.checkpoints))
    models = f"models=[{names}]"
    warm = ["model=warm", "limit=1", *usual, f"workspace={folder}/warm"]
    together = measure([models, *usual, f"workspace={folder}/all"], warm, args.profile)
    rows = sum(
        (folder / "all" / name).read_bytes().count(b"\n")
        for name in ("answers.jsonl", "judgments.jsonl")
    )
    assert rows == args.checkpoints * 320, rows
    print(f"{args.checkpoints} checkpoints, {rows} rows, {together['seconds']:.1f} s")
    cpu, own = (1000 * together[name] / rows for name in ("cpu", "main"))
    print(
        f"driver CPU: {cpu:.2f} ms a row, of it in the main thread {own:.2f} ms"
        f" (aim: less than {AIMS['cpu_ms']:g})"
    )
    print(f"driver memory: +{together['memory_mb']:.0f} MB (aim: less than {AIMS['memory_mb']:g})")
    if args.only:
        return
    alone = [*usual, f"workspace={folder}/parts"]
    answers = measure([models, *alone, "stage=answers"], warm)
    judging = measure([models, *alone, "stage=judge"], warm)
    larger = max(answers["seconds"], judging["seconds"])
    print(
        f"answers alone {answers['seconds']:.1f} s, judging alone {judging['seconds']:.1f} s;"
        f" both at once over the larger: {together['seconds'] / larger:.3f}"
        f" (aim: at most {AIMS['ratio']:g})"
    )


if __name__ == "__main__":
    main()
