"""Several calls on one answer: the first one alone, the others as soon as it has ended."""

from itertools import pairwise

import pytest
from stage_calls import judge_all, request
from stub_server import StubServer

from mtbench_ray.judges.shared_prefixes import PREFIX, SharedPrefixes

LATENCY = 0.15


def calls(answers, items, length=PREFIX):
    """What is asked of each answer, the answer in front."""
    return [
        request(f"{answer}.{item}", f"Answer {answer}: {'word ' * (length // 5 + 1)} Ask {item}")
        for answer in range(answers)
        for item in range(items)
    ]


def arrived(stub):
    """When the calls came, by answer."""
    found = {}
    for when, body in zip(stub.seen.arrivals, stub.seen.bodies, strict=True):
        text = body["messages"][-1]["content"]
        found.setdefault(text.split(":")[0], []).append((when, int(text.rpartition(" ")[2])))
    return found


def test_the_first_call_on_an_answer_has_ended_before_the_others_begin():
    with StubServer(latency=LATENCY) as stub:
        # Of a new service the first call goes alone anyway, to learn its parameters and pace.
        rows, _ = judge_all(stub, [request("first", "Answer x: Ask 0"), *calls(3, 4)])
        found = arrived(stub)
    del found["Answer x"]
    assert len(rows) == 13
    firsts = [times[0][0] for times in found.values()]
    assert max(firsts) - min(firsts) < LATENCY / 2, "answers do not wait for each other"
    for times in found.values():
        assert times[0][1] == 0
        assert times[1][0] - times[0][0] >= LATENCY
        rest = [when for when, _ in times[1:]]
        assert max(rest) - min(rest) < LATENCY / 2, "the others go together"


def test_short_prompts_and_local_judges_wait_for_nothing():
    for length, settings in ((100, {}), (PREFIX, {"kind": "local"})):
        with StubServer(latency=LATENCY) as stub:
            known = request("first", "Answer x: Ask 0")
            rows, _ = judge_all(stub, [known, *calls(1, 4, length)], **settings)
            times = [when for when, _ in arrived(stub)["Answer 0"]]
        assert len(rows) == 5
        assert max(times) - min(times) < LATENCY / 2


def test_the_others_go_before_further_answers_so_that_the_cache_still_has_their_prompt():
    with StubServer() as stub:
        judge_all(stub, calls(5, 3), concurrency=1)
        order = [body["messages"][-1]["content"].split(":")[0] for body in stub.seen.bodies]
    assert sum(one != two for one, two in pairwise(order)) == 4


@pytest.mark.parametrize("fault", ["500", "garbage", "empty"])
def test_a_first_call_that_fails_holds_nothing_back(fault):
    with StubServer(first=(fault,)) as stub:
        rows, _ = judge_all(stub, calls(1, 3), max_retries=0, parse_retries=0)
    assert sorted(row.status == "ok" for row in rows.values()) == [False, True, True]


def test_what_was_read_once_is_not_waited_for_again():
    first, second, third = calls(1, 3)
    prefixes = SharedPrefixes()
    assert prefixes.admit(first)
    assert not prefixes.admit(second)
    assert prefixes.ended(first) == [second]
    assert prefixes.admit(third)
    assert prefixes.ended(second) == []
