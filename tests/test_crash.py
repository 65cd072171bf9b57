"""Whatever ends a run, nothing paid for is lost, nothing counts twice, and no process stays."""

import json
import signal
import time

import pytest
from conftest import QUESTIONS
from crash import CONCURRENCY, Run, drill, rows, settings, until
from stub_server import StubServer

WANTED = len(QUESTIONS) * 4 * 2
"""Turns, and judgments, of the runs here."""


def sound(tally, kills):
    assert tally.kills == kills
    assert (tally.lost, tally.doubled) == (0, 0)
    assert tally.most_paid_again <= CONCURRENCY


def test_kill_9_at_random_moments_loses_nothing_and_doubles_nothing(questions, tmp_path):
    tally = drill(questions, tmp_path, kills=20, seed=7, longest_s=5.0)
    sound(tally, 20)


@pytest.mark.rays
def test_kill_9_under_ray_too_and_its_cluster_goes_with_the_driver(questions, tmp_path):
    tally = drill(questions, tmp_path, "cluster.ray=always", kills=2, seed=3, longest_s=14.0)
    sound(tally, 2)
    assert max(tally.seconds_to_clean) < 10


def judged(workspace):
    return len(rows(workspace, "judgments.jsonl"))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_ends_a_run_after_the_calls_in_flight(number, questions, tmp_path):
    with StubServer(latency=1.5) as stub:
        line = settings(questions, stub, tmp_path / "work")
        run = Run(*line)
        until(lambda: judged(tmp_path / "work") >= 1 and stub.seen.in_flight >= 1)
        began = time.monotonic()
        run.signal(number)
        assert run.wait() == 130
        assert time.monotonic() - began < 10
        assert "Traceback" not in run.err
        paid = stub.seen.good.total()
        assert 0 < paid < WANTED
        assert judged(tmp_path / "work") == paid, "a call in flight was paid and thrown away"
        run.gone_after(1.0)
        record = json.loads(next((tmp_path / "work").glob("runs/*/record.json")).read_text())
        assert record["status"] == "interrupted"
        stub.script.latency = 0.0
        assert Run(*line).wait() == 0
        assert stub.seen.good.total() == WANTED


def test_the_second_signal_ends_a_run_at_once(questions, tmp_path):
    with StubServer(latency=60.0) as stub:
        run = Run(*settings(questions, stub, tmp_path / "work"))
        until(lambda: stub.seen.in_flight >= 2)
        run.signal(signal.SIGINT)
        time.sleep(0.5)
        assert run.process.poll() is None
        began = time.monotonic()
        run.signal(signal.SIGINT)
        assert run.wait() == 130
        assert time.monotonic() - began < 2
        run.gone_after(1.0)
    for name in ("answers.jsonl", "judgments.jsonl"):
        assert (tmp_path / "work" / name).read_bytes()[-1:] in (b"\n", b"")
    with StubServer() as stub:
        assert Run(*settings(questions, stub, tmp_path / "work")).wait() == 0


@pytest.mark.parametrize("moment", [0.4, 1.2])
def test_a_signal_during_set_up_ends_it_cleanly(moment, questions, tmp_path):
    with StubServer() as stub:
        run = Run(*settings(questions, stub, tmp_path / "work"))
        time.sleep(moment)
        run.signal(signal.SIGINT)
        assert run.wait() == 130
        assert "Traceback" not in run.err


def raylet_is_up(run):
    run.look()
    return any("raylet" in " ".join(process.cmdline()) for process in run.processes())


@pytest.mark.rays
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_while_ray_starts(number, questions, tmp_path):
    with StubServer() as stub:
        run = Run(*settings(questions, stub, tmp_path / "work", "cluster.ray=always"))
        until(lambda: raylet_is_up(run))
        began = time.monotonic()
        run.signal(number)
        assert run.wait() == 130
        assert time.monotonic() - began < 10
        assert "Traceback" not in run.err
        run.gone_after(3.0)


@pytest.mark.rays
@pytest.mark.parametrize("times", [1, 2])
def test_signals_in_mid_run_under_ray(times, questions, tmp_path):
    with StubServer(latency=1.0) as stub:
        run = Run(*settings(questions, stub, tmp_path / "work", "cluster.ray=always"))
        until(lambda: judged(tmp_path / "work") >= 1, timeout=60)
        began = time.monotonic()
        for _ in range(times):
            run.signal(signal.SIGINT)
            time.sleep(0.3)
        assert run.wait() == 130
        assert time.monotonic() - began < (10 if times == 1 else 2)
        assert "Traceback" not in run.err
        if times == 1:
            assert judged(tmp_path / "work") == stub.seen.good.total()
        run.gone_after(5.0)
