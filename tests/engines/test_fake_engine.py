"""The fake engine itself: light, deterministic, and its faults are as scripted."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from pathlib import Path

import pytest
from paths import ROOT, TESTS
from shards import make_shard, rows_of, run_shard

from mtbench_ray.config import ModelConfig, SamplingConfig
from mtbench_ray.schema import decode, encode

LONG = SamplingConfig(max_tokens=1024)


def test_needs_no_heavy_module() -> None:
    code = (
        "import sys; from shards import *; run_shard(make_shard([1]));"
        "print([m for m in ('torch', 'transformers', 'vllm', 'ray', 'openai') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        cwd=TESTS / "support",
        env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"},
        check=True,
    )
    assert done.stdout.strip() == "[]"


def test_equal_questions_give_equal_texts_and_other_models_others() -> None:
    one, two = (rows_of(run_shard(make_shard([1, 2]))) for _ in range(2))
    assert {k: r.content for k, r in one.items()} == {k: r.content for k, r in two.items()}
    other = rows_of(run_shard(make_shard([1, 2], model=ModelConfig(path="fake/other"))))
    assert all(other[key].content != one[key].content for key in one)


def test_lengths_are_like_those_of_the_benchmark() -> None:
    rows = rows_of(run_shard(make_shard(range(200), sampling=LONG)))
    lengths = [row.output_tokens for row in rows.values()]
    assert 300 < statistics.mean(lengths) < 500
    assert max(lengths) == 1024
    assert {row.status for row in rows.values()} == {"ok", "truncated"}


def test_time_follows_tokens() -> None:
    replies = {1: ["w " * 49 + "w", "w"]}
    shard = make_shard([1], fake_faults={"replies": replies}, fake_seconds_per_token=0.01)
    rows = rows_of(run_shard(shard))
    assert 0.5 <= rows["answer-1-0", 1].latency_s < 2
    assert rows["answer-1-0", 2].latency_s < 0.5


@pytest.mark.parametrize(
    ("fault", "status"),
    [("empty_on", "empty"), ("error_on", "error"), ("refuse_on", "refused"), ("long_on", "ok")],
)
def test_scripted_answers(fault: str, status: str) -> None:
    rows = rows_of(run_shard(make_shard([1, 2], fake_faults={fault: [2]})))
    assert rows["answer-2-0", 1].status == status
    assert rows["answer-1-0", 1].status in ("ok", "truncated")


def test_odd_characters_survive_a_row() -> None:
    row = rows_of(run_shard(make_shard([1], fake_faults={"surrogate_on": [1]})))["answer-1-0", 1]
    assert "\ud83d" in row.content
    assert decode(type(row), json.loads(encode(row))) == row


def test_faults_can_be_of_one_model_only() -> None:
    faults = {"empty_on": [1], "models": ["bad"]}
    good = make_shard([1], model=ModelConfig(path="good"), fake_faults=faults)
    bad = make_shard([1], model=ModelConfig(path="x", name="bad"), fake_faults=faults)
    assert rows_of(run_shard(good))["answer-1-0", 1].content
    assert rows_of(run_shard(bad))["answer-1-0", 1].status == "empty"


def test_process_is_killed_once(tmp_path: Path) -> None:
    marker = tmp_path / "killed"
    code = (
        "from shards import *\n"
        f"faults = {{'kill_process_on': [2], 'kill_marker': {str(marker)!r}}}\n"
        "print(len(rows_of(run_shard(make_shard([1, 2], fake_faults=faults)))))"
    )
    runs = [
        subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True,
            text=True,
            cwd=TESTS / "support",
            env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"},
            check=False,
        )
        for _ in range(2)
    ]
    assert [run.returncode for run in runs] == [-9, 0]
    assert runs[1].stdout.strip() == "4"


def test_a_whole_model_costs_little_driver_time() -> None:
    shard = make_shard(range(80), sampling=LONG)
    began = time.process_time()
    run_shard(shard)
    assert (time.process_time() - began) / 160 < 0.002
