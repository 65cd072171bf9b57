"""How long `report` takes, and how much memory, from a thousand judgments to millions.

    python tests/bench/report_scale.py                        1,000 to 100,000: three minutes
    python tests/bench/report_scale.py --judgments 5000000    one size (15 GB of disk)
    python tests/bench/report_scale.py --keep FOLDER          workspaces stay there
    python tests/bench/report_scale.py --only 'report, first;compare'

A workspace is made of rows as a run leaves them: its plan is the product's own, answers and
verdicts are drawn. Then each command runs in a process of its own. Printed: seconds, CPU seconds
and the largest memory of each. "first" is of a workspace that nobody has looked at: that report
reads every row, that run writes the tables of a run as well. Of ``--only`` the commands are named
as they are printed, with semicolons.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from sweep_overhead import questions as write_questions

from mtbench_ray.cli.hydra_app import compose
from mtbench_ray.judges.outcomes import with_proof
from mtbench_ray.planning.jobs import prepare
from mtbench_ray.planning.plan import render, view_of
from mtbench_ray.planning.run_evaluations import evaluations
from mtbench_ray.schema import BenchmarkData, Evaluation, Judgment, Turn, encode
from mtbench_ray.workspace.workspace import Workspace

QUESTIONS, TURNS = 80, 2
PLACE = QUESTIONS * TURNS
SIZES = (1_000, 10_000, 100_000)
WORDS = [
    "made", "up", "words", "of", "an", "answer", "that", "says", "little", "and", "ends", "soon",
]  # fmt: skip


def shape(judgments: int) -> tuple[int, int]:
    """Checkpoints and samples of each answer for about so many judgments."""
    samples = 1 if judgments <= 200_000 else 5 if judgments <= 2_000_000 else 10
    return max(2, round(judgments / PLACE / samples)), samples


def line(folder: Path, checkpoints: int, samples: int) -> list[str]:
    """The command whose rows these are."""
    names = ",".join(f"/ckpts/run/step_{100 * n}" for n in range(1, checkpoints + 1))
    return [
        f"models=[{names}]", "engine=fake", f"sampling.samples={samples}",
        f"question_path={folder}/questions.jsonl", "judge=openai", "judge.model=stub",
        "judge.base_url=http://127.0.0.1:9", "judge.api_key_env=null", f"workspace={folder}/w",
    ]  # fmt: skip


def make(folder: Path, checkpoints: int, samples: int) -> int:
    """A workspace of made-up rows; returns how many judgments it holds."""
    folder.mkdir(parents=True, exist_ok=True)
    write_questions(folder / "questions.jsonl", QUESTIONS)
    command = line(folder, checkpoints, samples)
    configs = compose(command)
    with Workspace.open(folder / "w", write=True) as workspace:
        jobs = prepare(configs, workspace)
        rows = evaluations(jobs, workspace).rows
        record = workspace.new_run({}, rows, command)
        record.status = "finished"
        workspace.save_run(record)
        data = workspace.load_data(rows[0].data)
    workers = len(os.sched_getaffinity(0))
    with multiprocessing.get_context("fork").Pool(workers) as pool:
        parts = [(folder / f"part{n}", data, rows[n::workers], n) for n in range(workers)]
        count = sum(pool.starmap(_rows, parts))
    for name in ("answers", "judgments"):
        with (folder / "w" / f"{name}.jsonl").open("wb") as whole:
            for part, *_ in parts:
                with (part / f"{name}.jsonl").open("rb") as file:
                    shutil.copyfileobj(file, whole, 1 << 22)
    for part, *_ in parts:
        shutil.rmtree(part)
    return count


def _rows(folder: Path, data: BenchmarkData, rows: Sequence[Evaluation], seed: int) -> int:
    """The rows of some evaluations, as files; returns the number of judgments."""
    folder.mkdir(exist_ok=True)
    chance = random.Random(seed)
    texts = [" ".join(chance.choices(WORDS, k=chance.randint(20, 200))) for _ in range(2000)]
    count = 0
    with (
        (folder / "answers.jsonl").open("w") as answers,
        (folder / "judgments.jsonl").open("w") as judgments,
    ):
        for number, row in enumerate(rows):
            turns: dict[tuple[str, int], Turn] = {}
            for unit in row.answers.units:
                history: tuple[str, ...] = ()
                for turn in range(1, TURNS + 1):
                    text = f"{chance.random()} {chance.choice(texts)}"
                    made = Turn(
                        unit.answer_id, turn, data.name, unit.question_id, row.model, unit.sample,
                        text, "ok" if chance.random() < 0.98 else "truncated", text, None, history,
                        "stop", 300, 150, latency_s=3.0, engine_origin="fake",
                        created=1.7e9 + number + chance.random(), run_id="r",
                    )  # fmt: skip
                    turns[unit.answer_id, turn] = made
                    history += (text,)
                    answers.write(encode(made) + "\n")
            view = view_of(row, data, turns)
            level = chance.gauss(5.5, 1)
            for slot in view.grader.wanted(view):
                request = render(view, slot)
                score = min(10, max(1, round(chance.gauss(level, 2))))
                reply = f"{chance.choice(texts)} Rating: [[{score}]]"
                verdict = Judgment(
                    request.judgment_id, request.match_id, request.mode, request.benchmark,
                    request.question_id, request.category, request.turn, request.model,
                    request.judge, request.judge_prompt, "ok",
                    request.messages[-1].content, reply, None, "stop",
                    str(score), float(score), answer_ids=request.answer_ids,
                    sample=request.sample, prompt_hash=request.prompt_hash, attempts=1,
                    prompt_tokens=700, output_tokens=100, latency_s=1.0,
                    params="{}", served_model="stub", started=1.7e9, created=1.7e9 + number,
                    run_id="r",
                )  # fmt: skip
                judgments.write(encode(with_proof(view, verdict)) + "\n")
                count += 1
    return count


def timed(command: Sequence[str], out: Path) -> tuple[float, float, float, int]:
    """Seconds, CPU seconds and largest memory in MB of a command, and its exit code."""
    began = time.monotonic()
    with out.open("wb") as file:
        process = subprocess.Popen(
            [sys.executable, "-m", "mtbench_ray", *command], stdout=file, stderr=subprocess.STDOUT
        )
        _, status, used = os.wait4(process.pid, 0)
    seconds = time.monotonic() - began
    code = os.waitstatus_to_exitcode(status)
    process.returncode = code
    return seconds, used.ru_utime + used.ru_stime, used.ru_maxrss / 1024, code


def commands(folder: Path, checkpoints: int, samples: int) -> dict[str, list[str]]:
    """What is timed, by name."""
    there = f"workspace={folder}/w"
    return {
        "report, first": ["report", there],
        "report again": ["report", there],
        "run, first": line(folder, checkpoints, samples),
        "run, nothing pending": line(folder, checkpoints, samples),
        "report": ["report", there],
        "report json": ["report", "format=json", there],
        "compare": ["report", "compare", "/ckpts/run/step_100", "/ckpts/run/step_200", there],
        "html": ["report", "html", f"out={folder}/report.html", there],
    }


def main() -> None:
    """Make, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--judgments", type=int, nargs="*", default=SIZES)
    parser.add_argument("--keep", default="")
    parser.add_argument("--only", default="", help="commands, with semicolons")
    parser.add_argument("--html-up-to", type=int, default=20_000)
    args = parser.parse_args()
    print("| judgments | command | seconds | CPU | memory | exit |\n|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as temporary:
        for size in args.judgments:
            folder = Path(args.keep or temporary).resolve() / str(size)
            checkpoints, samples = shape(size)
            count = checkpoints * samples * PLACE
            if not (folder / "w" / "judgments.jsonl").exists():
                count = make(folder, checkpoints, samples)
            for name, command in commands(folder, checkpoints, samples).items():
                if args.only and name not in args.only.split(";"):
                    continue
                if name == "html" and count > args.html_up_to:
                    continue
                seconds, cpu, memory, code = timed(command, folder / f"{name}.txt")
                print(f"| {count:,} | {name} | {seconds:.1f} s | {cpu:.1f} s | {memory:,.0f} MB |"
                      f" {code} |", flush=True)  # fmt: skip
            if not args.keep:
                shutil.rmtree(folder)


if __name__ == "__main__":
    main()
