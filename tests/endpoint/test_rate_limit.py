import asyncio
import logging
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from stub_server import busiest_window

from mtbench_ray.config import JudgeConfig
from mtbench_ray.endpoint import rate_limit as limiter_module
from mtbench_ray.endpoint.learned_rate import LearnedRate
from mtbench_ray.endpoint.rate_limit import Limiter
from mtbench_ray.endpoint.shared_limit import NAMESPACE, ClusterLimiter

pytestmark = pytest.mark.clock

# A minute of the limiter is made short, so that several windows pass in a second.
WINDOW_S = 0.3


@pytest.fixture(autouse=True)
def short_minute(monkeypatch):
    monkeypatch.setattr(limiter_module, "_WINDOW_S", WINDOW_S)
    monkeypatch.setattr(limiter_module, "_NETWORK_JITTER_S", WINDOW_S * 0.1)
    monkeypatch.setattr(limiter_module, "_LATE_WAKE_S", WINDOW_S * 0.02)


def run_calls(limiter, amounts, work_s=0.0):
    """Times at which calls left, and their amounts, in the order they left."""
    left = []

    async def call(amount):
        async with limiter.slots:
            await limiter.acquire(amount)
            left.append((asyncio.get_running_loop().time(), amount))
            await asyncio.sleep(work_s)

    async def run():
        await asyncio.gather(*(call(a) for a in amounts))

    asyncio.run(run())
    return left


@pytest.mark.parametrize("per_window", [1, 3, 20, 60])
def test_no_window_holds_more_requests_than_the_limit(per_window):
    calls = int(2.5 * per_window) + 1
    left = [t for t, _ in run_calls(Limiter(per_window, None, 500), [10] * calls)]
    assert busiest_window(left, WINDOW_S) <= per_window
    # The rest of what is permitted is lost to the margin that is set above, and to a busy machine.
    assert left[-1] - left[0] < 1.3 * (calls - 1) / per_window * WINDOW_S


@settings(max_examples=5, deadline=None)
@given(st.lists(st.integers(0, 400), min_size=5, max_size=15))
def test_no_window_holds_more_tokens_than_the_limit(amounts):
    limit = 1000
    left = run_calls(Limiter(None, limit, 500), amounts)
    for start, _ in left:
        assert sum(a for t, a in left if start <= t < start + WINDOW_S) <= limit


def test_large_amounts_keep_their_place_among_small_ones():
    left = run_calls(Limiter(None, 1000, 500), [10] * 20 + [300] + [10] * 20)
    assert [a for _, a in left].index(300) == 20


def test_an_amount_above_the_limit_still_gets_through():
    left = run_calls(Limiter(None, 100, 500), [500, 10])
    assert [a for _, a in left] == [500, 10]


def test_concurrency_is_a_cap():
    running, most = 0, 0
    limiter = Limiter(None, None, 7)

    async def call():
        nonlocal running, most
        async with limiter.slots:
            await limiter.acquire(1)
            running += 1
            most = max(most, running)
            await asyncio.sleep(0.005)
            running -= 1

    async def run():
        await asyncio.gather(*(call() for _ in range(50)))

    asyncio.run(run())
    assert most == 7


def test_what_was_estimated_too_low_is_paid_by_later_calls():
    limiter = Limiter(None, 1000, 500)
    spent = []

    async def call():
        await limiter.acquire(10)
        spent.append(asyncio.get_running_loop().time())
        limiter.correct(10, 100)

    async def run():
        for _ in range(20):
            await call()

    asyncio.run(run())
    # 19 calls of really 100 tokens each have to be paid for before the last.
    assert spent[-1] - spent[0] > 0.9 * 1900 / 1000 * WINDOW_S


def test_what_was_estimated_too_high_is_not_saved_up_for_a_burst():
    limiter = Limiter(None, 1000, 500)

    async def run():
        for _ in range(5):
            limiter.correct(5000, 0)
        begin = asyncio.get_running_loop().time()
        for _ in range(50):
            await limiter.acquire(10)
        return asyncio.get_running_loop().time() - begin

    assert asyncio.run(run()) > 0.8 * 500 / 1000 * WINDOW_S


def test_a_pause_holds_all_calls_and_is_told_once(caplog):
    limiter = Limiter(600, None, 500, label="judge x")
    left = []

    async def call():
        await limiter.acquire(1)
        left.append(asyncio.get_running_loop().time())

    async def run():
        tasks = [asyncio.create_task(call()) for _ in range(100)]
        await asyncio.sleep(0.03)
        before = len(left)
        limiter.pause(0.3, "429")
        limiter.pause(0.3, "429")
        limiter.pause(0.1, "429")
        paused = asyncio.get_running_loop().time()
        await asyncio.gather(*tasks)
        return paused, before

    with caplog.at_level(logging.WARNING):
        paused, before = asyncio.run(run())
    assert 0 < before < 100
    assert not [t for t in left if paused < t < paused + 0.29]
    assert len(caplog.records) == 1
    assert busiest_window(left[before:], 0.1) <= 0.1 / WINDOW_S * 600 * 1.2


def test_adaptive_halves_once_for_one_bunch_and_recovers(monkeypatch):
    monkeypatch.setattr(limiter_module, "_RECOVERY_S", 0.05)
    limiter = Limiter(100, None, 500, adaptive=True)

    async def rate(calls):
        begin = asyncio.get_running_loop().time()
        for _ in range(calls):
            await limiter.acquire(1)
        return calls * WINDOW_S / (asyncio.get_running_loop().time() - begin)

    async def run():
        full = await rate(30)
        for _ in range(10):
            limiter.refused(0.0)
        halved = await rate(10)
        await rate(100)
        return full, halved, await rate(30)

    full, halved, later = asyncio.run(run())
    assert halved < 0.75 * full
    assert later > 0.85 * full


def test_a_rate_is_found_where_none_was_given():
    limiter = Limiter(None, None, 500, learned=LearnedRate(gentle=False))

    async def run():
        for _ in range(100):
            await limiter.acquire(1)
        limiter.refused(0.0)
        begin = asyncio.get_running_loop().time()
        for _ in range(10):
            await limiter.acquire(1)
        return asyncio.get_running_loop().time() - begin

    # 99 calls at once count as 99 a second.
    assert asyncio.run(run()) > 0.08


@pytest.mark.rays
def test_runs_on_one_cluster_share_a_limit(monkeypatch):
    import ray

    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False)
    config = JudgeConfig(requests_per_minute=600, limit_scope="cluster")

    async def run():
        runs = [ClusterLimiter(config, "m", "key", idle_s=1.0) for _ in range(2)]
        begin = time.monotonic()
        await asyncio.gather(*(one.acquire(1) for one in runs for _ in range(8)))
        together = time.monotonic() - begin
        runs[0].pause(0.5, "429")
        begin = time.monotonic()
        await runs[1].acquire(1)
        paused = time.monotonic() - begin
        name = runs[0]._name
        while ray.util.list_named_actors(all_namespaces=True):
            assert time.monotonic() - begin < 20, "the actor does not end"
            await asyncio.sleep(0.1)
        await runs[0].acquire(1)
        ray.kill(ray.get_actor(name, namespace=NAMESPACE))
        return together, paused

    try:
        together, paused = asyncio.run(run())
    finally:
        ray.shutdown()
    # The actor is another process, so its minute is a real one: two calls, then ten a second.
    assert together > 14 / 10 * 0.95
    assert paused > 0.4
