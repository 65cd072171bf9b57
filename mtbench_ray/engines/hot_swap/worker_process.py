"""What vLLM's worker processes import, before they load a model; nobody else does."""

from __future__ import annotations

from mtbench_ray.engines.hot_swap.start_marks import StartMarks
from mtbench_ray.engines.hot_swap.worker_extension import LiveWeights

_marks = StartMarks()


class Extension(LiveWeights):
    """Extension of vLLM's worker class."""

    def mtbench_phases(self) -> list[tuple[str, float, float]]:
        """See :meth:`~.start_marks.StartMarks.phases`; times are of this machine's clock."""
        return _marks.phases()
