"""``python -m mtbench_ray``."""

from __future__ import annotations

import io
import sys
from typing import NoReturn


def main() -> None:
    """Entry point of the command; exits with the code of :func:`mtbench_ray.cli.main.main`."""
    try:
        from mtbench_ray.cli.main import main as run
    except KeyboardInterrupt:  # a signal while Python is still importing
        _leave(130)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # A terminal without Unicode shows ? for what it cannot.
            stream.reconfigure(errors="replace")
    _leave(run(sys.argv[1:]))


def _leave(code: int) -> NoReturn:
    # CPython remembers an interrupt that went through exec() of a text (dataclasses are made so,
    # while modules are imported), and would end the process by the signal whatever its exit code.
    # The next such exec forgets it.
    exec("")
    sys.exit(code)


if __name__ == "__main__":
    main()
