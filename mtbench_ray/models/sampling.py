"""Sampling parameters of one turn; every value is explicit."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from mtbench_ray.config import ModelConfig, SamplingConfig
from mtbench_ray.schema import Question, canonical


@dataclass(frozen=True, slots=True)
class TurnSampling:
    """Sampling parameters of one turn, all of them explicit.

    Attributes:
        max_tokens: New tokens wanted; an engine lowers it to the room that is left. 0, behind an
            endpoint only, is the service's own default.
        seed: From question, turn, sample and run seed only.
    """

    temperature: float
    top_p: float
    top_k: int
    repetition_penalty: float
    max_tokens: int
    seed: int
    stop: tuple[str, ...] = ()


OTHER_TEMPERATURE = 0.7
"""Of a question that says nothing, as in FastChat."""
GREEDY_BELOW = 1e-4
"""FastChat decodes greedily below this temperature."""


def effective_temperature(question: Question, sampling: SamplingConfig) -> float:
    """The temperature of a question's answers.

    The run's own setting comes first, then the question's, which planning takes from its benchmark.
    """
    temperature = sampling.temperature
    if temperature is None:
        temperature = question.temperature
    if temperature is None:
        temperature = OTHER_TEMPERATURE
    return 0.0 if temperature < GREEDY_BELOW else temperature


def turn_seed(run_seed: int, question: Question, turn: int, sample: int) -> int:
    """31-bit seed from run seed, question, turn and sample: never from the place in a batch."""
    key = canonical([run_seed, question.benchmark, question.question_id, turn, sample])
    digest = hashlib.sha256(key.encode()).digest()
    return int.from_bytes(digest[:4], "big") >> 1


def turn_sampling(
    question: Question, turn: int, sample: int, sampling: SamplingConfig, model: ModelConfig
) -> TurnSampling:
    """All sampling parameters of turn ``turn`` (1-based) of answer number ``sample``."""
    return TurnSampling(
        temperature=effective_temperature(question, sampling),
        top_p=sampling.top_p,
        top_k=sampling.top_k,
        repetition_penalty=sampling.repetition_penalty,
        max_tokens=sampling.cap,
        seed=turn_seed(sampling.seed, question, turn, sample),
        stop=tuple(model.stop),
    )
