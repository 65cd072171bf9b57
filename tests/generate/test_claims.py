"""Engines that share a queue of checkpoints: what each takes next."""

import heapq
import threading
import time
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from shards import make_shard, rows_of

from mtbench_ray.config import ClusterConfig, ModelConfig, SamplingConfig
from mtbench_ray.generate import ray_stream as pipeline
from mtbench_ray.generate.claims import ClaimQueue
from mtbench_ray.schema import EngineEvent


def shards(*names, **engine):
    return [
        replace(make_shard([n], **engine), model=ModelConfig(name)) for n, name in enumerate(names)
    ]


def begun(queue, worker, token, process="1"):
    found = queue.begin(worker, process, token)
    return found and found.shard.model.path


def test_a_claim_is_taken_next_and_what_others_have_claimed_comes_last():
    queue = ClaimQueue(shards("a", "b", "c", "d", "e"))
    assert begun(queue, "x", 0) == "a"
    assert queue.claim("x").path == "b"
    assert begun(queue, "y", 1) == "c"
    assert queue.claim("y").path == "d"
    assert queue.claim("x").path == "b"
    assert begun(queue, "x", 2) == "b"
    assert queue.claim("x").path == "e"
    assert begun(queue, "x", 3) == "e"
    assert queue.claim("x").path == "d"  # prepared by both: the first to be free takes it
    assert begun(queue, "x", 4) == "d"
    assert queue.claim("x") is queue.claim("y") is None
    assert begun(queue, "y", 5) is None


def test_a_call_that_is_repeated_begins_nothing_more():
    queue = ClaimQueue(shards("a", "b"))
    assert [begun(queue, "x", 0), begun(queue, "x", 0), begun(queue, "x", 1)] == ["a", None, "b"]


def test_a_call_may_begin_several_and_begins_none_when_it_is_repeated():
    queue = ClaimQueue(shards(*"abc"))
    assert [begun(queue, "x", token) for token in (0, None, 0, None, None)] == [
        "a", "b", None, "c", None,
    ]  # fmt: skip


def test_a_worker_that_was_started_again_has_claimed_nothing():
    queue = ClaimQueue(shards("a", "b", "c", "d"))
    begun(queue, "x", 0)
    assert queue.claim("x").path == "b"
    begun(queue, "y", 1)
    assert queue.claim("y").path == "d"
    # As a new process it has prepared none: the longest that nobody has claimed.
    assert begun(queue, "x", 2, process="2") == "b"
    assert queue.claim("y").path == "d"


def test_a_claim_of_a_worker_that_never_comes_back_is_begun_by_the_others():
    queue = ClaimQueue(shards("a", "b", "c"))
    begun(queue, "dead", 0)
    assert queue.claim("dead").path == "b"
    assert [begun(queue, "x", token) for token in (1, 2, 3)] == ["c", "b", None]


def test_few_of_many_engines_prepare_the_last_checkpoint_and_any_may_begin_it():
    queue = ClaimQueue(shards(*"abcdefg"))
    workers = [str(number) for number in range(6)]
    for token, worker in enumerate(workers):
        begun(queue, worker, token)
    assert [bool(queue.claim(worker)) for worker in workers] == [True] * 4 + [False] * 2
    assert queue.claim("0").path == "g"
    assert begun(queue, "5", 6) == "g"


def test_an_engine_goes_on_with_the_model_that_it_holds_and_prepares_nothing_for_it():
    queue = ClaimQueue(shards("a", "b", "a"))
    begun(queue, "x", 0)
    assert queue.claim("x") is None
    assert begun(queue, "x", 1) == "a"
    assert queue.claim("x").path == "b"


def test_whether_another_model_may_follow():
    queue = ClaimQueue(shards("a", "b", "b"))
    assert [queue.begin("x", "1", token).more for token in range(3)] == [True, False, False]


@given(st.integers(1, 12), st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), max_size=60))
def test_each_shard_is_begun_once_whoever_claims_begins_and_is_started_again(count, steps):
    queue = ClaimQueue(shards(*map(str, range(count))))
    got, process = [], [0] * 4
    for token, (worker, step) in enumerate(steps):
        if step == 0:
            process[worker] += 1
        elif step == 1:
            queue.claim(str(worker))
        else:
            got.append(begun(queue, str(worker), token, str(process[worker])))
    got += [begun(queue, "last", 1000 + n) for n in range(count)]
    assert sorted(filter(None, got)) == sorted(map(str, range(count)))


@given(st.lists(st.integers(1, 30), min_size=1, max_size=12), st.integers(1, 9), st.integers(0, 20))
def test_neither_of_two_workers_waits_and_each_takes_what_it_has_prepared(sizes, slow, late):
    """The one is ``slow`` times slower, or comes later."""
    sizes = sorted(sizes, reverse=True)
    queue = ClaimQueue(shards(*map(str, range(len(sizes)))))
    free, prepared, ended, taken = [(0, 0), (late, 1)], [None, None], [0, 0], []
    token = 0
    while free:
        now, worker = heapq.heappop(free)
        name, token = begun(queue, str(worker), token), token + 1
        if name is None:
            ended[worker] = now
            continue
        assert prepared[worker] in (None, name)
        taken.append(name)
        prepared[worker] = getattr(queue.claim(str(worker)), "path", None)
        heapq.heappush(free, (now + sizes[int(name)] * (slow if worker else 1), worker))
    assert sorted(taken, key=int) == list(map(str, range(len(sizes))))
    # Nobody was free while something was left: they end within one checkpoint of each other.
    last = max(ended)
    assert last - min(ended) <= max(sizes) * slow + late


def settings(tmp_path):
    """Five models, each 0.4 s of one engine and 3.2 s of the other."""
    faults = {"swap_s": 1.0, "slow_once": str(tmp_path / "slow"), "slow_times": 8}
    faults["replies"] = {str(n): ["w " * 50] * 2 for n in range(5)}
    found = shards(*"abcde", fake_faults=faults, fake_seconds_per_token=0.01)
    return [replace(shard, sampling=SamplingConfig(max_tokens=20)) for shard in found]


@pytest.mark.parametrize("ray", ["auto", pytest.param("always", marks=pytest.mark.rays)])
def test_a_slow_engine_holds_no_checkpoint_back_and_all_swaps_were_prepared(ray, tmp_path, request):
    if ray == "always":
        request.getfixturevalue("small_ray")
    began = time.monotonic()
    outputs = []
    for output in pipeline.stream(settings(tmp_path), 2, ClusterConfig(ray=ray), threading.Event()):
        outputs.append((time.monotonic() - began, output))
    rows = rows_of([output for _, output in outputs])
    assert len(rows) == 10
    assert {row.status for row in rows.values()} == {"truncated"}
    events = [output for _, output in outputs if isinstance(output, EngineEvent)]
    events = [event for event in events if event.kind not in ("beat", "phase")]
    kinds = [(event.kind, event.detail) for event in events]
    by_replica = {}
    for event in events:
        by_replica.setdefault(event.replica, []).append(event.kind)
    if ray == "auto":
        assert sorted(kinds) == [("start", "")] * 2 + [("swap", "from memory")] * 3
        assert sorted(map(len, by_replica.values())) == [1, 4]
    else:  # actors come up one after the other, and the first may be the quick one
        assert {kind for kind in kinds if kind[0] == "swap"} == {("swap", "from memory")}
        assert len(by_replica) == 2
        assert max(map(len, by_replica.values())) >= 3


@pytest.fixture
def small_ray():
    import ray

    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, namespace="mtbench_ray")
    yield
    ray.shutdown()
