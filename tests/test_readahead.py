"""Files of the next checkpoint in the page cache."""

from __future__ import annotations

import ctypes
import mmap
import os
from dataclasses import replace
from pathlib import Path

import pytest
from shards import make_shard

from mtbench_ray.config import EngineConfig, ModelConfig
from mtbench_ray.engines import readahead
from mtbench_ray.engines.base import Engine
from mtbench_ray.engines.fake import FakeEngine
from mtbench_ray.engines.readahead import ReadAhead
from mtbench_ray.engines.worker import ShardWorker

SIZE = 16 << 20


def write_model(folder: Path) -> Path:
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    weights = folder / "model.safetensors"
    with weights.open("wb") as file:
        file.write(os.urandom(SIZE))
        file.flush()
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    return weights


def cached(path: Path) -> float:
    """Share of a file that is in the page cache."""
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 0) as mapped:
        pages = (SIZE + mmap.PAGESIZE - 1) // mmap.PAGESIZE
        there = (ctypes.c_ubyte * pages)()
        view = (ctypes.c_char * SIZE).from_buffer(mapped)
        libc = ctypes.CDLL(None, use_errno=True)
        assert libc.mincore(ctypes.byref(view), ctypes.c_size_t(SIZE), there) == 0
        del view
        return sum(page & 1 for page in there) / pages


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    path = write_model(tmp_path / "next")
    if cached(path) > 0.5:
        pytest.skip("this file system keeps its files in memory")
    return path


def test_files_are_read(weights: Path) -> None:
    ReadAhead(ModelConfig(path=str(weights.parent))).wait()
    assert cached(weights) == 1


def test_nothing_is_read_where_memory_is_short(
    weights: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(readahead, "_SHARE", 0.0)
    ReadAhead(ModelConfig(path=str(weights.parent))).wait()
    assert cached(weights) < 0.5


def test_a_model_that_is_not_there_is_no_matter(tmp_path: Path) -> None:
    ReadAhead(ModelConfig(path=str(tmp_path / "none"))).wait()


def test_worker_reads_the_next_checkpoint_of_a_real_engine(weights: Path) -> None:

    async def start(model: ModelConfig, config: EngineConfig) -> Engine:
        return FakeEngine(model, config)

    shard = replace(make_shard([1], kind="vllm"), next_model=ModelConfig(path=str(weights.parent)))
    worker = ShardWorker(start=start)
    list(worker.run(shard))
    assert worker._ahead is not None
    worker._ahead.wait()
    worker.close()
    assert cached(weights) == 1
