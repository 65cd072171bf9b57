"""Kills runs with kill -9 at random moments, starts the same line again, and counts what is amiss.

    python tests/bench/crash_drill.py [--kills 100] [--ray] [--seed 1]

Fake engine, real processes, real HTTP judge. Printed: rows lost, rows doubled, judge calls paid
again (at most those in flight at a kill), and how long processes of a killed run stayed.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))

from crash import CONCURRENCY, drill, own_questions


def main() -> None:
    """Run the drill once; exits with 1 where anything was lost or doubled."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--ray", action="store_true", help="engines in Ray actors")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    more = ["cluster.ray=always"] if args.ray else []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        questions = own_questions(folder)
        longest = 14.0 if args.ray else 5.0
        tally = drill(questions, folder, *more, kills=args.kills, seed=args.seed, longest_s=longest)
    print(f"kills {tally.kills}, rows planned {tally.planned}")
    print(f"lost {tally.lost}, doubled {tally.doubled}")
    print(
        f"paid again {tally.paid_again} calls, {tally.paid_again / tally.kills:.2f} a kill"
        f" (at most {CONCURRENCY} were in flight)"
    )
    clean = tally.seconds_to_clean
    print(
        f"processes of a killed run gone after {statistics.median(clean):.1f} s in the median,"
        f" {max(clean):.1f} s at most"
    )
    sys.exit(bool(tally.lost or tally.doubled))


if __name__ == "__main__":
    main()
