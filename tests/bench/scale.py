"""How far a sweep goes: many fake engines on several raylets of this machine, and one driver.

    python tests/bench/scale.py                  8 engines on 2 raylets, 64 checkpoints
    python tests/bench/scale.py --engines 64 --raylets 8 --checkpoints 500 --questions 16

The raylets are real Ray nodes (with CPUs that are not there), each engine is an actor process of
its own, the judge a stub in another process. Printed, from the run's own files: seconds from the
command to the first request to an engine, rows in a second (a row is an answered turn or a
judgment), CPU of the driver a row and its largest memory, how long a turn waited for its judge
call, and whether every row is there once. A run is ended where the machine's memory falls short.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil

TESTS = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(TESTS / "support"))
FREE_GB = 3.0
"""Memory that must stay free for others on the machine."""


def main() -> None:
    """Run each size and print its figures."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--engines", type=int, default=8)
    parser.add_argument("--raylets", type=int, default=2)
    parser.add_argument("--checkpoints", type=int, default=64)
    parser.add_argument("--questions", type=int, default=80)
    parser.add_argument("--latency", type=float, default=0.5)
    parser.add_argument("--concurrency", type=int, default=1024)
    parser.add_argument("--seconds-per-token", type=float, default=0.01)
    parser.add_argument("--limit-s", type=float, default=900)
    parser.add_argument("--profile", default="", help="a file for cProfile of the driver")
    args = parser.parse_args()
    stub = subprocess.Popen(
        [sys.executable, str(TESTS / "support" / "stub_server.py"), "--latency", str(args.latency)],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert stub.stdout is not None
    folder = Path(tempfile.mkdtemp(prefix="scale"))
    os.environ["RAY_AUTH_MODE"] = "disabled"
    try:
        run(args, folder, stub.stdout.readline().strip())
    finally:
        stub.kill()
        shutil.rmtree(folder)


def run(args: argparse.Namespace, folder: Path, url: str) -> None:
    """One size."""
    from ray_cluster import LocalCluster
    from sweep_overhead import questions

    from mtbench_ray.generate.actor_failures import ACTOR_CPUS

    questions(folder / "questions.jsonl", args.questions)
    names = ",".join(f"/ckpts/run/step_{100 * n}" for n in range(args.checkpoints))
    workspace = folder / "w"
    line = [
        f"models=[{names}]", "engine=fake", "quiet=true",
        f"engine.fake_seconds_per_token={args.seconds_per_token}",
        f"engine.replicas={args.engines}", f"question_path={folder}/questions.jsonl",
        "judge=openai", "judge.model=stub", f"judge.base_url={url}",
        f"judge.concurrency={args.concurrency}", "cluster.ray=always", f"workspace={workspace}",
    ]  # fmt: skip
    each = -(-args.engines // args.raylets)
    with LocalCluster(jobs=False) as cluster:
        _wait_for(cluster.folder / "start-0.log")
        for number in range(1, args.raylets + 1):
            cluster.add_node(cpus=max(1, round(each * ACTOR_CPUS)))
            _wait_for(cluster.folder / f"start-{number}.log")
        profile = ["-m", "cProfile", "-o", args.profile] if args.profile else []
        began = time.time()
        with (folder / "out.txt").open("w") as out:
            driver = subprocess.Popen(
                [sys.executable, *profile, "-m", "mtbench_ray", *line,
                 f"cluster.address={cluster.address}"],
                stdout=out, stderr=subprocess.STDOUT, cwd=TESTS.parent,
            )  # fmt: skip
            seen = watched(driver, began + args.limit_s)
        took = time.time() - began
        print(
            f"{args.engines} engines, {args.raylets} raylets, {args.checkpoints} checkpoints: exit"
            f" {driver.returncode} after {took:.0f} s, {seen['stopped'] or 'ran to its end'};"
            f" all processes together took {seen['others_gb']:.1f} GB"
        )
        if driver.returncode:
            print("".join((folder / "out.txt").read_text().splitlines(keepends=True)[-12:]))
        figures(workspace, began, seen)


def _wait_for(log: Path) -> None:
    """Until the node that writes this log is up; one that asks too early may never join."""
    for _ in range(600):
        if log.exists() and "Ray runtime started" in log.read_text():
            return
        time.sleep(0.2)
    raise AssertionError(log.read_text()[-2000:])


def watched(driver: subprocess.Popen[Any], until: float) -> dict[str, Any]:
    """Wait for the driver; its CPU seconds, the largest memory, and why it was ended, if it was."""
    process = psutil.Process(driver.pid)
    seen: dict[str, Any] = {"cpu": 0.0, "memory_mb": 0.0, "others_gb": 0.0, "stopped": ""}
    ours = psutil.Process()
    while driver.poll() is None:
        try:
            used = process.cpu_times()
            seen["cpu"] = used.user + used.system
            seen["memory_mb"] = max(seen["memory_mb"], process.memory_info().rss / 2**20)
            held = [one.memory_info() for one in ours.children(recursive=True)]
            others = sum(one.rss - one.shared for one in held) / 2**30
            seen["others_gb"] = max(seen["others_gb"], others)
        except psutil.NoSuchProcess:
            continue
        if psutil.virtual_memory().available < FREE_GB * 2**30:
            seen["stopped"] = f"ended: less than {FREE_GB:g} GB of memory were free"
        elif time.time() > until:
            seen["stopped"] = "ended: its time was over"
        if seen["stopped"]:
            driver.terminate()
            driver.wait(120)
        time.sleep(1)
    return seen


def figures(workspace: Path, began: float, seen: dict[str, Any]) -> None:
    """Print what the files of a run say."""
    turns = _rows(workspace / "answers.jsonl")
    judgments = _rows(workspace / "judgments.jsonl")
    rows = len(turns) + len(judgments)
    if not judgments:
        print("no row was judged")
        return
    first = min(row["created"] - row["latency_s"] for row in turns)
    made = {(row["answer_id"], row["turn"]): row["created"] for row in turns}
    lags = sorted(row["started"] - made[row["answer_ids"][0], row["turn"]] for row in judgments)
    span = max(row["created"] for row in judgments) - first
    twice = len(turns) - len(made) + len(judgments) - len({r["judgment_id"] for r in judgments})
    print(
        f"command to first request {first - began:.1f} s; {len(turns):,} turns,"
        f" {len(judgments):,} judgments in {span:.0f} s: {rows / span:.0f} rows a second"
    )
    print(f"driver: {1000 * seen['cpu'] / rows:.2f} ms of CPU a row, {seen['memory_mb']:.0f} MB")
    print(f"answer to judge call: median {statistics.median(lags):.2f} s,"
          f" 99% {lags[len(lags) * 99 // 100]:.2f} s, most {lags[-1]:.2f} s")  # fmt: skip
    print(f"rows that are there twice: {twice}")


def _rows(path: Path) -> list[dict[str, Any]]:
    if not path.exists():
        return []
    keep = ("answer_id", "answer_ids", "turn", "created", "started", "latency_s", "judgment_id")
    with path.open() as file:
        return [{k: v for k, v in json.loads(text).items() if k in keep} for text in file]


if __name__ == "__main__":
    main()
