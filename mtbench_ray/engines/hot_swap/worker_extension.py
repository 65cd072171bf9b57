"""The weights of a running vLLM engine: compared with files, or taken from staging memory.

Runs inside vLLM's worker processes (``worker_extension_cls``), called by name through
``collective_rpc``. Of every tensor in the files, some elements are read from the file and from
the live model and must be equal to the bit. A layer that keeps its weight as it was loaded is read
directly. A layer that packs it (all linear layers without a GPU, the output head among them) is
read through its own multiplication: the product with a unit vector is a column of the weight, and
exact. So what is read is what the model computes with, and a packed copy that went stale shows.
"""

from __future__ import annotations

import functools
import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from mtbench_ray.engines.hot_swap.staging_process import map_buffer, tensors
from mtbench_ray.models.checkpoint import weight_files

SAMPLED_ROWS = 64
SAMPLED_COLUMNS = 64
"""Elements of each matrix: 64 random rows x 64 random columns. Of a tensor of which a share p of
the elements changed, at random, all of them miss the change with probability (1 - p) ** 4096:
1e-18 for p = 1%."""
SAMPLED_VECTOR = 4096


@dataclass
class Comparison:
    """How one worker's live weights stand to the files. Lists hold tensor names.

    Attributes:
        compared: Tensors of the files that this worker holds all or a part of.
        changed: Those of them whose samples differ from the files compared before.
        wrong: Those whose live values differ from the files.
        unplaced: Tensors of the files whose place in the model is not known.
        uncovered: Live parameters that no tensor of the files stands for.
        moved: Live parameters that lie elsewhere than before: recorded graphs would not see them.
    """

    compared: list[str] = field(default_factory=list)
    changed: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    unplaced: list[str] = field(default_factory=list)
    uncovered: list[str] = field(default_factory=list)
    moved: list[str] = field(default_factory=list)


class LiveWeights:
    """Extension of vLLM's worker class."""

    def mtbench_compare(self, folder: str) -> dict[str, list[str]]:
        """Compare with the files of ``folder``; what they hold is the "before" of the next call.

        Returns:
            The fields of :class:`Comparison`.
        """
        import torch

        worker = cast(Any, self)
        model = worker.model_runner.get_model()
        state = worker.__dict__.setdefault("_mtbench_before", _Before())
        with torch.inference_mode():
            return vars(_compare(model, worker.model_config, Path(folder), state))

    def mtbench_map(self, place: str, handle: bytes) -> None:
        """Map the buffer of :class:`~.staging.Staging`, unless it is mapped.

        Raises:
            Exception: It cannot be mapped here. The weights are untouched.
        """
        worker = self.__dict__
        if worker.get("_mtbench_mapped") != handle:
            worker["_mtbench_buffer"] = map_buffer(place, handle)
            worker["_mtbench_mapped"] = handle

    def mtbench_load(self, table: list[list[Any]]) -> None:
        """Copy the weights that lie in the mapped buffer into the model, in place.

        Args:
            table: Rows of :data:`~mtbench_ray.engines.hot_swap.staging_process.Entry`.
        """
        import torch

        worker = cast(Any, self)
        worker.reload_weights(weights_iterator=tensors(worker._mtbench_buffer, table))
        if torch.cuda.is_available():
            # The buffer may be refilled once this returns.
            torch.cuda.synchronize()


@dataclass
class _Before:
    """Samples and places of the comparison before."""

    samples: dict[str, Any] = field(default_factory=dict)
    places: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class _Place:
    """Where a tensor of the files lies in the live model.

    Attributes:
        first: First row of its part of a parameter that several tensors are fused into.
        rows: Rows of that part; None for the whole parameter.
        parts: How many tensors the parameter is made of.
        through: Without a GPU also read it by multiplication: its packed copy lies beside it.
    """

    module: Any
    path: str
    parameter: str
    first: int = 0
    rows: int | None = None
    parts: int = 1
    through: bool = False

    @property
    def name(self) -> str:
        return f"{self.path}.{self.parameter}"


def _compare(model: Any, config: Any, folder: Path, before: _Before) -> Comparison:
    from vllm.distributed import (
        get_tensor_model_parallel_rank,
        get_tensor_model_parallel_world_size,
    )

    rank, size = get_tensor_model_parallel_rank(), get_tensor_model_parallel_world_size()
    found = Comparison()
    samples: dict[str, Any] = {}
    sampled: list[tuple[str, str, Any, list[Any]]] = []
    covered: Counter[str] = Counter()
    parts: dict[str, int] = {}
    finder = _Finder(model, bool(getattr(config.hf_text_config, "tie_word_embeddings", False)))
    for name, tensor in _tensors(folder):
        held = finder.places(name)
        if held is None:
            found.unplaced.append(name)
            continue
        for place in held:
            found.compared.append(name)
            covered[place.name] += 1
            parts[place.name] = place.parts
            try:
                taken = _samples(name, tensor, place, rank, size, config.dtype)
            except (ValueError, RuntimeError, IndexError, AttributeError):
                # The part of it that belongs here is not what this module takes it for.
                found.unplaced.append(name)
                continue
            sampled.append((name, place.name, *taken))
    # Compared only now: each look at a card's memory would wait for all that was asked of it.
    for name, where, file, live in sampled:
        key = f"{name} {where}"
        samples[key] = file
        if key in before.samples and not _equal(file, before.samples[key]):
            found.changed.append(name)
        if not all(_equal(file.to(values.dtype), values.cpu()) for values in live):
            found.wrong.append(name)
    found.uncovered = [
        name for name in finder.parameters() if name not in covered or covered[name] < parts[name]
    ]
    places = {
        name: parameter.data_ptr()
        for name, parameter in model.named_parameters()
        if parameter.device.type != "cpu"
    }
    found.moved = [n for n, at in places.items() if before.places.get(n, at) != at]
    before.samples, before.places = samples, places
    return found


def _tensors(folder: Path) -> Iterator[tuple[str, Any]]:
    """All tensors of a folder, mapped and not read: only the pages touched are."""
    from safetensors import safe_open

    for path in weight_files(folder):
        with safe_open(path, framework="pt") as file:
            for name in file.keys():  # noqa: SIM118 - not a dict
                yield name, file.get_tensor(name)


class _Finder:
    """Finds tensors of the files in a live model, by vLLM's own table of fused layers."""

    def __init__(self, model: Any, tied: bool) -> None:
        from vllm.model_executor.layers.vocab_parallel_embedding import (
            ParallelLMHead,
            VocabParallelEmbedding,
        )
        from vllm.model_executor.models.utils import PPMissingLayer

        self._model = model
        self._modules = dict(model.named_modules())
        table = getattr(model, "packed_modules_mapping", None) or {}
        self._fused = {
            part: (whole, index, len(parts))
            for whole, parts in table.items()
            for index, part in enumerate(parts)
        }
        self._absent = tuple(
            f"{path}." for path, m in self._modules.items() if isinstance(m, PPMissingLayer)
        )
        heads = {p: m for p, m in self._modules.items() if isinstance(m, ParallelLMHead)}
        embeddings = {
            path: module
            for path, module in self._modules.items()
            if isinstance(module, VocabParallelEmbedding) and path not in heads
        }
        # A tied model's output head is the embedding itself, or has a module of its own.
        self._heads = heads or (embeddings if tied else {})
        self._shared = dict(heads) if tied else {}
        self._embeddings = embeddings

    def places(self, name: str) -> list[_Place] | None:
        """Places of a tensor here; empty on another pipeline stage, None where unknown."""
        if name.startswith(self._absent):
            return []
        path, _, parameter = name.rpartition(".")
        parent, _, leaf = path.rpartition(".")
        module = self._modules.get(path)
        if module is None and leaf in self._fused:
            whole, index, parts = self._fused[leaf]
            path = f"{parent}.{whole}"
            module = self._modules.get(path)
            if module is None or not hasattr(module, "output_sizes"):
                return None
            sizes = [size // module.tp_size for size in module.output_sizes]
            return [_Place(module, path, parameter, sum(sizes[:index]), sizes[index], parts)]
        if module is None or not hasattr(module, parameter):
            return None
        places = [_Place(module, path, parameter, through=path in self._heads)]
        if path in self._embeddings:
            places += [
                _Place(head, other, parameter, through=True) for other, head in self._shared.items()
            ]
        return places

    def parameters(self) -> Iterator[str]:
        """Names of all parameters of the live model, and of an output head that shares one."""
        for name, _ in self._model.named_parameters():
            yield name
        for path in self._shared:
            yield f"{path}.weight"


def _samples(
    name: str, tensor: Any, place: _Place, rank: int, size: int, dtype: Any
) -> tuple[Any, list[Any]]:
    """The same elements from the file and, once or twice, from the live model (on its device).

    Raises:
        ValueError: Their shapes do not fit together.
    """
    import torch

    module, parameter = place.module, getattr(place.module, place.parameter)
    packed = parameter.numel() == 0
    if packed and (place.parameter != "weight" or tensor.ndim != 2):
        raise ValueError("packed and no matrix")
    if not packed and parameter.ndim != tensor.ndim:
        raise ValueError("another number of dimensions")
    rows = place.rows or (module.output_size_per_partition if packed else len(parameter))
    first_row = 0
    if hasattr(module, "shard_indices"):
        indices = module.shard_indices
        first_row = indices.org_vocab_start_index
        rows = indices.org_vocab_end_index - first_row
        if len(tensor) < first_row + rows:
            raise ValueError("fewer rows than the model's vocabulary")
    else:
        first_row = _offset(len(tensor), rows, rank, size)
    if tensor.ndim == 1:
        picked = _pick(name, rows, SAMPLED_VECTOR)
        at = (place.first + picked).to(parameter.device)
        return _elements(tensor, first_row + picked), [parameter[at]]
    if tensor.ndim != 2:
        raise ValueError("neither vector nor matrix")
    width = module.input_size_per_partition if packed else parameter.shape[1]
    first_column = _offset(tensor.shape[1], width, rank, size)
    picked = _pick(name, rows, SAMPLED_ROWS)
    columns = _pick(f"columns of {name}", width, SAMPLED_COLUMNS)
    file = _elements(tensor, (first_row + picked).unsqueeze(1), first_column + columns)
    at = place.first + picked
    device = parameter.device
    live = [] if packed else [parameter[at.to(device)][:, columns.to(device)]]
    if packed or (place.through and parameter.device.type == "cpu"):
        unit = torch.zeros((len(columns), width), dtype=dtype)
        unit[range(len(columns)), columns] = 1
        product = module.quant_method.apply(module, unit.to(parameter.device), None)
        live.append(product.cpu()[:, at].t())
    return file, live


def _elements(tensor: Any, *index: Any) -> Any:
    """Some elements of a mapped tensor, read by one thread: a few hundred such reads take 0.05 s,
    but seconds where several threads wait for one another on busy cores."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return tensor[index]
    finally:
        torch.set_num_threads(threads)


def _offset(full: int, local: int, rank: int, size: int) -> int:
    """Where this rank's part of a dimension begins; a part may be on several ranks (KV heads)."""
    parts, rest = divmod(full, local)
    if rest or not parts or size % parts:
        raise ValueError(f"{local} is no part of {full} over {size} ranks")
    return rank // (size // parts) * local


@functools.cache
def _pick(name: str, count: int, most: int) -> Any:
    """At most ``most`` of ``count`` positions, always the same ones for a name."""
    import torch

    return torch.tensor(sorted(random.Random(name).sample(range(count), min(count, most))))


def _equal(one: Any, other: Any) -> bool:
    import torch

    return bool(torch.equal(one, other))
