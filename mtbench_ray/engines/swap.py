"""Another checkpoint's weights in a running vLLM engine, in place, and proven.

An engine start takes tens of seconds, a swap takes what reading the files takes. But vLLM's reload
is silent where it fails: a missing tensor leaves the old one, a tied output head may stay as it
was, cached prefixes belong to the old weights. So a swap counts only with the proof of
:mod:`~mtbench_ray.engines.proof`; without it the engine is not used again.

The caller sees to it that no request runs meanwhile: pausing in vLLM queues or rejects requests
by version.
"""

from __future__ import annotations

import asyncio
import hashlib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from mtbench_ray.config import EngineConfig
from mtbench_ray.engines.checkpoint import (
    folder_hash,
    read_json,
    safetensors_header,
    weight_files,
)
from mtbench_ray.engines.proof import (
    Canary,
    NoProof,
    canary,
    check_canary,
    check_reference,
    compare,
)
from mtbench_ray.schema import canonical, text_hash

_NAMES = ("_name_or_path", "_model_name_or_path", "name_or_path", "transformers_version")
_OUTSIDE = ("eos_token_id", "bos_token_id", "pad_token_id", "use_cache")
"""Entries of config.json that the engine does not use: end tokens are sent with each request."""
_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
_OTHER_INPUTS = ("vision_config", "audio_config", "speech_config")
_TOKENIZER = ("tokenizer.json", "tokenizer.model", "vocab.json", "merges.txt", "added_tokens.json")
_proven: set[str] = set()
"""Architectures whose swap was once compared with a reference in this process."""
_condemned: dict[str, str] = {}
"""Architectures whose swap went wrong in this process, and how: not tried again."""


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


@dataclass(frozen=True, slots=True)
class Loaded:
    """The checkpoint in an engine.

    Attributes:
        hash: Of the folder as it was when it was loaded: what lies there may be replaced.
        tokenizer: Hash of what makes ids of text and text of ids.
        canary: Taken when the first swap needs it.
    """

    folder: Path
    hash: str
    tokenizer: str
    layout: Layout
    canary: Canary | None = None


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


def load_folder(folder: Path) -> Loaded:
    """What a folder holds now, about to be loaded or just loaded.

    Raises:
        UserError: A file is torn.
    """
    digest = hashlib.sha256()
    for name in _TOKENIZER:
        if (folder / name).is_file():
            digest.update((folder / name).read_bytes())
    return Loaded(folder, folder_hash(folder), digest.hexdigest(), load_layout(folder))


def condemn(layout: Layout, reason: str) -> str:
    """Never again swap checkpoints of this architecture in this process; gives the reason back."""
    _condemned.setdefault(layout.key, reason)
    return reason


def eligible(old: Layout, new: Layout, config: EngineConfig) -> str:
    """Why an engine that holds ``old`` cannot take ``new`` in place; empty: it may be tried."""
    if config.hot_swap == "off":
        return "engine.hot_swap=off"
    if config.quantization or any("quantization" in key for key in (*old.config, *new.config)):
        return "quantised weights"
    if any(new.config.get(key) for key in _EXPERTS):
        return "a mixture of experts"
    if any(key in new.config for key in _OTHER_INPUTS):
        return "more than a text model"
    if "auto_map" in new.config:
        return "code of its own"
    if old.config != new.config:
        keys = sorted(
            key
            for key in old.config.keys() | new.config.keys()
            if old.config.get(key) != new.config.get(key)
        )
        return f"another config.json: {', '.join(keys[:5])}"
    if not old.tensors or not new.tensors:
        return "no safetensors files here"
    if missing := old.tensors.keys() - new.tensors.keys():
        return f"{len(missing)} tensors are missing: {', '.join(sorted(missing)[:3])}"
    if more := new.tensors.keys() - old.tensors.keys():
        return f"{len(more)} tensors more: {', '.join(sorted(more)[:3])}"
    other = sorted(name for name, tensor in new.tensors.items() if old.tensors[name] != tensor)
    if other:
        return f"{len(other)} tensors of another shape or type: {', '.join(other[:3])}"
    if new.key in _condemned:
        return f"an earlier swap of this architecture failed: {_condemned[new.key]}"
    return ""


@dataclass(frozen=True, slots=True)
class Swapped:
    """A swap that was proven.

    Attributes:
        words: The proof, for the run record.
    """

    loaded: Loaded
    words: str


async def swap(llm: Any, old: Loaded, new: Loaded) -> Swapped:
    """Load ``new`` into a running engine and prove it. No request may run.

    Raises:
        NoProof: The engine does not hold the new weights for certain, or a step failed: it must not
            answer any more.
    """
    names = frozenset(new.layout.tensors)
    key = new.layout.key
    try:
        before = old.canary
        if before is None:
            if await asyncio.to_thread(folder_hash, old.folder) != old.hash:
                raise NoProof("the files that it was started with are no longer there")
            # The check itself is checked: on weights that an engine start has loaded.
            await compare(llm, old.folder, names)
            before = await canary(llm)
        await _load(llm, new.folder)
        changed = await compare(llm, new.folder, names)
        after = await canary(llm)
        check_canary(after, before, changed)
        words = f"{len(names)} tensors compared, {changed} changed"
        if key not in _proven:
            distance = await check_reference(after, new.folder, before, old.folder)
            _proven.add(key)
            words += f"; {distance:.2g} nats from a reference forward pass"
        # What was loaded is what lay there before: nobody wrote to the folder meanwhile.
        if await asyncio.to_thread(folder_hash, new.folder) != new.hash:
            raise NoProof("the files changed while they were loaded")
    except NoProof as error:
        if error.lasting:
            condemn(new.layout, str(error))
        raise
    except Exception as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:300]
        raise NoProof(f"the swap failed: {reason}") from error
    return Swapped(replace(new, canary=after), words)


async def _load(llm: Any, folder: Path) -> None:
    """Weights of a folder into the engine, and nothing of the old ones left in its cache.

    Weights that lie in spare device memory would come in here, by ``weights_iterator``.
    """
    await llm.collective_rpc("reload_weights", kwargs={"weights_path": str(folder)})
    if not await llm.reset_prefix_cache():
        raise NoProof("the prefix cache could not be dropped")


async def greedy(llm: Any) -> tuple[tuple[int, ...], ...]:
    """Tokens that an engine writes at temperature 0 after a few fixed prompts."""
    prompts = 3
    canaries = await asyncio.gather(*(canary(llm, 1 + n, answer=24) for n in range(prompts)))
    return tuple(c.ids for c in canaries)
