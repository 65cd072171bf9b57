"""The pace that a service permits and nobody stated: simulated, without a clock."""

import heapq
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mtbench_ray.endpoint.learned_rate import LearnedRate, stated_limit

LATENCY_S, PROBE_S = 2.0, 1.0


def simulate(limits, calls, *, gentle=True, headers=False, known=None):
    """Calls against a bucket of one second's worth; ``limits`` are (from second, calls a minute).

    Returns:
        Seconds until the last reply, and refused calls.
    """
    learned = LearnedRate(gentle=gentle, known=known and known / 60)
    now, held, then = 0.0, None, 0.0
    replies, left, done, refused, paused, sent = [], calls, 0, 0, 0.0, 0
    while done < calls:
        while replies and replies[0] <= now:
            heapq.heappop(replies)
            done += 1
            if headers:
                learned.stated([rate for since, rate in limits if since <= now][-1])
        if done == calls:
            break
        begun = sent == 0 or done > 0 or now >= PROBE_S
        if left and begun and now >= paused and learned.delay(now) <= 1e-9:
            left, sent = left - 1, sent + 1
            learned.sent(now)
            rate = [rate for since, rate in limits if since <= now][-1] / 60
            most = max(rate, 1.0)
            held = most if held is None else min(most, held + (now - then) * rate)
            then = now
            if held >= 1:
                held -= 1
                heapq.heappush(replies, now + LATENCY_S)
            else:
                refused, left = refused + 1, left + 1
                learned.refused(now + 0.005, now)
                paused = now + math.ceil((1 - held) / rate)
            continue
        soonest = [replies[0]] if replies else []
        if left:
            at = max(paused, now, 0.0 if begun else PROBE_S)
            soonest.append(at + learned.delay(at))
        now = max(now + 1e-6, min(soonest))
    return now, refused


@pytest.mark.parametrize("headers", [False, True])
@pytest.mark.parametrize("gentle", [False, True])
@pytest.mark.parametrize("rpm", [60, 300])
def test_an_unstated_limit_costs_few_refusals_and_little_time(rpm, gentle, headers):
    seconds, refused = simulate([(0, rpm)], 160, headers=headers, gentle=gentle)
    least = 159 * 60 / rpm + LATENCY_S - max(rpm / 60, 1) / (rpm / 60)
    assert refused <= 20
    assert seconds <= 1.10 * least


def test_a_limit_that_falls_to_a_third_is_followed():
    seconds, refused = simulate([(0, 300), (30, 100)], 300)
    assert refused <= 20
    assert seconds <= 1.2 * (30 + 150 / 100 * 60 + LATENCY_S)


def test_a_limit_that_rises_is_found():
    seconds, _ = simulate([(0, 60), (60, 180)], 300)
    at_the_old_pace = 300 + LATENCY_S
    assert seconds < 0.75 * at_the_old_pace


@given(rpm=st.integers(6, 3000), calls=st.integers(2, 200))
def test_any_limit_is_kept_in_the_end(rpm, calls):
    seconds, refused = simulate([(0, rpm)], calls)
    assert refused <= max(20, 0.2 * calls)
    assert seconds <= 1.6 * calls * 60 / rpm + 10


def test_no_limit_is_no_pace():
    learned = LearnedRate(gentle=False)
    for _ in range(500):
        assert learned.delay(0.0) == 0.0
        learned.sent(0.0)
    gentle, now = LearnedRate(gentle=True), 0.0
    for _ in range(4000):
        now += gentle.delay(now)
        gentle.sent(now)
    assert now < 4.0


def test_calls_that_left_before_a_refusal_was_known_belong_to_it():
    learned = LearnedRate(gentle=False)
    for _ in range(8):
        learned.sent(0.0)
    assert learned.refused(0.1, 0.0)
    assert not any(learned.refused(0.11, 0.0) for _ in range(5))
    assert learned.refusals == 6
    assert learned.per_second == 2.0  # two of the eight were let through
    learned.sent(1.2)
    learned.sent(1.7)
    assert learned.refused(1.71, 1.7)
    assert learned.per_second == pytest.approx(1.5 / 1.61)


@pytest.mark.parametrize(
    ("headers", "limit"),
    [
        ({}, None),
        ({"x-ratelimit-limit-requests": "500"}, 500),
        ({"x-ratelimit-limit-requests": "500", "x-ratelimit-remaining-requests": "499",
          "x-ratelimit-reset-requests": "120ms"}, 500),
        # of a day: 14400, one used, six seconds until it is back
        ({"x-ratelimit-limit-requests": "14400", "x-ratelimit-remaining-requests": "14399",
          "x-ratelimit-reset-requests": "6s"}, None),
        ({"x-ratelimit-limit-requests": "14400", "x-ratelimit-remaining-requests": "14370",
          "x-ratelimit-reset-requests": "2m59.56s"}, None),
        ({"anthropic-ratelimit-requests-limit": "50"}, 50),
        ({"x-ratelimit-limit-req-minute": "60"}, 60),
        ({"ratelimit-limit": "100, 100;w=60"}, 100),
        ({"ratelimit-limit": "10", "ratelimit-policy": "10;w=1"}, 600),
        ({"ratelimit-limit": "5000", "ratelimit-policy": "5000;w=3600"}, None),
        ({"ratelimit": "limit=100, remaining=50, reset=30"}, 100),
        ({"x-ratelimit-limit": "unlimited"}, None),
        ({"x-ratelimit-limit": "0"}, None),
    ],
)  # fmt: skip
def test_limits_in_headers(headers, limit):
    assert stated_limit(headers) == limit


@given(st.dictionaries(st.sampled_from(["ratelimit-limit", "x-ratelimit-limit-requests",
                                        "x-ratelimit-reset-requests", "ratelimit-policy",
                                        "x-ratelimit-remaining-requests"]), st.text()))  # fmt: skip
def test_whatever_headers_say_is_no_fault(headers):
    found = stated_limit(headers)
    assert found is None or found > 0


@pytest.mark.parametrize(("rpm", "known"), [(60, 59), (60, 61), (300, 297), (60, 300), (300, 60)])
def test_what_an_earlier_run_learned_is_a_start_and_not_a_law(rpm, known):
    seconds, refused = simulate([(0, rpm)], 160, known=known)
    least = 159 * 60 / rpm + LATENCY_S - max(rpm / 60, 1) / (rpm / 60)
    if abs(known - rpm) < 5:
        assert refused <= 8
        assert seconds <= 1.25 * least
    else:
        assert refused <= 20
        assert seconds <= (1.10 if known > rpm else 3.2) * least
