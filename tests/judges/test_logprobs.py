"""Verdicts that are read from log-probabilities, on the real stub service."""

import json

import pytest
from stage_calls import KEY, request
from stub_server import StubServer

from mtbench_ray.config import JudgeConfig
from mtbench_ray.endpoint.request_adapter import why_no_logprobs
from mtbench_ray.judges.base import Reading
from mtbench_ray.judges.stage import JudgeStage

WANTED = {"want": "logprobs", "params": json.dumps(
    {"max_tokens": 1, "temperature": 1.0, "logprobs": True, "top_logprobs": 5}
)}  # fmt: skip
QUICK = {"timeout_s": 20.0, "retry_wait_s": 0.01, "max_retries": 2, "concurrency": 32}
HINT = "mode=plain reads the text"


def read(asked, reply):
    """The probability of "x"; a reply without any may be better another time."""
    if not reply.logprobs:
        return Reading(None, None, "unparsed", "no_logprobs")
    top = {one["token"]: one["logprob"] for one in first(reply)["top_logprobs"]}
    if "x" not in top:
        return Reading(None, None, "unparsed", "not_there", again=False)
    return Reading("x", top["x"], "ok")


def first(reply):
    return json.loads(reply.logprobs)["content"][0]


def judge_all(stub, count=1, **settings):
    rows = []
    config = JudgeConfig(base_url=stub.url, model="some/judge", **QUICK | settings)
    stage = JudgeStage(config, key=KEY, read=read, emit=rows.append, without_logprobs=HINT,
                       pattern="x|y" if config.constrain else None)  # fmt: skip
    stage.begin()
    for number in range(count):
        stage.submit(request(number, **WANTED))
    stage.drain(20.0)
    stage.stop(0.0)
    return rows, stage


def test_a_reply_that_ends_after_its_token_is_whole_and_asked_once():
    with StubServer(tokens=("x", "y")) as stub:
        rows, stage = judge_all(stub, 5)
        assert {row.status for row in rows} == {"ok"}
        assert [row.attempts for row in rows] == [1] * 5
        assert {row.finish_reason for row in rows} == {"length"}
        assert all(first(row)["top_logprobs"] for row in rows)
        assert stub.stats()["calls"] == 5
        (body, *_) = stub.seen.bodies
        assert (body["max_tokens"], body["temperature"], body["logprobs"]) == (1, 1.0, True)
    assert stage.fatal is None


def test_a_pattern_does_not_make_the_reply_longer():
    with StubServer(tokens=("x", "y")) as stub:
        judge_all(stub, constrain=True)
        (body,) = stub.seen.bodies
        assert body["structured_outputs"] == {"regex": "x|y"}
        assert body["max_tokens"] == 1


def test_a_verdict_that_no_further_call_would_change_is_asked_once():
    with StubServer(tokens=("v", "w")) as stub:
        (row,), _ = judge_all(stub)
        assert (row.status, row.error, row.attempts) == ("unparsed", "not_there", 1)


@pytest.mark.parametrize("script", [{}, {"reject": ("logprobs",)}], ids=["ignored", "refused"])
def test_a_service_without_any_ends_the_judge_and_says_what_else_there_is(script):
    with StubServer(text="x", **script) as stub:
        rows, stage = judge_all(stub, 200, concurrency=4)
        assert "gives no log-probabilities" in stage.fatal
        assert HINT in stage.fatal
        assert {row.error for row in rows} <= {"no_logprobs"}
        assert len(rows) < 4, "what was in flight is on record"
        assert stub.stats()["calls"] <= 4 * 3, "nobody pays for the other calls"


def test_one_reply_without_is_asked_again_and_then_has_a_reason():
    with StubServer(tokens=("x", "y"), first=("ok", "raw;body=" + BARE)) as stub:
        rows, stage = judge_all(stub, 2, concurrency=1)
        assert [row.status for row in rows] == ["ok", "ok"]
        assert [row.attempts for row in rows] == [1, 2]
    with StubServer(tokens=("x", "y"), always="raw;body=" + BARE, only="answer 1 ") as stub:
        rows, stage = judge_all(stub, 2, concurrency=1)
        assert [(row.status, row.error) for row in rows] == [
            ("ok", None),
            ("unparsed", "no_logprobs"),
        ]
        assert rows[1].attempts == 3
        assert rows[1].value is None
    assert stage.fatal is None, "the service gives them as a rule"


BARE = json.dumps(
    {"choices": [{"message": {"content": "x"}, "finish_reason": "length"}]}
)  # what a gateway passes on that drops them


def test_thinking_that_takes_the_only_token_is_not_asked_again_with_more():
    thought = json.dumps(
        {"choices": [{"message": {"content": "", "reasoning_content": "so"},
                      "finish_reason": "length"}]}
    )  # fmt: skip
    with StubServer(always="raw;body=" + thought) as stub:
        (row,), _ = judge_all(stub)
        assert (row.status, row.error) == ("truncated", "thinking_took_all_tokens")
        assert stub.stats()["calls"] == 1


@pytest.mark.parametrize(
    ("url", "model", "known"),
    [
        ("https://api.anthropic.com/v1", "any", True),
        ("https://openrouter.ai/api/v1", "anthropic/claude-sonnet-4.5", True),
        ("https://api.openai.com/v1", "o3-mini", True),
        ("https://api.openai.com/v1", "gpt-4o", False),
        ("http://127.0.0.1:8000/v1", "Qwen/Qwen3-8B", False),
        (None, "gpt-4-1106-preview", False),
    ],
)
def test_services_that_are_known_to_give_none(url, model, known):
    assert bool(why_no_logprobs(JudgeConfig(model=model, base_url=url))) == known
