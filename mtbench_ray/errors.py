"""The failures that cross a boundary of the package.

Everything a user can cause or fix is a :class:`UserError`; the command line prints its message
and hint without a traceback and exits with 2. Failures of single rows are never exceptions: they
are rows with a ``status`` (see :mod:`mtbench_ray.schema`).
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable

EXIT_OK = 0
EXIT_USAGE = 2
EXIT_PARTIAL = 3
EXIT_INTERRUPTED = 130


class UserError(Exception):
    """Something the user can fix.

    Args:
        message: What happened and where, one sentence.
        hint: The next command or setting to try; may be empty.
    """

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message}\n  {self.hint}" if self.hint else self.message

    def __reduce__(self) -> tuple[type[UserError], tuple[str, str]]:
        return type(self), (self.message, self.hint)


class EngineFault(Exception):
    """An engine died, hung or could not start; carries the engine's own words.

    Args:
        message: What the engine said.
        fatal: True where another engine with the same settings would fail in the same way
            (wrong architecture, model larger than the card), so that no restart is tried.
        hung: Nobody saw it die: it was silent for too long.
    """

    def __init__(self, message: str, *, fatal: bool = False, hung: bool = False) -> None:
        super().__init__(message)
        self.fatal = fatal
        self.hung = hung


class EndpointStopped(Exception):
    """An endpoint refused in a way that no further call can fix (key, quota, unknown model)."""


def unknown_name(kind: str, name: str, known: Iterable[str]) -> UserError:
    """The error for a name that is not one of the ``known`` ones, with the nearest as hint."""
    choices = sorted(known)
    near = difflib.get_close_matches(name, choices, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]}?" if near else ""
    return UserError(f"unknown {kind} {name!r}; there are: {', '.join(choices)}", hint)
