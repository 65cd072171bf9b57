"""What two checkpoints must share to take each other's place in an engine, from their headers."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mtbench_ray.models.checkpoint import read_json, safetensors_header, weight_files
from mtbench_ray.schema import canonical, text_hash

_NAMES = ("_name_or_path", "_model_name_or_path", "name_or_path", "transformers_version")
_OUTSIDE = ("eos_token_id", "bos_token_id", "pad_token_id", "use_cache")
"""Entries of config.json that the engine does not use: end tokens are sent with each request."""
_OTHER_INPUTS = ("vision_config", "audio_config", "speech_config")
_BYTES = {"F64": 8, "I64": 8, "U64": 8, "F32": 4, "I32": 4, "U32": 4, "BF16": 2, "F16": 2}
"""Of safetensors' names of types; others count as one byte."""


@dataclass(frozen=True, slots=True)
class Layout:
    """What two checkpoints must share for a swap.

    Attributes:
        config: config.json without names and without what the engine does not use.
        tensors: Name to dtype and shape, from the headers of the safetensors files.
    """

    config: dict[str, Any]
    tensors: dict[str, tuple[str, tuple[int, ...]]]

    @property
    def key(self) -> str:
        """Equal for checkpoints of one architecture."""
        return text_hash(canonical([self.config, self.tensors]))

    @property
    def quantised(self) -> bool:
        """Whether the weights are stored quantised."""
        return any("quantization" in key for key in self.config)

    @property
    def text_only(self) -> bool:
        """Whether the model takes nothing but text."""
        return not any(key in self.config for key in _OTHER_INPUTS)

    @property
    def least_gb(self) -> float:
        """Memory that the weights take at least, unless they are quantised when they are loaded.

        Numbers of more than two bytes may be cut down to two.
        """
        tied = self.config.get("tie_word_embeddings", False)
        size = sum(
            min(2, _BYTES.get(dtype, 1)) * math.prod(shape)
            for name, (dtype, shape) in self.tensors.items()
            if not (tied and name.startswith("lm_head"))
        )
        return size / 2**30


def load_layout(folder: Path) -> Layout:
    """Read config and headers of a folder; milliseconds.

    Raises:
        UserError: A file is torn.
    """
    config = read_json(folder / "config.json")
    kept = {k: v for k, v in config.items() if k not in (*_NAMES, *_OUTSIDE, "torch_dtype")}
    # Older files say torch_dtype, newer ones dtype.
    kept["dtype"] = config.get("dtype") or config.get("torch_dtype")
    tensors: dict[str, tuple[str, tuple[int, ...]]] = {}
    for file in weight_files(folder):
        if file.suffix != ".safetensors":
            return Layout(kept, {})
        for name, tensor in safetensors_header(file).items():
            if name != "__metadata__":
                tensors[name] = (tensor["dtype"], tuple(tensor["shape"]))
    return Layout(kept, tensors)
