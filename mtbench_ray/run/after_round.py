"""What follows once a round of work is done and its rows are on disk.

A round is a whole run, or in a watch the checkpoints that were there together. Nothing here may end
the run: what fails is told, and the rows are kept.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from mtbench_ray.config import RunConfig
from mtbench_ray.errors import UserError
from mtbench_ray.judges.base import ScoreOptions
from mtbench_ray.reports.results import Results
from mtbench_ray.run.alerts import alert
from mtbench_ray.schema import Evaluation
from mtbench_ray.workspace.run_record import RunRecord

_PAGE_SHARE = 10.0
"""A page is written again once so many times the time has passed that it took."""


@dataclass
class _Files:
    """The curve and the page of a watch.

    Attributes:
        told: What failed and was said already: a missing library fails in every round.
    """

    config: RunConfig
    root: str
    told: set[str] = field(default_factory=set)
    page_at: float = 0.0
    page_pending: bool = False

    def write(self, tell: Callable[[str], None]) -> None:
        """After a round; a large page only every so often."""
        from mtbench_ray.reports import curve

        naming = _naming(self.config)
        self._try("curve", tell, lambda: curve.write(
            [self.root], error="ci95", by="both", out="", options=self._options, name_pattern=naming
        ))  # fmt: skip
        self.page_pending = True
        if time.monotonic() >= self.page_at:
            self.write_page(tell)

    def write_page(self, tell: Callable[[str], None]) -> None:
        """Where rows have come since the last one."""
        from mtbench_ray.reports.page import view

        began = time.monotonic()
        self._try("page", tell, lambda: view.write([self.root], "", self._options))
        self.page_pending = False
        now = time.monotonic()
        self.page_at = now + _PAGE_SHARE * (now - began)

    @property
    def _options(self) -> ScoreOptions:
        report = self.config.report
        return ScoreOptions(self.config.parity, report.resamples, report.seed)

    def _try(self, what: str, tell: Callable[[str], None], write: Callable[[], object]) -> None:
        try:
            write()
        except UserError as error:
            if str(error) not in self.told:
                self.told.add(str(error))
                tell(f"no {what}: {error.message}")


_files: dict[str, _Files] = {}
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
        alert(results, rows, config.watch.alert, tell)
        root = str(results.workspace.root)
        _files.setdefault(config.workspace, _Files(config, root)).write(tell)


def after_run(config: RunConfig, tell: Callable[[str], None]) -> None:
    """Called once at the very end of a run or a watch, however it ends."""
    files = _files.pop(config.workspace, None)
    if files is not None and files.page_pending:
        files.write_page(tell)


def _naming(config: RunConfig) -> str:
    """How names hold run and step, for curves, where ``model.pattern`` says it."""
    pattern = config.model.pattern
    if not pattern:
        return ""
    return f"*/{pattern}*" if "{run}" in pattern else f"{{run}}/{pattern}*"
