"""A whole run against an answer server and a judge server: nothing may wait but for those two.

    python tests/bench/endpoint_speed.py [--tokens-per-s 180] [--latency 2]

Both servers are stand-ins with MT-bench-like lengths. Printed: when the first request came after
the process began, the last judgment after the last answer, and the whole, with the longest
conversation plus one judgment as the least that is possible.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]


def server(*args: str) -> tuple[subprocess.Popen[str], str]:
    """A stub server in its own process, and its address."""
    process = subprocess.Popen(
        [sys.executable, str(TESTS / "support" / "stub_server.py"), *args],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    return process, process.stdout.readline().strip()


def main() -> None:
    """Run it once with default settings and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--tokens-per-s", type=float, default=180.0)
    parser.add_argument("--latency", type=float, default=2.0)
    args = parser.parse_args()
    answers, answers_url = server("--kind", "answer", "--tokens-per-s", str(args.tokens_per_s))
    judge, judge_url = server("--latency", str(args.latency))
    try:
        with tempfile.TemporaryDirectory() as workspace:
            began = time.time()
            subprocess.run(
                [
                    sys.executable, "-m", "mtbench_ray", "model=remote", "engine=openai",
                    f"engine.base_url={answers_url}", "judge=openai", "judge.model=stub",
                    f"judge.base_url={judge_url}", f"workspace={workspace}",
                ],
                check=True,
                cwd=TESTS.parent,
                stdout=subprocess.DEVNULL,
            )  # fmt: skip
            total = time.time() - began
            rows = [
                json.loads(line)
                for line in (Path(workspace) / "answers.jsonl").read_text().splitlines()
            ]
            timeline = next(Path(workspace).glob("runs/*/timeline.jsonl"))
            events = [json.loads(line) for line in timeline.read_text().splitlines()]
    finally:
        answers.kill()
        judge.kill()
    first = min(row["created"] - row["latency_s"] for row in rows) - began
    last_answer = max(row["created"] for row in rows)
    last_judged = max(event["judged"] for event in events if event["event"] == "judgment")
    longest: dict[str, float] = {}
    for row in rows:
        longest[row["answer_id"]] = longest.get(row["answer_id"], 0.0) + row["latency_s"]
    least = max(longest.values()) + args.latency
    print(f"turns {len(rows)}, output tokens {sum(row['output_tokens'] for row in rows)}")
    print(f"first request after {first:.1f} s")
    print(f"last judgment {last_judged - last_answer:.1f} s after the last answer")
    print(f"in all {total:.1f} s; least possible {least:.1f} s; ratio {total / least:.2f}")


if __name__ == "__main__":
    main()
