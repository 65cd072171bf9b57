"""Prices that the user does not state."""

import dataclasses

import pytest

from mtbench_ray.config import JudgeConfig, RunConfig
from mtbench_ray.endpoint.prices import listed_prices
from mtbench_ray.validate import validate

OPENAI = "https://api.openai.com/v1"


def test_a_dated_model_has_its_price_at_its_own_service_only():
    assert listed_prices(OPENAI, "gpt-4-0613") == pytest.approx((30, 60, 30))
    assert listed_prices("https://api.deepseek.com/v1", "gpt-4-0613") is None
    assert listed_prices("https://judge.example/v1", "gpt-4-0613") is None
    assert listed_prices("http://127.0.0.1:8000/v1", "gpt-4-0613") is None
    assert listed_prices(OPENAI, "no-such-model") is None


@pytest.mark.parametrize(("given", "prices"), [
    ({}, (30, 60)), ({"price_prompt": 1.0, "price_completion": 2.0}, (1, 2)),
    ({"price_prompt": 0.0}, (0, None)), ({"price_completion": 3.0}, (None, 3)),
])  # fmt: skip
def test_what_the_user_states_goes_first(given, prices):
    judge = JudgeConfig(model="gpt-4-0613", base_url=OPENAI, **given)
    done = validate(dataclasses.replace(RunConfig(), judge=judge)).judge
    assert (done.price_prompt, done.price_completion) == pytest.approx(prices)
