"""Who is suspected when an engine process dies, and when it is enough."""

import pickle
import time

import pytest
from shards import question

from mtbench_ray.config import EngineConfig, ModelConfig, SamplingConfig
from mtbench_ray.engines.base import Shard, ShardUnit
from mtbench_ray.generate import actor_failures as crashes
from mtbench_ray.generate.crash_retry import CrashRetries
from mtbench_ray.generate.ray_stream import CrashedShard
from mtbench_ray.generate.shards import Work, make_shards


def work(count, model="m", **engine):
    units = tuple(ShardUnit(question(n), 0, f"{model}-{n}") for n in range(count))
    return Work(ModelConfig(model), SamplingConfig(), EngineConfig(kind="fake", **engine), units)


def ids(item):
    return [unit.answer_id for unit in item.units]


def simulate(item, killers, replicas=1):
    """Rounds until nothing is pending; a shard answers in order until a killer is met."""
    crash_retries, done, failed, sizes = CrashRetries(), set(), {}, []
    todo = [item]
    for _ in range(50):
        if not todo:
            return done, failed, sizes, crash_retries.processes.total()
        shards = make_shards(todo, replicas, "run")
        sizes.append(max(len(shard.units) for shard in shards))
        for shard in shards:
            for unit in shard.units:
                if unit.answer_id in killers:
                    pending = {u.answer_id for u in item.units} - done - failed.keys()
                    crash_retries.note(CrashedShard(shard, "it died"), pending)
                    break
                done.add(unit.answer_id)
        left = tuple(u for u in item.units if u.answer_id not in done and u.answer_id not in failed)
        rest = Work(item.model, item.sampling, item.engine, left)
        todo, given_up = crash_retries.cut([rest] if left else [])
        failed |= {entry.unit.answer_id: entry.reason for entry in given_up}
    raise AssertionError("it never ends")


def test_one_killer_is_found_and_the_innocent_are_done():
    done, failed, sizes, crashes = simulate(work(80), {"m-0"})
    assert len(done) == 79
    assert set(failed) == {"m-0"}
    assert "2 times" in failed["m-0"] or "3 times" in failed["m-0"]
    assert sizes == [80, 10, 1]
    assert crashes == 3


@pytest.mark.parametrize("killers", [2, 5, 40])
def test_many_killers_end_too(killers):
    done, failed, _, crashes = simulate(work(40), {f"m-{n}" for n in range(killers)}, replicas=4)
    assert len(done) + len(failed) == 40
    assert not done & failed.keys()
    assert crashes < 100


def test_more_deaths_than_restarts_give_the_model_up_and_only_it():
    crash_retries = CrashRetries()
    bad, good = work(4, "bad", max_restarts=0), work(4, "good", max_restarts=0)
    crash_retries.note(
        CrashedShard(Shard(bad.model, bad.sampling, bad.engine, bad.units), "no memory"), ids(bad)
    )
    todo, given_up = crash_retries.cut([bad, good])
    assert [ids(item) for item in todo] == [ids(good)]
    assert len(given_up) == 4
    assert all("engine.max_restarts" in c.reason and "no memory" in c.reason for c in given_up)


def test_shards_hold_every_unit_once_and_survive_the_way_to_an_actor():
    items = [work(7, "a"), work(3, "b")]
    for replicas in (1, 2, 3, 8):
        shards = make_shards(items, replicas, "run")
        held = [unit.answer_id for shard in shards for unit in shard.units]
        assert sorted(held) == sorted(ids(items[0]) + ids(items[1]))
        assert pickle.loads(pickle.dumps(shards)) == shards
        assert all(shard.units for shard in shards)
        if replicas == 1:
            assert len(shards) == 2
        if replicas == 8:
            assert len(shards) == 7


def node(name, cpus=2.0, gpus=0.0):
    return {"NodeID": name, "Alive": True, "Resources": {"CPU": cpus, "GPU": gpus}}


def test_a_stream_without_any_engine_left_is_given_up_only_after_a_node_was_lost(monkeypatch):
    nodes = [node("head"), node("gpu", gpus=1.0)]
    monkeypatch.setattr(crashes, "_alive", lambda: list(nodes))
    watch = crashes.NodeWatch(0.3, 1)
    time.sleep(0.4)
    watch.check()  # engines may wait long for their places
    nodes.pop()
    watch.heard()
    watch.check()  # somebody is still at work
    time.sleep(0.4)
    with pytest.raises(crashes.NoRoom, match="no engine has come up on another for 0 s"):
        watch.check()


@pytest.mark.parametrize(("left", "gpus"), [(node("head", cpus=0.0), 0), (node("head"), 1)])
def test_a_stream_that_begins_after_the_loss_does_not_wait_for_ever(monkeypatch, left, gpus):
    monkeypatch.setattr(crashes, "_alive", lambda: [left])
    watch = crashes.NodeWatch(0.1, gpus)
    time.sleep(0.2)
    with pytest.raises(crashes.NoRoom):
        watch.check()


def test_nodes_that_are_taken_back_do_not_use_up_the_restarts_while_rows_come():
    """A node whose loss brings no row in between counts: its engine may have filled its memory."""
    item = work(20)
    (shard,) = make_shards([item], 1, "run")
    retries, pending = CrashRetries(), ids(item)
    for _ in range(item.engine.max_restarts + 5):
        pending = pending[1:]
        retries.note(CrashedShard(shard, "x", with_node=True), pending)
    assert (retries.processes["m"], retries.losses) == (0, 8)
    for _ in range(3):
        retries.note(CrashedShard(shard, "x", with_node=True), pending)
    assert retries.processes["m"] == 3
