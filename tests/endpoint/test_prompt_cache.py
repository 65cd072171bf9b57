"""Prompt tokens that a service had cached: read in every spelling, priced, and found by order."""

import json

import pytest
from stage_calls import judge_one
from stub_server import StubServer, completion

from mtbench_ray.config import JudgeConfig, RunConfig
from mtbench_ray.endpoint.reply import read_reply
from mtbench_ray.endpoint.tokens import cost
from mtbench_ray.validate import validate


def reply(usage):
    return json.dumps(completion("fine. Rating: [[7]]", "stop", 9, 9) | {"usage": usage})


@pytest.mark.parametrize(
    ("usage", "prompt", "cached"),
    [
        ({"prompt_tokens": 1500, "completion_tokens": 9,
          "prompt_tokens_details": {"cached_tokens": 1024}}, 1500, 1024),
        ({"input_tokens": 400, "output_tokens": 9, "cache_read_input_tokens": 1000,
          "cache_creation_input_tokens": 100}, 1500, 1000),
        ({"input_tokens": 1500, "output_tokens": 9,
          "input_tokens_details": {"cached_tokens": 1024}}, 1500, 1024),
        ({"prompt_tokens": 1500, "completion_tokens": 9, "prompt_cache_hit_tokens": 1024,
          "prompt_cache_miss_tokens": 476}, 1500, 1024),
        ({"prompt_tokens": 1500, "completion_tokens": 9, "prompt_tokens_details": None}, 1500, 0),
        ({"prompt_tokens": 1500, "completion_tokens": 9,
          "prompt_tokens_details": {"cached_tokens": "many"}}, 1500, 0),
    ],
)  # fmt: skip
def test_cached_tokens_are_read_in_the_spellings_of_services(usage, prompt, cached):
    found = read_reply(reply(usage))
    assert (found.prompt_tokens, found.cached_tokens) == (prompt, cached)
    assert found.output_tokens == 9


def test_cached_tokens_have_their_own_price():
    judge = JudgeConfig(price_prompt=2.0, price_completion=8.0)
    assert cost(judge, 1_000_000, 0, 400_000) == 2.0
    judge.price_cached = 0.5
    assert cost(judge, 1_000_000, 0, 400_000) == pytest.approx(1.4)
    judge.batch = True
    assert cost(judge, 1_000_000, 0, 400_000) == pytest.approx(0.7)


def test_a_listed_judge_has_a_listed_price_of_cached_tokens():
    judge = JudgeConfig(model="gpt-4o", base_url="https://api.openai.com/v1")
    assert validate(RunConfig(judge=judge)).judge.price_cached == 1.25
    judge.price_cached = 1.0
    assert validate(RunConfig(judge=judge)).judge.price_cached == 1.0


def test_a_row_has_what_was_cached_and_what_it_cost():
    usage = {"prompt_tokens": 100, "completion_tokens": 10,
             "prompt_tokens_details": {"cached_tokens": 80}}  # fmt: skip
    with StubServer(always=f"raw;body={reply(usage)}") as stub:
        row = judge_one(stub, price_prompt=10.0, price_completion=30.0, price_cached=1.0)
    assert (row.prompt_tokens, row.cached_tokens) == (100, 80)
    assert row.cost_usd == pytest.approx((20 * 10 + 80 * 1 + 10 * 30) / 1e6)


@pytest.mark.runs
def test_prompts_that_begin_alike_are_sent_one_after_the_other(cli):
    assert cli("model=org/m", "stage=answers") == 0
    assert cli("model=org/other", "stage=answers") == 0
    models = ("-m", "model=org/m,org/other", "stage=judge", "judge.concurrency=1")
    assert cli(*models, "judge.samples=2") == 0
    sent = ["\n".join(m["content"] for m in body["messages"]) for body in cli.stub.seen.bodies]
    assert len(sent) == 2 * 8 * 2
    assert sent == sorted(sent)
