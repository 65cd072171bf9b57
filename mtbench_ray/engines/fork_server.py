"""An engine's processes are forked from one that has imported vLLM, so that none does it again.

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
import platform
import signal
import sys
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import context, forkserver, popen_forkserver, popen_spawn_posix
from typing import Any

_PRELOAD = ["vllm.v1.engine.async_llm", "mtbench_ray.engines.forked"]
# Windows' Linux: the GPU's management library does not survive a fork there.
_usable = "microsoft" not in " ".join(platform.uname()).lower()


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
    if torch is not None and threads.isdigit() and int(threads):
        # It was imported in the server's environment.
        torch.set_num_threads(int(threads))


class _Process(context.ForkServerProcess):
    """A process that comes from the server and has its maker's environment."""

    def __getstate__(self) -> dict[str, Any]:
        # First, so that it is there when the rest is unpickled, which imports modules.
        return {"_environment": _Environment(), **self.__dict__}

    @staticmethod
    def _Popen(process_obj: Any) -> Any:
        global _usable
        _usable = _usable and _alive()
        if _usable:
            try:
                return popen_forkserver.Popen(process_obj)
            except (OSError, EOFError):
                _usable = False
        return popen_spawn_posix.Popen(process_obj)


class _Context(context.ForkServerContext):
    Process = _Process


def begin() -> None:
    """Start the server, unless it is there; returns at once, while it imports.

    The environment should be the one in which vLLM is to be imported.
    """
    global _usable
    # A server that died is not restarted: it would fail again, after all its imports.
    _usable = _usable and fits_python() and (server_pid() is None or _alive())
    if not _usable:
        return
    forkserver.set_forkserver_preload(_PRELOAD)
    with contextlib.suppress(OSError):  # told when it is needed
        forkserver.ensure_running()


def server_pid() -> int | None:
    """Of the server, where this process has started one."""
    return getattr(getattr(forkserver, "_forkserver", None), "_forkserver_pid", None)


def _alive() -> bool:
    pid = server_pid()
    with contextlib.suppress(ChildProcessError):
        return pid is not None and os.waitpid(pid, os.WNOHANG) == (0, 0)
    return False


def end() -> None:
    """Kill the server: whoever waits for its imports waits no more. From now on all is spawned."""
    global _usable
    _usable = False
    if (pid := server_pid()) and _alive():
        os.kill(pid, signal.SIGKILL)


def process_context() -> context.ForkServerContext:
    """Makes processes that come from the server; the first one waits for its imports."""
    begin()
    return _Context()


def fits_vllm() -> bool:
    """Whether the vLLM that is installed has the private names that are replaced here."""
    try:
        from vllm.model_executor.models import registry
        from vllm.v1.engine import utils
    except ImportError:
        return False
    return hasattr(utils, "get_mp_context") and hasattr(registry, "_run_in_subprocess")


def fits_python() -> bool:
    """Whether this Python's fork server has the private name that tells its process."""
    return hasattr(getattr(forkserver, "_forkserver", None), "_forkserver_pid")


def serve_vllm() -> None:
    """Have vLLM make its processes this way: in a Ray actor it would spawn them.

    Its own way is left to it where it has other names for this (:func:`fits_vllm`), and with
    ``engine.fork_server=false``.
    """
    if not (_usable and fits_vllm()):
        return
    from vllm.model_executor.models import registry
    from vllm.v1.engine import utils

    theirs, look = utils.get_mp_context, registry._run_in_subprocess
    if theirs.__module__ == __name__:
        return

    def get_mp_context() -> context.BaseContext:
        theirs()  # it also sets what the children's environment must have
        return _Context()

    utils.get_mp_context = get_mp_context
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
    with contextlib.suppress(ImportError):
        from vllm.plugins import load_general_plugins

        load_general_plugins()  # models that a plugin brings may need it
    return pickle.loads(work)()
