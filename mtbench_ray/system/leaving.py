"""How the command's process ends."""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
from typing import NoReturn

_at_once = False
_code: int | None = None


def leave_at_once() -> None:
    """From now on :func:`leave` ends the process as it is.

    A library's own end would hang or crash: Ray's, without its head.
    """
    global _at_once
    _at_once = True


def leave(code: int) -> NoReturn:
    """End the process with an exit code; everything is written and said.

    What libraries have registered for the end is done.
    """
    global _code
    if _at_once:
        _end(code)
    _code = code
    sys.exit(code)


def _end(code: int) -> NoReturn:
    with contextlib.suppress(OSError, ValueError):  # nobody reads it any more
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)


@atexit.register
def _after_the_others() -> None:
    """Called last, since it is registered first: what is left is that Python takes every module
    and class apart, a second after openai, and that an interrupt which it remembers (from an exec()
    of a text, as dataclasses are made) would end the process by the signal."""
    if _code is not None:
        _end(_code)
