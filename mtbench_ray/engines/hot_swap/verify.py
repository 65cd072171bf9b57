"""Proof that a running vLLM engine holds the weights of a folder and computes with them.

Three witnesses, none of which believes that a reload "worked" because nobody complained:

1. Every tensor of the files is compared with the live model, in every worker, element by element on
   a sample (see ``worker_extension``). A call that did nothing, a tensor that was not loaded and an
   output head that stayed as it was show here, every time.
2. A canary: log-probabilities of fixed tokens, read and written by the engine as it runs (graphs,
   caches and all). They must differ from the ones before if the weights do.
3. Once for each architecture in a process: the canary of the old and of the new weights against
   a forward pass of transformers over the same tokens. The old ones, of an engine that loaded them
   at its start, show what precision can be expected; the new ones must be as near.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mtbench_ray.engines.memory import free_memory
from mtbench_ray.models.checkpoint import weight_files

WORKER_EXTENSION = "mtbench_ray.engines.hot_swap.worker_process.Extension"
_PROMPT, _ANSWER = 32, 8
"""Tokens of the canary."""
_FULL_PRECISION_BELOW = 2 << 30
"""Bytes of weights up to which the reference computes in float32; above, as stored."""
_WORST_REFERENCE = 0.5
"""Mean distance in nats beyond which the reference is no measure of this model."""
_SLACK = 2.0
_LEAST = 1e-3


class NoProof(Exception):
    """The weights could not be shown to be right; the reason is for the run record.

    Attributes:
        lasting: It would be so for every checkpoint of this architecture.
    """

    def __init__(self, reason: str, *, lasting: bool = False) -> None:
        super().__init__(reason)
        self.lasting = lasting


@dataclass(frozen=True, slots=True)
class Canary:
    """Log-probabilities that an engine gave for ``ids``, from the second one on, in nats."""

    ids: tuple[int, ...]
    logprobs: tuple[float, ...]


async def compare(llm: Any, folder: Path, names: frozenset[str]) -> int:
    """Compare all live weights with the files of a folder.

    Args:
        names: All tensors of the files.

    Returns:
        How many tensors differ from the files that were compared before.

    Raises:
        NoProof: They are not equal, or not all of them can be compared.
    """
    found = await llm.collective_rpc("mtbench_compare", args=(str(folder),))

    def named(key: str) -> list[str]:
        return sorted({name for worker in found for name in worker[key]})

    for key, what in (
        ("wrong", "differ from the files"),
        ("moved", "moved in memory"),
        ("unplaced", "have no known place in the model"),
        ("uncovered", "of the model are in no file"),
    ):
        if bad := named(key):
            reason = f"{len(bad)} of {len(names)} tensors {what}: {', '.join(bad[:3])}"
            raise NoProof(reason, lasting=True)
    if missed := sorted(names.symmetric_difference(named("compared"))):
        reason = f"{len(missed)} tensors were not compared: {', '.join(missed[:3])}"
        raise NoProof(reason, lasting=True)
    return len(named("changed"))


async def canary(llm: Any, seed: int = 0, answer: int = _ANSWER) -> Canary:
    """What the engine now makes of fixed tokens.

    Raises:
        Exception: Whatever the engine raises when it is dead.
    """
    from vllm import SamplingParams
    from vllm.inputs import tokens_input
    from vllm.sampling_params import RequestOutputKind

    config = llm.model_config
    length = min(_PROMPT, config.max_model_len - answer)
    size = config.get_vocab_size()
    prompt = [(7919 * (i + 1 + 101 * seed) + 31 * i * i) % size for i in range(length)]
    params = SamplingParams(
        temperature=0.0,
        max_tokens=answer,
        ignore_eos=True,
        detokenize=False,
        logprobs=0,
        prompt_logprobs=0,
        output_kind=RequestOutputKind.FINAL_ONLY,
    )
    name = f"canary-{os.urandom(8).hex()}"
    (output,) = [o async for o in llm.generate(tokens_input(prompt), params, name)]
    written = list(output.outputs[0].token_ids)
    entries = [*output.prompt_logprobs[1:], *output.outputs[0].logprobs]
    ids = (*prompt, *written)
    return Canary(ids, tuple(e[token].logprob for e, token in zip(entries, ids[1:], strict=True)))


def check_canary(new: Canary, old: Canary, changed: int) -> None:
    """The answers changed if the weights did.

    Raises:
        NoProof: They did not.
    """
    if changed and new == old:
        raise NoProof(f"{changed} tensors differ on disk, but the engine answers as before")


async def reference(folder: Path, ids: Sequence[int]) -> list[float]:
    """:func:`reference_logprobs` beside the event loop; a second or two for a small model.

    Raises:
        NoProof: They cannot be had.
    """
    try:
        return await asyncio.to_thread(reference_logprobs, folder, ids)
    except Exception as error:
        # transformers raises many types for models that it does not know.
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        raise NoProof(f"no reference forward pass: {reason}", lasting=True) from error


def distance(canary: Canary, logprobs: Sequence[float]) -> float:
    """Mean absolute difference in nats between a canary and a reference for its tokens."""
    differences = [abs(a - b) for a, b in zip(canary.logprobs, logprobs, strict=True)]
    return sum(differences) / len(differences)


def check_distance(new: float, old: float) -> None:
    """The engine is as near to the reference after a swap as it was when it had been started.

    Args:
        new, old: Distances in nats.

    Raises:
        NoProof: It is not, or was too far off to tell.
    """
    # Written so that a distance that is no number fails too.
    if not old <= _WORST_REFERENCE:
        raise NoProof(f"the reference is {old:.2g} nats off before any swap", lasting=True)
    if not new <= _SLACK * old + _LEAST:
        reason = f"log-probabilities are {new:.2g} nats off, {old:.2g} before the swap"
        raise NoProof(reason, lasting=True)


def reference_logprobs(folder: Path, ids: Sequence[int]) -> list[float]:
    """Log-probability of each token but the first, by transformers on this machine's cores.

    Raises:
        MemoryError: The weights do not fit beside what runs here.
    """
    import torch
    from transformers import AutoModelForCausalLM

    size = sum(file.stat().st_size for file in weight_files(folder))
    full = size <= _FULL_PRECISION_BELOW
    if free_memory() < size * (3 if full else 1.2):
        raise MemoryError(f"{size / 2**30:.0f} GB of weights do not fit into free host memory")
    threads = torch.get_num_threads()
    # Ray gives an actor a single thread.
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    try:
        model = AutoModelForCausalLM.from_pretrained(
            folder,
            dtype=torch.float32 if full else "auto",
            local_files_only=True,
            attn_implementation="eager",
        )
        return token_logprobs(model, ids)
    finally:
        torch.set_num_threads(threads)


def token_logprobs(model: Any, ids: Sequence[int]) -> list[float]:
    """Log-probability in nats of each token but the first under a transformers model."""
    import torch

    with torch.inference_mode():
        logits = model(torch.tensor([list(ids)], device=model.device)).logits[0].float()
    table = torch.log_softmax(logits[:-1], dim=-1)
    picked = table.gather(1, torch.tensor(list(ids[1:]), device=table.device).unsqueeze(1))
    return [float(value) for value in picked[:, 0]]
