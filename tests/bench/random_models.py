"""Model folders with random weights, for speed, swaps and plumbing where no hub can be reached.

    python tests/bench/random_models.py DIR qwen7b 1

Scores of such models mean nothing; their conversations have honest lengths.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import string
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from filelock import FileLock

SHAPES: dict[str, dict[str, Any]] = {
    "tiny": {
        "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 8192,
        "tie_word_embeddings": False,
    },
    "qwen1.5b": {
        "hidden_size": 1536, "intermediate_size": 8960, "num_hidden_layers": 28,
        "num_attention_heads": 12, "num_key_value_heads": 2, "vocab_size": 151936,
        "tie_word_embeddings": True,
    },
    "qwen7b": {
        "hidden_size": 3584, "intermediate_size": 18944, "num_hidden_layers": 28,
        "num_attention_heads": 28, "num_key_value_heads": 4, "vocab_size": 152064,
        "tie_word_embeddings": False,
    },
    "too-large": {
        "hidden_size": 16384, "intermediate_size": 53248, "num_hidden_layers": 126,
        "num_attention_heads": 128, "num_key_value_heads": 8, "vocab_size": 152064,
        "tie_word_embeddings": False,
    },
}  # fmt: skip
TEMPLATE = (
    "{% for m in messages %}<|{{ m.role }}|> {{ m.content }} <|end|> {% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
SPECIAL = ["<|unknown|>", "<|end|>", "<|user|>", "<|assistant|>", "<|system|>"]


@contextlib.contextmanager
def whole_folder(out: Path) -> Iterator[Path | None]:
    """A folder to write what becomes ``out`` at the end; None where it is there already.

    Several processes may want it at once: one writes, the others wait.
    """
    out.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(out.parent / f".{out.name}.lock"):
        if out.is_dir():
            yield None
            return
        part = out.parent / f".{out.name}.part"
        if part.exists():  # of a process that was killed
            shutil.rmtree(part)
        yield part
        part.rename(out)


def model_folder(folder: Path, shape: str, seed: int) -> Path:
    """Where :func:`make_model` writes a model."""
    return folder / f"{shape}-{seed}"


def make_model(folder: Path, shape: str, seed: int, *, weights: bool = True) -> Path:
    """Write a model folder, unless it is there; returns its path.

    Args:
        weights: False writes configs and tokenizer only (for a model too large for any card).
    """
    out = model_folder(folder, shape, seed)
    with whole_folder(out) as part:
        if part is not None:
            began = time.monotonic()
            _write_model(part, shape, seed if weights else None)
            print(f"{out.name}: written in {time.monotonic() - began:.0f} s", file=sys.stderr)
    return out


def _write_model(out: Path, shape: str, seed: int | None) -> None:
    """``seed`` None: without weights."""
    import torch
    from transformers import AutoModelForCausalLM, Qwen2Config

    config = Qwen2Config(
        **SHAPES[shape], max_position_embeddings=32768, rope_theta=1e6, rms_norm_eps=1e-6,
        eos_token_id=1, bos_token_id=None, dtype="bfloat16",
        architectures=["Qwen2ForCausalLM"],
    )  # fmt: skip
    save_tokenizer(out, config.vocab_size)
    if seed is None:
        config.save_pretrained(out)
        return
    torch.manual_seed(seed)
    with torch.device("cuda" if torch.cuda.is_available() else "cpu"):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    for parameter in model.parameters():
        if parameter.ndim == 2:
            torch.nn.init.normal_(parameter, std=0.04)
    model.generation_config.eos_token_id = 1
    model.save_pretrained(out)


def make_adapter(base: Path, seed: int, rank: int = 16) -> Path:
    """Write a random LoRA adapter beside ``base``, unless it is there; returns its path."""
    out = base.parent / f"{base.name}-adapter-{seed}"
    with whole_folder(out) as part:
        if part is not None:
            _write_adapter(part, base, seed, rank)
    return out


def _write_adapter(out: Path, base: Path, seed: int, rank: int) -> None:
    """In the layout of PEFT, which a GPU machine may lack."""
    import torch
    from safetensors.torch import save_file

    out.mkdir()
    torch.manual_seed(seed)
    config = json.loads((base / "config.json").read_text())
    hidden, heads = config["hidden_size"], config["num_attention_heads"]
    head = config.get("head_dim") or hidden // heads
    widths = {"q_proj": heads * head, "v_proj": config["num_key_value_heads"] * head}
    tensors = {}
    for layer in range(config["num_hidden_layers"]):
        for name, width in widths.items():
            place = f"base_model.model.model.layers.{layer}.self_attn.{name}"
            for part, shape in (("A", (rank, hidden)), ("B", (width, rank))):
                values = torch.randn(shape, dtype=torch.float32) * 0.05
                tensors[f"{place}.lora_{part}.weight"] = values.to(torch.bfloat16)
    save_file(tensors, out / "adapter_model.safetensors")
    settings = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": str(base),
        "r": rank,
        "lora_alpha": 2 * rank,
        "target_modules": list(widths),
    }
    (out / "adapter_config.json").write_text(json.dumps(settings))


def save_tokenizer(out: Path, size: int) -> None:
    """Write a byte-level BPE tokenizer of exactly ``size`` tokens with a chat template.

    Its longer tokens are runs of two to four letters, so English text takes about one token for
    three letters, and whatever a model says encodes again to about as many tokens.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    vocab = {text: i for i, text in enumerate(SPECIAL)}
    for char in sorted(pre_tokenizers.ByteLevel.alphabet()):
        vocab[char] = len(vocab)
    merges: list[tuple[str, str]] = []
    shorter = list(string.ascii_letters)
    while len(vocab) < size:
        longer = [(part, letter) for part in shorter for letter in string.ascii_letters]
        merges += longer[: size - len(vocab)]
        for part, letter in longer[: size - len(vocab)]:
            vocab[part + letter] = len(vocab)
        shorter = ["".join(pair) for pair in longer]
    built = Tokenizer(models.BPE(vocab=vocab, merges=merges))
    built.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    built.decoder = decoders.ByteLevel()
    built.add_special_tokens(SPECIAL)
    out.mkdir(parents=True)
    built.save(str(out / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "unk_token": SPECIAL[0],
        "eos_token": SPECIAL[1],
        "pad_token": SPECIAL[1],
        "chat_template": TEMPLATE,
    }
    (out / "tokenizer_config.json").write_text(json.dumps(config))


if __name__ == "__main__":
    print(make_model(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])))
