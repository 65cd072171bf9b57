"""Judge calls whose prompts begin alike: one of them first, so that the others find it cached.

Services keep what they have read of a prompt and charge less for it, but a call finds nothing of
one that runs at the same time. Several calls on one answer, with the answer in front and what is
asked of it behind, begin alike; so do repeats of a call.
"""

from __future__ import annotations

from mtbench_ray.schema import Request, text_hash

PREFIX = 4096
"""Characters that must be the same: about the 1,024 tokens from which on services keep a prompt."""


class SharedPrefixes:
    """Which of the calls to one service may go now. Not for several threads at once."""

    def __init__(self) -> None:
        self._waiting: dict[str, list[Request]] = {}
        self._read: set[str] = set()

    def admit(self, request: Request) -> bool:
        """Whether a call may go; else it waits for the one that :meth:`ended` is called with."""
        name = _prefix(request)
        if not name or name in self._read:
            return True
        if name in self._waiting:
            self._waiting[name].append(request)
            return False
        self._waiting[name] = []
        return True

    def ended(self, request: Request) -> list[Request]:
        """The calls that waited for one that has ended, however it did."""
        name = _prefix(request)
        waiting = self._waiting.pop(name, None)
        if waiting is None:
            return []
        self._read.add(name)
        return waiting


def _prefix(request: Request) -> str:
    """Equal for prompts that begin alike; empty for one that is too short to be kept."""
    text = "".join(f"{message.role}\n{message.content}\n" for message in request.messages)
    return text_hash(text[:PREFIX]) if len(text) >= PREFIX else ""
