"""A whole run against an answer server and a judge server: nothing may wait but for those two.

    python tests/bench/endpoint_speed.py [--runs 3] [--against DIR]

Both servers are stand-ins with MT-bench-like lengths. The least that is possible is the longest
conversation at the server's own pace plus one judgment. Printed are medians over the runs:

    first call   from the start of the command until the first request leaves (imports, settings)
    answers      from then to the last answer, and how much longer than the longest conversation
    tail         from the last answer to the last judgment
    end          from the last judgment until the command has ended (tables, files)
    CPU          of the command, without the servers

and what the imports before the first call take one after the other.

With ``--against DIR``, another checkout of this repository (``git worktree add DIR main``), both
run in turn: figures of one machine at one time, and their ratios.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
LIBRARIES = ("numpy", "hydra", "openai", "mtbench_ray.cli.main", "mtbench_ray.run.main")
# As a user has it: compiled once, not at each start.
ENVIRONMENT = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
PARTS = ("first call", "answers", "over the longest", "tail", "end", "in all", "least", "CPU")


def server(*args: str) -> tuple[subprocess.Popen[str], str]:
    """A stub server in its own process, and its address."""
    process = subprocess.Popen(
        [sys.executable, str(TESTS / "support" / "stub_server.py"), *args],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    return process, process.stdout.readline().strip()


def measure(
    checkout: Path, answers_url: str, judge_url: str, pace: float, latency: float
) -> dict[str, float]:
    """Seconds of each part of one run with default settings.

    Args:
        checkout: Whose package is run.
        pace: Tokens a second of the answer server.
        latency: Of the judge, in seconds.
    """
    with tempfile.TemporaryDirectory() as workspace:
        began = time.time()
        command = subprocess.Popen(
            [
                sys.executable, "-m", "mtbench_ray", "model=remote", "engine=openai",
                f"engine.base_url={answers_url}", "judge=openai", "judge.model=stub",
                f"judge.base_url={judge_url}", f"workspace={workspace}",
            ],
            cwd=checkout,
            env=ENVIRONMENT,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )  # fmt: skip
        _, status, used = os.wait4(command.pid, 0)
        ended = time.time()
        if status:
            raise RuntimeError(f"the run in {checkout} failed")
        lines = (Path(workspace) / "answers.jsonl").read_text().splitlines()
        rows = [json.loads(line) for line in lines]
        timeline = next(Path(workspace).glob("runs/*/timeline.jsonl")).read_text()
        events = [json.loads(line) for line in timeline.splitlines()]
    tokens: dict[str, int] = {}
    for row in rows:
        tokens[row["answer_id"]] = tokens.get(row["answer_id"], 0) + row["output_tokens"]
    longest = max(tokens.values()) / pace
    first = min(row["created"] - row["latency_s"] for row in rows)
    last_answer = max(row["created"] for row in rows)
    judged = max(event["judged"] for event in events if event["event"] == "judgment")
    found = (first - began, last_answer - first, last_answer - first - longest,
             judged - last_answer, ended - judged, ended - began, longest + latency,
             used.ru_utime + used.ru_stime)  # fmt: skip
    return dict(zip(PARTS, found, strict=True))


def imports(checkout: Path) -> dict[str, float]:
    """Seconds of each library, without what an earlier one has imported."""
    code = f"import {', '.join(LIBRARIES)}"
    lines = subprocess.run(
        [sys.executable, "-X", "importtime", "-c", code],
        cwd=checkout, env=ENVIRONMENT, capture_output=True, text=True, check=True,
    ).stderr.splitlines()  # fmt: skip
    # "import time: self | cumulative | name", in microseconds; what is imported within is indented.
    fields = [line.split("|") for line in lines if line.startswith("import time:")]
    took = {name[1:]: cumulative for _, cumulative, name in fields}
    return {name: int(took[name]) / 1e6 for name in LIBRARIES}


def main() -> None:
    """Run it and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--tokens-per-s", type=float, default=180.0)
    parser.add_argument("--latency", type=float, default=2.0)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--against", type=Path, help="another checkout, run in turn with this one")
    args = parser.parse_args()
    pace, latency = args.tokens_per_s, args.latency
    checkouts = [TESTS.parent, *([args.against] if args.against else [])]
    found: dict[Path, list[dict[str, float]]] = {one: [] for one in checkouts}
    answers, answers_url = server("--kind", "answer", "--tokens-per-s", str(pace))
    judge, judge_url = server("--latency", str(latency))
    try:
        for _ in range(args.runs):
            for one in checkouts:
                found[one].append(measure(one, answers_url, judge_url, pace, latency))
    finally:
        answers.kill()
        judge.kill()
    medians = [
        {part: statistics.median(run[part] for run in found[one]) for part in PARTS}
        for one in checkouts
    ]
    print("| what | this checkout |" + " the other | ratio |" * (len(checkouts) - 1))
    print("|---|---|" + "---|---|" * (len(checkouts) - 1))
    for part in PARTS:
        line = f"| {part} | {medians[0][part]:.2f} s |"
        for other in medians[1:]:
            line += f" {other[part]:.2f} s | {medians[0][part] / other[part]:.2f} |"
        print(line)
    for name, seconds in imports(TESTS.parent).items():
        print(f"import {name}: {seconds:.2f} s")
    print(f"in all, of the least possible: {medians[0]['in all'] / medians[0]['least']:.2f}")


if __name__ == "__main__":
    main()
