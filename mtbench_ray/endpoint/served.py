"""What really answered: the model that a service names, and whether it changed."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A model as a service lists it.

    Attributes:
        id: The name that it is called by.
        root: The folder or repository behind the name, where the service says so (vLLM does).
    """

    id: str
    root: str = ""

    @property
    def name(self) -> str:
        """What goes into rows."""
        return f"{self.id} ({self.root})" if self.root and self.root != self.id else self.id


def read_models(body: str) -> dict[str, ServedModel]:
    """The models of a ``/v1/models`` body by id; empty where it cannot be read."""
    try:
        entries = json.loads(body)["data"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return {}
    found = {}
    for entry in entries if isinstance(entries, list) else ():
        if isinstance(entry, dict) and isinstance(entry.get("id"), str):
            root = entry.get("root")
            found[entry["id"]] = ServedModel(entry["id"], root if isinstance(root, str) else "")
    return found


@dataclass
class ServedModels:
    """Notices when another model answers under the same label, in a run or between runs."""

    _models: dict[str, set[str]] = field(default_factory=dict)
    _fingerprints: dict[str, set[str]] = field(default_factory=dict)
    _changed: set[str] = field(default_factory=set)

    def known(self, rows: Iterable[tuple[str, str, str]]) -> None:
        """Take rows of earlier runs: label, served model, system fingerprint."""
        for label, model, fingerprint in rows:
            if model:
                self._models.setdefault(label, set()).add(model)
            if fingerprint:
                self._fingerprints.setdefault(label, set()).add(fingerprint)

    def note(self, label: str, model: str, fingerprint: str) -> str:
        """A line for the user where this row's model is another one than before, else empty.

        Every new model is reported; a new fingerprint of the same model once, since some services
        answer with several at a time.
        """
        models = self._models.setdefault(label, set())
        prints = self._fingerprints.setdefault(label, set())
        line = ""
        if model and models and model not in models:
            line = f"{label}: {model} answered, before it was {', '.join(sorted(models))}"
        elif fingerprint and prints and fingerprint not in prints and label not in self._changed:
            self._changed.add(label)
            before = ", ".join(sorted(prints))
            line = f"{label}: the service's version is {fingerprint}, before it was {before}"
        self.known([(label, model, fingerprint)])
        return line
