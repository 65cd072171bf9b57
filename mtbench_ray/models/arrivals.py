"""Checkpoints as they land: which are whole, and why the others are not taken yet.

A folder is taken once its files are whole (:mod:`mtbench_ray.models.whole`) and nothing in it has
changed for a while. The time comes from outside, so that tests need not wait.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from mtbench_ray.config import ModelConfig
from mtbench_ray.models.candidates import Candidate, candidates
from mtbench_ray.models.trainer_state import sharded_state
from mtbench_ray.models.whole import Signature, newest_change, signature, why_not_whole

State = Literal["whole", "changing", "incomplete", "sharded"]


@dataclass(frozen=True)
class Arrival:
    """A checkpoint folder as it was at a look.

    Attributes:
        state: ``whole``; ``changing``, so that it was not looked into; ``incomplete``; ``sharded``,
            a trainer's own format, which no waiting makes a model of.
        reason: Why it is not taken; empty where it is.
        hint: What to do about it.
        quiet_s: Seconds for which nothing has changed.
        content: Equal as long as nothing in it changes.
    """

    candidate: Candidate
    state: State
    reason: str = ""
    hint: str = ""
    quiet_s: float = 0.0
    content: Signature = ()


@dataclass
class _Known:
    content: Signature
    since: float
    verdict: tuple[State, str, str] | None = None


class Arrivals:
    """Looks at the checkpoint folders of one ``model.root``, again and again.

    Args:
        settle_s: Seconds without a change before a folder is looked into.
        changed_at: When a folder changed last, in Unix seconds; for the first look at it.
    """

    def __init__(
        self,
        model: ModelConfig,
        settle_s: float,
        changed_at: Callable[[Path], float] = newest_change,
    ) -> None:
        self._model = model
        self._settle_s = settle_s
        self._changed_at = changed_at
        self._known: dict[Path, _Known] = {}

    def look(self, now: float, clock: float) -> list[Arrival]:
        """All checkpoint folders that are there, in the order of training.

        Args:
            now: Seconds of a clock that only goes forward.
            clock: Unix seconds.

        Raises:
            UserError: There is no root, or the pattern has no step.
        """
        there = candidates(self._model)
        folders = {one.folder for one in there}
        self._known = {path: known for path, known in self._known.items() if path in folders}
        return [self._one(one, now, clock) for one in there]

    def _one(self, one: Candidate, now: float, clock: float) -> Arrival:
        content = signature(one.folder)
        known = self._known.get(one.folder)
        if known is None:
            # One that has lain there for long is not waited for.
            age = max(0.0, clock - self._changed_at(one.folder))
            known = self._known[one.folder] = _Known(content, now - age)
        elif known.content != content:
            known = self._known[one.folder] = _Known(content, now)
        quiet = now - known.since
        if quiet < self._settle_s:
            reason = f"changed {quiet:.0f} s ago: it may still be written"
            return Arrival(one, "changing", reason, "", quiet, content)
        if known.verdict is None:
            known.verdict = inspect(one)
            if signature(one.folder) != content:  # changed under our eyes
                del self._known[one.folder]
                return Arrival(one, "changing", "it is still being written", "", 0.0, content)
        state, reason, hint = known.verdict
        return Arrival(one, state, reason, hint, quiet, content)


def inspect(one: Candidate) -> tuple[State, str, str]:
    """State of a folder, why it is not taken, and what to do."""
    reason = why_not_whole(one.model)
    if not reason:
        return "whole", "", ""
    if ("no weights" in reason or "no config" in reason or "sharded state" in reason) and (
        state := sharded_state(one.folder)
    ):
        return "sharded", f"only the sharded state of a trainer ({state.what})", state.tool
    return "incomplete", reason, ""


def once(model: ModelConfig) -> Sequence[Arrival]:
    """One look at all folders, without waiting for anything.

    Raises:
        UserError: There is no root, or the pattern has no step.
    """
    return [Arrival(one, *inspect(one)) for one in candidates(model)]
