"""Nodes of a cluster that go and come in mid-run: real raylets, GPUs as Ray resources."""

import time

import pytest
from crash import Run, has_engine, rows, settings, until
from questions import QUESTIONS
from ray_cluster import LocalCluster
from stub_server import StubServer

pytestmark = [pytest.mark.rays, pytest.mark.runs]

WANTED = len(QUESTIONS) * 4 * 2
"""Turns, and judgments, of the runs here."""


@pytest.fixture
def cluster():
    with LocalCluster(jobs=False) as nodes:
        settled(nodes)
        yield nodes


def settled(cluster):
    """One after the other: raylets of one machine that start at once disturb each other."""
    log = cluster.folder / f"start-{len(cluster.nodes) - 1}.log"
    until(lambda: "Ray runtime started" in log.read_text(), timeout=120)


def add_node(cluster):
    node = cluster.add_node(gpus=1)
    settled(cluster)
    return node


@pytest.fixture
def judge():
    with StubServer() as stub:
        yield stub


@pytest.fixture
def start(cluster, judge, questions, tmp_path):
    runs = []

    def begin(gpus, *more):
        """A run that has written some rows."""
        run = Run(
            *settings(
                questions, judge, tmp_path / "work", "cluster.ray=always", "cluster.wait_s=60",
                f"cluster.address={cluster.address}", f"cluster.num_gpus={gpus}",
                "engine.fake_faults={asks_for_gpus: true}", "engine.fake_seconds_per_token=0.006",
                "engine.max_num_seqs=2", *more,
            ),
        )  # fmt: skip
        runs.append(run)
        until(lambda: len(answered(tmp_path / "work")) >= 6 or run.process.poll(), timeout=180)
        return run

    yield begin
    for run in runs:
        run.kill()
        if not run.process.stderr.closed:  # nobody has waited for it
            print(run.process.stderr.read())


def answered(work):
    return [(r["answer_id"], r["turn"]) for r in rows(work, "answers.jsonl")]


def all_done(run, work, judge):
    assert run.wait() == 0, run.err
    assert "crashed: process" in run.err
    done = answered(work)
    assert len(done) == len(set(done)) == WANTED
    assert len(rows(work, "judgments.jsonl")) == judge.seen.good.total() == WANTED


def kept(work, judge):
    """Rows of a run that ended early: whole, single, and each paid once."""
    done = answered(work)
    assert 6 <= len(done) == len(set(done)) < WANTED
    assert len(rows(work, "judgments.jsonl")) == judge.seen.good.total()
    return len(done)


def test_one_of_two_nodes_is_lost(cluster, judge, start, tmp_path):
    nodes = [add_node(cluster), add_node(cluster)]
    run = start(2)
    # One engine may be early, and do what the other would have done.
    lost = next(node for node in nodes if has_engine(node.pid, tmp_path / "work"))
    cluster.kill_node(lost)
    all_done(run, tmp_path / "work", judge)


def test_the_only_node_is_lost_and_a_new_one_goes_on(cluster, judge, start, tmp_path):
    node = add_node(cluster)
    run = start(1)
    cluster.kill_node(node)
    time.sleep(2)
    cluster.add_node(gpus=1)
    all_done(run, tmp_path / "work", judge)


def test_the_only_node_is_lost_for_good(cluster, judge, start, tmp_path):
    node, work = add_node(cluster), tmp_path / "work"
    run = start(1, "cluster.lost_wait_s=10")
    cluster.kill_node(node)
    began = time.monotonic()
    assert run.wait() == 3, run.err
    assert time.monotonic() - began < 45
    assert "no engine has come up on another for 10 s; re-run the same command" in run.err
    assert "Traceback" not in run.err
    kept(work, judge)


def test_the_head_is_lost(cluster, judge, start, tmp_path):
    """Its machine; where its GCS alone was killed the run's end is the same."""
    add_node(cluster)
    run = start(1, "cluster.lost_wait_s=5")
    cluster.kill_node(cluster.nodes[0])
    began = time.monotonic()
    assert run.wait() == 2, run.err
    assert time.monotonic() - began < 45
    assert "the head of the Ray cluster" in run.err
    assert "run the same command again" in run.err
    assert "Traceback" not in run.err
    kept(tmp_path / "work", judge)
