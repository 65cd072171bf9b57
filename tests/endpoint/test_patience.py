"""A slow server is waited for: nothing is sent twice because we were in a hurry."""

import pytest
from client_calls import ask, complete, complete_all
from stage_calls import judge_all, request
from stub_server import StubServer

from mtbench_ray.endpoint.patience import Patience

pytestmark = pytest.mark.clock


@pytest.mark.parametrize("capacity", [1, 3])
def test_calls_that_wait_behind_our_own_are_not_sent_again(capacity):
    # The last of 40 waits for 10 s or 3.3 s, and a call may take two and a half.
    with StubServer(latency=0.25, capacity=capacity) as stub:
        rows, _ = judge_all(stub, [request(n) for n in range(40)], timeout_s=2.5, concurrency=128)
        stats = stub.stats()
    assert [row.status for row in rows.values()] == ["ok"] * 40
    assert stats["calls"] == 40
    assert {row.attempts for row in rows.values()} == {1}


def test_concurrency_that_is_stated_is_never_exceeded():
    with StubServer(latency=0.02, capacity=2) as stub:
        judge_all(stub, [request(n) for n in range(30)], concurrency=5)
        assert stub.stats()["most_in_flight"] <= 5


def test_a_call_that_hangs_beside_others_that_come_back_is_given_up():
    with StubServer(latency=0.05, always="hang", only="number 3 ") as stub:
        prompts = [ask(f"This is number {i} of them") for i in range(20)]
        done, _, seconds = complete_all(stub, prompts, timeout_s=0.4, max_retries=0, concurrency=4)
    assert [d.status for d in done] == ["ok"] * 3 + ["error"] + ["ok"] * 16
    assert done[3].error.startswith("timeout")
    assert seconds < 4


def test_a_service_that_is_silent_is_given_up_in_time():
    with StubServer(always="hang") as stub:
        done, seconds = complete(stub, timeout_s=0.3, max_retries=0)
    assert done.error == "timeout: no reply in 0.3 s"
    assert seconds < 2


def test_a_gateway_that_gives_up_gets_fewer_calls_at_once():
    with StubServer(latency=0.1, capacity=2, gateway_s=0.5) as stub:
        rows, _ = judge_all(
            stub, [request(n) for n in range(60)], concurrency=64, max_retries=20, timeout=60.0
        )
        stats = stub.stats()
    assert [row.status for row in rows.values()] == ["ok"] * 60
    assert stats["good"] == 60
    assert stats["calls"] < 60 * 3


def test_how_long_a_call_may_take_follows_from_the_pace():
    patience = Patience(10.0)
    assert patience.allowed(0.0, 100) == 10.0
    for second in range(5):
        patience.replied(float(second))
    # Five in ten seconds: a hundred take two hundred, and twice that is permitted at most.
    assert patience.allowed(5.0, 100) == 200.0
    assert patience.allowed(5.0, 3) == 12.0
    assert patience.allowed(5.0, 1) == 10.0
    assert patience.allowed(30.0, 100) == 10.0  # nothing came back for long
