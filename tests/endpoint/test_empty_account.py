"""An account without money is told soon, whatever the number of rows, and with few calls."""

import logging
import time

import pytest
from stage_calls import request, stage
from stub_server import StubServer

from mtbench_ray.config import JudgeConfig
from mtbench_ray.endpoint import client, retry_policy
from mtbench_ray.endpoint.api_errors import Fault
from mtbench_ray.endpoint.retry_policy import RetryPolicy

pytestmark = pytest.mark.clock

ROWS = 1600
QUOTA = "You exceeded your current quota, please check your plan and billing details."


def judged(stub, **settings):
    """The stage after all rows were asked for or none could be, and seconds."""
    rows = []
    judge = stage(stub, rows, concurrency=128, **settings)
    judge.begin()
    began = time.monotonic()
    for number in range(ROWS):
        judge.submit(request(number))
    judge.drain(30.0)
    seconds = time.monotonic() - began
    judge.stop(0.0)
    return judge, seconds


@pytest.mark.parametrize(
    "fault",
    [
        "quota",
        "402",
        f"429;body={QUOTA}",
        "429;body=Insufficient balance",
        "403;body=credit used up",
    ],
)
def test_an_account_that_is_said_to_be_empty_takes_one_call(fault, monkeypatch):
    # On a busy machine the stub takes longer than the first call goes alone.
    monkeypatch.setattr(client, "_PROBE_S", 20.0)
    monkeypatch.setattr(client, "_PROBE_LEAST_S", 20.0)
    with StubServer(always=fault) as stub:
        judge, seconds = judged(stub)
        assert stub.stats()["calls"] == 1
    assert judge.fatal
    assert seconds < 15


def test_an_account_that_names_a_wait_is_taken_for_empty_when_nothing_gets_through(
    monkeypatch, caplog
):
    monkeypatch.setattr(retry_policy, "_EMPTY_S", 1.5)
    monkeypatch.setattr(client, "_REFUSED_S", 0.5)
    caplog.set_level(logging.WARNING)
    with StubServer(always=f"429;retry-after-ms=50;body={QUOTA}") as stub:
        judge, seconds = judged(stub)
        assert stub.stats()["calls"] < 25
    assert "the account has no quota left" in judge.fatal
    assert seconds < 6
    (told,) = (r.getMessage() for r in caplog.records if "quota used up" in r.getMessage())
    assert "max_retry_after_s=600" in told


def test_refusals_without_a_word_are_told_and_met_ever_more_seldom(monkeypatch, caplog):
    monkeypatch.setattr(client, "_REFUSED_S", 0.5)
    caplog.set_level(logging.WARNING)
    with StubServer(always="429") as stub:
        judge, _ = judged(stub, max_retry_after_s=2.0)
        assert stub.stats()["calls"] < 40
    assert "no call got through for 2 s (max_retry_after_s)" in judge.fatal
    assert sum("quota used up" in r.getMessage() for r in caplog.records) == 1


def test_the_pause_of_refused_calls_grows_and_a_service_that_is_silent_is_told_within_a_minute():
    """The pauses of an hour, without waiting for them."""

    async def nothing(_):
        return None

    def stop(why, fault):
        raise AssertionError(why)

    policy = RetryPolicy(JudgeConfig(), stop=stop, before_retry=lambda *_: None, sleep=nothing)
    fault = Fault("rate_limited", retry=True, limited=True)
    clock, calls, told = 0.0, 0, None
    while clock < 600.0:
        calls += 1
        policy._refused_since = time.monotonic() - clock if clock else time.monotonic()
        if told is None and policy.refused_s > client._REFUSED_S:
            told = clock
        clock += policy.pause_s(fault, 2.0)  # the longest back-off of a first try
    assert told is not None
    assert told < 60.0
    assert calls < 25
    policy.note_reply()
    assert policy.pause_s(fault, 1.0) == 1.0
