"""How soon an answer is judged: the whole pipeline with Ray, a fake engine and a 2 s judge.

    python tests/bench/stream_lag.py [--replicas 3] [--latency 2] [--seconds-per-token 0.01]

Answers have MT-bench-like lengths. Printed: the lag from generated to judge call, and the time
from the last token to the last judgment beside the judge's latency. Needs the official questions.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]


def main() -> None:
    """Run it once and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--replicas", type=int, default=3)
    parser.add_argument("--latency", type=float, default=2.0)
    parser.add_argument("--seconds-per-token", type=float, default=0.01)
    args = parser.parse_args()
    stub = subprocess.Popen(
        [sys.executable, str(TESTS / "support" / "stub_server.py"), "--latency", str(args.latency)],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert stub.stdout is not None
        url = stub.stdout.readline().strip()
        with tempfile.TemporaryDirectory() as workspace:
            subprocess.run(
                [
                    sys.executable, "-m", "mtbench_ray", "model=fake", "engine=fake",
                    "judge=openai", "judge.model=stub", f"judge.base_url={url}",
                    "judge.concurrency=256", "cluster.ray=always",
                    f"engine.replicas={args.replicas}", f"workspace={workspace}",
                    f"engine.fake_seconds_per_token={args.seconds_per_token}",
                ],
                check=True,
                cwd=TESTS.parent,
                env=os.environ | {"RAY_AUTH_MODE": "disabled"},
                stdout=subprocess.DEVNULL,
            )  # fmt: skip
            report(next(Path(workspace).glob("runs/*/timeline.jsonl")), args.latency)
    finally:
        stub.kill()


def report(timeline: Path, latency: float) -> None:
    """Print the figures of one timeline."""
    rows = [json.loads(line) for line in timeline.read_text().splitlines()]
    generated = {(r["answer"], r["turn"]): r["generated"] for r in rows if r["event"] == "turn"}
    judged = [row for row in rows if row["event"] == "judgment"]
    lags = sorted(row["started"] - generated[row["answers"][0], row["turn"]] for row in judged)
    last_token = max(generated.values())
    first, last = min(r["started"] for r in judged), max(r["judged"] for r in judged)
    second = [time for (_, turn), time in generated.items() if turn == 2]
    print(f"turns {len(generated)}, judgments {len(judged)}")
    print(f"generated -> judge call: median {statistics.median(lags):.2f} s, most {lags[-1]:.2f} s")
    print(f"last judgment - last token: {last - last_token:.2f} s (judge latency {latency:g} s)")
    share = sum(row["started"] < last_token for row in judged) / len(judged)
    print(f"judge calls begun before the last token: {share:.0%}")
    print(f"first judge call before the last turn-2 answer: {first < max(second)}")


if __name__ == "__main__":
    main()
