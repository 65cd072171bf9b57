"""How the command's process ends."""

from __future__ import annotations

import os
import sys
from typing import NoReturn

_at_once = False


def leave_at_once() -> None:
    """From now on :func:`leave` ends the process as it is.

    A library's own end would hang or crash: Ray's, without its head.
    """
    global _at_once
    _at_once = True


def leave(code: int) -> NoReturn:
    """End the process with an exit code; everything is written and said."""
    if _at_once:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    # CPython remembers an interrupt that went through exec() of a text (dataclasses are made so,
    # while modules are imported), and would end the process by the signal whatever its exit code.
    # The next such exec forgets it.
    exec("")
    sys.exit(code)
