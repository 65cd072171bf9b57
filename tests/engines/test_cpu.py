"""An engine without a GPU: the type of its weights, and patience while it computes."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time

import pytest

from mtbench_ray.config import JudgeConfig
from mtbench_ray.engines import cpu
from mtbench_ray.engines.cpu import Dtype, choose_dtype
from mtbench_ray.engines.processes import Children
from mtbench_ray.engines.watch import Watch
from mtbench_ray.errors import EngineFault
from mtbench_ray.judges.local_server.process import JudgeServer, ServerSpec
from mtbench_ray.models.layout import Layout

pytestmark = pytest.mark.clock

AVX2 = "fma avx f16c avx2"
AVX512 = "fma avx2 avx512f avx512_vnni"
FAST = [f"{AVX512} avx512_bf16", "avx2 amx_tile amx_bf16", "asimd bf16"]


@pytest.fixture(autouse=True)
def linux(monkeypatch):
    monkeypatch.setattr(cpu.platform, "system", lambda: "Linux")


@pytest.mark.parametrize("flags", [AVX2, AVX512, "asimd fp asimdhp", ""])
def test_a_cpu_without_fast_bfloat16_takes_float32_and_says_so(monkeypatch, flags):
    monkeypatch.setenv(cpu.FLAGS_ENV, flags)
    chosen = choose_dtype("auto", None)
    assert chosen.name == "float32"
    assert "no fast bfloat16" in chosen.why


@pytest.mark.parametrize("flags", FAST)
def test_a_cpu_with_fast_bfloat16_takes_the_models_own_type(monkeypatch, flags):
    monkeypatch.setenv(cpu.FLAGS_ENV, flags)
    assert choose_dtype("auto", None) == Dtype("auto")


def test_a_type_that_was_asked_for_and_quantised_weights_are_left_alone(monkeypatch):
    monkeypatch.setenv(cpu.FLAGS_ENV, AVX2)
    assert choose_dtype("bfloat16", None) == Dtype("bfloat16")
    assert choose_dtype("auto", None, quantised=True) == Dtype("auto")
    quantised = Layout({"quantization_config": {"bits": 4}}, {})
    assert choose_dtype("auto", quantised) == Dtype("auto")


def test_weights_that_fit_only_as_they_are_stay_so(monkeypatch):
    monkeypatch.setenv(cpu.FLAGS_ENV, AVX2)
    layout = Layout({}, {"w": ("BF16", (1 << 20, 1 << 10))})  # 2 GiB, 4 as float32
    monkeypatch.setattr(cpu, "free_memory", lambda: 3 << 30)
    assert choose_dtype("auto", layout).name == "auto"
    assert "does not fit" in choose_dtype("auto", layout).why
    monkeypatch.setattr(cpu, "free_memory", lambda: 5 << 30)
    assert choose_dtype("auto", layout).name == "float32"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("processor\t: 0\nflags\t\t: fpu avx2\n\nflags\t: other\n", {"fpu", "avx2"}),
        ("BogoMIPS : 50\nFeatures\t: fp asimd bf16\n", {"fp", "asimd", "bf16"}),
        ("no such line\n", set()),
    ],
)
def test_flags_are_those_of_the_first_cpu(monkeypatch, tmp_path, text, found):
    monkeypatch.delenv(cpu.FLAGS_ENV, raising=False)
    monkeypatch.setattr(cpu, "_CPUINFO", tmp_path / "cpuinfo")
    assert cpu.flags() == frozenset()
    (tmp_path / "cpuinfo").write_text(text)
    assert cpu.flags() == found


@pytest.mark.parametrize(
    ("args", "on_gpu", "name"),
    [({}, False, "float32"), ({"dtype": "half"}, False, "half"), ({}, True, "auto")],
)
def test_a_local_judge_chooses_as_an_engine_does(monkeypatch, tmp_path, args, on_gpu, name):
    monkeypatch.setenv(cpu.FLAGS_ENV, AVX2)
    spec = ServerSpec(JudgeConfig(kind="local", model="m", args=args), "key", on_gpu, "node")
    assert JudgeServer(spec)._dtype(str(tmp_path / "none")).name == name


@pytest.mark.parametrize(
    ("cores", "engines", "threads"), [(1, 2, 1), (2, 1, 2), (2, 2, 2), (4, 2, 2), (64, 3, 21)]
)
def test_engines_share_cores_and_have_two_where_there_are_two(cores, engines, threads):
    assert cpu.thread_share(cores, engines) == threads


# Patience -------------------------------------------------------------------------------------


def silent_for(seconds: float, watch_of) -> EngineFault | None:
    """What becomes of a request that gets no token for so long."""

    async def wait() -> EngineFault | None:
        watch = watch_of()
        try:
            await watch.guard(asyncio.sleep(seconds))
        except EngineFault as fault:
            return fault
        finally:
            watch.close()
        return None

    return asyncio.run(wait())


def test_an_engine_that_computes_is_slow_and_one_that_does_not_is_hung():
    assert silent_for(0.8, lambda: Watch(0.2, time.monotonic)) is None
    for computed in (None, lambda: 7.0):
        fault = silent_for(0.8, lambda computed=computed: Watch(0.2, computed))
        assert fault is not None
        assert fault.hung
        assert "engine.stall_s" in str(fault)


def test_an_engine_that_computes_for_ever_is_given_up_in_the_end():
    began = time.monotonic()
    fault = silent_for(5.0, lambda: Watch(0.2, time.monotonic))
    assert fault is not None
    assert 1.0 < time.monotonic() - began < 3.0


def test_cpu_time_of_an_engine_is_that_of_its_processes():
    children = Children()
    busy = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        children.claim()
        before, began = children.cpu_s(), time.monotonic()
        while children.cpu_s() - before < 0.05 and time.monotonic() - began < 20:
            time.sleep(0.05)
        assert children.cpu_s() - before >= 0.05
    finally:
        children.end()
        busy.wait()
    assert children.cpu_s() == 0.0
