"""Which family of models a name belongs to, by the name alone."""

from __future__ import annotations

import re

_FAMILIES = {
    "gpt": r"gpt|chatgpt|o[134]|davinci",
    "claude": r"claude",
    "gemini": r"gemini|gemma|palm|bard",
    "llama": r"llama|vicuna|alpaca|tulu",
    "qwen": r"qwen|qwq",
    "mistral": r"mistral|mixtral|ministral|magistral|zephyr",
    "deepseek": r"deepseek",
    "phi": r"phi",
    "glm": r"glm|chatglm",
    "yi": r"yi",
    "command": r"command|cohere|aya",
    "grok": r"grok",
    "smollm": r"smollm",
    "olmo": r"olmo",
    "falcon": r"falcon",
    "nemotron": r"nemotron",
}
_PATTERNS = {
    name: re.compile(rf"(?<![a-z])(?:{words})(?=[^a-z]|$)", re.IGNORECASE)
    for name, words in _FAMILIES.items()
}


def family_of(name: str) -> str | None:
    """The family that a model's name tells; None where it tells none, or several.

    >>> family_of("org/Qwen2.5-7B-Instruct"), family_of("gpt-4o"), family_of("run_a/step_100")
    ('qwen', 'gpt', None)
    """
    # A tuned model has the name of its base, and often that of its teacher: then it tells neither.
    found = {family for family, pattern in _PATTERNS.items() if pattern.search(name)}
    return found.pop() if len(found) == 1 else None
