"""How many questions ``launch/demo.sh`` takes, so that it ends in minutes on the machine at hand.

    python -m mtbench_ray.run.demo_size workspace=results

prints the settings to add, and says on standard error why. It times a step of the demo model's
size: starting an engine for that would take as long as some of the questions. The choice is kept
in the workspace, so that the same line again makes the same table.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

AIM_S = 300.0
"""What the demo should take, set-up aside."""
SLACK = 1.15
"""All questions are taken where they would not take much longer than that."""
QUESTIONS, CATEGORIES = 80, 8
TOKENS = 128
"""New tokens a turn, which the figures below were taken with."""
_FILE = "demo.json"
_OWN = ("limit", "limit_by", "categories", "model", "models", "judge", "experiment", "stage",
        "question_path", "benchmark", "mode")  # fmt: skip
"""Settings with which the questions are the user's choice, or the times another model's."""
_ROWS, _LAYERS, _REPEATS = 512, 6, 5
_SHAPES = ((960, 576), (576, 576), (3072, 576), (576, 1536))
"""Of the matrices of one layer of SmolLM2-135M: a step is as many products as a prompt of 512
tokens has in six of its layers."""
START_STEPS = 650.0
"""Steps' time until the engines are up, and from the last verdict to the end."""
QUESTION_STEPS = 52.0
"""Steps' time for the two turns of a question and their two verdicts."""


@dataclass(frozen=True)
class Size:
    """What was chosen.

    Attributes:
        questions: Evenly over the categories.
        seconds: What these are thought to take.
        all_seconds: What all questions are thought to take.
    """

    questions: int
    seconds: float
    all_seconds: float


def choose(step_s: float, tokens: int = TOKENS) -> Size:
    """The size of a demo on a machine that takes ``step_s`` seconds for the step.

    Args:
        tokens: New tokens a turn at most.
    """
    start, each = START_STEPS * step_s, QUESTION_STEPS * step_s * (0.5 + 0.5 * tokens / TOKENS)
    fit = QUESTIONS
    if start + each * QUESTIONS > AIM_S * SLACK:
        fit = int((AIM_S - start) / each) // CATEGORIES * CATEGORIES
    questions = max(CATEGORIES, min(QUESTIONS, fit))
    return Size(questions, start + each * questions, start + each * QUESTIONS)


def time_step() -> float:
    """Seconds of a step here, with whatever else runs on the machine."""
    import torch

    from mtbench_ray.engines.cpu import choose_dtype

    dtype = torch.bfloat16 if choose_dtype("auto", None).name == "auto" else torch.float32
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    layers = [[torch.rand(shape, dtype=dtype) for shape in _SHAPES] for _ in range(_LAYERS)]
    inputs = {width: torch.rand((_ROWS, width), dtype=dtype) for _, width in _SHAPES}
    times = []
    for _ in range(_REPEATS):
        began = time.monotonic()
        for layer in layers:
            for weight in layer:
                torch.nn.functional.linear(inputs[weight.shape[1]], weight)
        times.append(time.monotonic() - began)
    return statistics.median(times[1:])


def settings(args: Sequence[str]) -> tuple[list[str], str]:
    """Settings to add to those typed, and what to say; times the machine where nothing is known."""
    given = dict(arg.partition("=")[::2] for arg in args)
    if any(arg.startswith("-") for arg in args) or any(
        key.partition(".")[0] in _OWN for key in given
    ):
        return [], ""
    workspace = Path(given.get("workspace") or "results").expanduser()
    kept = workspace / _FILE
    try:
        size = Size(**json.loads(kept.read_text("utf-8")))
    except (OSError, ValueError, TypeError):
        import torch

        if torch.cuda.is_available():
            return [], ""
        size = choose(time_step(), int(given.get("sampling.max_tokens") or TOKENS))
        workspace.mkdir(parents=True, exist_ok=True)
        kept.write_text(json.dumps(asdict(size)) + "\n", "utf-8")
    if size.questions >= QUESTIONS:
        return [], ""
    return (
        [f"limit={size.questions}", "limit_by=category"],
        f"demo: {size.questions} of the {QUESTIONS} questions, {size.questions // CATEGORIES} of"
        f" each category: about {_minutes(size.seconds)} on this machine.\n"
        f"  All {QUESTIONS} would take about {_minutes(size.all_seconds)}:"
        f" bash launch/demo.sh limit={QUESTIONS}",
    )


def _minutes(seconds: float) -> str:
    minutes = max(1, round(seconds / 60))
    return f"{minutes} minute{'s' if minutes > 1 else ''}"


if __name__ == "__main__":
    words, said = settings(sys.argv[1:])
    if said:
        print(said, file=sys.stderr)
    print(*words)
