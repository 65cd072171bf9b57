"""Turns the demo model's GGUF file into a Hugging Face folder.

Run as a script by :mod:`mtbench_ray.models.demo_model` in a process of its own, so that the command
line does not carry torch for the rest of its life. Needs torch, transformers, accelerate and gguf.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any


def convert(gguf_file: Path, folder: Path) -> None:
    """Write tokenizer, chat template, weights and configs of ``gguf_file`` into ``folder``.

    The weights are bfloat16, as the model was published. They are saved untied: a real
    ``lm_head.weight`` beside the embeddings, since vLLM on a CPU packs a copy of a tied head and
    would keep the old one when the weights are swapped in place.

    Args:
        gguf_file: Quantized llama-family checkpoint with its tokenizer.
        folder: Existing folder to fill.
    """
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    source = {"pretrained_model_name_or_path": str(gguf_file.parent), "gguf_file": gguf_file.name}
    tokenizer = AutoTokenizer.from_pretrained(**source)
    model = AutoModelForCausalLM.from_pretrained(
        **source, dtype=torch.float32, quantization_config=GgufConfig(dequantize=True)
    )
    model = model.to(torch.bfloat16)
    head = model.get_input_embeddings().weight.detach().clone()
    model.get_output_embeddings().weight = torch.nn.Parameter(head)
    model.config.tie_word_embeddings = False
    # The weights are plain now; with this entry left in, loading would look for a quantizer.
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    model.generation_config.eos_token_id = tokenizer.eos_token_id
    model.generation_config.pad_token_id = tokenizer.pad_token_id
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    # A cache may outlive or be shared between environments: transformers 4 does not know the
    # tokenizer class that 5 writes, and would silently take another rope_theta.
    rope = getattr(model.config, "rope_parameters", None) or {}
    _amend(
        folder / "config.json",
        torch_dtype="bfloat16",
        rope_theta=rope.get("rope_theta", getattr(model.config, "rope_theta", None)),
    )
    # safetensors makes files that only their owner can read; a cache may be shared.
    for weights in folder.glob("*.safetensors"):
        weights.chmod((folder / "config.json").stat().st_mode)
    _amend(folder / "tokenizer_config.json", tokenizer_class="PreTrainedTokenizerFast")


def _amend(path: Path, **entries: Any) -> None:
    """Set some entries of a JSON file."""
    content = json.loads(path.read_text(encoding="utf-8")) | entries
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    convert(Path(sys.argv[1]), Path(sys.argv[2]))
