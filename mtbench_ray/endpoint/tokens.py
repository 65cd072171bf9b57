"""Token counts where no tokenizer is at hand, and what tokens cost."""

from __future__ import annotations

import math
from collections.abc import Sequence

from mtbench_ray.config import JudgeConfig
from mtbench_ray.schema import Message

_PER_MESSAGE = 4  # role and separators of one chat message, in common templates
_PER_PROMPT = 3  # what opens the reply


def estimate_tokens(text: str) -> int:
    """Tokens of a text without its tokenizer: one per 4 ASCII characters, one per other character.

    English prose comes out within about 15% of common BPE vocabularies; code and digits take up to
    a third more than this says, and scripts outside Latin usually less.
    """
    ascii_chars = len(text.encode("ascii", "ignore"))
    return math.ceil(ascii_chars / 4) + len(text) - ascii_chars


def prompt_tokens(messages: Sequence[Message]) -> int:
    """Tokens of a chat prompt, with what a template adds around each message."""
    return _PER_PROMPT + sum(
        _PER_MESSAGE + estimate_tokens(message.content) for message in messages
    )


def cost(
    judge: JudgeConfig, prompt_tokens: int, output_tokens: int, cached_tokens: int = 0
) -> float | None:
    """Dollars for so many tokens, None where a price is unknown.

    Args:
        cached_tokens: Of ``prompt_tokens``, those that the service had cached.
    """
    if judge.price_prompt is None or judge.price_completion is None:
        return None
    cached = judge.price_prompt if judge.price_cached is None else judge.price_cached
    prompt = (prompt_tokens - cached_tokens) * judge.price_prompt + cached_tokens * cached
    whole = (prompt + output_tokens * judge.price_completion) / 1e6
    return whole * judge.batch_price if judge.batch else whole
