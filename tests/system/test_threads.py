"""No thread ends unnoticed: each is killed here, and the run goes on or says so."""

import ast
import asyncio
import http.client
import time

import pytest
from kill_threads import kill, kill_when_there
from paths import PACKAGE
from stub_server import StubServer

from mtbench_ray.cli.main import main
from mtbench_ray.generate import actor_failures as crashes
from mtbench_ray.generate import ray_stream as pipeline
from mtbench_ray.system import threads


def test_threads_are_started_by_one_helper_only():
    starters = {"Thread", "Timer", "ThreadPoolExecutor", "start_new_thread", "_thread"}
    found = []
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            name = node.func if isinstance(node, ast.Call) else None
            called = getattr(name, "attr", getattr(name, "id", ""))
            if called in starters:
                found.append(path.relative_to(PACKAGE).as_posix())
    assert found == ["system/threads.py"]


@pytest.mark.parametrize("error", [None, http.client.BadStatusLine("x"), SystemExit(3)])
def test_what_ended_a_thread_is_told_whatever_it_was(error):
    ends = []

    def work():
        if error is not None:
            raise error

    threads.start_thread("t", work, ended=ends.append).join(5)
    assert ends == [error]


def test_a_loop_that_ends_is_told_to_those_who_listen():
    told = []
    with threads.listen(told.append):
        loop, thread = threads.start_loop("some loop")
        asyncio.run_coroutine_threadsafe(asyncio.sleep(0), loop).result(5)
        kill(thread)
        loop.call_soon_threadsafe(lambda: None)
        thread.join(5)
    (end,) = told
    assert str(end) == "thread some loop ended: Killed: "
    assert threads._listeners == []


@pytest.fixture
def run(questions, tmp_path, capsys):
    """Runs a line of a few seconds; gives the exit code, what was said and the seconds it took."""
    with StubServer(latency=0.1) as stub:

        def run(*more):
            began = time.monotonic()
            code = main([
                "model=org/m", "engine=fake", "judge=openai", "judge.model=stub",
                f"judge.base_url={stub.url}", "judge.api_key_env=null", "judge.concurrency=2",
                f"question_path={questions}", f"workspace={tmp_path}/work",
                "sampling.samples=2", "sampling.max_tokens=60",
                "engine.fake_seconds_per_token=0.02", "engine.max_num_seqs=4", *more,
            ])  # fmt: skip
            return code, capsys.readouterr().err, time.monotonic() - began

        run.called = lambda: stub.stats()["calls"]
        yield run


@pytest.mark.parametrize(
    ("name", "code", "said"),
    [
        ("answers", 3, "answers stopped: Killed"),
        ("worker-0", 3, "answers stopped: Killed"),
        ("engine-0", 0, "the engine's event loop ended (Killed: )"),
        ("endpoints", 2, "a part of the program failed: thread endpoints ended: Killed"),
    ],
)
def test_a_run_one_of_whose_threads_dies_ends_and_says_so(run, name, code, said):
    import openai  # noqa: F401 - takes seconds, in which there is no thread to speak of

    # The loop of all endpoints may be there before the run.
    if name == "endpoints":
        kill_when_there(name, wait_s=0.1, busy=run.called)
    else:
        kill_when_there(name, wait_s=0.6)
    ended, err, seconds = run()
    assert said in err
    assert ended == code, err
    assert seconds < 30
    assert "Traceback" not in err
    ended, err, _ = run()
    assert ended == 0, err


@pytest.mark.parametrize(("times", "code", "starts"), [(2, 0, 2), (9, 3, 3)])
def test_a_stream_that_ray_gave_up_before_it_began_is_started_again(
    run, monkeypatch, times, code, starts
):
    """As on a standing cluster: "The actor never ran"."""
    stream, calls = pipeline.stream, []

    def flaky(*args):
        calls.append(args)
        if len(calls) <= times:
            raise pipeline.NeverBegan("The actor never ran - it was cancelled")
        yield from stream(*args)

    monkeypatch.setattr(pipeline, "stream", flaky)
    ended, err, _ = run()
    assert ended == code, err
    assert err.count("restarting the engines") == starts
    assert "Traceback" not in err


def test_an_actor_that_never_ran_is_told_from_one_that_cannot_be_made():
    from ray.exceptions import ActorDiedError, RayActorError, RayTaskError

    never = ActorDiedError()
    wrapped = RuntimeError("the stream failed")
    wrapped.__cause__ = never
    broken = ActorDiedError(RayTaskError("__init__", "ImportError: x", ImportError("x")))
    found = [crashes.died_before_it_ran(e) for e in (never, wrapped, RayActorError(), broken)]
    assert found == [True, True, True, False]
    assert not crashes.died_before_it_ran(ValueError("x"))


def test_an_engine_whose_event_loop_is_blocked_counts_as_hung(run):
    """Signs of life come from the loop: the thread that waits for it beats no more."""
    faults = "engine.fake_faults={block_once_on: [2]}"
    ended, err, seconds = run(faults, "engine.stall_s=1")
    assert "its event loop is blocked, no sign of life for 1 s (engine.stall_s)" in err
    assert ended == 0, err
    assert seconds < 30
