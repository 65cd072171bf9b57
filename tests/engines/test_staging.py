"""The next checkpoint's weights in the memory of a process beside the engine."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
from paths import ROOT

from mtbench_ray.config import EngineConfig, ModelConfig
from mtbench_ray.engines.hot_swap import prefetch
from mtbench_ray.engines.hot_swap.prefetch import Room, staging_room
from mtbench_ray.engines.hot_swap.staging import StagedWeights, Staging
from mtbench_ray.engines.hot_swap.staging_process import StagingError, map_buffer, tensors
from mtbench_ray.engines.memory import free_memory
from mtbench_ray.errors import UserError

pytestmark = pytest.mark.runs

if not importlib.util.find_spec("torch"):  # not imported here: seconds in each worker
    pytest.skip("torch is not installed", allow_module_level=True)


def write_llama(folder: Path, seed: int, *, shards: bool = False, tied: bool = False) -> Path:
    """A tiny model with random weights."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=12,
        num_attention_heads=4, num_key_value_heads=2, tie_word_embeddings=tied,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(folder, max_shard_size="40KB" if shards else "5GB")
    return folder


def contents(folder: Path) -> dict[str, Any]:
    from safetensors.torch import load_file

    return {k: v for f in folder.glob("*.safetensors") for k, v in load_file(f).items()}


@pytest.fixture(scope="module")
def staging() -> Iterator[Staging]:
    """One for all: its process takes seconds to import torch."""
    staging = Staging("host")
    yield staging
    staging.close()


def test_weights_arrive_whole_layer_by_layer_in_one_buffer(
    staging: Staging, tmp_path: Path
) -> None:
    one = write_llama(tmp_path / "one", 1, shards=True)
    two = write_llama(tmp_path / "two", 2)
    assert len(list(one.glob("*.safetensors"))) > 2
    first = asyncio.run(staging.stage(one))
    buffer = map_buffer(first.place, first.handle)
    got = {name: tensor.clone() for name, tensor in tensors(buffer, first.table)}
    second = asyncio.run(staging.stage(two))
    assert second.handle == first.handle  # mapped once for all checkpoints
    for held, expected in ((got, one), (dict(tensors(buffer, second.table)), two)):
        assert held.keys() == contents(expected).keys()
        assert all(held[name].equal(t) for name, t in contents(expected).items())
    layers = [name.split(".")[2] for name, *_ in first.table if ".layers." in name]
    assert list(dict.fromkeys(layers)) == [str(n) for n in range(12)]
    assert layers == sorted(layers, key=int)


@pytest.mark.parametrize("tied", [False, True])
def test_forward_pass_over_held_weights(staging: Staging, tmp_path: Path, tied: bool) -> None:
    from mtbench_ray.engines.hot_swap.verify import reference_logprobs

    folder = write_llama(tmp_path / "model", 3, tied=tied)
    ids = [5, 9, 1, 60, 33]
    asyncio.run(staging.stage(folder))
    assert asyncio.run(staging.logprobs(ids)) == pytest.approx(
        reference_logprobs(folder, ids), abs=1e-5
    )


def test_what_cannot_be_read_is_told_and_the_next_one_can(staging: Staging, tmp_path: Path):
    good, bad = write_llama(tmp_path / "good", 4), write_llama(tmp_path / "bad", 5)
    file = bad / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(StagingError, match="shorter than its header"):
        asyncio.run(staging.stage(bad))
    asyncio.run(staging.stage(good))
    (good / "config.json").write_text('{"model_type": "unheard-of"}')
    with pytest.raises(StagingError, match="unheard-of"):
        asyncio.run(staging.logprobs([1, 2]))


def test_a_call_that_was_given_up_does_not_answer_the_next(
    staging: Staging, tmp_path: Path
) -> None:
    one, two = write_llama(tmp_path / "one", 6), write_llama(tmp_path / "two", 7)

    async def work() -> None:
        given_up = asyncio.create_task(staging.stage(one))
        await asyncio.sleep(0)  # it is under way
        given_up.cancel()
        with pytest.raises(asyncio.CancelledError):
            await given_up
        held = await staging.stage(two)
        loaded = dict(tensors(map_buffer(held.place, held.handle), held.table))
        assert all(loaded[name].equal(t) for name, t in contents(two).items())

    asyncio.run(work())


def test_another_cut_into_files_fits_the_mapped_buffer(staging: Staging, tmp_path: Path):
    first = asyncio.run(staging.stage(write_llama(tmp_path / "one", 9)))
    second = asyncio.run(staging.stage(write_llama(tmp_path / "two", 10, shards=True)))
    assert second.handle == first.handle
    held = dict(tensors(map_buffer(first.place, first.handle), second.table))
    assert all(held[name].equal(t) for name, t in contents(tmp_path / "two").items())


def test_of_loads_that_wait_only_the_newest_is_done(staging: Staging, tmp_path: Path):
    folders = [write_llama(tmp_path / f"m{seed}", seed) for seed in range(4)]

    async def work() -> list[object]:
        with staging._turn:  # all of them wait
            loads = [asyncio.create_task(staging.stage(folder)) for folder in folders]
            await asyncio.sleep(0.1)
        return await asyncio.gather(*loads, return_exceptions=True)

    *others, last = asyncio.run(work())
    assert isinstance(last, StagedWeights)
    held = dict(tensors(map_buffer(last.place, last.handle), last.table))
    assert all(held[name].equal(t) for name, t in contents(folders[-1]).items())
    assert all("another checkpoint is wanted" in str(other) for other in others)


def test_a_process_that_is_gone_is_told(tmp_path: Path) -> None:
    staging = Staging("host")
    staging._process.kill()
    with pytest.raises(StagingError, match="gone"):
        asyncio.run(staging.stage(tmp_path))
    staging.close()
    staging.close()


def test_an_unaligned_tensor_is_told(staging: Staging, tmp_path: Path):
    header = json.dumps(
        {
            "a": {"dtype": "U8", "shape": [3], "data_offsets": [0, 3]},
            "b": {"dtype": "F32", "shape": [1], "data_offsets": [3, 7]},
        }
    ).encode()
    (tmp_path / "model.safetensors").write_bytes(
        len(header).to_bytes(8, "little") + header + b"1234567"
    )
    with pytest.raises(StagingError, match="b is not aligned"):
        asyncio.run(staging.stage(tmp_path))


HOLDING = """
import asyncio, multiprocessing, sys, time
from pathlib import Path
from mtbench_ray.engines.hot_swap.staging import Staging
if __name__ == "__main__":
    staging = Staging("host")
    asyncio.run(staging.stage(Path(sys.argv[1])))
    print(multiprocessing.active_children()[0].pid, flush=True)
    time.sleep(600)
"""


def test_it_ends_with_its_parent_however_that_ends(tmp_path: Path) -> None:
    script = tmp_path / "holding.py"
    script.write_text(HOLDING)
    command = [sys.executable, str(script), str(write_llama(tmp_path / "model", 8))]
    root = str(ROOT)
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env=os.environ | {"PYTHONPATH": root}
    ) as parent:
        assert parent.stdout is not None
        process = psutil.Process(int(parent.stdout.readline()))
        assert process.is_running()
        parent.kill()
    end = time.monotonic() + 20
    with contextlib.suppress(psutil.NoSuchProcess):
        while process.status() != psutil.STATUS_ZOMBIE:
            assert time.monotonic() < end
            time.sleep(0.1)


def write_hole(folder: Path, gigabytes: int, **config: object) -> Path:
    """A model folder whose weights are a hole: no disk is filled."""
    folder.mkdir()
    size = gigabytes << 30
    tensor = {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}
    header = json.dumps({"w": tensor}).encode()
    with (folder / "model.safetensors").open("wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        file.truncate(8 + len(header) + size)
    (folder / "config.json").write_text(json.dumps({"model_type": "llama"} | config))
    return folder


MODEL = ModelConfig(path="m")


def test_the_card_keeps_room_where_two_checkpoints_and_a_cache_fit(tmp_path: Path) -> None:
    folder = write_hole(tmp_path / "m", 15)
    auto = EngineConfig()
    assert staging_room(MODEL, auto, folder, 72.0) == Room("device", pytest.approx(16.0))
    device = EngineConfig(next_weights="device")
    assert staging_room(MODEL, device, folder, 40.0) == Room("device", pytest.approx(16.0))
    for cards, gb in ((1, 30.0), (2, 72.0)):
        with pytest.raises(UserError, match="do not fit twice"):
            staging_room(MODEL, replace(device, tensor_parallel=cards), folder, gb)
    with pytest.raises(UserError, match="no GPU"):
        staging_room(MODEL, device, folder, None)


def test_else_the_host_does_where_it_has_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_hole(tmp_path / "m", 10)
    auto = EngineConfig()
    monkeypatch.setattr(prefetch, "free_memory", lambda: 30 << 30)
    assert staging_room(MODEL, auto, folder, 30.0) == Room("host")
    assert staging_room(MODEL, replace(auto, tensor_parallel=2), folder, 72.0) == Room("host")
    assert staging_room(MODEL, replace(auto, replicas=2), folder, 30.0) == Room("files")
    assert staging_room(MODEL, auto, folder, None) == Room("files")
    assert staging_room(MODEL, EngineConfig(next_weights="host"), folder, None) == Room("host")
    monkeypatch.setattr(prefetch, "free_memory", lambda: 20 << 30)
    assert staging_room(MODEL, auto, folder, 30.0) == Room("files")


def test_no_room_is_kept_for_a_swap_that_can_never_be(tmp_path: Path) -> None:
    folder = write_hole(tmp_path / "m", 1)
    quantised = write_hole(tmp_path / "q", 1, quantization_config={"bits": 4})
    (tmp_path / "hub").mkdir()  # a hub model whose files are not here yet
    none = Room("files")
    assert staging_room(MODEL, EngineConfig(), quantised, 72.0) == none
    assert staging_room(MODEL, EngineConfig(), tmp_path / "hub", 72.0) == none
    assert staging_room(MODEL, EngineConfig(hot_swap="off"), folder, 72.0) == none
    assert staging_room(MODEL, EngineConfig(next_weights="files"), folder, 72.0) == none
    assert staging_room(replace(MODEL, adapter="a"), EngineConfig(), folder, 72.0) == none


def test_a_containers_limit_counts(tmp_path: Path) -> None:
    free = free_memory(tmp_path)
    assert free > 0
    (tmp_path / "memory.max").write_text("max\n")
    assert free_memory(tmp_path) == pytest.approx(free, rel=0.2)
    (tmp_path / "memory.max").write_text("5000\n")
    (tmp_path / "memory.current").write_text("3000\n")
    (tmp_path / "memory.stat").write_text("anon 1000\nfile 1500\nshmem 200\n")
    assert free_memory(tmp_path) == 5000 - 3000 + 1500 - 200
