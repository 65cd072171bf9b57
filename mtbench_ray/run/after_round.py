"""What follows once a round of work is done and its rows are on disk.

A round is a whole run, or in a watch the checkpoints that were there together. Nothing here may end
the run: what fails is told, and the rows are kept.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from mtbench_ray.config import RunConfig
from mtbench_ray.models.naming import Naming
from mtbench_ray.reports.results import Results
from mtbench_ray.run.pictures_beside import PicturesBeside
from mtbench_ray.schema import Evaluation
from mtbench_ray.trackers import send as trackers
from mtbench_ray.workspace.run_record import RunRecord

_pictures: dict[str, PicturesBeside] = {}
"""By workspace."""


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
    if config.watch.enabled:
        from mtbench_ray.run.alerts import alert

        alert(results, rows, config.watch.alert, tell)
        if config.workspace not in _pictures:
            root, report = results.workspace.root.resolve(), config.report
            words = [f"parity={config.parity}", f"resamples={report.resamples}",
                     f"seed={report.seed}"]  # fmt: skip
            _pictures[config.workspace] = PicturesBeside(root, words, _pattern(config), tell)
        _pictures[config.workspace].update()
    trackers.send(results, rows, config, record, naming_of(config), tell)


def between_rounds(config: RunConfig) -> None:
    """Called every so often while a watch waits."""
    if config.workspace in _pictures:
        _pictures[config.workspace].look()


def after_run(config: RunConfig, tell: Callable[[str], None], interrupted: bool = False) -> None:
    """Called once at the very end of a run or a watch, however it ends."""
    pictures = _pictures.pop(config.workspace, None)
    if pictures is not None:
        pictures.end(at_once=interrupted)


def naming_of(config: RunConfig) -> Naming:
    """How the names of a run's models hold training run and step."""
    return Naming(_pattern(config))


def _pattern(config: RunConfig) -> str:
    """How names hold run and step, for curves, where ``model.pattern`` says it."""
    pattern = config.model.pattern
    if not pattern:
        return ""
    return f"*/{pattern}*" if "{run}" in pattern else f"{{run}}/{pattern}*"
