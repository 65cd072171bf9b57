"""How much of a judge's permitted rate the judge stage uses. Prints ratios; 1 is what is possible.

    python tests/bench/judge_speed.py               all cases in full, about fifteen minutes
    python tests/bench/judge_speed.py --scale 0.25  a quarter of the judgments
    python tests/bench/judge_speed.py --only free   one case

The stub judge runs in a process of its own, and refuses whatever goes beyond the limit.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mtbench_ray.config import JudgeConfig
from mtbench_ray.judges.base import Reading, Reply
from mtbench_ray.judges.parse import parse_rating
from mtbench_ray.judges.stage import JudgeStage
from mtbench_ray.schema import Judgment, Message, Request

STUB = Path(__file__).parents[1] / "support" / "stub_server.py"
PROMPT = "Rate this answer, please. " + "It has some words, about as many as others do. " * 100


@dataclass(frozen=True)
class Case:
    """One setting: calls a minute that the stub permits (0: any), and what is asked of it."""

    latency: float
    judgments: int
    rpm: int
    concurrency: int
    stated: bool = True
    flags: tuple[str, ...] = ()
    least_s: float = 0.0
    capacity: int = 0
    timeout_s: float = 120.0


def bucket(
    rpm: int, judgments: int, *flags: str, stated: bool = False, least_s: float = 0.0
) -> Case:
    """A service whose bucket holds one second's worth, and whose limit nobody stated.

    Args:
        least_s: Seconds that the limit dictates, where it changes.
    """
    rpm_flags = ("--bucket", str(rpm), *flags)
    return Case(2.0, judgments, rpm, 128, stated, rpm_flags, least_s)


CASES = {
    "bucket60": bucket(60, 160, stated=True),
    "bucket300": bucket(300, 160, stated=True),
    "unstated60": bucket(60, 160),
    "unstated300": bucket(300, 160),
    "headers60": bucket(60, 160, "--limit-headers", "1"),
    "headers300": bucket(300, 160, "--limit-headers", "1"),
    # 20 s at 300 a minute, then a third.
    "falls": bucket(300, 200, "--bucket-after", "20", "--bucket-then", "100", least_s=82.0),
    "rpm600": Case(latency=2.0, judgments=1600, rpm=600, concurrency=64),
    "rpm60": Case(latency=2.0, judgments=160, rpm=60, concurrency=64),
    # A server that works on few calls at once, and lets the others wait longer than a call may
    # take: as with the best concurrency, and no call twice.
    "queue4": Case(0.5, 160, 0, 128, capacity=4, timeout_s=6.0),
    "queue1": Case(0.5, 60, 0, 128, capacity=1, timeout_s=6.0),
    # The same behind a gateway that gives up by itself.
    "gateway4": Case(0.5, 160, 0, 128, flags=("--gateway-s", "3"), capacity=4),
    "free": Case(latency=0.5, judgments=4000, rpm=0, concurrency=256),
}
WANTED_PER_SECOND = 200
"""Without a limit: judgments a second that the stage should reach at concurrency 256."""


def main() -> None:
    """Run the cases asked for."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--only", choices=CASES, nargs="*", default=list(CASES))
    options = parser.parse_args()
    for name in options.only:
        run(name, CASES[name], max(2, round(CASES[name].judgments * options.scale)))


def run(name: str, case: Case, judgments: int) -> None:
    """One case; prints its figures."""
    flags = ["--latency", str(case.latency), *(case.flags or ["--rpm", str(case.rpm)])]
    flags += ["--capacity", str(case.capacity)]
    server = subprocess.Popen(
        [sys.executable, str(STUB), *flags], stdout=subprocess.PIPE, text=True
    )
    try:
        assert server.stdout is not None
        url = server.stdout.readline().strip()
        seconds, rows = judge(url, case, judgments)
        with urllib.request.urlopen(url.removesuffix("v1") + "stats") as reply:
            stats = json.load(reply)
    finally:
        server.terminate()
        server.wait()
    scored = sum(row.status == "ok" for row in rows)
    print(f"{name}: {scored} of {judgments} scored in {seconds:.1f} s, {stats['calls']} calls")
    if case.rpm:
        permitted = case.rpm / 60
        least = case.least_s or judgments / permitted
        # The first call goes alone until its reply shows which parameters the model takes.
        then = stats["arrivals"][1:]
        rate = (len(then) - 1) / (then[-1] - then[0])
        print(f"  rate after the first call / permitted   {rate / permitted:.3f}")
        print(f"  time / time that the limit dictates     {seconds / least:.3f}")
        print(f"  most calls in 60 s / limit              {stats['busiest_window'] / case.rpm:.3f}")
        print(f"  refused / calls                         {stats['refused'] / stats['calls']:.3f}"
              f"  ({stats['refused']})")  # fmt: skip
    elif case.capacity:
        least = judgments * case.latency / case.capacity
        print(f"  time / with the best concurrency        {seconds / least:.3f}")
        print(f"  calls / judgments                       {stats['calls'] / judgments:.3f}")
    else:
        per_second = judgments / seconds
        possible = case.concurrency / case.latency
        print(f"  judgments a second / {WANTED_PER_SECOND} wanted         "
              f"{per_second / WANTED_PER_SECOND:.3f}")  # fmt: skip
        print(f"  judgments a second / concurrency bound  {per_second / possible:.3f}")


def judge(url: str, case: Case, judgments: int) -> tuple[float, list[Judgment]]:
    """Seconds from the first submission to the last row, and the rows."""
    rows: list[Judgment] = []
    config = JudgeConfig(
        base_url=url,
        model="stub",
        concurrency=case.concurrency,
        timeout_s=case.timeout_s,
        requests_per_minute=(case.rpm or None) if case.stated else None,
    )
    stage = JudgeStage(config, key=None, read=read, emit=rows.append)
    stage.begin()
    begin = time.monotonic()
    for number in range(judgments):
        stage.submit(request(number))
    stage.drain()
    seconds = time.monotonic() - begin
    stage.stop(0.0)
    return seconds, rows


def request(number: int) -> Request:
    """A request of a usual size."""
    fields: dict[str, Any] = dict.fromkeys(
        ("mode", "benchmark", "category", "model", "judge", "judge_prompt", "prompt_hash"), "x"
    )
    return Request(
        judgment_id=str(number),
        match_id=str(number),
        question_id=number,
        turn=1,
        messages=(Message("user", f"{PROMPT} {number}"),),
        **fields,
    )


def read(_: Request, reply: Reply) -> Reading:
    """The rating, as in single mode."""
    found = parse_rating(reply.text, reply.finish_reason)
    if not isinstance(found.value, float):
        return Reading(None, None, "unparsed", found.reason)
    return Reading(found.label, found.value, "ok")


if __name__ == "__main__":
    main()
