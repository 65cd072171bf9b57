"""Perturbed copies of a model: checkpoints of one architecture, made in seconds."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any


def write_variant(
    base: Path,
    folder: Path,
    seed: int,
    *,
    scale: float = 0.02,
    layers: int | None = None,
    **config: Any,
) -> Path:
    """Copy a model with every weight changed a little; replaces the weights where it exists.

    Args:
        scale: Standard deviation of the change, as a share of each weight.
        layers: Keep only so many.
        config: Entries of its config.json; ``tie_word_embeddings=True`` drops the output head,
            another ``intermediate_size`` cuts the layers to it.
    """
    import torch
    from safetensors.torch import load_file, save_file

    folder.mkdir(parents=True, exist_ok=True)
    for file in base.iterdir():
        if file.is_file() and file.suffix != ".safetensors":
            shutil.copy(file, folder / file.name)
    tensors = load_file(base / "model.safetensors")
    if layers is not None:
        config["num_hidden_layers"] = layers
        tensors = {name: t for name, t in tensors.items() if _layer(name) < layers}
    if config.get("tie_word_embeddings"):
        del tensors["lm_head.weight"]
    width = config.get("intermediate_size")
    generator = torch.Generator().manual_seed(seed)
    for name, tensor in tensors.items():
        noise = torch.randn(tensor.shape, generator=generator)
        changed = (tensor * (1 + scale * noise)).to(tensor.dtype)
        if width and "mlp" in name:
            changed = changed[:, :width] if "down" in name else changed[:width]
        tensors[name] = changed.contiguous()
    # An engine may have the old file mapped: it must not change under it.
    save_file(tensors, folder / "new.tmp", metadata={"format": "pt"})
    (folder / "new.tmp").replace(folder / "model.safetensors")
    merged = json.loads((base / "config.json").read_text()) | config
    (folder / "config.json").write_text(json.dumps(merged))
    return folder


def _layer(name: str) -> int:
    parts = name.split(".")
    return int(parts[2]) if "layers" in parts else -1
