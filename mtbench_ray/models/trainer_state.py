"""What trainers write for themselves: sharded state that no engine loads, and what converts it."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple


class TrainerState(NamedTuple):
    """Sharded state of a trainer.

    Attributes:
        what: Whose.
        tool: How a Hugging Face folder is made of it.
    """

    what: str
    tool: str


_DEPTH = 3
"""Folders deep: ``global_step_120/actor/dist_ckpt/__0_0.distcp``."""


def sharded_state(folder: Path) -> TrainerState | None:
    """The sharded state in a folder (or below it), None where there is none."""
    found = dict(_entries(folder, _DEPTH))
    for pattern, what, tool in _KINDS:
        for path, is_folder in found.items():
            name = f"{path.name}/" if is_folder else path.name
            if pattern.fullmatch(name):
                return TrainerState(what, tool.format(folder=folder, place=path.parent))
    return None


_KINDS = [
    (re.compile(pattern), what, tool)
    for pattern, what, tool in (
        (
            r"model_world_size_\d+_rank_\d+\.pt",
            "FSDP, by verl",
            "`python -m verl.model_merger merge --backend fsdp --local_dir {place}"
            " --target_dir {place}/huggingface`, or have verl save `hf_model` too",
        ),
        (
            r"dist_ckpt/",
            "Megatron, by verl",
            "`python -m verl.model_merger merge --backend megatron --local_dir {place}"
            " --target_dir {place}/huggingface`, or have verl save `hf_model` too",
        ),
        (
            r"zero_to_fp32\.py|global_step\d+/|.*_(optim|model)_states\.pt",
            "ZeRO",
            "`python -m deepspeed.utils.zero_to_fp32 {folder} {folder}-hf --safe_serialization`"
            " (or the zero_to_fp32.py in it), then config.json and tokenizer beside the weights",
        ),
        (
            r"mp_rank_\d+(_\d+)*/|model_optim_rng\.pt|common\.pt",
            "Megatron",
            "`AutoBridge.from_hf_pretrained(BASE).export_ckpt('{folder}', '{folder}-hf')` of"
            " Megatron-Bridge",
        ),
        (
            r"(pytorch_model|optimizer)_fsdp.*",
            "FSDP, by accelerate",
            "`accelerate merge-weights {place}/pytorch_model_fsdp_0 {folder}-hf`, then config.json"
            " and tokenizer beside the weights",
        ),
        (
            r".*\.distcp",
            "FSDP, in torch's distributed format",
            "`accelerate merge-weights {place} {folder}-hf`; of torchtitan: its"
            " scripts/checkpoint_conversion/convert_to_hf.py",
        ),
        (r"lit_model\.pth", "LitGPT", "`litgpt convert_from_litgpt {place} {folder}-hf`"),
    )
]


def _entries(folder: Path, depth: int) -> Iterator[tuple[Path, bool]]:
    """All that lies in a folder, with whether it is one; the nearest first."""
    inner = []
    try:
        with os.scandir(folder) as entries:
            for entry in sorted(entries, key=lambda entry: entry.name):
                is_folder = entry.is_dir()
                yield Path(entry.path), is_folder
                if is_folder and depth > 1:
                    inner.append(Path(entry.path))
    except OSError:  # it went away
        return
    for path in inner:
        yield from _entries(path, depth - 1)
