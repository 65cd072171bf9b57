"""Whole runs whose judge calls go through a batch API, and the one that is killed at random."""

import json
import random
import subprocess
from collections import Counter

import pytest
from batch_stub import BatchStub
from command import Cli
from crash import Run, rows, settings

from mtbench_ray.config import JudgeConfig, RunConfig
from mtbench_ray.endpoint import batch as batch_module
from mtbench_ray.errors import EXIT_OK, EXIT_PARTIAL, EXIT_USAGE, UserError
from mtbench_ray.validate import validate


@pytest.fixture
def batches(questions, references, tmp_path, capsys, monkeypatch):
    """The command line with a judge that has a batch API."""
    monkeypatch.setenv("OPENAI_API_KEY", "sk-test-0123456789abcdef")
    for name in ("_QUIET_S", "_FIRST_LOOK_S", "_LIST_S", "_LONGEST_LOOK_S", "_TICK_S"):
        monkeypatch.setattr(batch_module, name, 0.05)
    with BatchStub() as stub:
        yield Cli(stub, questions, references, tmp_path / "work", capsys)


@pytest.mark.runs
def test_a_line_is_run_again_until_its_batches_have_replied(batches):
    batches.stub.looks = 10_000
    line = ("model=org/m", "judge.batch=true", "judge.batch_wait_s=0", "judge.price_prompt=10",
            "judge.price_completion=30")  # fmt: skip
    assert batches(*line) == EXIT_PARTIAL
    said = ("8 calls of judge stub are in 1 batch (batch_0: 0 of 8 done). "
            "Re-run the same command to collect the replies.")  # fmt: skip
    assert batches.err.splitlines()[-1] == said
    assert batches.verb("report") == EXIT_PARTIAL
    assert said in batches.err

    # Single calls would pay a second time.
    assert batches("model=org/m") == EXIT_USAGE
    assert "would be paid twice" in batches.err
    assert "judge.batch=true" in batches.err
    assert batches.calls == 0

    batches.stub.looks = 1
    assert batches(*line, "judge.batch_wait_s=30") == EXIT_OK
    assert set(batches.stub.paid.values()) == {1}
    assert len(batches.stub.paid) == 8
    (result,) = batches.summary["results"]
    assert result["average"]["scored"] == 8
    found = batches.rows("judgments.jsonl")
    whole = sum(10 * row["prompt_tokens"] + 30 * row["output_tokens"] for row in found) / 1e6
    assert sum(row["cost_usd"] for row in found) == pytest.approx(whole / 2)

    # The same rows as those of single calls: nothing is pending for these, in the same evaluation.
    assert batches("model=org/m") == EXIT_OK
    assert batches.calls == 0
    assert len(batches.summary["results"]) == 1


@pytest.mark.runs
def test_the_plan_shows_the_price_of_single_calls_and_of_batches(batches):
    prices = ("judge.price_prompt=1000", "judge.price_completion=1000")
    for more in ((), ("judge.batch=true",)):
        line = ("plan", "model=org/m", *batches.judge, *batches.usual[:3], *prices, *more)
        assert batches.verb(*line) == 0
        (line,) = (x for x in batches.out.splitlines() if x.startswith("dollars are those"))
        single, batch = line.split(" in all")[0].split()[-1], line.split()[-1]
        assert float(single) == pytest.approx(2 * float(batch), abs=0.02)
        assert float(batch) > 0


def test_a_judge_of_the_runs_own_has_no_batches():
    judge = JudgeConfig(kind="local", model="m", batch=True)
    with pytest.raises(UserError, match="judge=local is none"):
        validate(RunConfig(judge=judge))
    bad = JudgeConfig(model="m", base_url="http://127.0.0.1:1/v1", batch_price=-1.0)
    with pytest.raises(UserError, match="0 or more"):
        validate(RunConfig(judge=bad))


@pytest.mark.runs
def test_runs_that_are_killed_at_random_moments_pay_every_row_once(questions, tmp_path):
    """The chaos of batches: faults of lines and of the service, and kill -9, until all is there."""
    chance = random.Random(7)
    faults = tuple(chance.choice(("ok", "ok", "500", "429")) for _ in range(60))
    http = {
        phase: [chance.choice(("", "", "500", "503-done")) for _ in range(4)]
        for phase in ("list", "upload", "create", "look", "content")
    }
    with BatchStub(line_faults=faults, http=http, outcomes=("expired:0.6",)) as stub:
        line = [
            *settings(questions, stub, tmp_path / "work"),
            "judge.batch=true", "judge.retry_wait_s=0.1", "engine.fake_seconds_per_token=0",
            "sampling.samples=2",
        ]  # fmt: skip
        kills = 0
        while True:
            run = Run(*line)
            try:
                run.process.wait(chance.uniform(2.0, 4.5) if kills < 3 else 90.0)
            except subprocess.TimeoutExpired:
                run.kill()
                kills += 1
                continue
            run.wait()
            if run.process.returncode == 0:
                break
            assert run.process.returncode == EXIT_PARTIAL, run.err
    assert kills
    judged = Counter(r["judgment_id"] for r in rows(tmp_path / "work", "judgments.jsonl")
                     if r["status"] == "ok")  # fmt: skip
    record = json.loads(max((tmp_path / "work").glob("runs/*/record.json")).read_text())
    assert record["status"] == "finished"
    assert len(judged) == 4 * 2 * 2
    assert set(judged.values()) == {1}
    assert sum(stub.paid.values()) == len(judged)
