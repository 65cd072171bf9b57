"""Small checkpoint folders of our own making for tests, without any tensor."""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any


def write_checkpoint(
    folder: Path,
    template: str | None,
    *,
    config: dict[str, Any] | None = None,
    generation: dict[str, Any] | None = None,
    special: Sequence[str] = (),
) -> Path:
    """A byte-level tokenizer with ``<s> </s> <turn>``, a chat template and a config.

    Args:
        config: Entries of config.json; None removes one.
    """
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    names = ["<s>", "</s>", "<turn>", *special]
    vocabulary = {token: index for index, token in enumerate([*names, *alphabet])}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(name, special=True) for name in names])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", 0)]
    )
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token="<s>",
        eos_token="</s>",
        additional_special_tokens=["<turn>", *special],
    )
    fast.chat_template = template
    folder.mkdir(parents=True)
    fast.save_pretrained(folder)
    base = {"architectures": ["LlamaForCausalLM"], "max_position_embeddings": 64}
    merged = base | {"model_type": "llama"} | (config or {})
    kept = {key: value for key, value in merged.items() if value is not None}
    (folder / "config.json").write_text(json.dumps(kept))
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", 2) + b"{}")  # no tensor in it
    if generation is not None:
        (folder / "generation_config.json").write_text(json.dumps(generation))
    return folder
