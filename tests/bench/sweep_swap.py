"""What a sweep spends outside generation, on the real engine, beside a run for each checkpoint.

    python tests/bench/sweep_swap.py                 6 variants of the demo model, about 10 minutes
    python tests/bench/sweep_swap.py --variants 3

The variants are copies of the demo model with every weight changed a little; 8 questions of our
own, no judge, temperature 0. Printed: seconds outside generation of the sweep and of the separate
runs (process, Ray, engine start, swap, proof), their ratio, and whether the answers are the same,
byte for byte. Generation counts from a checkpoint's first request to its last token. One
conversation at a time: in bf16 the answers depend a little on what else is in the batch, in any
engine, so that two runs of one checkpoint need not agree.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

TESTS = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(TESTS / "support"))
TOPICS = ["a mill", "the tide", "old maps", "bread", "a bicycle", "snow", "two rivers", "a violin"]
AIM = 0.25


@dataclass(frozen=True)
class Measured:
    """One or more runs.

    Attributes:
        seconds: In all.
        generation: Seconds from the first request to the last token, summed over checkpoints.
        texts: Answers by checkpoint, question and turn.
        origins: How many checkpoints were answered by each origin of an engine.
    """

    seconds: float
    generation: float
    texts: dict[tuple[str, Any, int], str]
    origins: dict[str, int]

    @property
    def outside(self) -> float:
        """Seconds in which no token was made."""
        return self.seconds - self.generation


def run(models: list[Path], questions: Path, workspace: Path, tokens: int) -> Measured:
    """One command: a sweep where there are several models."""
    several = len(models) > 1
    command = [
        sys.executable, "-m", "mtbench_ray", *(["-m"] if several else []),
        f"model={','.join(map(str, models))}", "judge=none", f"question_path={questions}",
        f"workspace={workspace}", "sampling.temperature=0", f"sampling.max_tokens={tokens}",
        "engine.max_model_len=1024", "engine.cpu_kv_cache_gb=1", "engine.max_num_seqs=1",
    ]  # fmt: skip
    began = time.monotonic()
    done = subprocess.run(
        command,
        cwd=TESTS.parent,
        env=os.environ | {"RAY_AUTH_MODE": "disabled"},
        capture_output=True,
        text=True,
        check=False,
    )
    seconds = time.monotonic() - began
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}\n{done.stdout}\n{done.stderr}")
    by_model: dict[str, list[dict[str, Any]]] = {}
    for line in (workspace / "answers.jsonl").read_text().splitlines():
        row = json.loads(line)
        by_model.setdefault(row["model"], []).append(row)
    assert len(by_model) == len(models)
    origins: dict[str, int] = {}
    for rows in by_model.values():
        origin = "+".join(sorted({row["engine_origin"] for row in rows}))
        origins[origin] = origins.get(origin, 0) + 1
    return Measured(
        seconds,
        sum(
            max(row["created"] for row in rows)
            - min(row["created"] - row["latency_s"] for row in rows)
            for rows in by_model.values()
        ),
        {
            (model, row["question_id"], row["turn"]): row["raw"]
            for model, rows in by_model.items()
            for row in rows
        },
        origins,
    )


def main() -> None:
    """Run the sweep and the separate runs, and print the comparison."""
    from variants import write_variant

    from mtbench_ray.models.demo_model import demo_model

    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--variants", type=int, default=6)
    parser.add_argument("--tokens", type=int, default=64)
    args = parser.parse_args()
    base = demo_model()
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        questions = root / "questions.jsonl"
        questions.write_text(
            "".join(
                json.dumps(
                    {
                        "question_id": number,
                        "category": "writing",
                        "turns": [f"Describe {topic} in a few lines.", "Say it shorter."],
                    }
                )
                + "\n"
                for number, topic in enumerate(TOPICS)
            )
        )
        models = [write_variant(base, root / f"step_{n}", n) for n in range(1, args.variants + 1)]
        sweep = run(models, questions, root / "sweep", args.tokens)
        single = [
            run([model], questions, root / f"alone-{model.name}", args.tokens) for model in models
        ]
    texts = {key: text for alone in single for key, text in alone.texts.items()}
    outside = sum(alone.outside for alone in single)
    same = sum(sweep.texts[key] == text for key, text in texts.items())
    print(f"{len(models)} checkpoints, {len(texts)} turns; checkpoints by origin {sweep.origins}")
    print(f"sweep     {sweep.seconds:6.1f} s, outside generation {sweep.outside:6.1f} s")
    print(
        f"separate  {sum(alone.seconds for alone in single):6.1f} s, "
        f"outside generation {outside:6.1f} s"
    )
    print(f"ratio outside generation {sweep.outside / outside:.2f} (aim for 6: {AIM})")
    print(f"answers equal to those of separate runs: {same} of {len(texts)}")
    if same != len(texts) or len(sweep.texts) != len(texts):
        raise SystemExit("answers differ")


if __name__ == "__main__":
    main()
