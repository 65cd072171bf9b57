"""What the prefix cache of a local judge saves: the same judgments with and without it.

    python tests/bench/prefix_cache.py                  3 models, 16 questions: about ten minutes
    python tests/bench/prefix_cache.py --questions 4
    python tests/bench/prefix_cache.py judge.model=/models/judge judge.max_tokens=16

The real vLLM engine serves the demo model (on a GPU machine on the GPU) as judge of imported
answers. Judge prompts of one question begin alike: instruction, question and reference answer.
Printed: the share of prompt tokens that came out of the cache, as the server counts them, and the
seconds of judging over those of a server without prefix cache.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

WORDS = ("river", "stone", "window", "garden", "letter", "winter", "market", "yellow", "paper")


def text(seed: int, count: int) -> str:
    """Words that look like none of the other seeds'."""
    return " ".join(WORDS[(seed * 7 + n * n + n * seed) % len(WORDS)] for n in range(count))


def prepare(folder: Path, models: int, questions: int) -> list[str]:
    """Questions and imported answers; returns the settings that name them."""
    rows = [
        {"question_id": n, "category": "writing", "turns": [f"Topic {n}. {text(n, 120)}?"]}
        for n in range(questions)
    ]
    path = folder / "questions.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    for model in range(models):
        answers = folder / f"m{model}.jsonl"
        answers.write_text(
            "".join(
                json.dumps({"question_id": n, "response": f"{model}: {text(n + model, 60)}."})
                + "\n"
                for n in range(questions)
            )
        )
        for name in ("with", "without"):
            command("import", "answers", str(answers), "benchmark=mt_bench", f"model=m{model}",
                    f"question_path={path}", f"workspace={folder / name}")  # fmt: skip
    return [f"question_path={path}", "-m", "model=" + ",".join(f"m{n}" for n in range(models))]


def command(*words: str) -> None:
    """One line of the product."""
    code = subprocess.run([sys.executable, "-m", "mtbench_ray", *words], check=False).returncode
    assert code in (0, 3), f"exit code {code}"  # 3: of some calls no rating could be read


def judged(folder: Path, line: list[str], *more: str) -> dict[str, Any]:
    """Judge all answers of a workspace; tokens of the rows, and seconds of the judging itself."""
    command(
        f"workspace={folder}", "stage=judge", "judge=local", "judge.parse_retries=0", *line, *more
    )
    rows = [json.loads(row) for row in (folder / "judgments.jsonl").read_text().splitlines()]
    return {
        "calls": len(rows),
        "prompt": sum(row["prompt_tokens"] for row in rows),
        "cached": sum(row["cached_tokens"] for row in rows),
        "seconds": max(row["created"] for row in rows) - min(row["started"] for row in rows),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--models", type=int, default=3)
    parser.add_argument("--questions", type=int, default=16)
    parser.add_argument("settings", nargs="*", help="of the judge, as of a run")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        line = prepare(folder, options.models, options.questions)
        off = judged(
            folder / "without", line, *options.settings, "judge.args={enable_prefix_caching: false}"
        )
        on = judged(folder / "with", line, *options.settings)
    assert on["prompt"] == off["prompt"], "not the same prompts"
    print(
        f"{on['calls']} calls, {on['prompt']} prompt tokens: {on['cached'] / on['prompt']:.0%} from"
        f" the cache ({off['cached'] / off['prompt']:.0%} without it); seconds of judging"
        f" {on['seconds']:.1f} / {off['seconds']:.1f} = {on['seconds'] / off['seconds']:.2f}"
    )


if __name__ == "__main__":
    main()
