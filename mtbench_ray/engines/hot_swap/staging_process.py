"""What the process does that holds the next checkpoint's weights: see :mod:`~.staging`."""

from __future__ import annotations

import contextlib
import importlib
import io
import multiprocessing
import os
import pickle
import re
import struct
from collections.abc import Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from mtbench_ray.engines.hot_swap.verify import token_logprobs
from mtbench_ray.models.checkpoint import safetensors_header, weight_files
from mtbench_ray.system.threads import start_thread

Entry = tuple[str, str, tuple[int, ...], int, int]
"""A tensor in the buffer: name, dtype (of torch), shape, first byte, number of bytes."""

_ALIGNED = 256
_ROUND = 64 << 20
"""The buffer is a multiple of this: another cut of the same tensors into files fits too."""
_PIECE = 64 << 20
_DTYPES = {
    "BF16": "bfloat16", "F16": "float16", "F32": "float32", "F64": "float64", "BOOL": "bool",
    "I8": "int8", "I16": "int16", "I32": "int32", "I64": "int64", "U8": "uint8",
}  # fmt: skip
"""Names of types in safetensors files, and torch's."""


class StagingError(Exception):
    """The staging memory could not be had or filled; the weights are read from their files."""


def map_buffer(place: str, handle: bytes) -> Any:
    """The buffer of another process as a uint8 tensor.

    Raises:
        Exception: It cannot be mapped here; torch raises many types.
    """
    import torch

    if place == "device":
        rebuild, arguments = pickle.loads(handle)
        arguments = list(arguments)
        # The card's number in this process, which need not be the one over there.
        arguments[6] = torch.cuda.current_device()
        return rebuild(*arguments)
    path, size = pickle.loads(handle)
    buffer = torch.from_file(path, shared=True, size=size, dtype=torch.uint8)
    if torch.cuda.is_available():
        # Pinned memory is copied at the full speed of the bus.
        torch.cuda.check_error(torch.cuda.cudart().cudaHostRegister(buffer.data_ptr(), size, 0))
    return buffer


def tensors(buffer: Any, table: Sequence[Sequence[Any]]) -> Any:
    """Names and tensors in a buffer; views, nothing is copied."""
    import torch

    for name, dtype, shape, first, size in table:
        yield name, buffer[first : first + size].view(getattr(torch, dtype)).view(tuple(shape))


def serve(pipe: Connection, place: str) -> None:
    """Main function of the process.

    Args:
        pipe: Takes ``("load", folder)`` and ``("logprobs", ids)``; gives back whether it was done,
            and the result or what went wrong.
        place: ``device`` or ``host``.
    """
    # However the wait for the parent ends: a process that nobody watches must not stay.
    start_thread("parent", _wait_for_parent, ended=lambda _: os._exit(0))
    with contextlib.suppress(OSError):
        os.nice(19)
    # While the engine starts; before the first call nothing is taken of the card.
    with contextlib.suppress(Exception):
        for name in ("torch", "transformers.models.auto.modeling_auto"):
            importlib.import_module(name)
    holder = _StagingProcess(place)
    while True:
        try:
            what, argument = pipe.recv()
        except EOFError:
            return
        try:
            reply = holder.load(Path(argument)) if what == "load" else holder.logprobs(argument)
            pipe.send((True, reply))
        except Exception as error:
            pipe.send((False, " ".join(f"{type(error).__name__}: {error}".split())[:300]))


def _wait_for_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()


class _StagingProcess:
    """The buffer and what lies in it."""

    def __init__(self, place: str) -> None:
        self._place = place
        self._buffer: Any = None
        self._handle = b""
        self._folder = Path()
        self._table: tuple[Entry, ...] = ()
        self._pieces: Any = None

    def load(self, folder: Path) -> tuple[bytes, tuple[Entry, ...]]:
        self._table = ()
        table: list[Entry] = []
        regions: list[tuple[Path, int, int]] = []
        total = 0
        for path in weight_files(folder):
            entries = safetensors_header(path)
            entries.pop("__metadata__", None)
            table += [_entry(name, described, total) for name, described in entries.items()]
            size = max((described["data_offsets"][1] for described in entries.values()), default=0)
            regions.append((path, total, size))
            total += -(-size // _ALIGNED) * _ALIGNED
        self._allocate(total)
        for path, at, size in regions:
            self._read(path, at, size)
        self._folder = folder
        self._table = tuple(sorted(table, key=lambda entry: _by_layer(entry[0])))
        return self._handle, self._table

    def _read(self, path: Path, at: int, size: int) -> None:
        """The tensors of a file, ``size`` bytes, into the buffer from its byte ``at`` on.

        By plain reads into pinned memory, one piece while the card takes the other: mapped files
        come page by page, at a fraction of the speed.
        """
        import torch

        device = self._place == "device"
        if device and self._pieces is None:
            self._pieces = [torch.empty(_PIECE, dtype=torch.uint8, pin_memory=True) for _ in "ab"]
        copied = [torch.cuda.Event() for _ in "ab"] if device else []
        with path.open("rb", buffering=0) as file:
            (header,) = struct.unpack("<Q", file.read(8))
            file.seek(8 + header)
            for number, first in enumerate(range(0, size, _PIECE)):
                target = self._buffer[at + first : at + min(first + _PIECE, size)]
                if not device:
                    _fill(file, target)
                    continue
                piece, event = self._pieces[number % 2][: len(target)], copied[number % 2]
                event.synchronize()
                _fill(file, piece)
                target.copy_(piece, non_blocking=True)
                event.record()
        if device:
            torch.cuda.synchronize()

    def logprobs(self, ids: list[int]) -> list[float]:
        import torch
        from transformers import AutoConfig, AutoModelForCausalLM

        # Ray gives an actor, and what it starts, a single thread.
        torch.set_num_threads(len(os.sched_getaffinity(0)))
        config = AutoConfig.from_pretrained(self._folder, local_files_only=True)
        held = dict(tensors(self._buffer, self._table))
        # Parameters are not drawn and their memory is never touched: the held ones take their
        # place. What a model computes for itself at its making (positions) is there.
        with _no_initial_weights():
            model = AutoModelForCausalLM.from_config(
                config, dtype=next(iter(held.values())).dtype, attn_implementation="eager"
            )
        state = model.load_state_dict(held, assign=True, strict=False)
        model.tie_weights()
        # A tied weight has two names, of which the file has one.
        filled = {id(p) for n, p in model.named_parameters(remove_duplicate=False) if n in held}
        empty = [n for n, p in model.named_parameters() if id(p) not in filled]
        if odd := [*empty, *state.unexpected_keys]:
            raise StagingError(f"transformers names weights otherwise: {', '.join(odd[:3])}")
        model.eval().to(self._buffer.device)
        return token_logprobs(model, ids)

    def _allocate(self, total: int) -> None:
        """Once: an engine has the buffer mapped, and takes checkpoints of one layout only."""
        import torch

        if self._buffer is not None:
            if total > self._buffer.numel():
                raise StagingError("weights of another size")
            return
        total = -(-total // _ROUND) * _ROUND
        if self._place == "device":
            from torch.multiprocessing.reductions import reduce_tensor

            self._buffer = torch.empty(total, dtype=torch.uint8, device="cuda")
            self._handle = pickle.dumps(reduce_tensor(self._buffer))
            return
        path = f"/proc/{os.getpid()}/fd/{os.memfd_create('mtbench_ray-staging')}"
        os.truncate(path, total)
        self._buffer = torch.from_file(path, shared=True, size=total, dtype=torch.uint8)
        self._handle = pickle.dumps((path, total))


def _entry(name: str, described: dict[str, Any], at: int) -> Entry:
    """A tensor of a file whose data begins at byte ``at`` of the buffer."""
    import torch

    dtype = _DTYPES[described["dtype"]]
    first, end = (at + offset for offset in described["data_offsets"])
    if first % getattr(torch, dtype).itemsize:
        raise StagingError(f"{name} is not aligned in its file")
    return name, dtype, tuple(described["shape"]), first, end - first


def _fill(file: io.FileIO, target: Any) -> None:
    """Read as much of a file as a uint8 tensor in host memory takes."""
    view = memoryview(target.numpy())
    while view:
        count = file.readinto(view)
        if not count:
            raise StagingError(f"{file.name} has become shorter")
        view = view[count:]


def _by_layer(name: str) -> list[tuple[int, str]]:
    """Layer 2 before layer 10, each layer whole: the engine copies a layer once it has all."""
    return [(int(part) if part.isdigit() else -1, part) for part in re.split(r"(\d+)", name)]


def _no_initial_weights() -> Any:
    try:
        from transformers.initialization import no_init_weights
    except ImportError:  # transformers 4
        from transformers.modeling_utils import no_init_weights
    return no_init_weights()
