"""``python -m mtbench_ray``."""

from __future__ import annotations

import sys


def main() -> None:
    """Entry point of the command; exits with the code of :func:`mtbench_ray.cli.main`."""
    from mtbench_ray.cli import main as run

    sys.exit(run(sys.argv[1:]))


if __name__ == "__main__":
    main()
