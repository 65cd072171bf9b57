"""kill -9 of a watch in each phase, and the same line again: every verdict is in one row."""

import json
import signal
import time

import pytest
from crash import CONCURRENCY, Run, rows, settings, until
from questions import QUESTIONS
from small_models import small_model
from stub_server import StubServer
from watching import count_rows

pytestmark = pytest.mark.runs

TURNS = 2 * len(QUESTIONS)
"""Turns, and verdicts, of a checkpoint."""


@pytest.fixture
def root(tmp_path):
    (tmp_path / "ckpts").mkdir()
    return tmp_path / "ckpts"


def line_of(questions, stub, tmp_path, root, *more):
    return settings(
        questions, stub, tmp_path / "work", "model=checkpoints", f"model.root={root}",
        "watch=true", "watch.look_s=0.2", "watch.settle_s=0.3", "sampling.samples=1", *more,
    )  # fmt: skip


def finished(workspace):
    records = [json.loads(path.read_text()) for path in workspace.glob("runs/*/record.json")]
    return sum(record["status"] == "finished" for record in records)


def test_kill_9_in_each_phase_loses_nothing_and_doubles_nothing(questions, tmp_path, root):
    work = tmp_path / "work"

    def answered():
        return len(rows(work, "answers.jsonl"))

    def judged():
        return len(rows(work, "judgments.jsonl"))

    # A phase, what must be there when the watch is killed in it, and by how much later.
    phases = [
        ("generating", lambda: answered() >= 1, 0.0),
        ("judging", lambda: judged() >= TURNS + 1, 0.0),
        ("writing", lambda: judged() >= 3 * TURNS, 0.0),
        ("writing more", lambda: judged() >= 4 * TURNS, 0.25),
        ("waiting", lambda: finished(work) >= 1 and judged() >= 5 * TURNS, 2.0),
    ]
    with StubServer(latency=0.1) as stub:
        line = line_of(questions, stub, tmp_path, root, "engine.fake_seconds_per_token=0.004")
        for number, (phase, there, later) in enumerate(phases, start=1):
            small_model(root / f"step_{number}", float(number))
            run = Run(*line)
            until(there, timeout=60)
            time.sleep(later)
            assert run.process.poll() is None, f"{phase}: it has ended"
            if phase == "generating":
                assert answered() < TURNS
            run.kill()
            run.gone_after(10.0)
        small_model(root / "step_6", 6.0)
        (root / "DONE").touch()
        run = Run(*line)
        assert run.wait() == 0, run.err
        assert "8/8" in run.out
        again = stub.seen.good.total() - len(stub.seen.good)
        assert again <= CONCURRENCY * len(phases), "only calls in flight are paid again"
    assert count_rows(work) == (0, 0, 0)
    results = json.loads((work / "summary.json").read_text())["results"]
    assert [one["average"]["scored"] for one in results] == [TURNS] * 6


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_a_watch_in_order(number, questions, tmp_path, root):
    small_model(root / "step_1")
    with StubServer() as stub:
        run = Run(*line_of(questions, stub, tmp_path, root))
        until(lambda: finished(tmp_path / "work") == 1, timeout=60)
        time.sleep(0.5)
        began = time.monotonic()
        run.signal(number)
        assert run.wait() == 130
        assert time.monotonic() - began < 10
    assert "Traceback" not in run.err
    assert count_rows(tmp_path / "work") == (0, 0, 0)


@pytest.mark.rays
def test_warm_actors_take_what_lands_and_one_that_dies_costs_no_row(questions, tmp_path, root):
    work = tmp_path / "work"
    small_model(root / "step_1")
    marker = tmp_path / "killed"
    faults = f"{{models: [{root}/step_2], kill_process_on: [3], kill_marker: {marker}}}"
    with StubServer() as stub:
        run = Run(*line_of(questions, stub, tmp_path, root, "cluster.ray=always",
                           f"engine.fake_faults={faults}"))  # fmt: skip
        for number in (1, 2, 3):
            until(lambda n=number: finished(work) == n, timeout=90)
            small_model(root / f"step_{number + 1}", float(number + 1))
        until(lambda: finished(work) == 4, timeout=60)
        (root / "DONE").touch()
        assert run.wait() == 0, run.err
        assert "Traceback" not in run.err
        run.gone_after(5.0)
        assert stub.seen.good.total() == 4 * TURNS
    assert marker.exists()
    assert "an engine of" in run.err
    assert count_rows(work) == (0, 0, 0)
    records = [json.loads(path.read_text()) for path in work.glob("runs/*/record.json")]
    records.sort(key=lambda record: record["number"])
    where = [{event["replica"] for event in record["events"]} for record in records]
    assert where[0] < where[1], "warm in round 2, and another one for the one that was killed"
    assert where[1] - where[0] == where[2] == where[3], "warm in the rounds after it"
