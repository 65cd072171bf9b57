"""What fits a card: arithmetic by the few integers of each preset, and the README's table of it."""

import pytest
from paths import ROOT

from mtbench_ray.models.generation_time import generation_minutes
from mtbench_ray.models.layout import Layout
from mtbench_ray.models.memory_need import FOUR_BIT, describe, need, parameters


def shape(vocabulary, hidden, layers, heads, kv_heads, inner, tied, width=None):
    return {
        "vocab_size": vocabulary, "hidden_size": hidden, "num_hidden_layers": layers,
        "num_attention_heads": heads, "num_key_value_heads": kv_heads,
        "intermediate_size": inner, "tie_word_embeddings": tied,
        "head_dim": width or hidden // heads,
    }  # fmt: skip


PRESETS = {
    "smollm2-135m": shape(49152, 576, 30, 9, 3, 1536, True),
    "llama-3.2-1b": shape(128256, 2048, 16, 32, 8, 8192, True),
    "gemma-2b": shape(256000, 2048, 18, 8, 1, 16384, True, 256),
    "qwen2.5-3b": shape(151936, 2048, 36, 16, 2, 11008, True),
    "llama-3.2-3b": shape(128256, 3072, 28, 24, 8, 8192, True),
    "phi-3-mini": shape(32064, 3072, 32, 32, 32, 8192, False),
    "qwen2.5-7b": shape(152064, 3584, 28, 28, 4, 18944, False),
}
WINDOWS = {"phi-3-mini": 4096}
BILLIONS = {"llama-3.2-1b": 1.236, "gemma-2b": 2.506, "qwen2.5-3b": 3.086, "llama-3.2-3b": 3.213,
            "phi-3-mini": 3.821, "qwen2.5-7b": 7.616, "smollm2-135m": 0.1345}  # fmt: skip


def found(name, quantization=None, layout=None, cards=1):
    return need(PRESETS[name], layout, window=WINDOWS.get(name, 8192), at_once=96,
                quantization=quantization, cards=cards)  # fmt: skip


@pytest.mark.parametrize("name", PRESETS)
def test_the_shapes_give_the_parameters_that_the_models_are_known_for(name):
    assert sum(parameters(PRESETS[name])) / 1e9 == pytest.approx(BILLIONS[name], rel=0.002)


def test_headers_count_as_shapes_do():
    config = PRESETS["llama-3.2-1b"]
    tensors = {
        "model.embed_tokens.weight": ("BF16", (128256, 2048)),
        "lm_head.weight": ("BF16", (128256, 2048)),
        "model.layers.0.mlp.up_proj.weight": ("BF16", (8192, 2048)),
        "model.layers.0.input_layernorm.weight": ("BF16", (2048,)),
    }
    layout = Layout(config, tensors)
    plain, matrix = 128256 * 2048 + 2048, 8192 * 2048
    assert found("llama-3.2-1b", layout=layout).weights_gb == (plain + matrix) * 2 / 2**30
    four = found("llama-3.2-1b", FOUR_BIT, layout).weights_gb
    assert four == pytest.approx((plain * 2 + matrix * 0.5625) / 2**30)


def test_what_plan_says():
    said = describe(found("qwen2.5-7b"), window=8192, at_once=96, share=0.9)
    assert said == (
        "on GPUs: 14.2 GB of weights, 0.44 GB of key-value cache for a conversation that fills a"
        " context window of 8,192 tokens (42.0 GB for 96 at once): fits a card of 24 GB"
    )
    assert found("qwen2.5-7b", cards=2).card_gb() == 12
    assert found("qwen2.5-7b", FOUR_BIT).card_gb() == 12
    assert need({"model_type": "unknown"}, None, window=8192, at_once=1) is None


# README, "How fast": 80 conversations of two turns, each as long as the cap.
@pytest.mark.parametrize(("name", "seconds"), [("qwen2.5-7b", 22.1), ("qwen2.5-1.5b", 12.5)])
def test_minutes_of_generation_are_those_that_were_measured(name, seconds):
    config = PRESETS.get(name) or shape(151936, 1536, 28, 12, 2, 8960, True)
    needed = need(config, None, window=8192, at_once=96)
    pending = {"window": 8192, "at_once": 96, "conversations": 80, "tokens": 1024, "cap": 1024}
    minutes = generation_minutes(needed, turns=160, **pending)
    assert minutes * 60 == pytest.approx(seconds, rel=0.1)
    assert generation_minutes(needed, turns=0, **pending) == 0
    more = {"window": 8192, "at_once": 256, "tokens": 270, "cap": 1024}
    few = generation_minutes(needed, turns=500, conversations=500, **more)
    many = generation_minutes(needed, turns=5000, conversations=5000, **more)
    assert 4 < many / few < 10, "the last conversation is a part of it"


def table():
    heads = ["preset", "weights", "a full conversation", "16 GB", "16 GB, 4 bits", "6 GB",
             "6 GB, 4 bits"]  # fmt: skip
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for name in PRESETS:
        whole, four = found(name), found(name, FOUR_BIT)
        cells = [str(each.at_once(card) or "-") for card in (16, 6) for each in (whole, four)]
        weights = f"{whole.weights_gb:.1f} GB, {four.weights_gb:.1f} in 4 bits"
        lines.append(f"| `{name}` | {weights} | {whole.cache_gb:.2f} GB | {' | '.join(cells)} |")
    return "\n".join(lines)


def test_the_table_of_the_readme_is_what_plan_computes():
    assert table() in (ROOT / "README.md").read_text(), table()
