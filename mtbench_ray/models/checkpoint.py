"""Checkpoints as files: where a model lies, its configs, and a fast hash of its weights."""

from __future__ import annotations

import hashlib
import json
import os
import re
import socket
import struct
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mtbench_ray.config import ModelConfig
from mtbench_ray.errors import UserError
from mtbench_ray.models.trainer_state import sharded_state

WEIGHT_SUFFIXES = (".safetensors", ".bin", ".pt", ".pth")
_TOKENIZER_FILE = re.compile(
    r"(tokenizer|vocab|merges|special_tokens|added_tokens|chat_template|tekken).*"
    r"|.*\.(model|jinja|tiktoken|spm|bpe)"
)
_MODEL_FILE = re.compile(r"(config|generation_config|adapter_config)\.json|.*\.py")
"""Beside the tokenizer: what says how the weights are used, code that ships with them included."""
_TOKENIZER_KIND = ("model_type", "tokenizer_class", "auto_map", "transformers_version")
"""Entries of config.json that say which kind of tokenizer it is."""
_NO_WEIGHTS = re.compile(
    r"training_args|optimizer|scheduler|scaler|rng_state|trainer_state|model_optim_rng|lit_model"
    r"|.*_world_size_\d+_rank_\d+|.*_(optim|model)_states\."
)
"""What trainers keep beside the weights, in files of the same endings."""
_PART = re.compile(r"(.*-)(\d{5})-of-(\d{5})(\.safetensors|\.bin)")
_HUB_ID = re.compile(r"[\w.-]+(/[\w.-]+)?")
_COMMIT = re.compile(r"[0-9a-f]{40}")
_BLOCK = 4096
_HASH_WHOLE_BELOW = 1 << 28
"""Checkpoints smaller than this (bytes) are hashed in full: about 0.3 s."""
_STRIDES = 64


@dataclass(frozen=True, slots=True)
class Source:
    """Where a model is loaded from.

    Attributes:
        path: What transformers and vLLM are given: a folder or a hub id.
        revision: Commit of a hub id; None for a folder.
        folder: Folder that holds at least the model's config.json.
    """

    path: str
    revision: str | None
    folder: Path


def locate(model: ModelConfig) -> Source:
    """Find a model: the demo model, a local folder, or a hub id at its present commit.

    Raises:
        UserError: It is not there, or not a model.
    """
    if model.embedded:
        from mtbench_ray.models.demo_model import demo_model

        folder = demo_model()
        return Source(str(folder), None, folder)
    if not model.path:
        raise UserError("no model is named", "say model=<hub id or folder>")
    path = Path(model.path).expanduser()
    if path.suffix.lower() == ".gguf" or (os.path.isdir(path) and _only_gguf(path)):
        raise UserError(
            f"model {model.label}: GGUF files are not supported by this engine",
            "convert it to safetensors, or serve it elsewhere and use engine=openai",
        )
    # os.path takes a text of any length and kind; Path raises where it cannot be a path.
    if os.path.isdir(path):
        _require(path / "config.json", model.label, "not a model folder")
        return Source(str(path), None, path)
    if os.path.exists(path):
        raise UserError(f"model {model.label}: this is a file, not a model folder")
    if not _HUB_ID.fullmatch(model.path) or model.path.startswith("."):
        raise UserError(f"model {model.label}: no such folder: {path}", "check the path")
    return _hub(model)


def adapter_folder(model: ModelConfig) -> Path | None:
    """Folder of the model's adapter, None where it has none.

    Raises:
        UserError: The folder is missing or holds no adapter.
    """
    if not model.adapter:
        return None
    folder = Path(model.adapter).expanduser()
    if not folder.is_dir():
        raise UserError(f"model {model.label}: no such adapter folder: {folder}")
    _require(folder / "adapter_config.json", model.label, "not an adapter folder")
    return folder


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file; empty where there is no such file.

    Raises:
        UserError: The file holds something else.
    """
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (ValueError, OSError) as error:
        raise UserError(f"cannot read {path}: {error}") from None
    if not isinstance(value, dict):
        raise UserError(f"cannot read {path}: not a JSON object")
    return value


def weight_files(folder: Path) -> list[Path]:
    """Files of a folder whose weights an engine loads, by name.

    Safetensors alone where there are any; of these the ones that their index names. Without an
    index, the same weights in another naming and an adapter that lies beside them do not count.

    Raises:
        UserError: The index cannot be read.
    """
    files = _all_weights(folder)
    index = folder / "model.safetensors.index.json"
    named = read_json(index).get("weight_map", {})
    if not isinstance(named, dict):
        raise UserError(f"cannot read {index}: its weight_map is no JSON object")
    indexed = [file for file in files if file.name in named.values()]
    plain = [file for file in files if not file.name.startswith(("consolidated", "adapter_model"))]
    return indexed or plain or files


def check_weights(folder: Path) -> None:
    """Whether all the weights of a model or adapter folder are there; reads names alone.

    Raises:
        UserError: There are none, or a file that the index or the numbering names is missing.
    """
    weights = {path.name for path in _all_weights(folder) if not _NO_WEIGHTS.match(path.name)}
    if not weights:
        state = sharded_state(folder)
        if state is None:
            raise UserError(f"{folder} holds no weights", "is the checkpoint still being written?")
        raise UserError(
            f"{folder} holds only the sharded state of a trainer ({state.what})",
            f"convert it first: {state.tool}",
        )
    wanted: set[str] = set()
    for index in folder.glob("*.index.json"):
        named = read_json(index).get("weight_map", {})
        files = set(map(str, named.values())) if isinstance(named, dict) else set()
        # An index of files of which none is there is of another format, or left over.
        wanted |= files if files & weights else set()
    for name in weights:
        if part := _PART.fullmatch(name):
            wanted |= {
                f"{part[1]}{number:0{len(part[2])}}-of-{part[3]}{part[4]}"
                for number in range(1, int(part[3]) + 1)
            }
    if missing := sorted(wanted - weights):
        more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
        raise UserError(
            f"{folder} lacks weights: {', '.join(missing[:3])}{more}",
            "copy the whole folder; is the checkpoint still being written?",
        )


def _all_weights(folder: Path) -> list[Path]:
    files = sorted(f for f in folder.iterdir() if f.suffix in WEIGHT_SUFFIXES and f.is_file())
    return [f for f in files if f.suffix == ".safetensors"] or files


def safetensors_header(path: Path) -> dict[str, Any]:
    """Header of a safetensors file: tensor name to dtype, shape and data_offsets.

    Raises:
        UserError: The file is torn or no safetensors file.
    """
    try:
        with path.open("rb") as file:
            (size,) = struct.unpack("<Q", file.read(8))
            if size > path.stat().st_size:
                raise ValueError("header longer than the file")
            header = json.loads(file.read(size))
        end = max(
            (t["data_offsets"][1] for n, t in header.items() if n != "__metadata__"), default=0
        )
        if 8 + size + end > path.stat().st_size:
            raise ValueError("shorter than its header says")
    except (struct.error, ValueError, KeyError, TypeError, OSError, AttributeError) as error:
        raise UserError(
            f"cannot read {path}: {error}", "is the file still being written?"
        ) from None
    return dict(header)


def folder_hash(folder: Path) -> str:
    """sha256 over what a folder's model is: 32 hex digits, the same wherever the folder lies.

    Config, tokenizer and code files count in full; weights in full up to 256 MB in all, above that
    by size, header and three blocks of 4 kB of every tensor (64 strides of files that are no
    safetensors), which takes 0.1 s for 15 GB. Times and places do not count: a copy is the same
    model. So what may go unseen is a change of a few values inside one large tensor of a large
    model; training does not make such changes.
    """
    digest = hashlib.sha256()
    for path in _small_files(folder, _TOKENIZER_FILE, _MODEL_FILE):
        digest.update(f"{path.relative_to(folder)} {path.stat().st_size}\n".encode())
        digest.update(path.read_bytes())
    files = _all_weights(folder)
    whole = sum(f.stat().st_size for f in files) <= _HASH_WHOLE_BELOW
    for path in files:
        digest.update(f"{path.name} {path.stat().st_size}\n".encode())
        with path.open("rb") as file:
            for offset, length in [(0, None)] if whole else _blocks(path):
                file.seek(offset)
                if length is None:
                    digest.update(hashlib.file_digest(file, "sha256").digest())
                else:
                    digest.update(file.read(length))
    return digest.hexdigest()[:32]


def tokenizer_hash(folder: Path) -> str:
    """sha256 over what a folder's tokenizer and chat templates are made of, in hex digits.

    Raises:
        UserError: config.json is no JSON object.
        OSError: A file cannot be read.
    """
    config = read_json(folder / "config.json")
    kind = [config.get(key) for key in _TOKENIZER_KIND]
    digest = hashlib.sha256(json.dumps(kind, sort_keys=True).encode())
    for path in _small_files(folder, _TOKENIZER_FILE):
        digest.update(f"\n{path.relative_to(folder)} {path.stat().st_size}\n".encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()


def _small_files(folder: Path, *names: re.Pattern[str]) -> list[Path]:
    """Files of a model folder, beside its weights, whose name fits one of some patterns."""
    places = [*folder.iterdir(), *(folder / "additional_chat_templates").glob("*")]
    return sorted(
        path
        for path in places
        if path.suffix not in WEIGHT_SUFFIXES
        and any(name.fullmatch(path.name) for name in names)
        and path.is_file()
    )


def _blocks(path: Path) -> Iterator[tuple[int, int]]:
    size = path.stat().st_size
    if path.suffix != ".safetensors":
        for index in range(_STRIDES + 1):
            yield max(0, (size - _BLOCK) * index // _STRIDES), _BLOCK
        return
    header = safetensors_header(path)
    with path.open("rb") as file:
        start = 8 + struct.unpack("<Q", file.read(8))[0]
    yield 0, start
    for name, tensor in header.items():
        if name != "__metadata__":
            begin, end = (start + offset for offset in tensor["data_offsets"])
            for at in (begin, (begin + end) // 2, max(begin, end - _BLOCK)):
                yield at, min(_BLOCK, end - at)


def _only_gguf(folder: Path) -> bool:
    return not (folder / "config.json").exists() and any(folder.glob("*.gguf"))


def _require(path: Path, label: str, problem: str) -> None:
    if not path.is_file():
        raise UserError(f"model {label}: {problem}: {path.parent} has no {path.name}")


def _hub(model: ModelConfig) -> Source:
    """A hub id at the commit that its revision means now; fetches config.json alone."""
    from huggingface_hub import hf_hub_download, try_to_load_from_cache

    try:
        _check_network()
        config = hf_hub_download(model.path, "config.json", revision=model.revision)
    except Exception as error:
        # The hub's client raises many types; a cached copy serves where the network does not.
        cached = None
        with suppress(ValueError):  # it is no id that the hub could have
            cached = try_to_load_from_cache(model.path, "config.json", revision=model.revision)
        if not isinstance(cached, str):
            reason = " ".join(str(error).split())[:300] or repr(error)
            raise UserError(
                f"model {model.label}: neither a folder here nor a model the hub gives: {reason}",
                "check the name, or that this machine reaches the hub",
            ) from None
        config = cached
    folder = Path(config).parent
    commit = folder.name if _COMMIT.fullmatch(folder.name) else model.revision
    return Source(model.path, commit, folder)


def _check_network() -> None:
    """Without a way to the hub its client would try for half a minute.

    Raises:
        OSError: The hub's name is not known here, and there is no proxy to ask.
    """
    from huggingface_hub import constants

    host = urllib.parse.urlsplit(constants.ENDPOINT).hostname
    if constants.HF_HUB_OFFLINE or urllib.request.getproxies():
        return
    try:
        socket.getaddrinfo(host, None)
    except OSError as error:
        raise OSError(f"this machine does not find {host}: {error}") from None
