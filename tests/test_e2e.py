"""The main job on real parts: the vLLM engine, the demo model, a local judge, the command line."""

import json
import os
import subprocess
import sys

import pytest
from stub_server import StubServer

pytestmark = [pytest.mark.engine, pytest.mark.rays, pytest.mark.timeout(900)]


def run(workspace, questions, *args):
    """One command line in its own process; its output."""
    done = subprocess.run(
        [
            sys.executable, "-m", "mtbench_ray", "model=smollm2-135m",
            f"question_path={questions}", f"workspace={workspace}", "sampling.max_tokens=48",
            "sampling.temperature=0", *args,
        ],
        capture_output=True,
        text=True,
        timeout=600,
        env=os.environ | {"RAY_AUTH_MODE": "disabled"},
    )  # fmt: skip
    assert "Traceback" not in done.stderr, done.stderr
    return done


def test_real_answers_are_judged_as_they_come_and_then_by_a_real_judge(tmp_path, questions):
    workspace = tmp_path / "work"
    with StubServer() as stub:
        judge = ["judge=openai", "judge.model=stub", f"judge.base_url={stub.url}"]
        done = run(workspace, questions, *judge)
        assert done.returncode == 0, done.stderr
        again = run(workspace, questions, *judge)
        assert again.returncode == 0
        assert again.stdout == done.stdout
        assert "no engine was started, no judge was called" in again.stderr
        assert stub.stats()["calls"] == 8
    answers = [json.loads(line) for line in (workspace / "answers.jsonl").read_text().splitlines()]
    assert len(answers) == 8
    assert all(row["engine_origin"] == "cold" and row["output_tokens"] > 0 for row in answers)
    assert all(row["template_hash"] and row["sampling"] != "{}" for row in answers)
    second = [row for row in answers if row["turn"] == 2]
    first = {row["answer_id"]: row["content"] for row in answers if row["turn"] == 1}
    assert all(row["history"] == [first[row["answer_id"]]] for row in second)

    timeline = next(workspace.glob("runs/*/timeline.jsonl"))
    events = [json.loads(line) for line in timeline.read_text().splitlines()]
    parts = {event["name"] for event in events if event["event"] == "phase"}
    assert {"Ray", "tokenizer", "vLLM's processes, weights, graphs", "worker and device"} <= parts
    turns = [event for event in events if event["event"] == "turn"]
    calls = [event for event in events if event["event"] == "judgment"]
    assert min(event["started"] for event in calls) < max(event["generated"] for event in turns)
    assert min(event["t"] for event in turns) < max(event["generated"] for event in turns), (
        "the driver receives rows while others are still generated"
    )

    judged = run(workspace, questions, "judge=local", "stage=judge")
    assert judged.returncode == 0, judged.stderr
    summary = json.loads((workspace / "summary.json").read_text())
    local = next(result for result in summary["results"] if result["judge"] == "smollm2-135m")
    assert local["average"]["scored"] == local["average"]["planned"] == 8
    assert local["demo"]
    assert "demo judge: not comparable" in judged.stdout
    rows = [json.loads(line) for line in (workspace / "judgments.jsonl").read_text().splitlines()]
    assert all(1 <= row["value"] <= 10 for row in rows if row["judge"] == "smollm2-135m")
    assert len((workspace / "answers.jsonl").read_text().splitlines()) == 8


def test_more_gpus_than_there_are_is_an_error_and_never_a_wait(tmp_path, questions):
    done = run(tmp_path / "work", questions, "judge=none", "engine.tensor_parallel=64")
    assert done.returncode == 2
    assert "64 GPUs are needed" in done.stderr
    assert "the cluster has" in done.stderr
    assert "lower engine.replicas or engine.tensor_parallel" in done.stderr
