"""Engine actors on Ray that die, in a cluster shared by these tests."""

import gc
import json
import platform
import threading
import time
from collections import Counter

import pytest
from crash import rows
from kill_threads import kill_when_there
from shards import make_shard
from stub_server import StubServer

from mtbench_ray.cli.main import main
from mtbench_ray.config import ClusterConfig
from mtbench_ray.generate import ray_stream as pipeline
from mtbench_ray.generate.actor_failures import end_actors
from mtbench_ray.schema import ANSWERED, EngineEvent

pytestmark = pytest.mark.rays


@pytest.fixture(scope="module")
def cluster():
    import ray

    ray.init(num_cpus=4, include_dashboard=False, log_to_driver=False, namespace="mtbench_ray")
    yield ray
    ray.shutdown()


@pytest.fixture
def run(cluster, questions, tmp_path, capsys):
    """Runs a line on the cluster; returns its exit code, the error text and the workspace."""
    with StubServer() as stub:

        def run(*more):
            own_model = [] if any(word.startswith("model=") for word in more) else ["model=org/m"]
            code = main([
                *own_model, "engine=fake", "cluster.ray=always", "judge=openai",
                "judge.model=stub", f"judge.base_url={stub.url}", "judge.api_key_env=null",
                f"question_path={questions}", f"workspace={tmp_path}/work",
                "sampling.samples=4", "sampling.max_tokens=100", "engine.max_num_seqs=4",
                "engine.fake_seconds_per_token=0.002", *more,
            ])  # fmt: skip
            out = capsys.readouterr()
            run.out, run.err = out.out, out.err
            return code

        run.stub, run.workspace = stub, tmp_path / "work"
        yield run


def counted(run):
    """Good turns, and how often the commonest came; judgments likewise."""
    turns = [(r["answer_id"], r["turn"]) for r in rows(run.workspace, "answers.jsonl")
             if r["status"] in ANSWERED]  # fmt: skip
    judged = [r["judgment_id"] for r in rows(run.workspace, "judgments.jsonl")]
    return len(turns), len(set(turns)), len(judged), len(set(judged))


def test_rows_of_a_killed_actor_are_made_again_and_every_row_counts_once(run, tmp_path):
    marker = tmp_path / "killed"
    faults = f"{{kill_process_on: [3], kill_marker: {marker}, die_at_turn: 2}}"
    assert run(f"engine.fake_faults={faults}", "engine.replicas=2") == 0, run.err
    assert marker.exists()
    assert counted(run) == (32, 32, 32, 32)
    record = json.loads(next(run.workspace.glob("runs/*/record.json")).read_text())
    notes = "\n".join(record["notes"])
    assert "an engine of org/m crashed: process" in notes
    assert "will be retried" in notes
    assert "its log: /" in notes
    assert "Traceback" not in run.err


def test_a_row_that_always_kills_its_process_is_failed_alone(run):
    code = run("engine.fake_faults={kill_process_always_on: [2]}", "sampling.samples=1")
    assert code == 3, run.err
    assert counted(run) == (6, 6, 6, 6)
    failed = [r for r in rows(run.workspace, "answers.jsonl") if r["status"] == "error"]
    assert {(r["question_id"], r["turn"]) for r in failed} == {(2, 1), (2, 2)}
    assert "took its engine's process down" in failed[0]["error"]


def test_a_model_whose_processes_all_die_is_given_up_and_the_others_go_on(run):
    faults = "{models: [org/bad], kill_process_always_on: [1, 2, 3, 4]}"
    code = run("-m", "model=org/bad,org/good", f"engine.fake_faults={faults}",
               "engine.max_restarts=0", "sampling.samples=1", "engine.replicas=1")  # fmt: skip
    assert code == 3, run.err
    assert counted(run) == (8, 8, 8, 8)
    failed = [r for r in rows(run.workspace, "answers.jsonl") if r["status"] == "error"]
    assert len(failed) == 8
    assert "engine.max_restarts" in failed[0]["error"]


def record_of(run):
    return json.loads(next(run.workspace.glob("runs/*/record.json")).read_text())


def test_what_a_killed_engine_had_claimed_is_done_by_the_others_in_the_same_stream(run, tmp_path):
    """Question 3 of the first model kills; its engine has claimed another model by then."""
    faults = (f"{{kill_process_on: [3], kill_marker: {tmp_path / 'killed'}, models: [org/a],"
              " die_at_turn: 2}")  # fmt: skip
    code = run("-m", "model=org/a,org/b,org/c,org/d", f"engine.fake_faults={faults}",
               "engine.replicas=2", "sampling.samples=1")  # fmt: skip
    assert code == 0, run.err
    assert counted(run) == (32, 32, 32, 32)
    record = record_of(run)
    notes = "\n".join(record["notes"])
    (crash,) = [note for note in record["notes"] if "crashed: process" in note]
    assert crash.startswith("an engine of org/a crashed")
    left = int(notes.split(" conversations will be retried")[0].split()[-1])
    assert 1 <= left <= 4, "more than what it had begun was lost"
    starts = Counter(e["model"] for e in record["events"] if e["kind"] == "start")
    assert [starts[f"org/{name}"] for name in "bcd"] == [1, 1, 1]


def test_a_call_of_an_actor_answers_all_shards_that_are_left(cluster):
    """Nothing between two shards waits for the driver."""
    shards = [make_shard([n]) for n in (1, 2, 3)]
    claims = pipeline.queue_actor(shards)
    actor = cluster.remote(pipeline.EngineActor).remote(claims)
    rows = actor.__call__.options(num_returns="streaming").remote({"token": [0]})
    found = [(row["shard"][0], row["kind"][0]) for row in map(cluster.get, rows)]
    marks = [mark for mark in found if mark[1] != "rows"]
    assert marks == [(n, kind) for n in range(3) for kind in ("begin", "end")]
    assert {n for n, kind in found if kind == "rows"} == {0, 1, 2}
    for left in (actor, claims):
        cluster.kill(left)


def test_more_deaths_than_a_stream_has_calls_for_cost_no_row(run, monkeypatch, tmp_path):
    monkeypatch.setattr(pipeline, "_SPARE", -1)  # with one engine: one call
    faults = (f"{{kill_process_on: [3], kill_marker: {tmp_path / 'killed'}, models: [org/a],"
              " die_at_turn: 2}")  # fmt: skip
    code = run("-m", "model=org/a,org/b,org/c,org/d", f"engine.fake_faults={faults}",
               "engine.replicas=1", "sampling.samples=1")  # fmt: skip
    assert code == 0, run.err
    assert (tmp_path / "killed").exists()
    assert counted(run) == (32, 32, 32, 32)


def test_a_queue_that_dies_costs_no_row(run, monkeypatch):
    made, make = [], pipeline.queue_actor

    def doomed(shards):
        made.append(make(shards))
        if len(made) == 1:
            threading.Thread(target=kill, args=(made[0],)).start()
        return made[-1]

    def kill(queue):
        import ray

        deadline = time.monotonic() + 60
        while not rows(run.workspace, "answers.jsonl") and time.monotonic() < deadline:
            time.sleep(0.02)
        ray.kill(queue)

    monkeypatch.setattr(pipeline, "queue_actor", doomed)
    code = run("-m", "model=org/a,org/b,org/c", "engine.replicas=1",
               "engine.fake_seconds_per_token=0.005")  # fmt: skip
    assert code == 0, run.err
    assert counted(run) == (96, 96, 96, 96)
    assert len(made) == 2
    assert "32 conversations will be retried" in "\n".join(record_of(run)["notes"])


def test_where_ray_replays_a_shard_the_replay_yields_nothing(run, monkeypatch):
    """Ray from 2.64 on: it calls the actor that it started again with the same shard again."""
    import ray.data

    whole = ray.data.Dataset.map_batches

    def newer(self, *args, **named):
        if "max_restarts" in named:
            raise TypeError("map_batches() got an unexpected keyword argument 'max_restarts'")
        return whole(self, *args, **named)

    monkeypatch.setattr(ray.data.Dataset, "map_batches", newer)
    code = run("engine.fake_faults={kill_process_always_on: [2]}", "sampling.samples=1")
    assert code == 3, run.err
    assert counted(run) == (6, 6, 6, 6)
    failed = [r for r in rows(run.workspace, "answers.jsonl") if r["status"] == "error"]
    assert {(r["question_id"], r["turn"]) for r in failed} == {(2, 1), (2, 2)}


@pytest.fixture
def all_free(cluster):
    """Waits until no actor holds a CPU; memory that Python happens to collect is no help."""

    def all_free(seconds):
        deadline = time.monotonic() + seconds
        while cluster.available_resources().get("CPU", 0) < 4 and time.monotonic() < deadline:
            time.sleep(0.1)
        return cluster.available_resources().get("CPU", 0) == 4

    gc.disable()
    yield all_free
    gc.enable()


def slow_stream(stop=None):
    """Two shards on two actors; the first would take many minutes."""
    slow = {"fake_seconds_per_token": 5.0, "stall_s": 900.0}
    shards = [make_shard([1], **({} if n else slow)) for n in range(2)]
    return pipeline.stream(shards, 2, ClusterConfig(ray="always"), stop or threading.Event())


def test_a_stream_whose_actor_died_gives_its_actors_back_when_it_is_exhausted(all_free):
    """What Ray keeps of the failed task held the actor in one of six streams: so there are some."""
    assert all_free(60), "what an earlier test has left"
    faults = {"fake_faults": {"kill_process_always_on": [2]}}
    shards = [make_shard([n], **faults) for n in (1, 2)]
    for _ in range(8):
        seen = list(pipeline.stream(shards, 2, ClusterConfig(ray="always"), threading.Event()))
        assert [item.shard for item in seen if isinstance(item, pipeline.CrashedShard)] == shards[
            1:
        ]
        assert all_free(10)


def test_the_end_of_a_stream_breaks_nothing_that_other_threads_do(cluster):
    """Whoever looks at all objects of the process takes hold of tuples that are being made."""
    faults, over = [], threading.Event()

    def make_tuples():
        while not over.is_set():
            try:
                tuple(str(n) for n in range(50))
            except SystemError as error:
                faults.append(error)

    thread = threading.Thread(target=make_tuples)
    thread.start()
    for _ in range(20):
        end_actors(["0" * 32])
    over.set()
    thread.join()
    assert not faults


def test_a_stream_that_failed_gives_its_actors_back_at_once(all_free, monkeypatch):
    """Ray would let them finish what they do, while the next round waits for their GPUs."""
    assert all_free(60), "what an earlier test has left"
    monkeypatch.setattr(pipeline, "decode", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        list(slow_stream())
    assert all_free(60)


@pytest.mark.parametrize("how", ["closed", "stopped"])
def test_a_stream_that_is_left_early_gives_its_actors_back_at_once(all_free, how):
    assert all_free(60), "what an earlier test has left"
    stop = threading.Event()
    stream = slow_stream(stop)
    next(stream)
    if how == "stopped":
        stop.set()
        # What lay in the row that was begun may still come.
        assert all(isinstance(left, EngineEvent) for left in stream)
    stream.close()
    assert all_free(60)


def test_a_thread_that_pulls_rows_and_dies_ends_the_stream(run):
    kill_when_there("rows", wait_s=1.0)
    code = run("engine.fake_seconds_per_token=0.05")
    assert "Killed" in run.err
    assert code in (0, 3)


def test_a_blocked_event_loop_in_an_actor_costs_no_row_and_replicas_have_names(run):
    code = run("engine.fake_faults={block_once_on: [2]}", "engine.stall_s=2", "engine.replicas=2",
               "sampling.samples=1")  # fmt: skip
    record = json.loads(next(run.workspace.glob("runs/*/record.json")).read_text())
    assert "its event loop is blocked" in "\n".join(record["notes"])
    names = {event["replica"] for event in record["events"]}
    assert len(names) >= 2
    assert all(name.startswith(f"{platform.node()}-") for name in names)
    # The fault is remembered by a process, and each try has a new one: at last it is given up.
    assert code == 3
    assert counted(run) == (6, 6, 6, 6)
