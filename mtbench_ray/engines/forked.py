"""The last thing that the fork server imports (see :mod:`~.forks`): is it fit to be forked from?"""

import atexit
import os
import shutil
import sys

from mtbench_ray.engines.forks import FOLDER

_torch = sys.modules.get("torch")
if _torch is not None and _torch.cuda.is_initialized():
    # No process that is forked from this one could use a GPU: they are spawned then.
    raise SystemExit("the import of vLLM made a CUDA context: engine processes are spawned")
# Whoever started this removes it too, unless it was killed. Forked processes do not come by here.
if folder := os.environ.get(FOLDER):
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
