"""Where things are."""

from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
ROOT = TESTS.parent
PACKAGE = ROOT / "mtbench_ray"
SHARED = ROOT.parent / "shared"
