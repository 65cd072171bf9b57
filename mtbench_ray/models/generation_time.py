"""How long a card takes to answer, from the size of the model. Pure."""

from __future__ import annotations

from mtbench_ray.models.memory_need import MemoryNeed

CARD = "H100"
_GB_PER_S = 3350.0 / 1.0737
"""GiB that an H100 reads from its memory in a second (its data sheet: 3.35 TB)."""
_STEP_S = 0.0045
"""Of a step of decoding, what does not depend on the model's size."""


def generation_minutes(
    found: MemoryNeed,
    *,
    window: int,
    at_once: int,
    conversations: int,
    turns: int,
    tokens: int,
    cap: int,
) -> float:
    """Minutes in which one engine on one card answers; its start is not in them.

    Each step of decoding gives every conversation a token, and reads the weights and what the cache
    holds of all of them: with 4.5 ms beside that the formula is within a tenth of what was
    measured for 1.5B and 7B on an H100 (README, "How fast"). The last conversation is
    taken to be as long as the cap lets it.

    Args:
        found: For ``window`` tokens.
        at_once: Conversations that the engine takes.
        conversations: That are pending.
        turns: That are pending, of all conversations.
        tokens: Of a turn, expected.
        cap: Of a turn, at most.
    """
    if not turns:
        return 0.0
    running = min(at_once, conversations)
    each = turns / conversations
    steps = turns * tokens / running + each * max(0, cap - tokens)
    half_grown = min(1.0, each * tokens / 2 / window)
    cache = running * found.cache_gb * half_grown
    step = _STEP_S + (found.weights_gb + cache) / _GB_PER_S / found.cards
    return steps * step / 60
