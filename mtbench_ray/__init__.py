"""A Ray-distributed evaluator for MT-Bench; from Python see :mod:`mtbench_ray.api`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mtbench_ray.api import Result, Verdict, evaluate, judge, plan, report

__version__ = "0.1.0"

__all__ = ["Result", "Verdict", "__version__", "evaluate", "judge", "plan", "report"]


def __getattr__(name: str) -> Any:
    # Only where it is asked for: every engine process imports this package.
    if name in __all__:
        from mtbench_ray import api

        return getattr(api, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
