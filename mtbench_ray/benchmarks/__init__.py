"""The benchmarks by name: each with its questions, its files and its graders.

In: names and files (official ones fetched by version and sha256, a user's own, a hub's data set).

Out: questions as :class:`~mtbench_ray.schema.Question`, and graders.

>>> from mtbench_ray.benchmarks import get_benchmark, grader_of
>>> get_benchmark("mt_bench").categories[:2]
('writing', 'roleplay')
>>> grader_of("mt_bench", "single").headline.key
'average'
"""

from functools import cache
from importlib.metadata import entry_points

from mtbench_ray.benchmarks.base import Benchmark
from mtbench_ray.benchmarks.mtbench import MTBench
from mtbench_ray.benchmarks.vicuna import Vicuna
from mtbench_ray.errors import UserError, unknown_name
from mtbench_ray.judges.base import Grader

_OURS: tuple[Benchmark, ...] = (MTBench(), Vicuna())
ENTRY_POINTS = "mtbench_ray.benchmarks"
"""Group of the entry points of other packages, each the name of a Benchmark."""


@cache
def benchmarks() -> dict[str, Benchmark]:
    """All benchmarks by name: those of this package, then those of others that are installed.

    Raises:
        UserError: An entry point cannot be loaded, or is none.
    """
    found = {one.name: one for one in _OURS}
    for entry in entry_points(group=ENTRY_POINTS):
        try:
            one = entry.load()
        except Exception as error:
            raise UserError(
                f"the benchmark {entry.name} ({entry.value}) cannot be loaded: {error}",
                "uninstall its package, or repair it",
            ) from error
        if not isinstance(one, Benchmark):
            raise UserError(f"{entry.value} is not a benchmark", "it must be a Benchmark instance")
        if one.name in found:
            raise UserError(f"two benchmarks are called {one.name}", "uninstall one's package")
        found[one.name] = one
    return found


def get_benchmark(name: str) -> Benchmark:
    """The benchmark registered as ``name``.

    Raises:
        UserError: There is none; the hint is the nearest name.
    """
    known = benchmarks()
    if name not in known:
        raise unknown_name("benchmark", name, known)
    return known[name]


def grader_of(benchmark: str, mode: str) -> Grader:
    """A benchmark's grader by the name that ``mode=`` has; empty for its default.

    Raises:
        UserError: There is no such benchmark or grader; the hint is the nearest name.
    """
    graders = {grader.name: grader for grader in get_benchmark(benchmark).graders}
    if not mode:
        return next(iter(graders.values()))
    if mode not in graders:
        raise unknown_name(f"mode of {benchmark}", mode, graders)
    return graders[mode]
