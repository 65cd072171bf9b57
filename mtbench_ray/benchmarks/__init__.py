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

from mtbench_ray.benchmarks.alpaca_eval import AlpacaEval
from mtbench_ray.benchmarks.arena_hard import ArenaHard
from mtbench_ray.benchmarks.base import Benchmark
from mtbench_ray.benchmarks.healthbench import HealthBench
from mtbench_ray.benchmarks.ifbench import IFBench
from mtbench_ray.benchmarks.ifeval import IFEval
from mtbench_ray.benchmarks.mtbench import MTBench
from mtbench_ray.benchmarks.mtbench101 import MTBench101
from mtbench_ray.benchmarks.vicuna import Vicuna
from mtbench_ray.benchmarks.writingbench import WritingBench
from mtbench_ray.errors import UserError, unknown_name
from mtbench_ray.judges.base import Grader
from mtbench_ray.system.program import ENTRY_POINTS

_OURS: tuple[Benchmark, ...] = (
    MTBench(),
    IFEval(),
    IFBench(),
    Vicuna(),
    AlpacaEval(),
    ArenaHard(),
    MTBench101(),
    HealthBench(),
    WritingBench(),
)
_RESERVED = frozenset(
    {"id", "benchmark", "model", "judge", "settings", "baseline", "truncated", "answers", "demo",
     "output_tokens_per_s", "error", "complete", "n", "ci_low", "ci_high", "ci_method", "planned",
     "failed", "rank", "protocol", "set"}
)  # fmt: skip
"""Keys of a result in ``summary.json`` that are no column's."""


@cache
def benchmarks() -> dict[str, Benchmark]:
    """All benchmarks by name: those of this package, then those of others that are installed.

    One that cannot be used is left out; :func:`get_benchmark` says why when it is asked for.
    """
    return {name: one for name, one in _registered().items() if isinstance(one, Benchmark)}


@cache
def _registered() -> dict[str, Benchmark | UserError]:
    found: dict[str, Benchmark | UserError] = {one.name: one for one in _OURS}
    for entry in entry_points(group=ENTRY_POINTS):
        where = f"the benchmark {entry.name} ({entry.value})"
        try:
            one = entry.load()
            check(one, where)
        except UserError as error:
            found.setdefault(entry.name, error)
            continue
        except Exception as error:
            hint = "uninstall its package, or repair it"
            found.setdefault(entry.name, UserError(f"{where} cannot be loaded: {error}", hint))
            continue
        if one.name in found:
            found[one.name] = UserError(
                f"two benchmarks are called {one.name}", f"uninstall the package of {entry.value}"
            )
        else:
            found[one.name] = one
    return found


def check(benchmark: object, where: str) -> None:
    """Check what another package registers.

    Raises:
        UserError: It is no benchmark, or reports could not show it.
    """
    if not isinstance(benchmark, Benchmark):
        raise UserError(f"{where} is not a benchmark", "it must be a Benchmark instance")
    names = [grader.name for grader in benchmark.graders]
    if not names or len(set(names)) < len(names):
        raise UserError(f"{where} needs graders with names of their own")
    for grader in benchmark.graders:
        keys = [column.key for column in grader.columns]
        if sum(column.headline for column in grader.columns) != 1:
            raise UserError(f"{where}: one column of {grader.name} must be the headline")
        if len(set(keys)) < len(keys) or _RESERVED & set(keys):
            raise UserError(f"{where}: column keys of {grader.name} are double or reserved: {keys}")


def get_benchmark(name: str) -> Benchmark:
    """The benchmark registered as ``name``.

    Raises:
        UserError: There is none, with the nearest name as hint; or it cannot be used.
    """
    known = _registered()
    if name not in known:
        raise unknown_name("benchmark", name, known)
    found = known[name]
    if isinstance(found, UserError):
        raise found
    return found


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
