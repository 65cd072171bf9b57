"""Rows reach the judge while engines still answer."""

import json
import statistics

import pytest
from crash import Run, settings
from stub_server import StubServer

SECRET = "sk-planted-0123456789abcdef"


@pytest.mark.rays
def test_the_judge_begins_long_before_the_last_answer(questions, tmp_path):
    with StubServer(latency=0.1) as stub:
        line = settings(questions, stub, tmp_path / "work", "cluster.ray=always",
                        "engine.replicas=2", "engine.fake_seconds_per_token=0.006")  # fmt: skip
        faults = f"engine.fake_faults={{log: 'a line of the engine, key {SECRET}'}}"
        run = Run(*line, faults, "judge.api_key_env=PLANTED", env={"PLANTED": SECRET})
        assert run.wait() == 0, run.err
    logs = next((tmp_path / "work").glob("runs/*/logs"))
    of_engines = [path.read_text() for path in logs.glob("engine_*.log")]
    assert len(of_engines) == 2
    assert all("a line of the engine, key " in text for text in of_engines)
    assert "engine start org/m" in (logs / "console.log").read_text()
    assert not any(SECRET in path.read_text() for path in logs.iterdir())
    path = next((tmp_path / "work").glob("runs/*/timeline.jsonl"))
    events = [json.loads(line) for line in path.read_text().splitlines()]
    turns = [event for event in events if event["event"] == "turn"]
    judged = [event for event in events if event["event"] == "judgment"]
    assert len(turns) == len(judged) == 32
    last = max(event["generated"] for event in turns if event["turn"] == 2)
    assert min(event["started"] for event in judged) < last
    # Rows come as they are made, not at the end of a shard.
    assert statistics.median(event["t"] - event["generated"] for event in turns) < 1.0
    halfway = sum(event["t"] < last for event in turns)
    assert halfway > len(turns) / 2
