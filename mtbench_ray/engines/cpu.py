"""What a CPU computes fast, and what an engine without a GPU makes of it.

bfloat16 is fast only where the CPU multiplies it itself. Elsewhere every product is emulated: an
answer that takes seconds in float32 takes minutes. So the type of ``engine.dtype=auto`` is chosen
where the engine runs. What it came to is told by the engine and stands in the rows.
"""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass
from pathlib import Path

from mtbench_ray.engines.memory import free_memory
from mtbench_ray.models.layout import Layout

FLAGS_ENV = "MTBENCH_RAY_CPU_FLAGS"
"""Stands in for the flags of the CPU, in a test."""
_CPUINFO = Path("/proc/cpuinfo")
_FAST_BFLOAT16 = frozenset({"avx512_bf16", "amx_bf16", "bf16"})
"""As Linux names them: on x86 the first two, on ARM the last."""
SEQUENCES = 32
"""Conversations at once in an engine without a GPU. Two cores with AVX2 write 220 tokens a second
with 32 of the demo model's, 150 with 16; more would end none of them in the first minute."""
CALLS = 8
"""Calls at once to a local judge without a GPU: most of its time goes into reading, which more of
them at once make no faster, and the first verdicts come the sooner."""
EXECUTOR = "vllm.v1.executor.uniproc_executor.UniProcExecutor"
"""Computes in the engine's core itself. vLLM's own way without a GPU is a worker process: core and
worker then wait for each other in busy loops, which take one of two cores, and the worker imports
all of vLLM once more. By its full name: vLLM replaces the short one."""
BLOCK = 32
"""Tokens of a block of the cache, the least that vLLM's attention takes on a CPU: with its own 128
most of a first turn is computed again for the second one."""


def thread_share(cores: int, engines: int) -> int:
    """Threads of each of some engines on the cores of one machine.

    Two at least, where there are two cores: the first and the last of a run is done by one engine
    alone, which would leave a core idle, and beside other busy programs threads are what a core's
    time is shared by. Threads that wait do so asleep, so that two engines may share a core.
    """
    return max(min(2, cores), cores // max(1, engines))


def flags() -> frozenset[str]:
    """What this machine's CPU can do, in the names of Linux; empty where it does not say."""
    if FLAGS_ENV in os.environ:
        return frozenset(os.environ[FLAGS_ENV].split())
    try:
        lines = _CPUINFO.read_text("utf-8", "replace").splitlines()
    except OSError:
        return frozenset()
    for line in lines:
        name, _, value = line.partition(":")
        if name.strip().lower() in ("flags", "features"):
            return frozenset(value.split())
    return frozenset()


@dataclass(frozen=True, slots=True)
class Dtype:
    """The type of an engine's weights.

    Attributes:
        name: For vLLM.
        why: Told where it is not what was asked for; empty elsewhere.
    """

    name: str
    why: str = ""


def choose_dtype(asked: str, layout: Layout | None, quantised: bool = False) -> Dtype:
    """The type for an engine on this machine's CPU.

    Args:
        asked: ``engine.dtype``; anything but ``auto`` is left as it is.
        layout: Of the checkpoint, where its files are here.
        quantised: The settings quantise the weights: their kernels know which types they take.
    """
    if asked != "auto" or quantised or (layout is not None and layout.quantised):
        return Dtype(asked)
    if platform.system() != "Linux" or _FAST_BFLOAT16 & flags():
        return Dtype(asked)
    if layout is not None and 2 * layout.least_gb * 2**30 > free_memory():
        return Dtype(asked, "this CPU is slow with bfloat16, and float32 does not fit into memory")
    return Dtype("float32", "weights as float32: this CPU has no fast bfloat16")
