"""Whatever ends a run, nothing paid for is lost, nothing counts twice, and no process stays."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from crash import CONCURRENCY, ROOT, Run, drill, has_engine, rows, settings, until
from paths import TESTS
from questions import QUESTIONS
from stub_server import StubServer

from mtbench_ray.cli.main import main
from mtbench_ray.run.signals import Interrupts

pytestmark = pytest.mark.runs

WANTED = len(QUESTIONS) * 4 * 2
"""Turns, and judgments, of the runs here."""


def sound(tally, kills):
    assert tally.kills == kills
    assert (tally.lost, tally.doubled) == (0, 0)
    assert tally.most_paid_again <= CONCURRENCY


def test_kill_9_at_random_moments_loses_nothing_and_doubles_nothing(questions, tmp_path):
    tally = drill(questions, tmp_path, kills=20, seed=7, longest_s=5.0)
    sound(tally, 20)


def test_a_sweep_that_is_killed_pays_nothing_twice(questions, tmp_path):
    tally = drill(questions, tmp_path, "-m", "model=org/a,org/b", kills=4, seed=5, longest_s=6.0)
    sound(tally, 4)
    assert tally.planned >= 2 * WANTED


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


@pytest.mark.parametrize("moment", [0.0, 0.4, 5.0])
def test_a_signal_during_set_up_and_soon_after_ends_a_run_cleanly(moment, questions, tmp_path):
    with StubServer() as stub:
        # Minutes long: on a machine that stands still, the signal comes after set-up, not the end.
        slow = "engine.fake_seconds_per_token=1"
        run = Run(*settings(questions, stub, tmp_path / "work", slow))
        until((tmp_path / "work").exists)
        time.sleep(moment)
        run.signal(signal.SIGINT)
        assert run.wait() == 130
        assert "Traceback" not in run.err


def test_a_signal_that_is_swallowed_during_set_up_ends_the_run_before_it_begins():
    with Interrupts() as interrupts:
        with contextlib.suppress(KeyboardInterrupt):  # as Python does in a __del__
            signal.raise_signal(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            interrupts.be_orderly()


def test_a_run_that_is_orderly_is_asked_to_stop():
    with Interrupts() as interrupts:
        interrupts.be_orderly()
        signal.raise_signal(signal.SIGTERM)
        interrupts.be_orderly()  # of the next round of a watch
        assert interrupts.stop.is_set()


PROBE = """
import mtbench_ray.__main__ as entry, mtbench_ray.cli.main as cli
def run(argv):
    try:
        exec("raise KeyboardInterrupt")
    except KeyboardInterrupt:
        return 130
cli.main = run
entry.main()
"""


def test_an_interrupt_inside_the_making_of_a_class_keeps_the_exit_code(tmp_path):
    (tmp_path / "probe.py").write_text(PROBE)
    env = os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)])}
    done = subprocess.run([sys.executable, "-m", "probe"], env=env, check=False)
    assert done.returncode == 130


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


STUB = """
import argparse, asyncio, os, sys
from pathlib import Path
sys.path.insert(0, os.environ["STUB_TESTS"])
from stub_server import StubServer
arguments = argparse.ArgumentParser()
arguments.add_argument("--port", type=int)
known, _ = arguments.parse_known_args()
marker = Path(os.environ["STUB_MARKER"])
server = StubServer(known.port, keep_bodies=False, latency=0.1)
async def serve():
    await server.start()
    while server.seen.good.total() < 5 or marker.name == "once" and marker.exists():
        await asyncio.sleep(0.02)
    marker.touch()
    print("RuntimeError: CUDA error: out of memory", flush=True)
    os._exit(3)
asyncio.run(serve())
"""
"""A server in place of vLLM's that dies after a few good replies, once or every time."""


def locally_judged(tmp_path, questions, times, *more):
    """A run whose local judge is the server above."""
    module = tmp_path / "stub" / "vllm" / "entrypoints" / "openai" / "api_server.py"
    module.parent.mkdir(parents=True)
    module.write_text(STUB)
    for folder in module.parents[:3]:
        (folder / "__init__.py").touch()
    env = {
        "PYTHONPATH": str(tmp_path / "stub"),
        "STUB_TESTS": str(TESTS / "support"),
        "STUB_MARKER": str(tmp_path / times),
    }
    return Run(
        "model=org/m", "engine=fake", "judge=local", "judge.model=some/judge",
        "judge.concurrency=4", f"question_path={questions}", f"workspace={tmp_path}/work",
        "sampling.samples=4", "sampling.max_tokens=50", *more, env=env,
    )  # fmt: skip


@pytest.mark.rays
def test_a_local_judge_waits_for_the_engines_where_it_is_told_to(questions, tmp_path):
    (tmp_path / "once").touch()  # it has died already
    run = locally_judged(
        tmp_path, questions, "once", "judge.schedule=after", "engine.fake_seconds_per_token=0.05"
    )
    assert run.wait() == 0, run.err
    answered = max(row["created"] for row in rows(tmp_path / "work", "answers.jsonl"))
    begun = [row["started"] for row in rows(tmp_path / "work", "judgments.jsonl")]
    assert len(begun) == WANTED
    assert min(begun) > answered
    run.gone_after(5.0)


@pytest.mark.rays
@pytest.mark.parametrize("times", ["once", "always"])
def test_a_local_judge_that_dies_is_started_again_a_few_times(times, questions, tmp_path):
    run = locally_judged(tmp_path, questions, times)
    code = run.wait()
    assert "Traceback" not in run.err
    assert "CUDA error: out of memory" in run.err
    done = {row["judgment_id"] for row in rows(tmp_path / "work", "judgments.jsonl")}
    assert len(done) == judged(tmp_path / "work")
    if times == "once":
        assert (code, len(done)) == (0, WANTED), run.err
    else:
        assert code == 3
        assert "died 4 times" in run.err
        assert 12 <= len(done) < WANTED
    run.gone_after(5.0)


@pytest.mark.rays
def test_a_node_that_is_lost_takes_no_row_with_it(questions, tmp_path, monkeypatch):
    from ray.cluster_utils import Cluster

    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    try:
        node = cluster.add_node(num_cpus=1)
        with StubServer() as stub:
            work = tmp_path / "work"
            line = settings(
                questions, stub, work, "cluster.ray=always", f"cluster.address={cluster.address}",
                "engine.replicas=4", "engine.max_num_seqs=1", "engine.fake_seconds_per_token=0.01",
            )  # fmt: skip
            run = Run(*line)
            until(lambda: len(rows(work, "answers.jsonl")) >= 6, timeout=60)
            raylet = next(p.pid for kind, p in node.live_processes() if kind == "raylet")
            until(lambda: has_engine(raylet, work), timeout=60)
            cluster.remove_node(node, allow_graceful=False)
            assert run.wait() == 0, run.err
            assert "crashed: process" in run.err
            good = [(r["answer_id"], r["turn"]) for r in rows(work, "answers.jsonl")]
            assert len(good) == len(set(good)) == WANTED
            assert judged(work) == stub.seen.good.total() == WANTED
    finally:
        cluster.shutdown()


def test_a_full_disk_keeps_what_was_written_and_pays_nothing_twice(questions, small_disk, capsys):
    with StubServer() as stub:
        line = settings(questions, stub, small_disk / "work", "engine.fake_seconds_per_token=0")
        assert main(line) == 2
        err = capsys.readouterr().err
        assert "No space left" in err
        assert "re-run the same command" in err
        assert "Traceback" not in err
        subprocess.run(["mount", "-o", "remount,size=9m", str(small_disk)], check=True)
        assert main(line) == 0
        assert len(stub.seen.good) == WANTED
        # In flight, or received and not yet written when the disk refused.
        assert stub.seen.good.total() <= WANTED + 2 * CONCURRENCY


def test_a_clock_that_goes_back_changes_nothing(questions, tmp_path, monkeypatch, capsys):
    with StubServer() as stub:
        line = settings(questions, stub, tmp_path / "work", "engine.fake_seconds_per_token=0")
        assert main(line) == 0
        monkeypatch.setattr(time, "time", lambda: 1e9)
        assert main([*line, "sampling.seed=5"]) == 0
        newest = json.loads((tmp_path / "work" / "summary.json").read_text())
        assert main(line) == 0
        assert stub.seen.good.total() == 2 * WANTED
        assert json.loads((tmp_path / "work" / "summary.json").read_text()) == newest
        seeds = [result["settings"]["sampling.seed"] for result in newest["results"]]
        assert seeds == [0, 5], "in the order of the runs, whatever the clock did"


def test_a_second_run_on_the_workspace_is_refused_with_the_owner(questions, tmp_path, capsys):
    with StubServer(latency=5.0) as stub:
        line = settings(questions, stub, tmp_path / "work")
        run = Run(*line)
        until(lambda: stub.seen.in_flight >= 1)
        assert main(line) == 2
        err = capsys.readouterr().err
        assert f"pid {run.process.pid}" in err
        assert os.uname().nodename in err
        run.kill()
        stub.script.latency = 0.0
        assert main(line) == 0


def test_a_run_needs_no_standard_input(questions, tmp_path):
    with StubServer() as stub:
        line = settings(questions, stub, tmp_path / "work", "engine.fake_seconds_per_token=0")
        command = ["bash", "-c", 'exec "$@" <&-', "x", sys.executable, "-m", "mtbench_ray", *line]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr


@pytest.mark.rays
def test_a_key_is_in_no_file_of_the_run_nor_of_ray(questions, tmp_path):
    key = "sk-planted-0123456789abcdef"
    before = set(Path("/tmp/ray").glob("session_*_*"))
    with StubServer(first=("401",)) as stub:
        line = settings(questions, stub, tmp_path / "work", "cluster.ray=always")
        line = [*line, "judge.api_key_env=PLANTED", f"hydra.run.dir={tmp_path}/work/hydra"]
        texts = ""
        for code in (3, 0):
            run = Run(*line, env={"PLANTED": key})
            assert run.wait() == code, run.err
            texts += run.out + run.err
            sessions = set(Path("/tmp/ray").glob("session_*_*")) - before
            assert sessions
            files = [path for s in [*sessions, tmp_path / "work"] for path in s.rglob("*")]
            found = [path for path in files if path.is_file() and key.encode() in path.read_bytes()]
            assert not found
        assert key not in texts
        assert "PLANTED" in texts
        assert len(files) > 20
