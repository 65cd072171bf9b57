"""Settings as vLLM arguments; imports vllm, starts no engine."""

from __future__ import annotations

import importlib.util
import os
import sys
import types
from pathlib import Path
from typing import Any

import pytest

from mtbench_ray.config import EngineConfig, ModelConfig
from mtbench_ray.engines import fork_server
from mtbench_ray.engines.processes import Output
from mtbench_ray.engines.vllm import arguments as vllm_args
from mtbench_ray.engines.vllm.core import _start_fault
from mtbench_ray.errors import EngineFault, UserError
from mtbench_ray.models.checkpoint import Source
from mtbench_ray.models.layout import Layout

if not importlib.util.find_spec("vllm"):  # not imported here: seconds in each worker
    pytest.skip("vllm is not installed", allow_module_level=True)
pytestmark = pytest.mark.runs  # they import vLLM
MODEL = ModelConfig(path="org/model")


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A machine with so many 24 GiB cards."""

    def have(count: int) -> None:
        monkeypatch.setattr(vllm_args, "on_gpu", lambda: count > 0)
        monkeypatch.setattr(vllm_args, "_visible_gpus", lambda: count)
        monkeypatch.setattr(
            "vllm.platforms.current_platform.get_device_total_memory", lambda: 24 * 2**30
        )

    return have


def arguments(window: int | None = 32768, **engine: Any) -> dict[str, Any]:
    source = Source("org/model", "c0ffee", Path("."))
    return vllm_args.engine_arguments(MODEL, EngineConfig(**engine), source, window)


def test_defaults_leave_nothing_to_the_model_folder(gpus: Any) -> None:
    gpus(1)
    args = arguments()
    assert (args["model"], args["revision"]) == ("org/model", "c0ffee")
    assert args["generation_config"] == "vllm"
    assert args["enable_prefix_caching"] is True
    assert args["trust_remote_code"] is False
    assert args["max_model_len"] == vllm_args.LARGEST_WINDOW
    assert "distributed_executor_backend" not in args


@pytest.mark.parametrize(
    ("window", "setting", "expected"), [(2048, None, 2048), (2048, 512, 512), (None, None, None)]
)
def test_window(window: int | None, setting: int | None, expected: int | None, gpus: Any) -> None:
    gpus(1)
    assert arguments(window, max_model_len=setting).get("max_model_len") == expected


def test_eager_only_without_a_gpu_unless_set(gpus: Any) -> None:
    gpus(0)
    assert arguments()["enforce_eager"] is True
    assert "gpu_memory_utilization" not in arguments()
    gpus(1)
    assert arguments()["enforce_eager"] is False
    assert arguments(enforce_eager=True)["enforce_eager"] is True


def test_decoding_runs_by_graphs_and_nothing_is_compiled_unless_asked_for(gpus: Any) -> None:
    from vllm.config import CompilationConfig, CompilationMode, CUDAGraphMode

    gpus(0)
    assert "compilation_config" not in arguments()
    gpus(1)
    taken = CompilationConfig(**arguments()["compilation_config"])
    assert taken.mode == CompilationMode.NONE
    assert taken.cudagraph_mode == CUDAGraphMode.FULL_DECODE_ONLY
    assert "compilation_config" not in arguments(compile=True)
    assert "compilation_config" not in arguments(enforce_eager=True)
    assert arguments(args={"compilation_config": 3})["compilation_config"] == 3


@pytest.mark.parametrize(("sequences", "captured"), [(96, 96), (320, 320), (3, 8)])
def test_graphs_cover_what_runs_at_once(sequences: int, captured: int, gpus: Any) -> None:
    gpus(1)
    assert arguments(max_num_seqs=sequences)["max_cudagraph_capture_size"] == captured


def test_memory_limit_is_a_share_of_the_card_that_is_there(gpus: Any) -> None:
    gpus(1)
    assert arguments()["gpu_memory_utilization"] == 0.9
    assert arguments(memory_limit_gb=6)["gpu_memory_utilization"] == 0.25
    with pytest.raises(UserError, match=r"48 is more than the card's 24\.0"):
        arguments(memory_limit_gb=48)


def test_more_gpus_than_there_are(gpus: Any) -> None:
    """F62: need and have, at once."""
    gpus(1)
    with pytest.raises(UserError, match=r"needs 4 GPUs .* has 1"):
        arguments(tensor_parallel=2, pipeline_parallel=2)
    gpus(2)
    args = arguments(tensor_parallel=2)
    assert (args["tensor_parallel_size"], args["distributed_executor_backend"]) == (2, "mp")


def test_users_arguments_come_last_and_must_exist(gpus: Any) -> None:
    gpus(1)
    assert arguments(args={"seed": 3})["seed"] == 3
    with pytest.raises(UserError, match="did you mean max_num_seqs"):
        arguments(args={"max_num_seq": 3})


def test_adapter_rank_is_rounded_up_to_what_vllm_takes(gpus: Any, tmp_path: Path) -> None:
    gpus(1)
    config = tmp_path / "adapter_config.json"
    config.write_text('{"peft_type": "LORA", "r": 4, "rank_pattern": {"q_proj": 12}}')
    model = ModelConfig(path="org/model", adapter=str(tmp_path))
    args = vllm_args.engine_arguments(
        model, EngineConfig(), Source("org/model", None, tmp_path), 2048
    )
    assert (args["enable_lora"], args["max_lora_rank"]) == (True, 16)
    assert (args["max_num_seqs"], args["max_loras"]) == (96, 4)
    args = vllm_args.engine_arguments(
        model, EngineConfig(piece=500), Source("org/model", None, tmp_path), 2048
    )
    assert (args["max_num_seqs"], args["max_loras"]) == (256, 8)
    config.write_text('{"peft_type": "PREFIX_TUNING"}')
    with pytest.raises(UserError, match="not a LoRA adapter"):
        vllm_args.adapter_rank(model)


@pytest.mark.parametrize(
    ("share_gb", "dtype", "settings", "fits"),
    [
        (7.0, "BF16", {}, False),
        (13.9, "BF16", {}, True),  # what an engine does not load may be the difference
        (7.0, "F32", {}, False),
        (13.9, "F32", {}, True),  # loaded in half precision
        (6.0, "U8", {}, False),
        (7.0, "U8", {}, True),
        (7.0, "BF16", {"tensor_parallel": 2}, True),
        (7.0, "BF16", {"quantization": "fp8"}, True),
        (7.0, "BF16", {"args": {"cpu_offload_gb": 10}}, True),
        (None, "BF16", {}, True),
    ],
)
def test_weights_larger_than_the_engines_share_are_told_before_they_are_loaded(
    share_gb: float | None, dtype: str, settings: dict[str, Any], fits: bool
) -> None:
    layout = Layout({}, {"w": (dtype, (7, 2**30)), "norm": (dtype, ())})
    config = EngineConfig(**settings)
    if fits:
        vllm_args.check_fits(layout, config, share_gb)
        return
    with pytest.raises(UserError, match=rf"more than the {share_gb} GB") as error:
        vllm_args.check_fits(layout, config, share_gb)
    assert "engine.tensor_parallel=2" in error.value.hint


@pytest.mark.parametrize("config", ["quantization_config", "vision_config"])
def test_checkpoints_that_are_not_loaded_as_they_are_are_not_measured(config: str) -> None:
    layout = Layout({config: {}}, {"w": ("BF16", (7, 2**30))})
    vllm_args.check_fits(layout, EngineConfig(), 7.0)


def test_a_tied_head_is_counted_once() -> None:
    layout = Layout(
        {"tie_word_embeddings": True},
        {"lm_head.weight": ("BF16", (4, 2**30)), "embed.weight": ("BF16", (4, 2**30))},
    )
    assert layout.least_gb == 8


def test_environment_gives_threads_back_that_ray_took(
    gpus: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpus(0)
    monkeypatch.setattr(os, "environ", {"OMP_NUM_THREADS": "1", "PATH": os.environ["PATH"]})
    config = EngineConfig(cpu_threads=3, cpu_kv_cache_gb=1.4)
    vllm_args.set_environment(config)
    vllm_args.set_threads(config)
    assert os.environ["OMP_NUM_THREADS"] == "3"
    assert os.environ["VLLM_CPU_KVCACHE_SPACE"] == "1"
    assert os.environ["VLLM_CPU_OMP_THREADS_BIND"] == "nobind"


def test_memory_in_use_is_of_the_cards_of_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = types.ModuleType("pynvml")
    driver.nvmlInit = lambda: None  # type: ignore[attr-defined]
    driver.nvmlDeviceGetHandleByIndex = lambda index: index  # type: ignore[attr-defined]
    driver.nvmlDeviceGetMemoryInfo = lambda index: types.SimpleNamespace(  # type: ignore[attr-defined]
        used=(index + 1) * 2**30
    )
    monkeypatch.setitem(sys.modules, "pynvml", driver)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,3")
    assert vllm_args.gpu_memory_gb(1) == 3.0
    assert vllm_args.gpu_memory_gb(2) == 7.0
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert vllm_args.gpu_memory_gb(1) is None


@pytest.mark.parametrize(
    ("error", "fatal"),
    [
        (ValueError("No available memory for the cache blocks. Try increasing it"), True),
        (ValueError("Free memory on device (3/80 GiB) is less than desired"), False),
        (ValueError("Model architectures ['X'] are not supported"), True),
        (RuntimeError("CUDA error: device busy"), False),
    ],
)
def test_a_start_that_cannot_work_is_not_tried_twice(error: Exception, fatal: bool) -> None:
    fault = _start_fault(error, Output())
    assert isinstance(fault, EngineFault)
    assert fault.fatal is fatal


def test_an_engine_without_a_gpu_is_of_a_cpus_size(gpus: Any) -> None:
    gpus(0)
    args = arguments()
    assert (args["max_num_seqs"], args["block_size"]) == (32, 32)
    # One process computes: no core waits for a worker in a busy loop.
    assert args["distributed_executor_backend"].endswith("UniProcExecutor")
    assert arguments(max_num_seqs=40)["max_num_seqs"] == 40
    gpus(1)
    assert arguments()["max_num_seqs"] == 96
    assert arguments().keys().isdisjoint({"block_size", "distributed_executor_backend"})


def test_the_type_of_weights_is_the_cpus_and_on_a_gpu_the_models(
    gpus: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MTBENCH_RAY_CPU_FLAGS", "avx2")
    gpus(0)
    for settings, name in (
        ({}, "float32"),
        ({"dtype": "bfloat16"}, "bfloat16"),
        ({"args": {"dtype": "half"}}, "auto"),
        ({"args": {"quantization": "awq"}}, "auto"),
    ):
        assert vllm_args.weights_dtype(EngineConfig(**settings), None).name == name
    gpus(1)
    assert vllm_args.weights_dtype(EngineConfig(), None).name == "auto"


def test_the_vllm_and_python_here_have_what_the_fork_server_replaces():
    """Private names: with others, engines spawn their processes, and starts take longer."""
    assert fork_server.fits_vllm()
    assert fork_server.fits_python()


def test_four_bits_without_vllms_plugin_say_what_to_install(monkeypatch):
    found = {"vllm_bnb_plugin"}
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name in found or None)
    config = EngineConfig(quantization="bitsandbytes")
    vllm_args.check_quantization(config)
    found.clear()
    vllm_args.check_quantization(EngineConfig(quantization="fp8"))
    with pytest.raises(UserError, match="plugin of vLLM that is not installed"):
        vllm_args.check_quantization(config)
