"""The cluster's head in mid-run: Ray ends a driver's process that has lost it, without a word."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from mtbench_ray.generate.actor_failures import answers
from mtbench_ray.system.threads import start_thread

HEAD_S = 40.0
"""The longest silence of a head: Ray's own patience (a minute) must not have ended."""
_EVERY_S = 2.0


class HeadWatch:
    """Looks whether the head of the joined cluster still listens.

    Args:
        patience_s: A head that is started again meanwhile, at the same address, counts as there.
        lost: Called once, in a thread, with the head's address.
    """

    def __init__(self, patience_s: float, lost: Callable[[str], None]) -> None:
        import ray

        self.address = str(ray.get_runtime_context().gcs_address)
        self._patience_s = min(patience_s, HEAD_S)
        self._lost = lost
        self._over = threading.Event()
        start_thread("head", self._watch, ended=lambda _: None)

    def close(self) -> None:
        """Watch no more."""
        self._over.set()

    def _watch(self) -> None:
        host, _, port = self.address.rpartition(":")
        heard = time.monotonic()
        while not self._over.wait(_EVERY_S):
            if answers(host.strip("[]"), int(port)):
                heard = time.monotonic()
            elif time.monotonic() - heard > self._patience_s:
                self._lost(self.address)
                return
