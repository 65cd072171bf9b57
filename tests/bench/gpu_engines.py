"""Engines without the rest of the product around them; ``gpu.py`` runs this and reads its output.

    gpu_engines.py bare MODEL --max-tokens 1024 --limit 80   the main job's requests on an engine
    gpu_engines.py equal A B --max-tokens 128                answers after a swap and of fresh ones

``--set engine.NAME=VALUE`` as on the product's command line. The last line of the output that
begins with ``RESULT`` holds what was found, as JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import re
import time
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from typing import Any

from mtbench_ray.config import EngineConfig, ModelConfig, SamplingConfig
from mtbench_ray.engines import fork_server as forks
from mtbench_ray.engines.base import Engine
from mtbench_ray.engines.vllm.engine import VllmEngine
from mtbench_ray.models.messages import build_messages
from mtbench_ray.models.sampling import turn_sampling
from mtbench_ray.schema import Question

TALKS = [
    ("How does a tide mill work?", "Where would you build one?"),
    ("Write four lines about a lighthouse in fog.", "Now as a telegram."),
    ("What is the sum of the odd numbers below 30?", "And of the even ones?"),
    ("List three reasons to keep bees.", "Which of them is the weakest?"),
]


async def talk(
    engine: Engine,
    model: ModelConfig,
    question: Question,
    sampling: SamplingConfig,
    sample: int = 0,
) -> list[tuple[str, int]]:
    """All turns of a conversation: text and number of output tokens."""
    done: list[tuple[str, int]] = []
    for turn in range(1, len(question.turns) + 1):
        messages = build_messages(model, question, [text for text, _ in done])
        wanted = turn_sampling(question, turn, sample, sampling, model)
        answer = await engine.generate(messages, wanted, f"{question.question_id}-{sample}-{turn}")
        done.append((answer.text, answer.output_tokens))
    return done


async def bare(args: argparse.Namespace, config: EngineConfig) -> dict[str, float]:
    """The requests of the main job on one engine, all at once; seconds of each step."""
    from mtbench_ray.benchmarks import get_benchmark
    from mtbench_ray.engines.vllm.arguments import set_environment
    from mtbench_ray.system.assets import fetch

    benchmark = get_benchmark("mt_bench")
    files = fetch(benchmark.name, {"questions": benchmark.files["questions"]})
    text = files["questions"].read_text("utf-8")
    found = benchmark.read(text, None, {"questions": "official"})
    questions = [
        replace(question, temperature=benchmark.temperature(question))
        for question in found.questions[: args.limit]
    ]
    model, sampling = ModelConfig(path=args.models[0]), SamplingConfig(max_tokens=args.max_tokens)
    marks = [time.time()]
    set_environment(config)
    forks.begin()
    # What an engine imports in this process, beside its fork server.
    import vllm.engine.arg_utils
    import vllm.v1.engine.async_llm  # noqa: F401

    marks.append(time.time())
    engine = await VllmEngine.start(model, config)
    marks.append(time.time())
    talks = await asyncio.gather(
        *(
            talk(engine, model, question, sampling, sample)
            for question in questions
            for sample in range(args.samples)
        )
    )
    marks.append(time.time())
    await engine.stop()
    marks.append(time.time())
    names = ("imports", "start", "generation", "stop")
    took = {
        n: end - begin for n, (begin, end) in zip(names, itertools.pairwise(marks), strict=True)
    }
    return took | {"tokens": sum(count for turns in talks for _, count in turns)}


@dataclass(frozen=True)
class Exchange:
    """A fresh engine, and the same one after a swap; texts and token counts in order of turns."""

    start: float
    fresh: list[tuple[str, int]]
    prepare: float
    swap: float
    detail: str
    swapped: list[tuple[str, int]] | None


async def exchange(
    first: ModelConfig, second: ModelConfig, config: EngineConfig, sampling: SamplingConfig
) -> Exchange:
    """Answers of a fresh engine, a swap that was prepared meanwhile, answers after it."""

    async def answers(engine: Engine, model: ModelConfig) -> list[tuple[str, int]]:
        # One request at a time: bf16 logits depend on what else is in the batch.
        turns: list[tuple[str, int]] = []
        for number, words in enumerate(TALKS):
            question = Question("own", number, "writing", words)
            turns += await talk(engine, model, question, sampling)
        return turns

    began = time.time()
    engine: Engine = await VllmEngine.start(first, config)
    started = time.time() - began
    try:
        began = time.time()
        await engine.prepare(second)
        prepared = time.time() - began
        fresh = await answers(engine, first)
        began = time.time()
        swap = await engine.swap(second)
        swapping = time.time() - began
        swapped = await answers(swap.engine, second) if swap.engine else None
    finally:
        await engine.stop()
    return Exchange(started, fresh, prepared, swapping, swap.detail, swapped)


async def equal(args: argparse.Namespace, config: EngineConfig) -> list[dict[str, Any]]:
    """A then B, and B then A: each is seen fresh and after a swap."""
    one, other = (ModelConfig(path=path) for path in args.models)
    sampling = SamplingConfig(max_tokens=args.max_tokens, temperature=0.0)
    pairs = ((one, other), (other, one))
    return [asdict(await exchange(*pair, config, sampling)) for pair in pairs]


_TOOK = {
    "weights": r"Loading weights took ([\d.]+) s",
    "model with weights": r"Model loading took .*? and ([\d.]+) s",
    "dynamo": r"Dynamo bytecode transform time: ([\d.]+) s",
    "torch.compile": r"torch\.compile (?:took|takes) ([\d.]+) s",
    "profiling": r"(?:profiling/warmup run|[Mm]emory profiling) (?:took|takes) ([\d.]+) s",
    "graphs": r"Graph capturing finished in ([\d.]+) s",
    "init engine": r"init engine \(.*?\) took ([\d.]+) s",
}
_MOMENTS = {
    "core process up": r"Initializing a V1 LLM engine",
    "loading begins": r"Starting to load model|Loading model from scratch",
    "loaded": r"Model loading took",
    "compiled": r"torch\.compile (?:took|takes)",
    "cache sized": r"Available KV cache memory|skipped memory profiling",
    "graphs done": r"Graph capturing finished",
    "initialised": r"init engine \(",
}
_STAMP = re.compile(r"(?:INFO|WARNING) (\d\d-\d\d \d\d:\d\d:\d\d) ")


def breakdown(log: str, began: float) -> tuple[str, str]:
    """Where the first engine start of a log went, by vLLM's own messages; what is not there is not.

    Args:
        log: Output of vLLM with VLLM_LOGGING_LEVEL=INFO.
        began: When the process began, in seconds since the epoch.

    Returns:
        Seconds of the steps, and seconds from then to the moments that mark them (vLLM logs full
        seconds).
    """
    took = {name: found[1] for name, words in _TOOK.items() if (found := re.search(words, log))}
    moments: dict[str, int] = {}
    year = datetime.fromtimestamp(began).year
    for line in log.splitlines():
        stamp = _STAMP.search(line)
        for name, words in _MOMENTS.items():
            if stamp and name not in moments and re.search(words, line):
                at = datetime.strptime(f"{year}-{stamp[1]}", "%Y-%m-%d %H:%M:%S")
                moments[name] = round(at.timestamp() - began)
    return (
        ", ".join(f"{name} {float(seconds):.1f}" for name, seconds in took.items()),
        ", ".join(f"{name} {seconds}" for name, seconds in moments.items()),
    )


def main() -> None:
    """Run one of them and print what was found."""
    from omegaconf import OmegaConf

    whats = {"bare": bare, "equal": equal}
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("what", choices=whats)
    parser.add_argument("models", nargs="+")
    parser.add_argument("--max-tokens", type=int, default=1024)
    parser.add_argument("--limit", type=int, default=80)
    parser.add_argument("--samples", type=int, default=1)
    parser.add_argument("--set", action="append", default=[])
    parser.add_argument("--spawn", action="store_true", help="each process imports vLLM anew")
    args = parser.parse_args()
    if args.spawn:
        forks.begin = lambda: None
        forks.serve_vllm = lambda: None
    settings = OmegaConf.to_container(OmegaConf.from_dotlist(args.set))
    config = EngineConfig(**settings.get("engine", {}))
    print(f"RESULT {json.dumps(asyncio.run(whats[args.what](args, config)))}", flush=True)


if __name__ == "__main__":
    main()
