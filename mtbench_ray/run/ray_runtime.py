"""Ray as long as a run needs it: joined or started here, watched, and left."""

from __future__ import annotations

import os
from collections.abc import Callable

from mtbench_ray.config import ClusterConfig
from mtbench_ray.errors import UserError
from mtbench_ray.generate.cluster import forget_ray, start_ray
from mtbench_ray.generate.head_watch import HeadWatch
from mtbench_ray.run.signals import Interrupts
from mtbench_ray.run.watchdog import Watchdog


def head_lost(address: str) -> UserError:
    """What is said of a cluster whose head is gone."""
    return UserError(
        f"the head of the Ray cluster at {address} is lost",
        "what is done is kept: run the same command again once the cluster is up",
    )


class RayRuntime:
    """What a run has of Ray. A Ray that the process had before is used and left as it is.

    Args:
        interrupts: Installed again after Ray's own handlers.

    Attributes:
        head_lost: Called in a thread, with the address of a joined cluster's head that is lost.
    """

    def __init__(self, cluster: ClusterConfig, interrupts: Interrupts) -> None:
        self._cluster = cluster
        self._interrupts = interrupts
        self.head_lost: Callable[[str], None] = lambda address: None
        self._watchdog: Watchdog | None = None
        self._head: HeadWatch | None = None
        self.lost: str | None = None
        """The address of the head that is lost."""
        self.ours = False
        """Started or joined by this run."""

    @property
    def address(self) -> str | None:
        """Of the cluster to join; None where Ray is started here."""
        return self._cluster.address or os.environ.get("RAY_ADDRESS")

    @property
    def gpus(self) -> int | None:
        """Of the whole cluster; None where Ray is not ours."""
        if not self.ours:
            return None
        import ray

        return int(ray.cluster_resources().get("GPU", 0))

    def start(self) -> None:
        """Join the cluster, or start Ray here.

        Raises:
            UserError: It cannot be joined or started.
            KeyboardInterrupt: SIGTERM came meanwhile.
        """
        import ray

        if ray.is_initialized():
            return
        if not self.address:
            self._watchdog = Watchdog()
            self._interrupts.exempt.add(self._watchdog.pid)
        self.ours = True
        try:
            start_ray(self._cluster)
        except SystemExit:  # Ray's own handler of SIGTERM
            raise KeyboardInterrupt from None
        finally:
            self._interrupts.install()
        if self._watchdog is not None:
            self._watchdog.settled()
        else:
            self._head = HeadWatch(self._cluster.lost_wait_s, self._lose)

    def _lose(self, address: str) -> None:
        self.lost = address
        self.head_lost(address)

    def end(self) -> None:
        """Leave the cluster, or end the Ray that was started here."""
        if self._head is not None:
            self._head.close()
        if self.lost:
            forget_ray()  # it would wait for its head
        elif self.ours:
            import ray

            ray.shutdown()
        if self._watchdog is not None:
            self._watchdog.close()
