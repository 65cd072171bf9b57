"""``python -m mtbench_ray``."""

from __future__ import annotations

import io
import sys


def main() -> None:
    """Entry point of the command; exits with the code of :func:`mtbench_ray.cli.main`."""
    from mtbench_ray.cli import main as run

    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # A terminal without Unicode shows ? for what it cannot.
            stream.reconfigure(errors="replace")
    sys.exit(run(sys.argv[1:]))


if __name__ == "__main__":
    main()
