"""What follows once a round of work is done and its rows are on disk.

A round is a whole run, or in a watch the checkpoints that were there together. Nothing here may end
the run: what fails is told, and the rows are kept.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from mtbench_ray.config import RunConfig
from mtbench_ray.reports.results import Results
from mtbench_ray.schema import Evaluation
from mtbench_ray.workspace.run_record import RunRecord


def after_round(
    results: Results,
    rows: Sequence[Evaluation],
    config: RunConfig,
    record: RunRecord,
    tell: Callable[[str], None],
) -> None:
    """Called on the main thread once the files of a round are written; the workspace is open.

    It is called where nothing was pending too, so that what was missed earlier can be made up for.

    Args:
        results: Of the round's workspace, with the run's parity and bootstrap.
        rows: The evaluations of the round, complete or not.
        record: Of the round, saved already.
        tell: Takes lines for the user.
    """


def after_run(config: RunConfig) -> None:
    """Called once at the very end of a run or a watch, however it ends."""
