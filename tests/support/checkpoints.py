"""Small checkpoint folders of our own making for tests, without any tensor."""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mtbench_ray.models.chat_template import ChatTemplate
from mtbench_ray.models.template_file import read_template_file
from mtbench_ray.schema import Message

_CONVERSATIONS = [
    [("user", "hi")],
    [("system", "Be kind."), ("user", "say <b>hi</b> & \n\n  bye\t")],
    [("user", "é\U0001f600 {{ x }}"), ("assistant", "<think>a</think> b "), ("user", "\"c\"")],
    [("system", "S"), ("user", "a"), ("assistant", ""), ("user", " "), ("assistant", "d"),
     ("user", "e")],
    [("assistant", "first"), ("user", "then")],
]  # fmt: skip


def same_without_transformers(template: ChatTemplate, folder: Path) -> None:
    """Assert that a folder's prompts are the same bytes with transformers and without."""
    file = read_template_file(folder)
    assert file is not None
    assert file.covers(template.source)

    def rendered(render: Any, messages: list[Message]) -> str:
        try:
            return str(render(messages))
        except Exception as error:
            return f"{type(error).__name__}: {error}"

    for words in _CONVERSATIONS:
        messages = [Message(*pair) for pair in words]
        assert rendered(
            lambda found: file.render(template.source, found, template.options), messages
        ) == rendered(
            lambda found: template.tokenizer.apply_chat_template(
                [{"role": m.role, "content": m.content} for m in found],
                chat_template=template.source,
                add_generation_prompt=True,
                tokenize=False,
                **template.options,
            ),
            messages,
        )


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
