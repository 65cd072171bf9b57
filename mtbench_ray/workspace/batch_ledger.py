"""Batches of judge calls at a service: what was sent in which, on disk before any of it is paid.

Layout: ``batches.jsonl``, one event a line, and ``batches/<name>.jsonl``, the replies of a batch as
the service wrote them. One try of a judgment is one line of one batch, under a name of its own: the
judgment's id, and for its n-th try ``-n`` behind it.
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mtbench_ray.schema import Judgment
from mtbench_ray.workspace.journal import Journal, read

_EVENTS = "batches.jsonl"
_REPLIES = "batches"


@dataclass
class Batch:
    """One batch.

    Attributes:
        name: Ours; it stands in the metadata of the service's batch, by which that is found again.
        service: Address, hash of the key, and model.
        judge: Label of the judge.
        tries: Names of the lines.
        at: Unix seconds when its lines were chosen.
        file: The service's id of the file that was uploaded.
        asked: The service may have been asked to make the batch.
        batch_id: The service's id of the batch; empty where it is not known (yet).
        status: As the service called it last.
        done: Lines answered, as the service counted last.
        dropped: The service has made no such batch: nothing was paid.
        collected: Its replies are in the workspace.
    """

    name: str
    service: str
    judge: str
    tries: tuple[str, ...]
    at: float
    file: str = ""
    asked: bool = False
    batch_id: str = ""
    status: str = ""
    done: int = 0
    dropped: bool = False
    collected: bool = False

    @property
    def open(self) -> bool:
        """Whether its replies may still come."""
        return not (self.dropped or self.collected)

    def text(self) -> str:
        """One batch for a user."""
        name = self.batch_id or f"{self.name}, not confirmed"
        return f"{name}: {self.done} of {len(self.tries)} done"


class BatchLedger:
    """All batches of a workspace.

    Args:
        root: The workspace's folder.
        judged: Its judgments. What was sent before a judgment was written has been used up by it.
        write: Writes a file of the workspace, given its path in it and the text; None where the
            workspace is only read.
    """

    def __init__(
        self,
        root: Path,
        judged: Mapping[str, Judgment],
        write: Callable[[Path, str], Path] | None = None,
    ) -> None:
        self.batches: dict[str, Batch] = {}
        self._root = root
        self._write = write
        self._judged = judged
        self._journal: Journal | None = None
        self._tries: dict[str, list[str]] = {}
        self._batch_of: dict[str, Batch] = {}
        self._loaded: dict[str, dict[str, dict[str, Any]]] = {}
        path = self._root / _EVENTS
        if path.exists():
            for _, event in read(path):
                self._apply(event)
        self.seen = frozenset(one.name for one in self.batches.values() if one.collected)
        """Batches whose replies an earlier run has had."""

    @property
    def open(self) -> list[Batch]:
        """Batches whose replies may still come."""
        return [batch for batch in self.batches.values() if batch.open]

    def tries(self, judgment_id: str) -> list[str]:
        """What was sent for a judgment since its last row was written, oldest first."""
        row = self._judged.get(judgment_id)
        since = row.created if row is not None else 0.0
        return [
            name
            for name in self._tries.get(judgment_id, ())
            if self._batch_of[name].at > since and not self._batch_of[name].dropped
        ]

    def next_try(self, judgment_id: str) -> str:
        """The name of a further try."""
        number = len(self._tries.get(judgment_id, ())) + 1
        return judgment_id if number == 1 else f"{judgment_id}-{number}"

    def batch_of(self, name: str) -> Batch:
        """The batch that a try is in."""
        return self._batch_of[name]

    def unused(self, judgment_id: str) -> Batch | None:
        """The batch that holds, or may come to hold, a paid reply which no row has used."""
        for name in self.tries(judgment_id):
            batch = self._batch_of[name]
            if batch.open or answered(self.line(name)):
                return batch
        return None

    def prepare(self, service: str, judge: str, tries: Sequence[tuple[str, str]]) -> Batch:
        """Write down what a batch will hold, each as judgment id and name of the try."""
        batch = Batch(
            f"mtb-{secrets.token_hex(8)}", service, judge, tuple(name for _, name in tries),
            time.time(),
        )  # fmt: skip
        self._add(
            {"batch": batch.name, "service": service, "judge": judge, "at": batch.at,
             "tries": [list(one) for one in tries]}
        )  # fmt: skip
        return self.batches[batch.name]

    def note(self, batch: Batch, **fields: Any) -> None:
        """Write down what became of a batch; on disk when this returns."""
        if any(getattr(batch, name) != value for name, value in fields.items()):
            self._add({"batch": batch.name, "at": time.time(), **fields})

    def collect(self, batch: Batch, lines: Mapping[str, dict[str, Any]], status: str) -> None:
        """Keep the replies of a batch that has ended."""
        assert self._write is not None, "the workspace is only read"
        text = "".join(json.dumps(line) + "\n" for line in lines.values())
        self._write(Path(_REPLIES) / f"{batch.name}.jsonl", text)
        self._loaded[batch.name] = dict(lines)
        self.note(batch, collected=True, status=status)

    def line(self, name: str) -> dict[str, Any] | None:
        """What the service wrote of a try, None where it wrote nothing."""
        batch = self._batch_of[name]
        if batch.name not in self._loaded:
            path = self._root / _REPLIES / f"{batch.name}.jsonl"
            rows = read(path) if path.exists() else ()
            self._loaded[batch.name] = {str(row.get("custom_id")): row for _, row in rows}
        return self._loaded[batch.name].get(name)

    def close(self) -> None:
        """Close the file; a second call does nothing."""
        if self._journal is not None:
            self._journal.close()
            self._journal = None

    def _add(self, event: dict[str, Any]) -> None:
        assert self._write is not None, "the workspace is only read"
        self._journal = self._journal or Journal(self._root / _EVENTS)
        self._journal.append(json.dumps(event))
        self._journal.sync()
        self._apply(event)

    def _apply(self, event: Mapping[str, Any]) -> None:
        name = str(event.get("batch", ""))
        if name not in self.batches:
            tries = event.get("tries")
            if not isinstance(tries, list):
                return
            pairs = [(str(one[0]), str(one[1])) for one in tries]
            batch = Batch(
                name, str(event.get("service", "")), str(event.get("judge", "")),
                tuple(own for _, own in pairs), float(event.get("at", 0.0)),
            )  # fmt: skip
            self.batches[name] = batch
            for judgment_id, own in pairs:
                self._tries.setdefault(judgment_id, []).append(own)
                self._batch_of[own] = batch
            return
        for key in ("file", "asked", "batch_id", "status", "done", "dropped", "collected"):
            if key in event:
                setattr(self.batches[name], key, event[key])


def answered(line: Mapping[str, Any] | None) -> bool:
    """Whether a line holds a reply, which is paid."""
    response = (line or {}).get("response")
    code = response.get("status_code") if isinstance(response, dict) else None
    return isinstance(code, int) and 200 <= code < 300


def open_batches(root: Path) -> list[str]:
    """What a user is shown of batches whose replies may still come, one line for each judge."""
    by_judge: dict[str, list[Batch]] = {}
    for batch in BatchLedger(root, {}).open:
        by_judge.setdefault(batch.judge, []).append(batch)
    return [
        f"{sum(len(batch.tries) for batch in found)} calls of judge {judge} are in "
        f"{len(found)} {'batch' if len(found) == 1 else 'batches'} "
        f"({', '.join(batch.text() for batch in found)}). "
        "Re-run the same command to collect the replies."
        for judge, found in by_judge.items()
    ]
