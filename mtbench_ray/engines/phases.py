"""Where the seconds of an engine's start go: named stretches of it, kept by who asks for them."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from contextvars import ContextVar
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Phase:
    """A stretch of time.

    Attributes:
        ended: Seconds since the epoch.
        seconds: How long it took.
    """

    name: str
    ended: float
    seconds: float


_kept: ContextVar[list[Phase] | None] = ContextVar("phases", default=None)


@contextlib.contextmanager
def phase(name: str) -> Iterator[None]:
    """Time what is done inside, failed or not, for the :func:`phases` around it."""
    began = time.monotonic()
    try:
        yield
    finally:
        keep(Phase(name, time.time(), time.monotonic() - began))


def keep(*found: Phase) -> None:
    """Add stretches that were timed elsewhere."""
    if (kept := _kept.get()) is not None:
        kept.extend(found)


@contextlib.contextmanager
def phases() -> Iterator[list[Phase]]:
    """What is timed inside, by this task and the threads that it waits for."""
    kept: list[Phase] = []
    token = _kept.set(kept)
    try:
        yield kept
    finally:
        _kept.reset(token)
