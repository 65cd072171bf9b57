"""Which questions there are, with references and judge prompts, and where they come from.

In: names and files (official ones fetched by version and sha256, a user's own, a hub's data set).

Out: questions as :class:`~mtbench_ray.schema.Question`.

>>> from mtbench_ray.benchmarks import get_benchmark
>>> get_benchmark("mt_bench").categories[:2]
('writing', 'roleplay')
"""

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
