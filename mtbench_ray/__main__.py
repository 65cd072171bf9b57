"""``python -m mtbench_ray``."""

from __future__ import annotations

import gc
import io
import sys

from mtbench_ray.system.leaving import leave

_GC = (20_000, 20, 20)
"""Rows are many and hold no cycles: looking for some seldom saves a tenth of a large report."""


def main() -> None:
    """Entry point of the command; exits with the code of :func:`mtbench_ray.cli.main.main`."""
    try:
        from mtbench_ray.cli.main import main as run
    except KeyboardInterrupt:  # a signal while Python is still importing
        leave(130)
    gc.set_threshold(*_GC)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # A terminal without Unicode shows ? for what it cannot.
            stream.reconfigure(errors="replace")
    leave(run(sys.argv[1:]))


if __name__ == "__main__":
    main()
