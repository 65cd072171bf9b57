"""Where things are."""

import os
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
ROOT = TESTS.parent
PACKAGE = ROOT / "mtbench_ray"
SHARED = Path(os.environ.get("MTBENCH_RAY_SHARED", ROOT.parent / "shared"))
