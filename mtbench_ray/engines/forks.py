"""An engine's processes are forked from one that has imported vLLM, so that none does it anew.

The import takes some 20 s on a GPU machine, and a start would wait for it in a row: in this
process, in one that looks at the model's class, in the engine's core. Python's fork server does it
once, while this process does it too, and later engines of this process find it done.

What is forked must not run threads or hold a CUDA context. The server has neither: it imports and
waits (:mod:`~mtbench_ray.engines.forked` makes sure). It ends when this process and all that came
out of it are gone. Where it cannot be used, processes are spawned.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import sys
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import context, forkserver, popen_forkserver, popen_spawn_posix
from typing import Any

_PRELOAD = ["vllm.v1.engine.async_llm", "mtbench_ray.engines.forked"]


class _Environment:
    """This process's environment when this is pickled: that of the server is an older one.

    Unpickling sets it, and that comes before whatever follows in the same object.
    """

    def __reduce__(self) -> Any:
        # What an engine's core starts, its workers, is forked from it: vLLM's own way outside Ray.
        return _enter, (dict(os.environ) | {"VLLM_WORKER_MULTIPROC_METHOD": "fork"},)


def _enter(environment: dict[str, str]) -> None:
    os.environ.clear()
    os.environ.update(environment)
    threads, torch = environment.get("OMP_NUM_THREADS", ""), sys.modules.get("torch")
    if torch is not None and threads.isdigit():
        # It was imported in the server's environment.
        torch.set_num_threads(int(threads))


class _Process(context.ForkServerProcess):
    """A process that comes from the server and has its maker's environment."""

    def __getstate__(self) -> dict[str, Any]:
        # First, so that it is there when the rest is unpickled, which imports modules.
        return {"_environment": _Environment(), **self.__dict__}

    @staticmethod
    def _Popen(process_obj: Any) -> Any:
        try:
            return popen_forkserver.Popen(process_obj)
        except (OSError, EOFError):
            return popen_spawn_posix.Popen(process_obj)


class _Context(context.ForkServerContext):
    Process = _Process


def begin() -> None:
    """Start the server, unless it is there; returns at once, while it imports.

    The environment should be the one in which vLLM is to be imported.
    """
    forkserver.set_forkserver_preload(_PRELOAD)
    with contextlib.suppress(OSError):  # then processes are spawned
        forkserver.ensure_running()


def process_context() -> context.ForkServerContext:
    """Makes processes that come from the server; the first one waits for its imports."""
    return _Context()


def serve_vllm() -> None:
    """Have vLLM make its processes this way: in a Ray actor it would spawn them."""
    from vllm.model_executor.models import registry
    from vllm.v1.engine import utils

    theirs = utils.get_mp_context
    if theirs.__module__ == __name__:
        return

    def get_mp_context() -> context.BaseContext:
        theirs()  # it also sets what the children's environment must have
        return _Context()

    utils.get_mp_context = get_mp_context
    look = registry._run_in_subprocess
    registry._run_in_subprocess = lambda work: _in_process(work, look)


def _in_process(work: Callable[[], Any], otherwise: Callable[[Callable[[], Any]], Any]) -> Any:
    """Result of a function that may make a CUDA context, or be nothing that can be pickled."""
    import cloudpickle

    try:
        with ProcessPoolExecutor(1, mp_context=_Context()) as pool:
            return pool.submit(_call, cloudpickle.dumps(work)).result()
    except (BrokenProcessPool, OSError):
        return otherwise(work)


def _call(work: bytes) -> Any:
    return pickle.loads(work)()
