"""Several calls on one answer: the first one alone, the others as soon as it has ended."""

from itertools import pairwise

import pytest
from stage_calls import judge_all, request
from stub_server import StubServer

from mtbench_ray.judges.shared_prefixes import PREFIX, SharedPrefixes

pytestmark = pytest.mark.clock

LATENCY = 0.3


def calls(answers, items, length=PREFIX):
    """What is asked of each answer, the answer in front."""
    return [
        request(f"{answer}.{item}", f"Answer {answer}: {'word ' * (length // 5 + 1)} Ask {item}")
        for answer in range(answers)
        for item in range(items)
    ]


def arrived(stub):
    """The calls as they came: when, on which answer, what was asked."""
    found = []
    for when, body in zip(stub.seen.arrivals, stub.seen.bodies, strict=True):
        text = body["messages"][-1]["content"]
        found.append((when, text.split(":")[0], int(text.rpartition(" ")[2])))
    return found


KNOWN = request("first", "Answer x: Ask 0")
"""Of a new service the first call goes alone anyway, to learn its parameters and pace."""


def test_the_first_call_on_an_answer_has_ended_before_the_others_begin():
    with StubServer(latency=LATENCY) as stub:
        rows, _ = judge_all(stub, [KNOWN, *calls(3, 4)])
        found = [call for call in arrived(stub) if call[1] != "Answer x"]
    assert len(rows) == 13
    assert [item for _, _, item in found[:3]] == [0, 0, 0], "answers do not wait for each other"
    for answer in {name for _, name, _ in found}:
        first, *others = [when for when, name, _ in found if name == answer]
        assert len(others) == 3
        assert min(others) - first >= LATENCY
    assert stub.seen.most_in_flight > 3, "the others go together"


def test_short_prompts_and_local_judges_wait_for_nothing():
    for length, settings in ((100, {}), (PREFIX, {"kind": "local"})):
        with StubServer(latency=LATENCY) as stub:
            rows, _ = judge_all(stub, [KNOWN, *calls(1, 4, length)], **settings)
        assert len(rows) == 5
        assert stub.seen.most_in_flight >= 4


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
