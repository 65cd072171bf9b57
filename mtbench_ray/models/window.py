"""The context window that conversations need, and the key-value cache that it costs. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mtbench_ray.config import ModelConfig, SamplingConfig
from mtbench_ray.schema import Question

LARGEST_WINDOW = 8192
"""Tokens that an engine's window has unless more are asked for: MT-Bench conversations fit, and
more would only take memory from the cache."""
_CHARACTERS = 2
"""Per token, at least, in the prompts of most languages."""
_TEMPLATE = 256
"""Tokens that a chat template adds at most."""
_STEP = 1024


def window_needed(
    questions: Sequence[Question], sampling: SamplingConfig, model: ModelConfig
) -> int:
    """Tokens that the longest of some conversations may take, all answers at their cap."""
    system = len(model.system_prompt or "") + len(model.custom_thinking_prompt or "")
    longest = 0
    for question in questions:
        texts = [*question.turns, *(message.content for message in question.context)]
        prompts = (system + sum(map(len, texts))) // _CHARACTERS
        longest = max(longest, prompts + len(question.turns) * sampling.cap)
    return max(LARGEST_WINDOW, -(-(longest + _TEMPLATE) // _STEP) * _STEP)


def kv_cache_bytes(config: Mapping[str, Any], tokens: int, dtype_bytes: int = 2) -> int | None:
    """Memory of the keys and values of so many tokens, over all cards.

    Args:
        config: config.json of the model.
        dtype_bytes: Of one number in the cache.

    Returns:
        None where the config does not say; too much for layers that look at a part of the text.
    """
    config = (
        config | config["text_config"] if isinstance(config.get("text_config"), dict) else config
    )

    def number(*names: str) -> int | None:
        found = (config.get(name) for name in names)
        return next((value for value in found if isinstance(value, int) and value > 0), None)

    layers = number("num_hidden_layers", "n_layer", "num_layers")
    heads = number("num_attention_heads", "n_head", "num_heads")
    hidden = number("hidden_size", "n_embd", "d_model")
    kinds = config.get("layer_types")
    if isinstance(kinds, list) and kinds:
        layers = sum("attention" in str(kind) and "linear" not in str(kind) for kind in kinds)
    if layers is None:
        return None
    if (rank := number("kv_lora_rank")) is not None:  # one compressed vector for keys and values
        return layers * tokens * dtype_bytes * (rank + (number("qk_rope_head_dim") or 0))
    one_head = 1 if config.get("multi_query") else None
    shared = number("num_key_value_heads", "num_kv_heads", "multi_query_group_num")
    width = number("head_dim") or (hidden // heads if hidden and heads else None)
    kv_heads = shared or one_head or heads
    if width is None or kv_heads is None:
        return None
    return 2 * layers * kv_heads * width * tokens * dtype_bytes
