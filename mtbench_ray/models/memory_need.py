"""What a model needs of a card: weights and key-value cache, and which cards hold it. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mtbench_ray.models.layout import Layout
from mtbench_ray.models.window import kv_cache_bytes

CARDS_GB = (6, 8, 12, 16, 24, 40, 48, 80, 96, 141, 192)
"""Sizes of cards as they are sold."""
_USABLE = 15 / 16
"""Of a card's size: drivers and error correction take the rest (a T4 of 16 GB has 15)."""
_ENGINE_GB = 1.0
"""Of the engine itself on each card: CUDA, activations, graphs."""
_BYTES = 2.0
_BYTES_4BIT = 4.5 / 8
"""Of a weight that bitsandbytes stores: four bits, and a scale of 32 bits for every 64."""
FOUR_BIT = "bitsandbytes"


@dataclass(frozen=True)
class MemoryNeed:
    """Memory of one engine, over all of its cards.

    Attributes:
        weights_gb: GiB of weights.
        cache_gb: GiB of key-value cache for one conversation that fills the window: the least.
        all_cache_gb: The same for all conversations that may run at once. With less some wait.
        cards: Over which it is split.
    """

    weights_gb: float
    cache_gb: float
    all_cache_gb: float
    cards: int = 1

    def card_gb(self, share: float = 0.9) -> int | None:
        """The smallest card that holds it with one conversation at once; None where none does.

        Args:
            share: Of each card that the engine takes (``engine.gpu_memory_utilization``).
        """
        each = (self.weights_gb + self.cache_gb) / self.cards + _ENGINE_GB
        return next((card for card in CARDS_GB if card * _USABLE * share >= each), None)

    def at_once(self, card_gb: float, share: float = 0.9) -> int:
        """Conversations that fill their window and have room at once on such cards; 0: no fit."""
        room = (card_gb * _USABLE * share - _ENGINE_GB) * self.cards - self.weights_gb
        return max(0, math.floor(room / self.cache_gb))


def need(
    config: Mapping[str, Any],
    layout: Layout | None,
    *,
    window: int,
    at_once: int,
    quantization: str | None = None,
    cards: int = 1,
) -> MemoryNeed | None:
    """What an engine needs.

    Args:
        config: config.json of the model.
        layout: Of its files, where they are here; without them the config's numbers are used.
        window: Tokens of the longest conversation.
        at_once: Conversations that may run at once.
        quantization: ``engine.quantization``; only bitsandbytes changes the figures.
        cards: For each engine.

    Returns:
        None where the config does not say.
    """
    cache = kv_cache_bytes(config, window)
    counts = tensor_counts(layout) if layout is not None and layout.tensors else None
    plain, inner = counts or parameters(config) or (0, 0)
    if cache is None or not inner:
        return None
    each = _BYTES_4BIT if quantization == FOUR_BIT else _BYTES
    if layout is not None and layout.tensors and quantization != FOUR_BIT:
        weights = layout.least_gb
    else:
        weights = (plain * _BYTES + inner * each) / 2**30
    return MemoryNeed(weights, cache / 2**30, at_once * cache / 2**30, cards)


def tensor_counts(layout: Layout) -> tuple[int, int]:
    """Weights that stay as they are, and those of the layers' matrices, by the files' headers."""
    plain = inner = 0
    for name, (_, shape) in layout.tensors.items():
        if "lm_head" in name and layout.config.get("tie_word_embeddings"):
            continue
        if len(shape) == 2 and not any(part in name for part in ("embed", "lm_head", "wte", "wpe")):
            inner += math.prod(shape)
        else:
            plain += math.prod(shape)
    return plain, inner


def parameters(config: Mapping[str, Any]) -> tuple[int, int] | None:
    """The same by the numbers of a config.json of the Llama family; None for others."""
    names = ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads",
             "intermediate_size")  # fmt: skip
    if not all(isinstance(config.get(name), int) for name in names) or "num_experts" in config:
        return None
    vocabulary, hidden, layers, heads, inner = (int(config[name]) for name in names)
    width = int(config.get("head_dim") or hidden // heads)
    kv_heads = int(config.get("num_key_value_heads") or heads)
    attention = 2 * hidden * heads * width + 2 * hidden * kv_heads * width
    embeddings = vocabulary * hidden * (1 if config.get("tie_word_embeddings") else 2)
    return embeddings + (2 * layers + 1) * hidden, layers * (attention + 3 * hidden * inner)


def describe(found: MemoryNeed, *, window: int, at_once: int, share: float) -> str:
    """One line for ``plan``."""
    card = found.card_gb(share)
    each = f"each of {found.cards} cards" if found.cards > 1 else "a card"
    fits = f"fits {each} of {card} GB" if card else f"fits no card of up to {CARDS_GB[-1]} GB"
    return (
        f"on GPUs: {found.weights_gb:.1f} GB of weights, {found.cache_gb:.2f} GB of key-value cache"
        f" for a conversation that fills a context window of {window:,} tokens"
        f" ({found.all_cache_gb:.1f} GB for {at_once} at once): {fits}"
    )
