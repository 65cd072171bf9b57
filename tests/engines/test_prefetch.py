"""Files of the next checkpoint in the page cache."""

from __future__ import annotations

import ctypes
import mmap
import os
from pathlib import Path

import pytest
from shards import make_shard

from mtbench_ray.config import EngineConfig, ModelConfig
from mtbench_ray.engines.base import Engine
from mtbench_ray.engines.fake import FakeEngine
from mtbench_ray.engines.hot_swap import page_cache as readahead
from mtbench_ray.engines.hot_swap.page_cache import ReadAhead
from mtbench_ray.generate.claims import Following
from mtbench_ray.generate.worker import ShardWorker

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


def test_worker_has_the_engine_prepare_for_the_next_checkpoint() -> None:
    asked: list[tuple[str, str]] = []

    class Prepared(FakeEngine):
        async def prepare(self, model: ModelConfig) -> None:
            asked.append((model.path, self._config.next_weights))

    async def start(model: ModelConfig, config: EngineConfig) -> Engine:
        return Prepared(model, config)

    worker = ShardWorker(start=start)
    list(worker.run(make_shard([1]), Following(True, lambda: ModelConfig(path="second"))))
    worker.close()
    assert asked == [("second", "auto")]


def test_no_memory_is_kept_where_nothing_comes_next() -> None:
    started: list[str] = []

    async def start(model: ModelConfig, config: EngineConfig) -> Engine:
        started.append(config.next_weights)
        return FakeEngine(model, config)

    worker = ShardWorker(start=start)
    list(worker.run(make_shard([1])))
    worker.close()
    assert started == ["files"]
