"""The judge service at its worst: nothing is lost, doubled or paid twice, and every end is told."""

import logging
import time

import pytest
from stage_calls import KEY, judge_all, request
from stub_server import CHAOS, StubServer

pytestmark = pytest.mark.runs


def test_all_rows_are_scored_once_though_a_third_of_the_replies_are_faults(caplog):
    caplog.set_level(logging.DEBUG)
    with StubServer(chaos=0.3, seed=4, latency=0.01) as stub:
        requests = [request(n) for n in range(160)]
        rows, judge = judge_all(stub, requests, timeout=60.0, timeout_s=2.0)
        stats = stub.stats()
    assert judge.fatal is None
    assert [row.status for row in rows.values()] == ["ok"] * 160
    assert all(1 <= row.value <= 10 for row in rows.values())
    # Every kind of fault was met, and every row has used exactly one good reply.
    assert set(stats["faults"]) == set(CHAOS)
    assert stats["good"] == 160
    assert stats["most_good_per_request"] == 1
    assert sum(row.attempts for row in rows.values()) == stats["calls"]
    written = repr(rows) + "".join(r.getMessage() for r in caplog.records)
    assert KEY not in written


def test_a_low_limit_loses_nothing_and_is_never_exceeded():
    with StubServer(rpm=10, window=1.0, latency=0.05) as stub:
        # The margin is made for windows of a minute; one of a second on a busy machine needs more.
        requests = [request(n) for n in range(20)]
        rows, _ = judge_all(stub, requests, timeout=60.0, requests_per_minute=400)
        stats = stub.stats()
    assert len(rows) == 20
    assert stats["refused"] == 0
    assert stats["calls"] == 20


def test_a_limit_nobody_told_us_loses_nothing_either():
    with StubServer(rpm=20, window=0.5, latency=0.01) as stub:
        rows, _ = judge_all(stub, [request(n) for n in range(60)], timeout=60.0)
        stats = stub.stats()
    assert [row.status for row in rows.values()] == ["ok"] * 60
    assert stats["good"] == 60


@pytest.mark.parametrize("adaptive", [False, True])
def test_refusals_in_the_middle_only_slow_the_run(adaptive):
    first = ("ok",) * 10 + ("429;retry-after-ms=100",) * 30
    with StubServer(first=first) as stub:
        requests = [request(n) for n in range(60)]
        rows, _ = judge_all(stub, requests, timeout=60.0, adaptive=adaptive)
    assert [row.status for row in rows.values()] == ["ok"] * 60


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("401", "the key is not accepted"),
        ("403", "no access"),
        ("404", "no such model"),
        ("quota", "no quota left"),
    ],
)
@pytest.mark.parametrize("after", [0, 30])
def test_every_fatal_kind_stops_within_seconds_and_keeps_what_is_done(fault, words, after):
    with StubServer(latency=0.02, first=("ok",) * after, always=fault) as stub:
        begin = time.monotonic()
        rows, judge = judge_all(stub, [request(n) for n in range(160)], concurrency=8)
        assert time.monotonic() - begin < 5.0
        # A 403 while replies come may be about one prompt: it takes as many in a row as calls are
        # in flight to be sure, and each good reply that is late begins the row anew.
        doubts = 4 * 8 if fault == "403" and after else 0
        assert stub.stats()["calls"] <= after + 8 + doubts
    assert words in judge.fatal
    assert KEY not in judge.fatal
    statuses = [row.status for row in rows.values()]
    assert statuses.count("ok") == after
    assert len(statuses) - after == statuses.count("error") <= doubts
    assert judge.pending == 160 - len(rows)
    assert not judge.busy
