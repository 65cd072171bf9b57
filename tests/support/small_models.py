"""Checkpoint folders with real safetensors files of a few bytes, and how they are written."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from safetensors.numpy import save


def files_of(value: float = 1.0, shards: int = 1, base: str = "") -> dict[str, bytes]:
    """The files of a checkpoint, by name, in the order in which Hugging Face writes them.

    Args:
        base: Of an adapter: its base model.
    """
    if base:
        config = {"base_model_name_or_path": base, "peft_type": "LORA", "r": 4}
        weights = save({"lora_A": np.full((2, 4), value, np.float32)})
        return {
            "adapter_config.json": json.dumps(config).encode(),
            "adapter_model.safetensors": weights,
        }
    files = {
        "config.json": b'{"model_type": "llama", "vocab_size": 8}',
        "generation_config.json": b'{"eos_token_id": 2}',
    }
    if shards == 1:
        files["model.safetensors"] = save({"w": np.full((4, 4), value, np.float32)})
    else:
        places = {}
        for number in range(1, shards + 1):
            name = f"model-{number:05}-of-{shards:05}.safetensors"
            files[name] = save({f"w{number}": np.full((4, 4), value, np.float32)})
            places[f"w{number}"] = name
        index = {"metadata": {"total_size": 64 * shards}, "weight_map": places}
        files["model.safetensors.index.json"] = json.dumps(index).encode()
    files["tokenizer.json"] = b'{"version": "1.0", "model": {"vocab": {}}}'
    return files


def small_model(folder: Path, value: float = 1.0, shards: int = 1, base: str = "") -> Path:
    """A whole checkpoint folder; gives the folder back."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files_of(value, shards, base).items():
        (folder / name).write_bytes(content)
    return folder
