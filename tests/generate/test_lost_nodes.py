"""Nodes of a cluster that go and come in mid-run: real raylets, GPUs as Ray resources."""

import time

import psutil
import pytest
from crash import Run, rows, settings, until
from questions import QUESTIONS
from ray_cluster import LocalCluster
from stub_server import StubServer

pytestmark = [pytest.mark.rays, pytest.mark.runs]

WANTED = len(QUESTIONS) * 4 * 2
"""Turns, and judgments, of the runs here."""


@pytest.fixture
def cluster():
    with LocalCluster(jobs=False) as nodes:
        yield nodes


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
        until(lambda: len(answered(tmp_path / "work")) >= 6, timeout=120)
        return run

    yield begin
    for run in runs:
        run.kill()


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
    nodes = [cluster.add_node(gpus=1), cluster.add_node(gpus=1)]
    run = start(2)
    cluster.kill_node(nodes[0])
    all_done(run, tmp_path / "work", judge)


def test_the_only_node_is_lost_and_a_new_one_goes_on(cluster, judge, start, tmp_path):
    node = cluster.add_node(gpus=1)
    run = start(1)
    cluster.kill_node(node)
    time.sleep(2)
    cluster.add_node(gpus=1)
    all_done(run, tmp_path / "work", judge)


def test_the_only_node_is_lost_for_good_and_a_later_run_goes_on(
    cluster, judge, start, questions, tmp_path
):
    node, work = cluster.add_node(gpus=1), tmp_path / "work"
    run = start(1, "cluster.lost_wait_s=10")
    cluster.kill_node(node)
    began = time.monotonic()
    assert run.wait() == 3, run.err
    print(time.monotonic() - began, run.err, run.out)
    assert time.monotonic() - began < 45
    assert "no engine has come up on another for 10 s; re-run the same command" in run.err
    assert "Traceback" not in run.err
    kept(work, judge)


@pytest.mark.parametrize("whole", [False, True], ids=["gcs", "machine"])
def test_the_head_is_lost(whole, cluster, judge, start, tmp_path):
    cluster.add_node(gpus=1)
    run = start(1, "cluster.lost_wait_s=5")
    head = psutil.Process(cluster.nodes[0].pid)
    if whole:
        cluster.kill_node(cluster.nodes[0])
    else:
        next(p for p in head.children(recursive=True) if p.name() == "gcs_server").kill()
    began = time.monotonic()
    code = run.wait(150)
    print(code, time.monotonic() - began, run.err, run.out)
    assert code == 2
    assert "the head of the Ray cluster" in run.err
    assert "run the same command again" in run.err
    assert "Traceback" not in run.err
    kept(tmp_path / "work", judge)
