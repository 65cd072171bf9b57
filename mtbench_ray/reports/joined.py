"""Several workspaces read as one: reports then take them like one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from mtbench_ray.errors import UserError
from mtbench_ray.schema import ANSWERED, BenchmarkData, Judgment, Turn
from mtbench_ray.workspace.run_record import RunRecord
from mtbench_ray.workspace.workspace import Workspace


class Joined(Workspace):
    """Open workspaces as one that can only be read.

    Ids are of contents, so that equal ids are the same answer or judgment wherever they lie; one
    that failed in one workspace and is good in another is good.
    """

    def __init__(self, opened: Sequence[Workspace]) -> None:
        super().__init__(opened[0].root)
        self._opened = opened
        self._all_turns = _merged(
            [one.turns for one in opened], lambda turn: turn.status in ANSWERED
        )
        self._all_verdicts = _merged(
            [one.verdicts for one in opened], lambda row: row.status == "ok"
        )

    @property
    def turns(self) -> Mapping[tuple[str, int], Turn]:
        """As of one workspace."""
        return self._all_turns

    @property
    def verdicts(self) -> Mapping[str, Judgment]:
        """As of one workspace."""
        return self._all_verdicts

    @property
    def judgments(self) -> Mapping[str, Judgment]:
        """As of one workspace."""
        return _Judgments(self._all_verdicts, self._opened)

    def run_records(self) -> list[RunRecord]:
        """Those of all workspaces, the last workspace's last."""
        return [record for one in self._opened for record in one.run_records()]

    def load_data(self, name: str) -> BenchmarkData:
        """A snapshot from any of the workspaces."""
        for number, one in enumerate(self._opened):
            try:
                return one.load_data(name)
            except UserError:
                if number == len(self._opened) - 1:
                    raise
        raise AssertionError("no workspace")


class _Judgments(Mapping[str, Judgment]):
    """Judgments with their prompts, each from the workspace whose row counts."""

    def __init__(self, verdicts: Mapping[str, Judgment], opened: Sequence[Workspace]) -> None:
        self._verdicts, self._opened = verdicts, opened

    def __getitem__(self, judgment_id: str) -> Judgment:
        counts = self._verdicts[judgment_id]
        one = next(one for one in self._opened if one.verdicts.get(judgment_id) is counts)
        return one.judgments[judgment_id]

    def __iter__(self) -> Iterator[str]:
        return iter(self._verdicts)

    def __len__(self) -> int:
        return len(self._verdicts)


def _merged(parts: Sequence[Mapping[Any, Any]], good: Any) -> dict[Any, Any]:
    merged: dict[Any, Any] = {}
    for part in parts:
        for key, row in part.items():
            if good(row) or key not in merged:
                merged[key] = row
    return merged


@contextmanager
def opened(folders: Sequence[str]) -> Iterator[Workspace]:
    """Workspaces for reading, as one.

    Raises:
        UserError: One of them is none.
    """
    with ExitStack() as stack:
        found = [
            stack.enter_context(Workspace.open(name, write=False))
            for name in dict.fromkeys(folders)
        ]
        yield found[0] if len(found) == 1 else Joined(found)
