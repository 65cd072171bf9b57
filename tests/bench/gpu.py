"""What must hold on real GPUs, measured through the command line; prints a short table last.

    python tests/bench/gpu.py [PART ...] [--shape qwen7b] [--small qwen1.5b] [--dir /tmp/models]

Parts: main sweep equal lora mixed ways_out oom start (one GPU), two (two GPUs). Models have random
weights, the judge is a stub with 2 s latency in its own process. Every figure is made from the rows
and the timeline that the runs leave behind. ``--shape tiny`` runs the same on a CPU, as a test of
the script.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from random_models import make_adapter, make_model

TESTS = Path(__file__).resolve().parents[1]
LATENCY = 2.0


@dataclass
class Bench:
    """Folders, settings and the rows of the table."""

    args: argparse.Namespace
    stub: str
    table: list[tuple[str, str, str]] = field(default_factory=list)

    def row(self, what: str, value: str, aim: str = "") -> None:
        """A line of the final table; printed at once too, in case of a time limit."""
        self.table.append((what, value, aim))
        print(f"## {what} | {value} | {aim}", flush=True)

    def model(self, seed: int, shape: str = "") -> Path:
        return make_model(Path(self.args.dir), shape or self.args.shape, seed)

    def workspace(self, name: str) -> Path:
        return Path(self.args.dir) / "work" / f"{name}-{int(time.time() * 1000)}"

    def run(self, name: str, *settings: str, judged: bool = False) -> Run:
        """One command line; its rows and timeline."""
        folder = self.workspace(name)
        judge = (
            ["judge=openai", "judge.model=stub", f"judge.base_url={self.stub}"]
            if judged
            else ["judge=none"]
        )
        print(f"-- running {name}", flush=True)
        log = Path(self.args.dir) / f"{name}.log"
        began = time.time()
        command = [
            sys.executable, "-m", "mtbench_ray", *judge, f"workspace={folder}",
            f"sampling.max_tokens={self.args.max_tokens}", f"limit={self.args.limit}", *settings,
        ]  # fmt: skip
        with log.open("w") as output:
            done = subprocess.run(
                command, cwd=TESTS.parent, stdout=output, stderr=subprocess.STDOUT
            )
        seconds = time.time() - began
        text = log.read_text()
        if done.returncode not in (0, 3):
            print(text[-3000:], flush=True)
        return Run(folder, began, seconds, done.returncode, text)


@dataclass
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

    def engine_events(self) -> list[dict[str, Any]]:
        return [event for event in self.timeline if event["event"] == "engine"]

    def texts(self) -> dict[tuple[str, Any, int], str]:
        return {(r["model"], r["question_id"], r["turn"]): r["raw"] for r in self.answers}


def span(rows: list[dict[str, Any]]) -> tuple[float, float]:
    """First request and last token of some answer rows."""
    return min(r["created"] - r["latency_s"] for r in rows), max(r["created"] for r in rows)


def main_job(bench: Bench) -> None:
    """The main job beside a bare AsyncLLM with the same requests."""
    model = bench.model(1)
    bare = subprocess.run(
        [sys.executable, __file__, "--bare", str(model), "--max-tokens", str(bench.args.max_tokens),
         "--limit", str(bench.args.limit)],
        capture_output=True, text=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(
            [str(TESTS.parent), *filter(None, [os.environ.get("PYTHONPATH")])])},
    )  # fmt: skip
    found = [line for line in bare.stdout.splitlines() if line.startswith("BARE ")]
    if not found:
        print(bare.stdout[-1500:], bare.stderr[-2500:], flush=True)
        bench.row("main job", "the bare engine did not run", "")
        return
    alone, start, tokens = map(float, found[0].split()[1:])
    run = bench.run("main", f"model={model}", judged=True)
    first, last = span(run.answers)
    judged = [event for event in run.timeline if event["event"] == "judgment"]
    turns = [event for event in run.timeline if event["event"] == "turn"]
    output = sum(row["output_tokens"] for row in run.answers)
    starts = [e["seconds"] for e in run.engine_events() if e["kind"] == "start"]
    bench.row("main job: turns, judgments, exit", f"{len(turns)}, {len(judged)}, {run.code}", "")
    bench.row("engine start: bare, in the run", f"{start:.1f} s, {starts[0]:.1f} s", "")
    bench.row("output tokens: bare, in the run", f"{tokens:.0f}, {output}", "")
    ours = last - first
    bench.row(
        "generation: run / bare", f"{ours:.1f} / {alone:.1f} s = {ours / alone:.3f}", "<= 1.05"
    )
    wait = min(e["started"] for e in judged) - min(e["generated"] for e in turns)
    bench.row("first finished turn -> first judge call", f"{wait:.2f} s", "<= 1 s")
    tail = max(e["judged"] for e in judged) - last
    bench.row("last token -> last judgment", f"{tail:.2f} s", f"<= {LATENCY + 1:g} s")
    bench.row("whole command", f"{run.seconds:.1f} s", "")


def sweep(bench: Bench) -> None:
    """Four checkpoints on one engine that swaps, and with an engine each."""
    models = [str(bench.model(seed + 1)) for seed in range(bench.args.checkpoints)]
    run = bench.run("sweep", "-m", f"model={','.join(models)}", "sampling.temperature=0",
                    "engine.replicas=1")  # fmt: skip
    _swaps(bench, run, models)
    cold = models[: bench.args.cold]
    bench.row("whole command", f"{run.seconds:.1f} s, {run.seconds / len(models):.1f} each", "")
    if not cold:
        return
    apart = bench.run("cold", "-m", f"model={','.join(cold)}", "sampling.temperature=0",
                      "engine.replicas=1", "engine.hot_swap=off")  # fmt: skip
    bench.row(
        f"{len(models)} checkpoints swapping; {len(cold)} with an engine each",
        f"{run.seconds:.1f} s ({run.seconds / len(models):.1f} each); {apart.seconds:.1f} s"
        f" ({apart.seconds / len(cold):.1f} each)",
        "",
    )


def _swaps(bench: Bench, run: Run, models: list[str]) -> None:
    origins = {m: {r["engine_origin"] for r in run.answers if r["model"] == m} for m in models}
    spans = sorted(span([r for r in run.answers if r["model"] == m]) for m in models)
    gaps = [later[0] - earlier[1] for earlier, later in itertools.pairwise(spans)]
    took = [e["seconds"] for e in run.engine_events() if e["kind"] == "swap"]
    bench.row("sweep: exit, turns", f"{run.code}, {len(run.answers)}", "")
    bench.row("origins", " ".join("/".join(sorted(origins[m])) for m in models), "cold, then swap")
    bench.row("outside generation per swap", ", ".join(f"{g:.2f}" for g in gaps) + " s", "<= 4 s")
    bench.row("of this, the swap with its proof", ", ".join(f"{t:.2f}" for t in took) + " s", "")
    for event in run.engine_events():
        if event["detail"]:
            bench.row(f"{event['kind']} {Path(event['model']).name}", event["detail"][:160], "")


def equal(bench: Bench) -> None:
    """Greedy answers after a swap are those of a fresh engine, token for token.

    One conversation at a time: bf16 logits depend on what else is in the batch.
    """
    models = ",".join(str(bench.model(seed)) for seed in (1, 2))
    common = ["-m", f"model={models}", "sampling.temperature=0", "engine.replicas=1",
              "engine.max_num_seqs=1", "limit=3", "sampling.max_tokens=128"]  # fmt: skip
    swapped, fresh = bench.run("equal", *common), bench.run("fresh", *common, "engine.hot_swap=off")
    same = sum(swapped.texts()[key] == text for key, text in fresh.texts().items())
    bench.row("swapped == fresh, greedy turns", f"{same}/{len(fresh.texts())}", "all")
    bench.row("origins", " ".join(r["engine_origin"] for r in swapped.answers), "")


def lora(bench: Bench) -> None:
    """Two adapters and their base, interleaved in one engine, and in engines of their own.

    One conversation at a time: bf16 logits depend on what else is in the batch.
    """
    base = bench.model(1, bench.args.small)
    adapters = [str(make_adapter(base, seed)) for seed in (1, 2)]
    settings = ["sampling.temperature=0", "engine.replicas=1", "limit=3", "engine.max_num_seqs=1",
                "sampling.max_tokens=64", f"model={base}"]  # fmt: skip
    names = ["null", *adapters]
    together = bench.run("lora", "-m", *settings, f"model.adapter={','.join(names)}")
    alone = {}
    for name in names[-bench.args.cold :]:
        alone.update(bench.run("lora-alone", *settings, f"model.adapter={name}").texts())
    starts = [e for e in together.engine_events() if e["kind"] == "start"]
    order = [r["model"] for r in together.answers]
    changes = sum(one != other for one, other in itertools.pairwise(order))
    same = sum(together.texts().get(key) == text for key, text in alone.items())
    firsts = {text for (_, q, t), text in together.texts().items() if (q, t) == (81, 1)}
    bench.row("base and two adapters: engines started, turns, exit",
              f"{len(starts)}, {len(together.answers)}, {together.code}", "1, 18, 0")  # fmt: skip
    bench.row("changes of adapter from row to row", str(changes), "many")
    bench.row("interleaved == alone, greedy turns", f"{same}/{len(alone)}", "all")
    bench.row("different answers to one question", str(len(firsts)), "3")


def mixed(bench: Bench) -> None:
    """Two architectures and a model larger than the card in one sweep.

    Weights are dummies: this is about engines and memory.
    """
    before = gpu_used()
    large = make_model(Path(bench.args.dir), "too-large", 1, weights=False)
    models = [bench.model(1), large, bench.model(1, bench.args.small)]
    run = bench.run("mixed", "-m", f"model={','.join(map(str, models))}", "limit=4",
                    "sampling.max_tokens=64", "engine.replicas=1",
                    "engine.args.load_format=dummy")  # fmt: skip
    kinds = [f"{e['kind']} {Path(e['model']).name} {e['seconds']:.0f} s"
             for e in run.engine_events()]  # fmt: skip
    done = [sum(r["status"] in ("ok", "truncated") for r in run.answers if r["model"] == str(m))
            for m in models]  # fmt: skip
    bench.row("mixed sweep: exit, answered turns", f"{run.code}, {done}", "3, [8, 0, 8]")
    bench.row("engines", ", ".join(kinds), "a fresh one for each")
    bench.row("words of the one larger than the card", _words(run), "clear")
    bench.row("GPU memory before, after the end", f"{before:.1f}, {gpu_used():.1f} GiB", "equal")


def ways_out(bench: Bench) -> None:
    """GPU memory is free again after Ctrl-C and after kill -9 of the driver."""
    before = gpu_used()
    model = bench.model(1, bench.args.small)
    for name, stop in (("Ctrl-C", signal.SIGINT), ("kill -9", signal.SIGKILL)):
        folder = bench.workspace("killed")
        process = subprocess.Popen(
            [sys.executable, "-m", "mtbench_ray", "judge=none", f"model={model}",
             f"workspace={folder}", "engine.replicas=1"],
            cwd=TESTS.parent, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        rows = folder / "answers.jsonl"
        wait_for(lambda rows=rows: rows.exists() and rows.stat().st_size > 0, 180.0)
        held = gpu_used()
        process.send_signal(stop)
        sent = time.monotonic()
        process.wait()
        gone = time.monotonic() - sent
        wait_for(lambda: gpu_used() < before + 0.5, 60.0)
        bench.row(
            f"GPU memory in the run, after {name}",
            f"{held:.1f}, {gpu_used():.1f} GiB; exit {process.returncode} after {gone:.1f} s, "
            f"free after {time.monotonic() - sent:.1f} s",
            f"{before:.1f}",
        )


def oom(bench: Bench) -> None:
    """Too small a share of the card on purpose."""
    run = bench.run("oom", f"model={bench.model(1)}", "engine.gpu_memory_utilization=0.05",
                    "limit=2", "sampling.max_tokens=16")  # fmt: skip
    bench.row("too small a share: exit, seconds", f"{run.code}, {run.seconds:.0f}", "3")
    bench.row("its words", _words(run), "clear")


def _words(run: Run) -> str:
    errors = [r["error"] for r in run.answers if r["status"] == "error"]
    return (errors[0] if errors else "none")[:200]


def start(bench: Bench) -> None:
    """Where an engine's start goes, and what a warm compile cache takes off."""
    model = bench.model(1)
    for name, extra in (
        ("as it is", []),
        ("again", []),
        ("enforce_eager", ["engine.enforce_eager=true"]),
    ):
        run = bench.run("start", f"model={model}", "limit=1", "sampling.max_tokens=2", *extra)
        seconds = [e["seconds"] for e in run.engine_events() if e["kind"] == "start"]
        first = span(run.answers)[0] - run.began
        bench.row(f"start, {name}: engine; command -> first request",
                  f"{seconds[0]:.1f} s; {first:.1f} s", "")  # fmt: skip


def two(bench: Bench) -> None:
    """Two GPUs: the sweep, tensor parallelism, two replicas on one checkpoint."""
    models = [str(bench.model(seed + 1)) for seed in range(bench.args.checkpoints)]
    both = bench.run("two", "-m", f"model={','.join(models)}", "sampling.temperature=0")
    bench.row("sweep on all GPUs: exit, turns", f"{both.code}, {len(both.answers)}", "")
    kinds = [f"{e['kind']} {e['seconds']:.1f}" for e in both.engine_events()]
    bench.row("engines", ", ".join(kinds), "")
    one = bench.run("one", "-m", f"model={','.join(models)}", "sampling.temperature=0",
                    "engine.replicas=1")  # fmt: skip
    work = [span(run.answers)[1] - run.began for run in (both, one)]
    bench.row(
        "sweep to the last token: all GPUs / one",
        f"{work[0]:.1f} / {work[1]:.1f} s = {work[0] / work[1]:.2f}", "<= 0.55",
    )  # fmt: skip
    run = bench.run("tp", f"model={models[0]}", "engine.tensor_parallel=2")
    first, last = span(run.answers)
    bench.row("tensor_parallel=2: exit, turns, generation",
              f"{run.code}, {len(run.answers)}, {last - first:.1f} s", "")  # fmt: skip
    run = bench.run("replicas", f"model={models[0]}", "engine.replicas=2")
    first, last = span(run.answers)
    keys = {(r["answer_id"], r["turn"]) for r in run.answers}
    bench.row("two replicas, one checkpoint: turns, distinct, generation",
              f"{len(run.answers)}, {len(keys)}, {last - first:.1f} s", "")  # fmt: skip


async def bare(model: Path, max_tokens: int, limit: int) -> None:
    """The requests of the main job on an AsyncLLM and nothing else; prints seconds and tokens."""
    from mtbench_ray import assets
    from mtbench_ray.benchmarks import get_benchmark
    from mtbench_ray.config import EngineConfig, ModelConfig, SamplingConfig
    from mtbench_ray.engines.base import ShardUnit
    from mtbench_ray.engines.chat import build_messages
    from mtbench_ray.engines.sampling import turn_sampling
    from mtbench_ray.engines.vllm import VllmEngine

    text = assets.official_files()["questions"].read_text("utf-8")
    questions = get_benchmark("mt_bench").read(text, None, {"questions": "official"})[:limit]
    config, sampling = ModelConfig(path=str(model)), SamplingConfig(max_tokens=max_tokens)
    began = time.time()
    engine = await VllmEngine.start(config, EngineConfig())
    started = time.time() - began
    tokens = 0

    async def talk(unit: ShardUnit) -> None:
        nonlocal tokens
        answers: list[str] = []
        for turn in range(1, len(unit.question.turns) + 1):
            wanted = turn_sampling(unit.question, turn, 0, sampling, config)
            messages = build_messages(config, unit.question, answers)
            done = await engine.generate(messages, wanted, f"{unit.answer_id}-{turn}")
            answers.append(done.text)
            tokens += done.output_tokens

    began = time.time()
    await asyncio.gather(*(talk(ShardUnit(q, 0, str(q.question_id))) for q in questions))
    print(f"BARE {time.time() - began:.3f} {started:.3f} {tokens}", flush=True)
    await engine.stop()


def gpu_used() -> float:
    """Gigabytes in use on all cards; 0 without a card."""
    try:
        text = subprocess.run(
            ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"],
            capture_output=True, text=True, check=True,
        ).stdout  # fmt: skip
    except (OSError, subprocess.CalledProcessError):
        return 0.0
    return sum(map(float, text.split())) / 1024


def wait_for(condition: Callable[[], bool], seconds: float) -> bool:
    """Poll a condition for so long."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.2)
    return False


PARTS: dict[str, Callable[[Bench], None]] = {
    "main": main_job, "sweep": sweep, "equal": equal, "lora": lora, "mixed": mixed,
    "ways_out": ways_out, "oom": oom,
    "start": start, "two": two,
}  # fmt: skip


def main() -> None:
    """Run the parts that are named and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []])
    parser.add_argument("--shape", default="qwen7b")
    parser.add_argument("--small", default="qwen1.5b")
    parser.add_argument("--dir", default="/tmp/mtbench_ray_models")
    parser.add_argument("--max-tokens", type=int, default=1024)
    parser.add_argument("--limit", type=int, default=80)
    parser.add_argument("--checkpoints", type=int, default=4)
    parser.add_argument("--cold", type=int, default=2, help="checkpoints also run with own engines")
    parser.add_argument("--bare", type=Path)
    args = parser.parse_args()
    if args.bare:
        asyncio.run(bare(args.bare, args.max_tokens, args.limit))
        return
    os.environ["RAY_AUTH_MODE"] = "disabled"
    stub = subprocess.Popen(
        [sys.executable, str(TESTS / "stub_server.py"), "--latency", str(LATENCY)],
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert stub.stdout is not None
    bench = Bench(args, stub.stdout.readline().strip())
    try:
        for part in args.parts or [name for name in PARTS if name != "two"]:
            began = time.monotonic()
            try:
                PARTS[part](bench)
            except Exception as error:
                bench.row(part, f"{type(error).__name__}: {error}", "")
            print(f"-- {part}: {time.monotonic() - began:.0f} s", flush=True)
    finally:
        stub.kill()
    print("\n| what | measured | aim |\n|---|---|---|")
    for line in bench.table:
        print("| " + " | ".join(cell.replace("|", "/") for cell in line) + " |")


if __name__ == "__main__":
    main()
