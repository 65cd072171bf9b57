"""The parts of ``gpu.py``: what is run, and which figures are made of what it leaves behind."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gpu_bench import TESTS, Bench, Run, gpu_used, span, visible_cards, wait_for, write_command
from gpu_engines import breakdown
from random_models import make_model

LATENCY = 2.0
"""Seconds of the stub judge."""


def models(bench: Bench) -> None:
    """All random models, written at once, each by a process of its own, over the cards."""
    began = time.monotonic()
    wanted = [(bench.args.shape, n + 1) for n in range(bench.args.checkpoints)]
    wanted += [(bench.args.small, n + 1) for n in range(2)]
    cards = itertools.cycle(visible_cards() or [""])
    writers = [
        subprocess.Popen(
            write_command(bench.args.dir, shape, seed),
            env=os.environ | {"CUDA_VISIBLE_DEVICES": card},
            stdout=subprocess.DEVNULL,
        )
        for (shape, seed), card in zip(wanted, cards, strict=False)
    ]
    # Meanwhile: what gpu.py's keep_bytecode is for.
    imports = [_import_of_vllm() for _ in range(2)]
    codes = [writer.wait() for writer in writers]
    bench.row("import of vLLM: without bytecode, with it",
              " s, ".join(f"{seconds:.1f}" for seconds in imports) + " s")  # fmt: skip
    bench.row("models written", f"{codes.count(0)}, {time.monotonic() - began:.0f} s",
              str(len(wanted)))  # fmt: skip


def _import_of_vllm() -> float:
    began = time.monotonic()
    subprocess.run([sys.executable, "-c", "import vllm.v1.engine.async_llm"], check=True)
    return time.monotonic() - began


def main_job(bench: Bench) -> None:
    """A bare AsyncLLM, then the main job with the same requests."""
    model = str(bench.model(1))
    bare = _bare(bench, "bare engine", model)
    run = bench.run("main", f"model={model}", judged=True)
    first, last = span(run.answers)
    judged = [event for event in run.timeline if event["event"] == "judgment"]
    turns = [event for event in run.timeline if event["event"] == "turn"]
    output = sum(row["output_tokens"] for row in run.answers)
    parts = [event for event in run.timeline if event["event"] == "phase"]
    bench.row("parts of the run's start, each with its end from the command on",
              ", ".join(f"{e['name']} {e['seconds']:.1f} ({e['ended'] - run.began:.1f})"
                        for e in sorted(parts, key=lambda e: e["ended"])) + " s")  # fmt: skip
    (up,) = [e for e in run.engine_events if e["kind"] == "start"]
    bench.row("main job: turns, judgments, exit", f"{len(turns)}, {len(judged)}, {run.code}",
              "160, 160, 0")  # fmt: skip
    bench.row("engine start: bare, in the run",
              f"{bare['start']:.1f} s, {up['seconds']:.1f} s")  # fmt: skip
    begins = up["t"] - up["seconds"] - run.began
    bench.row("command -> engine's start begins, first request",
              f"{begins:.1f} s, {first - run.began:.1f} s")  # fmt: skip
    bench.row("output tokens: bare, in the run", f"{bare['tokens']}, {output}")
    ours, alone = last - first, bare["generation"]
    bench.row("generation: run / bare", f"{ours:.1f} / {alone:.1f} s = {ours / alone:.3f}",
              "<= 1.05")  # fmt: skip
    wait = min(e["started"] for e in judged) - min(e["generated"] for e in turns)
    bench.row("first finished turn -> first judge call", f"{wait:.2f} s", "<= 1 s")
    tail = max(e["judged"] for e in judged) - last
    bench.row("last token -> last judgment", f"{tail:.2f} s", f"<= {LATENCY + 1:g} s")
    bench.row("whole command", f"{run.seconds:.1f} s")


def judge_local(bench: Bench) -> None:
    """A judge on the run's only card, after the answers: what is between the two."""
    run = bench.run(
        "judge_local",
        f"model={bench.model(1)}",
        "judge.max_tokens=32",
        "judge.max_tokens_retry=0",
        "judge.parse_retries=0",  # random weights rate nothing
        judge=["judge=local", f"judge.model={bench.model(2)}"],
    )
    judged = [event for event in run.timeline if event["event"] == "judgment"]
    last = span(run.answers)[1]
    bench.row("local judge: exit, turns, judgments", f"{run.code}, {len(run.answers)}, "
              f"{len(judged)}", "3, 160, 160")  # fmt: skip
    if judged:
        first = min(event["started"] for event in judged)
        bench.row(
            "last answer -> first call of the local judge", f"{first - last:.1f} s", "<= 20 s"
        )
        end = max(event["judged"] for event in judged)
        bench.row("its calls", f"{end - first:.1f} s")
    bench.row("whole command", f"{run.seconds:.1f} s")
    for log in run.folder.glob("runs/*/judge_server_*.log"):
        print(f"-- {log.name}; last answer at {time.strftime('%H:%M:%S', time.localtime(last))}")
        print(log.read_text(errors="replace")[:20000], flush=True)


def _bare(bench: Bench, name: str, model: str, *arguments: str) -> dict[str, float]:
    """An engine by itself with the main job's requests, and where its start went."""
    run = bench.engines("bare", "bare", model, "--max-tokens", str(bench.args.max_tokens),
                        "--limit", str(bench.args.limit), *arguments)  # fmt: skip
    took, moments = breakdown(run.log, run.began)
    steps = ("imports", "start", "generation", "stop")
    bench.row(f"{name}: {', '.join(steps)}", f"{', '.join(f'{run.found[s]:.1f}' for s in steps)} s")
    bench.row(f"{name}: steps of the start", f"{took} s")
    bench.row(f"{name}: process start ->", f"{moments} s")
    return run.found


def _sweep(bench: Bench, name: str, models: list[str], *settings: str) -> Run:
    return bench.run(name, "-m", f"model={','.join(models)}", "sampling.temperature=0", *settings)


def _by_model(run: Run) -> list[tuple[str, list[dict[str, Any]]]]:
    """Answer rows of each model, in the order of their first requests."""
    rows: dict[str, list[dict[str, Any]]] = {}
    for row in run.answers:
        rows.setdefault(row["model"], []).append(row)
    return sorted(rows.items(), key=lambda item: span(item[1])[0])


def _longest(rows: list[dict[str, Any]]) -> int:
    """Output tokens of the longest conversation: the steps that generation takes at least."""
    tokens: Counter[str] = Counter()
    for row in rows:
        tokens[row["answer_id"]] += row["output_tokens"]
    return max(1, *tokens.values())


def sweep(bench: Bench) -> None:
    """Checkpoints of one shape on one engine that swaps."""
    _swaps(bench, "sweep")


def sweep_host(bench: Bench) -> None:
    """The same where the card has no room for the next one: it waits in the host's memory."""
    _swaps(bench, "sweep_host", "engine.next_weights=host")


def _swaps(bench: Bench, name: str, *settings: str) -> None:
    run = _sweep(bench, name, bench.models, "engine.replicas=1", *settings)
    bench.row("sweep: exit, turns", f"{run.code}, {len(run.answers)}")
    order = _by_model(run)
    events = {e["model"]: e for e in run.engine_events if e["kind"] != "failed"}
    # While the last one is answered, nothing is read for later.
    begin, end = span(order[-1][1])
    pace = (end - begin) / _longest(order[-1][1])
    before = run.began
    for model, rows in order:
        begin, end = span(rows)
        event, longest = events[model], _longest(rows)
        name = Path(model).name
        bench.row(
            f"{name}, {'/'.join(sorted({r['engine_origin'] for r in rows}))}: outside generation, "
            f"of this the {event['kind']}",
            f"{begin - before:.2f} s, {event['seconds']:.2f} s",
            "<= 4, then 0.5 s" if event["kind"] == "swap" else "",
        )
        bench.row(
            f"{name}: generation, longest conversation, pace against the last checkpoint's",
            f"{end - begin:.2f} s, {longest} tokens, {(end - begin) / longest / pace:.3f}",
            "<= 1.03",
        )
        if event["detail"]:
            bench.row(f"{name}: {event['kind']}", event["detail"][:300])
        before = end
    _totals(bench, run)


def _totals(bench: Bench, run: Run) -> None:
    checkpoints = len({row["model"] for row in run.answers})
    first, last = span(run.answers)
    bench.row("command -> last token, first request -> last token",
              f"{run.to_last_token:.1f} s, {last - first:.1f} s")  # fmt: skip
    bench.row("whole command, for each checkpoint",
              f"{run.seconds:.1f} s, {run.seconds / checkpoints:.1f} s")  # fmt: skip


def separate(bench: Bench) -> None:
    """The same checkpoints with an engine each."""
    run = _sweep(bench, "separate", bench.models[: bench.args.cold], "engine.replicas=1",
                 "engine.hot_swap=off")  # fmt: skip
    starts = [f"{e['seconds']:.1f}" for e in run.engine_events if e["kind"] == "start"]
    bench.row("separate engines: exit, turns, starts",
              f"{run.code}, {len(run.answers)}, {', '.join(starts)} s")  # fmt: skip
    _totals(bench, run)


def _equal(bench: Bench, shape: str) -> None:
    pair = [str(bench.model(seed, shape)) for seed in (1, 2)]
    run = bench.engines(
        "equal", "equal", *pair, "--max-tokens", str(min(128, bench.args.max_tokens))
    )
    first, second = run.found

    def alike(what: str, one: Any, other: Any, aim: str) -> None:
        if one is None or other is None:
            bench.row(what, "no swap", aim)
            return
        same = sum(a == b for a, b in zip(one, other, strict=True))
        bench.row(what, f"{same}/{len(one)}, {sum(count for _, count in one)} tokens", aim)

    alike("turns that the two models answer alike", first["fresh"], second["fresh"], "none")
    what = "greedy turns of a swapped and a fresh engine alike, text and tokens"
    alike(f"{what}: A", second["swapped"], first["fresh"], "all")
    alike(f"{what}: B", first["swapped"], second["fresh"], "all")
    for engine in run.found:
        bench.row("engine start, prepared in, swap",
                  f"{engine['start']:.1f} s, {engine['prepare']:.2f} s,"
                  f" {engine['swap']:.2f} s")  # fmt: skip
        bench.row("swap", engine["detail"][:300])


def equal(bench: Bench) -> None:
    """Greedy answers after a swap are those of a fresh engine, token for token."""
    _equal(bench, bench.args.shape)


def equal_tied(bench: Bench) -> None:
    """The same where input and output embeddings are one tensor."""
    _equal(bench, bench.args.small)


def lora(bench: Bench) -> None:
    """Two adapters and their base in one engine, and in engines of their own.

    With vLLM's batch-invariant kernels: its usual ones for adapters add up in an order that differs
    from run to run, and all of them round by what else is in the batch.
    """
    base = bench.model(1, bench.args.small)
    adapters = [str(bench.adapter(base, seed)) for seed in (1, 2)]
    settings = ["sampling.temperature=0", "engine.replicas=1", "limit=3", "engine.max_num_seqs=1",
                "engine.enforce_eager=true", "sampling.max_tokens=64",
                f"model={base}"]  # fmt: skip
    env = {"VLLM_BATCH_INVARIANT": "1"} if visible_cards() else {}
    names = ["null", *adapters]
    together = bench.run("lora", "-m", *settings, f"model.adapter={','.join(names)}", env=env)
    alone = {}
    for name in names[-bench.args.cold :]:
        alone.update(bench.run("lora-alone", *settings, f"model.adapter={name}", env=env).texts)
    starts = [e for e in together.engine_events if e["kind"] != "failed"]
    same = sum(together.texts.get(key) == text for key, text in alone.items())
    firsts = {text for (_, q, t), text in together.texts.items() if (q, t) == (81, 1)}
    bench.row("base and two adapters: engines started, turns, exit",
              f"{len(starts)}, {len(together.answers)}, {together.code}", "1, 18, 0")  # fmt: skip
    bench.row("together == alone, greedy turns", f"{same}/{len(alone)}", "all")
    bench.row("different answers to one question", str(len(firsts)), "3")


def adapters(bench: Bench) -> None:
    """A base and its adapters in one engine, against a run for each (the time of one, times all).

    Once for each of ``--at-once``: conversations at once, and adapters in one batch.
    """
    base = bench.model(1, bench.args.small)
    made = [str(bench.adapter(base, seed + 1)) for seed in range(bench.args.adapters)]
    names = ["null", *made]
    alone = 0.0
    if not bench.args.no_one:
        run = bench.run("adapter-alone", f"model={base}", f"model.adapter={made[0]}",
                        "engine.replicas=1")  # fmt: skip
        alone, (first, last) = run.seconds, span(run.answers)
        bench.row("a run of one adapter: turns, answers, whole command",
                  f"{len(run.answers)}, {last - first:.1f} s, {alone:.1f} s")  # fmt: skip
    for at_once in bench.args.at_once.split(","):
        sequences, loras = at_once.split("/") if "/" in at_once else ("", "")
        chosen = [f"engine.max_num_seqs={sequences}", f"+engine.args.max_loras={loras}"]
        run = bench.run("adapters", "-m", f"model={base}", f"model.adapter={','.join(names)}",
                        "engine.replicas=1", *(chosen if sequences else []))  # fmt: skip
        first, last = span(run.answers)
        tokens = sum(row["output_tokens"] for row in run.answers)
        bench.row(f"{len(names)} in one engine, {at_once}: exit, turns, answers, whole command",
                  f"{run.code}, {len(run.answers)}, {last - first:.1f} s "
                  f"({tokens / (last - first):.0f} tokens/s), {run.seconds:.1f} s")  # fmt: skip
        if alone:
            bench.row("a run for each / all in one", f"{len(names) * alone / run.seconds:.1f}",
                      ">= 8")  # fmt: skip


def long(bench: Bench) -> None:
    """Several long answers to each question: what the run chooses, against a bare engine's best.

    ``--at-once``: ``chosen`` is the run, numbers are conversations at once in bare engines.
    """
    model = str(bench.model(1, bench.args.small))
    ours = 0.0
    bare: dict[str, float] = {}
    for at_once in bench.args.at_once.split(","):
        if at_once != "chosen":
            found = _bare(bench, f"{at_once} at once, bare", model,
                          "--samples", str(bench.args.samples),
                          "--set", f"engine.max_num_seqs={at_once}")  # fmt: skip
            bare[at_once] = found["generation"]
            continue
        run = bench.run("long", f"model={model}", f"sampling.samples={bench.args.samples}",
                        "engine.replicas=1")  # fmt: skip
        first, last = span(run.answers)
        ours = last - first
        tokens = sum(row["output_tokens"] for row in run.answers)
        bench.row("in a run: exit, turns, answers",
                  f"{run.code}, {len(run.answers)}, {ours:.1f} s "
                  f"({tokens / ours:.0f} tokens/s)")  # fmt: skip
    best = min(bare, key=lambda at_once: bare[at_once], default="")
    if best and ours:
        least = bare[best]
        bench.row(f"run / the best bare engine ({best})",
                  f"{ours:.1f} / {least:.1f} s = {ours / least:.3f}", "<= 1.05")  # fmt: skip


def mixed(bench: Bench) -> None:
    """Two architectures and a model larger than the card in one sweep.

    Weights are dummies: this is about engines and memory.
    """
    before = gpu_used()
    large = make_model(bench.folder, "too-large", 1, weights=False)
    wanted = [bench.model(1), large, bench.model(1, bench.args.small)]
    run = bench.run("mixed", "-m", f"model={','.join(map(str, wanted))}", "limit=4",
                    "sampling.max_tokens=64", "engine.replicas=1",
                    "engine.args.load_format=dummy")  # fmt: skip
    kinds = [f"{e['kind']} {Path(e['model']).name} {e['seconds']:.0f} s"
             for e in run.engine_events]  # fmt: skip
    done = [sum(r["status"] in ("ok", "truncated") for r in run.answers if r["model"] == str(m))
            for m in wanted]  # fmt: skip
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
            bench.command(folder, "judge=none", f"model={model}", "engine.replicas=1"),
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


VARIANTS: dict[str, tuple[str, ...]] = {
    "plain": (),
    "spawn": ("--spawn",),
    "compiled": ("--set", "engine.compile=true"),
    "eager": ("--set", "engine.enforce_eager=true"),
}
"""Kinds of engine start: as it is, with a vLLM import in each process, with torch.compile, and
without CUDA graphs."""


def start(bench: Bench) -> None:
    """Where an engine's start goes, and whether generation is as fast without some of it.

    Each in a process of its own, with the caches that are there: name a variant twice to see it
    with what it left itself.
    """
    for number, name in enumerate(bench.args.variants.split(","), 1):
        _bare(bench, f"start {number}, {name}", str(bench.model(1)), *VARIANTS[name])


def two(bench: Bench) -> None:
    """The sweep on two GPUs, and on one."""
    both = _sweep(bench, "two", bench.models)
    bench.row("sweep on all GPUs: exit, turns", f"{both.code}, {len(both.answers)}")
    for event in both.engine_events:
        bench.row(f"{event['replica'].rpartition('-')[2]}: {event['kind']} of"
                  f" {Path(event['model']).name}",
                  f"{event['seconds']:.1f} s; {event['detail'][:200]}")  # fmt: skip
    gaps = [f"{gap:.2f}" for gap in _gaps(both)]
    bench.row("between two checkpoints of an engine", f"{', '.join(gaps)} s", "<= 0.5 s")
    _totals(bench, both)
    if bench.args.no_one:
        return
    one = _sweep(bench, "one", bench.models, "engine.replicas=1")
    gaps = [f"{gap:.2f}" for gap in _gaps(one)]
    bench.row("on one GPU: between two checkpoints", f"{', '.join(gaps)} s", "<= 0.5 s")
    _totals(bench, one)
    (begin, end), (one_begin, one_end) = span(both.answers), span(one.answers)
    bench.row("first request -> last token: all GPUs / one",
              f"{end - begin:.1f} / {one_end - one_begin:.1f} s ="
              f" {(end - begin) / (one_end - one_begin):.3f}", "<= 0.51")  # fmt: skip
    bench.row("sweep to the last token: all GPUs / one",
              f"{both.to_last_token:.1f} / {one.to_last_token:.1f} s = "
              f"{both.to_last_token / one.to_last_token:.2f}", "<= 0.55")  # fmt: skip
    up = max(e["seconds"] for e in both.engine_events if e["kind"] == "start")
    alone = max(e["seconds"] for e in one.engine_events if e["kind"] == "start")
    bench.row("the slower of the starts side by side / one alone",
              f"{up:.1f} / {alone:.1f} s = {up / alone:.2f}", "<= 1.15")  # fmt: skip


def _gaps(run: Run) -> list[float]:
    """Seconds from the last token of a checkpoint to the first request of its engine's next."""
    spans = {model: span(rows) for model, rows in _by_model(run)}
    by_engine: dict[str, list[tuple[float, float]]] = {}
    for event in run.engine_events:
        if event["kind"] != "failed" and event["model"] in spans:
            by_engine.setdefault(event["replica"], []).append(spans[event["model"]])
    return [
        later[0] - earlier[1]
        for mine in by_engine.values()
        for earlier, later in itertools.pairwise(sorted(mine))
    ]


def tensor_parallel(bench: Bench) -> None:
    """One engine over two GPUs."""
    _one_checkpoint(bench, "engine.tensor_parallel=2")


def replicas(bench: Bench) -> None:
    """Two engines for one checkpoint: each row once."""
    _one_checkpoint(bench, "engine.replicas=2")


def _one_checkpoint(bench: Bench, setting: str) -> None:
    run = bench.run("one-checkpoint", f"model={bench.models[0]}", setting)
    first, last = span(run.answers)
    keys = {(r["answer_id"], r["turn"]) for r in run.answers}
    starts = ", ".join(f"{e['seconds']:.0f}" for e in run.engine_events)
    bench.row(f"{setting}: exit, turns, distinct, generation, command, engine starts",
              f"{run.code}, {len(run.answers)}, {len(keys)}, {last - first:.1f} s,"
              f" {run.seconds:.1f} s, {starts} s", "0, 160, 160")  # fmt: skip


PARTS: dict[str, Callable[[Bench], None]] = {
    "models": models, "main": main_job, "judge_local": judge_local, "sweep": sweep,
    "sweep_host": sweep_host,
    "separate": separate, "equal": equal, "equal_tied": equal_tied, "lora": lora,
    "adapters": adapters, "long": long, "mixed": mixed,
    "ways_out": ways_out, "oom": oom, "start": start, "two": two,
    "tensor_parallel": tensor_parallel, "replicas": replicas,
}  # fmt: skip
NEEDS = {"models": 1 << 10, "two": 2, "tensor_parallel": 2, "replicas": 2}
"""GPUs of the parts that need other than one; ``models`` takes all."""
