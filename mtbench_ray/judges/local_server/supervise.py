"""Runs a command that cannot outlive the process that asked for it. Standard library only.

    python supervise.py COMMAND ... < pipe

Must lead a session of its own. Everything in its process group ends as soon as standard input
closes (the other end was closed, or its process died in whatever way), the command ends by itself
(a vLLM server that dies hard leaves its engine processes behind), or this process is killed (a Ray
worker that loses its driver kills its children, and only those).
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import time

GRACE_S = 5.0
"""How long the command may take to end by itself."""
_POLL_S = 0.5


def supervise(command: list[str]) -> None:
    """Run ``command``; ends by killing the own process group, this process included."""
    child = subprocess.Popen(command, stdin=subprocess.DEVNULL)
    me = os.getpid()
    if os.fork() == 0:
        _guard(child.pid, me)
    signal.signal(signal.SIGTERM, lambda *_: child.terminate())
    print(f"supervise: the command ended with exit code {child.wait()}", flush=True)
    os.killpg(0, signal.SIGKILL)


def _guard(child: int, supervisor: int) -> None:
    """End the group when standard input closes or the supervisor is gone."""
    while os.getppid() == supervisor:
        # Nobody writes into the pipe: readable means closed.
        if select.select([sys.stdin], [], [], _POLL_S)[0]:
            break
    with contextlib.suppress(ProcessLookupError):
        os.kill(child, signal.SIGTERM)
        deadline = time.monotonic() + GRACE_S
        while time.monotonic() < deadline:
            os.kill(child, 0)
            time.sleep(0.1)
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    supervise(sys.argv[1:])
