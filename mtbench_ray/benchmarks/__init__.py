"""Benchmarks by name."""

from mtbench_ray.benchmarks.base import Benchmark
from mtbench_ray.benchmarks.mtbench import MTBench
from mtbench_ray.errors import unknown_name

_BENCHMARKS: dict[str, Benchmark] = {bench.name: bench for bench in (MTBench(),)}


def get_benchmark(name: str) -> Benchmark:
    """The benchmark registered as ``name``.

    Raises:
        UserError: There is none; the hint is the nearest name.
    """
    if name not in _BENCHMARKS:
        raise unknown_name("benchmark", name, _BENCHMARKS)
    return _BENCHMARKS[name]
