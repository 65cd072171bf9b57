"""What was sent to which tracker: ``trackers.jsonl`` of the workspace, which only grows."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from mtbench_ray.schema import text_hash
from mtbench_ray.workspace.journal import Journal, read

FILE = "trackers.jsonl"


class Ledger:
    """The events of one tracker; the file is made with the first one that is written.

    Args:
        root: The workspace, open for writing.
        target: The tracker, and where it sends to.
    """

    def __init__(self, root: Path, target: str) -> None:
        self._path = root / FILE
        self._target = target
        self._ids: dict[str, str] = {}
        self._names: dict[str, str] = {}
        self._keys: dict[tuple[str, str], str] = {}
        self._sent: dict[tuple[str, str], str] = {}
        if self._path.exists():
            for _, event in read(self._path):
                if event.get("target") == target:
                    self._take(event)

    def _take(self, event: dict[str, Any]) -> None:
        run, kind = str(event.get("run")), event.get("event")
        if kind == "run":
            self._ids[run] = str(event.get("id"))
        elif kind == "name":
            self._names[run] = str(event.get("name"))
        elif kind == "key":
            self._keys[run, str(event.get("line"))] = str(event.get("key"))
        elif kind == "sent":
            self._sent[run, str(event.get("evaluation"))] = str(event.get("digest"))

    def add(self, event: str, run: str, **more: str) -> None:
        """Write one event.

        Raises:
            UserError: The disk refused it.
        """
        line = {
            "target": self._target,
            "event": event,
            "run": run,
            **more,
            "t": round(time.time(), 3),
        }
        with Journal(self._path) as journal:
            journal.append(json.dumps(line))
        self._take(line)

    def tracker_id(self, run: str) -> str:
        """The tracker's id of its run for a training run, empty where it has none."""
        return self._ids.get(run, "")

    def name(self, run: str, wanted: str) -> str:
        """A name for the tracker's run, another one than those of other training runs."""
        if run not in self._names:
            self.add("name", run, name=_free(wanted, self._names.values(), run))
        return self._names[run]

    def key(self, run: str, line: str, wanted: str) -> str:
        """What a curve is called: the same at all times, and no other curve of the run is."""
        if (run, line) not in self._keys:
            taken = (key for (other, _), key in self._keys.items() if other == run)
            self.add("key", run, line=line, key=_free(wanted, taken, line))
        return self._keys[run, line]

    def was_sent(self, run: str, evaluation_id: str) -> bool:
        """Whether an evaluation is there, perhaps with other figures."""
        return (run, evaluation_id) in self._sent

    def is_new(self, run: str, evaluation_id: str, digest: str) -> bool:
        """Whether an evaluation, or what is known of it, was not sent yet."""
        return self._sent.get((run, evaluation_id)) != digest


def _free(wanted: str, taken: Iterable[str], of: str) -> str:
    return f"{wanted}-{text_hash(of)[:6]}" if wanted in set(taken) else wanted
