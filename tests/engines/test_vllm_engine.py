"""The real engine on the demo model, on a CPU: one engine start shared by most tests.

Everything is float32, where a batch's other rows do not change a row's tokens.
"""

from __future__ import annotations

import asyncio
import dataclasses
import importlib.util
import json
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from shards import events_of, make_shard, rows_of, run_shard

from mtbench_ray.config import EngineConfig, ModelConfig, SamplingConfig
from mtbench_ray.engines.base import Shard
from mtbench_ray.errors import EngineFault, UserError
from mtbench_ray.generate.worker import ShardWorker
from mtbench_ray.models.sampling import TurnSampling
from mtbench_ray.schema import EngineEvent, Message, Turn

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]
if not importlib.util.find_spec("vllm"):  # not imported here: seconds in each worker
    pytest.skip("vllm is not installed", allow_module_level=True)

WINDOW = 192
SETTINGS: dict[str, Any] = {
    "kind": "vllm",
    "dtype": "float32",
    "max_model_len": WINDOW,
    "cpu_kv_cache_gb": 1.0,
    "max_num_seqs": 8,
    "max_restarts": 2,
}
GREEDY = SamplingConfig(temperature=0.0, max_tokens=12)


@pytest.fixture(scope="module")
def folder() -> Path:
    from mtbench_ray.models.demo_model import demo_model

    return demo_model()


@pytest.fixture(scope="module")
def worker() -> Iterator[ShardWorker]:
    worker = ShardWorker("r0")
    yield worker
    worker.close()
    assert engine_processes() == []


def kept_processes() -> list[psutil.Process]:
    """What multiprocessing keeps for later: its tracker, and the server that engines come from."""
    kept = ("multiprocessing.resource_tracker", "multiprocessing.forkserver")
    found = [(p, " ".join(p.cmdline())) for p in psutil.Process().children()]
    return [process for process, words in found if any(name in words for name in kept)]


def engine_processes() -> list[psutil.Process]:
    kept = kept_processes()
    return [p for p in psutil.Process().children(recursive=True) if p not in kept]


def write_adapter(folder: Path, base: Path, rank: int, seed: int) -> Path:
    """A LoRA adapter of random numbers for the attention of every layer."""
    from safetensors.numpy import save_file

    config = json.loads((base / "config.json").read_text())
    hidden = config["hidden_size"]
    heads = {"q_proj": config["num_attention_heads"], "v_proj": config["num_key_value_heads"]}
    width = hidden // config["num_attention_heads"]
    rng = np.random.default_rng(seed)
    tensors = {}
    for layer in range(config["num_hidden_layers"]):
        for name, count in heads.items():
            prefix = f"base_model.model.model.layers.{layer}.self_attn.{name}"
            for part, shape in (("A", (rank, hidden)), ("B", (count * width, rank))):
                values = rng.normal(0, 0.05, shape).astype(np.float32)
                tensors[f"{prefix}.lora_{part}.weight"] = values
    folder.mkdir()
    save_file(tensors, folder / "adapter_model.safetensors")
    settings = {"peft_type": "LORA", "r": rank, "lora_alpha": 2 * rank, "task_type": "CAUSAL_LM"}
    settings |= {"target_modules": list(heads), "base_model_name_or_path": str(base)}
    (folder / "adapter_config.json").write_text(json.dumps(settings))
    return folder


@pytest.fixture(scope="module")
def adapters(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    root = tmp_path_factory.mktemp("adapters")
    return (
        write_adapter(root / "one", folder, rank=8, seed=1),
        write_adapter(root / "two", folder, rank=4, seed=2),
    )


def shard_of(folder: Path, numbers: Any = (1, 2), **more: Any) -> Shard:
    model = {key: more.pop(key) for key in list(more) if key in ModelConfig.__dataclass_fields__}
    return make_shard(
        numbers,
        model=ModelConfig(path=str(folder), **model),
        **({"sampling": GREEDY} | SETTINGS | more),
    )


def texts(outputs: list[Any]) -> dict[tuple[str, int], str]:
    rows = rows_of(outputs)
    assert {row.status for row in rows.values()} <= {"ok", "truncated"}, rows
    return {key: row.raw for key, row in rows.items()}


@pytest.fixture(scope="module")
def started(
    worker: ShardWorker, folder: Path, adapters: tuple[Path, Path]
) -> tuple[list[Any], list[Any]]:
    """The first shards: an adapter, so that the engine can hold some, then its base."""
    first = run_shard(shard_of(folder, [1], adapter=str(adapters[0])), worker)
    assert events_of(first) == ["start"], first
    return first, run_shard(shard_of(folder), worker)


def test_adapters_and_their_base_share_one_engine(
    started: tuple[list[Any], list[Any]],
    worker: ShardWorker,
    folder: Path,
    adapters: tuple[Path, Path],
) -> None:
    one, base = started
    two = run_shard(shard_of(folder, [1], adapter=str(adapters[1])), worker)
    again = run_shard(shard_of(folder, [1], adapter=str(adapters[0])), worker)
    assert [events_of(outputs) for outputs in (base, two, again)] == [[], [], []]
    assert texts(again) == texts(one)
    answers = [texts(outputs)["answer-1-0", 1] for outputs in (one, two, base)]
    assert len(set(answers)) == 3


def test_engine_killed_in_the_middle_costs_no_row(
    started: Any, worker: ShardWorker, folder: Path
) -> None:
    """The engine that comes next has no adapters: the tests below are the quicker for it."""
    shard = shard_of(folder, range(1, 4))
    outputs: list[Any] = []
    for output in worker.run(shard):
        if not outputs:
            (core,) = [p for p in engine_processes() if p.parent() in kept_processes()]
            assert "vllm.v1.engine.async_llm" in " ".join(core.parent().cmdline())
            core.kill()
        outputs.append(output)
    assert events_of(outputs) == ["restart"]
    (event,) = [event for event in outputs if isinstance(event, EngineEvent)]
    assert "process of the engine is gone" in event.detail
    rows = rows_of(outputs)
    assert rows.keys() == {(unit.answer_id, turn) for unit in shard.units for turn in (1, 2)}
    assert texts(run_shard(shard, worker)) == texts(outputs)


def test_chat_model_rows(started: tuple[list[Any], list[Any]]) -> None:
    rows = rows_of(started[1])
    for (answer, turn), row in rows.items():
        assert row.engine_origin == "cold"
        assert len(row.template_hash) == 16
        assert row.history == (() if turn == 1 else (rows[answer, 1].content,))
        used = json.loads(row.sampling)
        assert used["seed"] == row.seed
        assert (used["top_p"], used["top_k"], used["repetition_penalty"]) == (1.0, -1, 1.0)
        assert used["stop_token_ids"]
        assert "<|im_end|>" not in row.raw
        assert 0 < row.output_tokens <= 12
    assert rows["answer-1-0", 2].prompt_tokens > rows["answer-1-0", 1].prompt_tokens
    (event,) = [event for event in started[0] if isinstance(event, EngineEvent)]
    assert event.seconds > 1


def test_samples_differ_and_are_repeated_by_their_seeds(
    started: Any, worker: ShardWorker, folder: Path
) -> None:
    sampling = SamplingConfig(temperature=1.0, max_tokens=12)
    many = texts(run_shard(shard_of(folder, [1, 2], samples=2, sampling=sampling), worker))
    again = texts(run_shard(shard_of(folder, [2], samples=2, sampling=sampling), worker))
    assert many["answer-1-0", 1] != many["answer-1-1", 1]
    assert again.items() <= many.items()


def test_of_requests_that_wait_the_lowest_priority_comes_first(
    started: Any, worker: ShardWorker, folder: Path
) -> None:
    run_shard(shard_of(folder, [1]), worker)
    engine, places = worker._engine, SETTINGS["max_num_seqs"]
    assert engine is not None
    sampling = TurnSampling(0.0, 1.0, -1, 1.0, max_tokens=24, seed=1)
    ended: list[int] = []

    async def ask(number: int, priority: int) -> None:
        talk = [Message("user", "Count from one to ten.")]
        await engine.generate(talk, sampling, str(number), priority)
        ended.append(priority)

    async def ask_all() -> None:
        wanted = [-9] * places + [2] * places + [-1] * places
        await asyncio.gather(*(ask(*item) for item in enumerate(wanted)))

    asyncio.run_coroutine_threadsafe(ask_all(), worker._loop).result(120)
    assert ended == [-9] * places + [-1] * places + [2] * places


def test_same_weights_as_a_base_model_with_a_shipped_template(
    started: Any, worker: ShardWorker, folder: Path
) -> None:
    outputs = run_shard(
        shard_of(folder, [1, 2], chat_template="plain", system_prompt="A talk."), worker
    )
    rows = rows_of(outputs)
    assert events_of(outputs) == []
    assert {row.template_hash for row in rows.values()}.isdisjoint(
        {row.template_hash for row in rows_of(started[1]).values()}
    )
    for row in rows.values():
        assert "\nUser:" not in row.content
        assert json.loads(row.sampling)["stop"] == ["\nUser:"]


def test_stop_string_ends_an_answer_early(started: Any, worker: ShardWorker, folder: Path) -> None:
    whole = rows_of(started[1])["answer-1-0", 1]
    word = whole.content.split()[3]
    outputs = run_shard(shard_of(folder, [1], stop=[word]), worker)
    cut = rows_of(outputs)["answer-1-0", 1]
    assert cut.content == whole.content[: whole.content.index(word)].strip()
    assert (cut.status, cut.finish_reason) == ("ok", "stop")
    assert cut.output_tokens < whole.output_tokens


def test_window_too_small_for_turn_two_is_that_turn_alone(
    started: Any, worker: ShardWorker, folder: Path
) -> None:
    shard = shard_of(folder, [1, 2, 3])
    units = list(shard.units)
    long = dataclasses.replace(
        units[1].question, turns=(units[1].question.turns[0], "more " * WINDOW)
    )
    units[1] = dataclasses.replace(units[1], question=long)
    tight = dataclasses.replace(
        units[2].question, turns=("word " * (WINDOW - 60), units[2].question.turns[1])
    )
    units[2] = dataclasses.replace(units[2], question=tight)
    sampling = dataclasses.replace(GREEDY, max_tokens=50)
    shard = dataclasses.replace(shard, units=tuple(units), sampling=sampling)
    rows = rows_of(run_shard(shard, worker))
    assert len(rows) == 6
    failed = {key for key, row in rows.items() if row.status == "context_overflow"}
    assert ("answer-2-0", 2) in failed
    assert failed <= {("answer-2-0", 2), ("answer-3-0", 2)}
    assert f"window of {WINDOW} tokens" in (rows["answer-2-0", 2].error or "")
    crowded = rows["answer-3-0", 1]
    assert crowded.prompt_tokens + crowded.output_tokens <= WINDOW
    assert crowded.status in ("ok", "truncated", "empty")


def test_server_of_the_same_model_gives_the_same_answers(
    started: Any, folder: Path, tmp_path: Path
) -> None:
    """Runs last of those that need the engine: two of them would crowd a small machine."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(folder)]
    command += ["--served-model-name", "demo", "--host", "127.0.0.1", "--port", str(port)]
    command += ["--dtype", "float32", "--max-model-len", str(WINDOW), "--enforce-eager"]
    command += ["--generation-config", "vllm", "--max-num-seqs", "8"]
    with (tmp_path / "server.log").open("w") as log:
        server = subprocess.Popen(command, stdout=log, stderr=log, env=dict(os.environ))
        try:
            _wait_until_up(f"http://127.0.0.1:{port}/health", server)
            outputs = run_shard(
                make_shard(
                    [1, 2],
                    kind="openai",
                    base_url=f"http://127.0.0.1:{port}/v1",
                    api_key_env=None,
                    model=ModelConfig(path="demo"),
                    sampling=GREEDY,
                )
            )
        finally:
            for process in [*psutil.Process(server.pid).children(recursive=True), server]:
                process.kill()
            server.wait()
    assert texts(outputs) == texts(started[1])
    in_process, served = rows_of(started[1]), rows_of(outputs)
    assert {k: r.prompt_tokens for k, r in served.items()} == {
        k: r.prompt_tokens for k, r in in_process.items()
    }


def _wait_until_up(url: str, server: subprocess.Popen[bytes], patience_s: float = 180) -> None:
    end = time.monotonic() + patience_s
    while time.monotonic() < end:
        assert server.poll() is None, "the server ended"
        try:
            with urllib.request.urlopen(url, timeout=2):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.5)
    raise AssertionError("the server is not up")


def linked(folder: Path, copy: Path, **config: Any) -> Path:
    """The demo model under another path, with entries of its config changed."""
    copy.mkdir()
    for file in folder.iterdir():
        if file.name != "config.json":
            (copy / file.name).symlink_to(file)
    merged = json.loads((folder / "config.json").read_text()) | config
    (copy / "config.json").write_text(json.dumps(merged))
    return copy


def start_and_fail(model: ModelConfig, **settings: Any) -> EngineFault:
    from mtbench_ray.engines.vllm.engine import VllmEngine

    with pytest.raises(EngineFault) as caught:
        asyncio.run(VllmEngine.start(model, EngineConfig(**(SETTINGS | settings))))
    return caught.value


def test_unknown_architecture_fails_at_once_and_for_good(folder: Path, tmp_path: Path) -> None:
    odd = linked(folder, tmp_path / "odd", architectures=["NoSuchForCausalLM"])
    fault = start_and_fail(ModelConfig(path=str(odd)))
    assert fault.fatal
    assert "NoSuchForCausalLM" in str(fault)


def test_torn_weights_are_told_before_an_engine_is_started(folder: Path, tmp_path: Path) -> None:
    torn = linked(folder, tmp_path / "torn")
    (torn / "model.safetensors").unlink()
    with (folder / "model.safetensors").open("rb") as file:
        (torn / "model.safetensors").write_bytes(file.read(100_000))
    from mtbench_ray.engines.vllm.engine import VllmEngine

    began = time.monotonic()
    with pytest.raises(UserError, match="shorter than its header"):
        asyncio.run(VllmEngine.start(ModelConfig(path=str(torn)), EngineConfig()))
    assert time.monotonic() - began < 10


def test_start_that_takes_too_long_is_ended(folder: Path) -> None:
    before = engine_processes()
    fault = start_and_fail(ModelConfig(path=str(folder)), start_timeout_s=0.5)
    assert "engine.start_timeout_s" in str(fault)
    time.sleep(1)
    assert [p for p in engine_processes() if p not in before] == []


def test_unknown_engine_argument_names_the_nearest(folder: Path) -> None:
    rows = rows_of(run_shard(shard_of(folder, [1], args={"max_num_sequences": 4})))
    assert isinstance(rows["answer-1-0", 1], Turn)
    assert "max_num_seqs" in (rows["answer-1-0", 1].error or "")
