"""Settings as vLLM engine arguments and environment. What differs between versions is here."""

from __future__ import annotations

import dataclasses
import importlib.util
import os
import tempfile
from pathlib import Path
from typing import Any

from mtbench_ray.config import EngineConfig, ModelConfig
from mtbench_ray.engines.cpu import BLOCK, EXECUTOR, SEQUENCES, Dtype, choose_dtype, thread_share
from mtbench_ray.engines.hot_swap.verify import WORKER_EXTENSION
from mtbench_ray.errors import UserError, unknown_name
from mtbench_ray.models.checkpoint import Source, adapter_folder, read_json
from mtbench_ray.models.layout import Layout
from mtbench_ray.models.window import LARGEST_WINDOW
from mtbench_ray.system.sockets import ENGINE_NEEDS, socket_folder

_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""Values that vLLM takes for max_lora_rank."""
GPU_SEQUENCES = 96
"""Conversations at once on a GPU: all of a benchmark of 80 questions."""
MANY_SEQUENCES = 256
"""The same where an engine is given more than that at once."""
_ADAPTERS = 4
_PER_ADAPTER = 32
"""Adapters in one batch: four, and one for each so many conversations. They come one after the
other, and the end of one overlaps with the next."""

_USED = 0.9
"""Share of a checkpoint's weights that an engine loads at least."""


def set_environment(config: EngineConfig) -> None:
    """Environment of this process and of the engine's children; before vllm is imported."""
    os.environ |= {
        "VLLM_NO_USAGE_STATS": "1",
        # A fork of a process with threads may hang.
        "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
        # "auto" would pin every engine of a machine to the same cores.
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_CPU_KVCACHE_SPACE": str(max(1, round(config.cpu_kv_cache_gb))),
        # Threads that wait by spinning take the core from another engine or judge server on it.
        "OMP_WAIT_POLICY": "PASSIVE",
    }
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
    os.environ |= socket_environment()
    tempfile.tempdir = None  # read again


def socket_environment() -> dict[str, str]:
    """Where vLLM's and multiprocessing's sockets go, if TMPDIR is too long for them or not there.

    Raises:
        UserError: There is no folder for them.
    """
    folder = socket_folder(ENGINE_NEEDS)
    if folder is None:
        raise UserError(
            "vLLM finds no folder for its sockets: TMPDIR is too long or cannot be written",
            "set TMPDIR to a short folder that can be written: TMPDIR=/tmp/me",
        )
    wanted = os.environ.get("TMPDIR")
    return {"TMPDIR": folder} if wanted and os.path.abspath(wanted) != folder else {}


def set_threads(config: EngineConfig) -> None:
    """Threads of a CPU engine, in the environment of its processes; imports vllm.

    Ray sets OMP_NUM_THREADS=1 in its workers, which would make a CPU engine crawl.
    """
    if not on_gpu():
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
        threads = config.cpu_threads or thread_share(cores or 1, config.replicas or 1)
        os.environ["OMP_NUM_THREADS"] = str(threads)


def sequences(config: EngineConfig) -> int:
    """Conversations at once in one engine here."""
    if config.max_num_seqs or not on_gpu():
        return config.max_num_seqs or SEQUENCES
    return gpu_sequences(config.piece)


def gpu_sequences(conversations: int) -> int:
    """Conversations at once in an engine on a GPU that is given so many."""
    return GPU_SEQUENCES if conversations <= GPU_SEQUENCES else MANY_SEQUENCES


def weights_dtype(config: EngineConfig, layout: Layout | None) -> Dtype:
    """The type of the weights on this node.

    Args:
        layout: Of the checkpoint, where its files are here.
    """
    if on_gpu() or "dtype" in config.args:
        return Dtype(config.dtype)
    quantised = bool(config.quantization or config.args.get("quantization"))
    return choose_dtype(config.dtype, layout, quantised)


def on_gpu() -> bool:
    """Whether vLLM would run on an accelerator here. Makes no CUDA context."""
    from vllm.platforms import current_platform

    return not current_platform.is_cpu()


def check_quantization(config: EngineConfig) -> None:
    """From 0.28 on vLLM has bitsandbytes in a plugin.

    Raises:
        UserError: It is asked for and not there.
    """
    if config.quantization != "bitsandbytes":
        return
    homes = ("vllm_bnb_plugin", "vllm.model_executor.layers.quantization.bitsandbytes")
    if not any(importlib.util.find_spec(home) for home in homes):
        raise UserError(
            "engine.quantization=bitsandbytes needs a plugin of vLLM that is not installed here",
            "pip install 'mtbench-ray[4bit]'",
        )


def engine_arguments(
    model: ModelConfig,
    config: EngineConfig,
    source: Source,
    window: int | None,
    staging_gb: float = 0.0,
) -> dict[str, Any]:
    """Arguments of ``AsyncEngineArgs``; ``engine.args`` come last.

    Args:
        window: Context window of the model, None where unknown.
        staging_gb: Of the engine's share of its card, what it has to leave free.

    Raises:
        UserError: An argument of ``engine.args`` does not exist, the memory limit cannot work, or
            there are fewer GPUs than asked for.
    """
    from vllm.engine.arg_utils import AsyncEngineArgs

    check_quantization(config)
    gpu = on_gpu()
    cards = config.tensor_parallel * config.pipeline_parallel
    if gpu and cards > (have := _visible_gpus()):
        raise UserError(
            f"one engine needs {cards} GPUs (engine.tensor_parallel={config.tensor_parallel} x "
            f"engine.pipeline_parallel={config.pipeline_parallel}), this actor has {have}",
            "lower them, or use a machine with more GPUs: an engine stays on one machine",
        )
    at_once = sequences(config)
    arguments: dict[str, Any] = {
        "model": source.path,
        "revision": source.revision,
        "tokenizer_revision": source.revision,
        "tensor_parallel_size": config.tensor_parallel,
        "pipeline_parallel_size": config.pipeline_parallel,
        "dtype": config.dtype,
        "quantization": config.quantization,
        "max_num_seqs": at_once,
        # See rounds.py for which turns come first.
        "scheduling_policy": "priority",
        "enforce_eager": not gpu if config.enforce_eager is None else config.enforce_eager,
        "trust_remote_code": config.trust_remote_code,
        "enable_prefix_caching": True,
        # The folder's own sampling defaults would stand in for what is not sent.
        "generation_config": "vllm",
        "disable_log_stats": True,
        # Progress is watched by tokens, but not by every single one.
        "stream_interval": 16,
    }
    length = config.max_model_len or (min(window, config.window) if window else None)
    if length:
        arguments["max_model_len"] = length
    if cards > 1:
        # In a Ray actor vLLM may choose Ray by itself and wait for GPUs that the actor holds.
        arguments["distributed_executor_backend"] = "mp"
    if gpu:
        share = _utilisation(config) - (staging_gb / _card_gb() if staging_gb else 0.0)
        arguments["gpu_memory_utilization"] = round(share, 4)
        # Steps beyond the largest captured size take twice as long.
        arguments["max_cudagraph_capture_size"] = -(-at_once // 8) * 8
        if not config.compile and not config.enforce_eager:
            # Nearly all steps decode; on one card a graph of them is as fast as compiled code.
            arguments["compilation_config"] = {"mode": 0, "cudagraph_mode": "FULL_DECODE_ONLY"}
    else:
        # A prompt that is prefilled in parts discards samples, and for a seeded request vLLM then
        # turns its generator back, which a CPU generator cannot: the engine would die.
        arguments["enable_chunked_prefill"] = False
        arguments["block_size"] = BLOCK
        if cards == 1:
            arguments["distributed_executor_backend"] = EXECUTOR
        arguments["max_num_batched_tokens"] = max(length or 0, LARGEST_WINDOW)
    if config.hot_swap != "off":
        arguments["worker_extension_cls"] = WORKER_EXTENSION
    rank = adapter_rank(model)
    if rank:
        arguments |= {
            "enable_lora": True,
            "max_lora_rank": next((r for r in _RANKS if r >= rank), rank),
            "max_loras": max(_ADAPTERS, at_once // _PER_ADAPTER),
        }
    known = {f.name for f in dataclasses.fields(AsyncEngineArgs)}
    for name in config.args:
        if name not in known:
            raise unknown_name("vLLM engine argument", name, known)
    return {k: v for k, v in arguments.items() if k in known and v is not None} | config.args


def check_fits(layout: Layout, config: EngineConfig, share_gb: float | None) -> None:
    """Whether the weights alone are more than the engine may take of its cards.

    vLLM would find out once it has read them. Nothing is said where settings or the model may make
    less of them than the files say: ``engine.args``, quantisation, inputs other than text.

    Args:
        share_gb: Of one card; None without a GPU.

    Raises:
        UserError: They are.
    """
    if share_gb is None or config.args or not layout.text_only:
        return
    if config.quantization or layout.quantised:
        return
    cards = config.tensor_parallel * config.pipeline_parallel
    # Some layers may not be used: those that only guess ahead, heads for other tasks.
    if (weights := layout.least_gb) * _USED > share_gb * cards:
        raise UserError(
            f"the weights take {weights:.1f} GB, more than the {share_gb * cards:.1f} GB that "
            f"engine.gpu_memory_utilization or engine.memory_limit_gb leave on {cards} GPU"
            f"{'s' if cards > 1 else ''}",
            "raise these, or spread the model: "
            f"engine.tensor_parallel={config.tensor_parallel * 2}",
        )


def adapter_rank(model: ModelConfig) -> int:
    """LoRA rank of the model's adapter; 0 where it has none.

    Raises:
        UserError: The adapter is no LoRA adapter, or not there.
    """
    folder = adapter_folder(model)
    if folder is None:
        return 0
    config = read_json(Path(folder) / "adapter_config.json")
    if config.get("peft_type", "LORA") != "LORA" or not isinstance(config.get("r"), int):
        raise UserError(f"model {model.label}: its adapter is not a LoRA adapter")
    ranks = [config["r"], *(config.get("rank_pattern") or {}).values()]
    return max(int(rank) for rank in ranks)


def _visible_gpus() -> int:
    import torch

    return int(torch.cuda.device_count())


def _utilisation(config: EngineConfig) -> float:
    """Share of the card: as set, or what the memory limit is of the card that is here."""
    if config.memory_limit_gb is None:
        return config.gpu_memory_utilization
    have = _card_gb()
    if config.memory_limit_gb > have:
        raise UserError(
            f"engine.memory_limit_gb={config.memory_limit_gb:g} is more than the card's {have:.1f}",
            "lower it, or use engine.gpu_memory_utilization",
        )
    return round(config.memory_limit_gb / have, 4)


def engine_share_gb(config: EngineConfig) -> float | None:
    """What an engine may take of one card; None without a GPU."""
    return _utilisation(config) * _card_gb() if on_gpu() else None


def _card_gb() -> float:
    from vllm.platforms import current_platform

    return float(current_platform.get_device_total_memory()) / 2**30


def gpu_memory_gb(cards: int) -> float | None:
    """Gigabytes in use on this process's first ``cards`` GPUs, None without a GPU."""
    try:
        import pynvml

        pynvml.nvmlInit()
        visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")
        names = [n for n in visible.split(",") if n] or [str(i) for i in range(cards)]
        used = 0
        for name in names[:cards]:
            handle = (
                pynvml.nvmlDeviceGetHandleByIndex(int(name))
                if name.isdigit()
                else pynvml.nvmlDeviceGetHandleByUUID(name)
            )
            used += pynvml.nvmlDeviceGetMemoryInfo(handle).used
    except Exception:
        # No library, no driver, no card: there is no such figure, and nothing else is wrong.
        return None
    return round(used / 2**30, 2)
