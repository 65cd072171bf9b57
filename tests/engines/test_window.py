"""The context window that conversations ask for, and the memory that it takes."""

import pytest
from shards import question

from mtbench_ray.config import EngineConfig, ModelConfig, SamplingConfig
from mtbench_ray.engines.base import ShardUnit
from mtbench_ray.generate.shards import Work, with_shares
from mtbench_ray.models.window import kv_cache_bytes, window_needed


@pytest.mark.parametrize(
    ("max_tokens", "window"), [(1024, 8192), (3900, 8192), (4000, 9216), (16000, 32768)]
)
def test_the_window_holds_all_turns_at_their_cap(max_tokens, window):
    asked = window_needed([question(1)], SamplingConfig(max_tokens=max_tokens), ModelConfig())
    assert asked == window


def test_long_own_questions_widen_the_window():
    long = question(1, "math").__class__("mt_bench", 1, "math", ("w" * 40_000, "more"))
    assert window_needed([long], SamplingConfig(), ModelConfig()) == 22 * 1024


def test_engines_of_one_kind_are_told_what_the_longest_of_their_conversations_needs():
    """Another window would be another engine, and a start instead of a swap."""
    units = (ShardUnit(question(1), 0, "a"),)
    work = [
        Work(ModelConfig(path="m"), SamplingConfig(max_tokens=n), EngineConfig(dtype=dtype), units)
        for n, dtype in ((1024, "auto"), (16000, "auto"), (1024, "float32"))
    ]
    assert [item.engine.window for item in with_shares(work, 1, 1)] == [32768, 32768, 8192]


QWEN = {"num_hidden_layers": 28, "num_attention_heads": 28, "num_key_value_heads": 4,
        "hidden_size": 3584}  # fmt: skip


@pytest.mark.parametrize(
    ("config", "per_token"),
    [
        (QWEN, 2 * 28 * 4 * 128 * 2),
        (QWEN | {"head_dim": 64}, 2 * 28 * 4 * 64 * 2),
        ({"text_config": QWEN}, 2 * 28 * 4 * 128 * 2),
        ({"n_layer": 36, "n_head": 20, "n_embd": 1280}, 2 * 36 * 20 * 64 * 2),
        ({"n_layer": 32, "n_head": 71, "hidden_size": 4544, "multi_query": True}, 2 * 32 * 64 * 2),
        ({"num_hidden_layers": 27, "kv_lora_rank": 512, "qk_rope_head_dim": 64}, 27 * 576 * 2),
        (QWEN | {"layer_types": ["linear_attention"] * 21 + ["full_attention"] * 7},
         2 * 7 * 4 * 128 * 2),
        ({}, None),
        ({"num_hidden_layers": 2}, None),
    ],
)  # fmt: skip
def test_key_value_cache_by_the_config(config, per_token):
    found = kv_cache_bytes(config, 1000)
    assert found == (per_token and per_token * 1000)
