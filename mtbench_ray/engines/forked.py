"""The last thing that the fork server imports (see :mod:`~.forks`): is it fit to be forked from?"""

import sys

_torch = sys.modules.get("torch")
if _torch is not None and _torch.cuda.is_initialized():
    # No process that is forked from this one could use a GPU: they are spawned then.
    raise SystemExit("the import of vLLM made a CUDA context: engine processes are spawned")
