"""The local judge: vLLM servers that a run starts in its Ray cluster and stops on every way out.

This is the driver's side: each server belongs to a Ray actor that holds its GPUs
(:mod:`~mtbench_ray.judges.local_server.process`). The driver talks to it like any endpoint: on
127.0.0.1 where actor and driver share a node, else on the node's own address, and always with the
run's random key.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mtbench_ray.config import JudgeConfig
from mtbench_ray.engines.cpu import CALLS
from mtbench_ray.errors import EngineFault, UserError
from mtbench_ray.judges.local_server.process import JudgeServer, ServerSpec
from mtbench_ray.judges.local_server.supervise import GRACE_S

POLL_S = 0.5
"""A server that died is noticed within this time while one waits for it."""


class Cards:
    """Holds the GPUs of a server that was readied before they were free; a Ray actor."""

    def visible(self) -> str:
        """Names of the cards, for CUDA_VISIBLE_DEVICES."""
        return os.environ.get("CUDA_VISIBLE_DEVICES", "")


@dataclass
class ServerGroup:
    """The servers of one local judge, as the driver sees them. Safe to use from several threads.

    Attributes:
        base_urls: Roots of the servers' APIs, one per replica; set by :meth:`wait_ready`.
        remarks: What a user should know of how they were started; set likewise.
    """

    spec: ServerSpec
    base_urls: list[str] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)
    _actors: list[Any] = field(default_factory=list)
    _starts: list[Any] = field(default_factory=list)
    _holders: list[Any] = field(default_factory=list)
    _reading: list[Any] = field(default_factory=list)
    _moved: set[int] = field(default_factory=set)
    _stopped: threading.Event = field(default_factory=threading.Event)

    def wait_ready(self, timeout: float) -> None:
        """Wait until every server answers.

        Args:
            timeout: Seconds.

        Raises:
            EngineFault: One died (within a second of its death), or was not up in time.
            UserError: One cannot run on its node.
        """
        deadline = time.monotonic() + timeout
        while True:
            urls = [self._url_if_up(index) for index in range(len(self._actors))]
            up = [url for url in urls if url is not None]
            if len(up) == len(urls):
                self.base_urls = up
                self._hear_remarks()
                return
            if time.monotonic() > deadline:
                raise EngineFault(self._why_late(urls.index(None), timeout))
            self._stopped.wait(POLL_S)

    @property
    def at_once(self) -> int | None:
        """Calls that the servers work on together; None where they set no such limit."""
        return None if self.spec.on_gpu else CALLS * len(self._actors)

    def _hear_remarks(self) -> None:
        import ray

        with contextlib.suppress(ray.exceptions.RayError):  # it died since: noticed elsewhere
            said = ray.get([actor.remark.remote() for actor in self._actors], timeout=10.0)
            self.remarks = sorted({text for text in said if text})

    def dead(self) -> dict[int, str]:
        """The last words of the servers that have died, by replica; empty while all run.

        Raises:
            EngineFault: The group was stopped.
        """
        faults = {index: self._fault(index) for index in range(len(self._actors))}
        return {index: text for index, text in faults.items() if text is not None}

    def restart(self, timeout: float) -> None:
        """Start the dead servers again and wait for them; ``base_urls`` may change.

        Raises:
            EngineFault: As :meth:`wait_ready`.
        """
        for index in self.dead():
            if _is_alive(self._actors[index]):
                self._starts[index] = self._actors[index].start.remote()
            else:
                self._start_actor(index)
        self.wait_ready(timeout)

    def stop(self) -> None:
        """End all servers and their actors, and free their GPUs. Never raises."""
        import ray

        if not self._stopped.is_set() and ray.is_initialized():
            self._stopped.set()
            # An actor that still waits for its GPUs would not answer; killing it is enough.
            with contextlib.suppress(Exception):
                begun, _ = ray.wait(self._starts, num_returns=len(self._starts), timeout=0)
                pairs = zip(self._actors, self._starts, strict=True)
                stops = [actor.stop.remote() for actor, started in pairs if started in begun]
                ray.wait(stops, num_returns=len(stops), timeout=GRACE_S + 5.0)
            for actor in filter(None, [*self._actors, *self._holders]):
                with contextlib.suppress(Exception):
                    ray.kill(actor)

    def begin(self) -> None:
        """Start the servers, or what was readied of them; returns at once."""
        if not self._actors:
            for index in range(self.spec.judge.replicas):
                self._start_actor(index)
            return
        import ray

        gpus = self.spec.judge.tensor_parallel
        for index, actor in enumerate(self._actors):
            holder = ray.remote(Cards).options(num_cpus=0, num_gpus=gpus).remote()
            self._holders.append(holder)
            self._starts[index] = actor.start.remote(holder.visible.remote())

    def make_ready(self) -> None:
        """Do what needs no GPU yet; nothing where it is not known which node will have one.

        Without a GPU a server would only take cores from the engines.
        """
        import ray
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        nodes = [node for node in ray.nodes() if node["Alive"] and node["Resources"].get("GPU")]
        if len(nodes) != 1 or self._actors:
            return
        here = NodeAffinitySchedulingStrategy(nodes[0]["NodeID"], soft=False)
        options = {"num_cpus": 0, "num_gpus": 0, "scheduling_strategy": here}
        for _ in range(self.spec.judge.replicas):
            actor = ray.remote(JudgeServer).options(**options).remote(self.spec)
            self._actors.append(actor)
            self._starts.append(actor.ready.remote())

    def read_ahead(self) -> None:
        """Have the weights of readied servers read into the page cache; the first call counts."""
        if self._actors and not self._reading:
            self._reading = [self._actors[0].read_ahead.remote()]

    def _start_actor(self, index: int) -> None:
        import ray

        if index < len(self._holders) and self._holders[index] is not None:
            with contextlib.suppress(Exception):
                ray.kill(self._holders[index])  # the new actor has the cards itself
            self._holders[index] = None
        gpus = self.spec.judge.tensor_parallel if self.spec.on_gpu else 0
        # No CPU is reserved: the server would otherwise wait for engines that hold them all.
        actor = ray.remote(JudgeServer).options(num_cpus=0, num_gpus=gpus).remote(self.spec)
        if index == len(self._actors):
            self._actors.append(actor)
            self._starts.append(None)
        self._actors[index] = actor
        self._starts[index] = actor.start.remote()

    def _url_if_up(self, index: int) -> str | None:
        self._check_stopped()
        url = self._address(index)
        if url is None:
            return None
        fault = self._fault(index)
        if fault is None:
            return url if _answers(url) else None
        if "address already in use" in fault.lower() and index not in self._moved:
            # Somebody took the port between its choice and the server's start.
            self._moved.add(index)
            self._starts[index] = self._actors[index].start.remote()
            return None
        raise EngineFault(f"the local judge's server ended:\n{fault}", fatal=True)

    def _address(self, index: int) -> str | None:
        """Where a server listens or will listen; None while its actor waits or prepares."""
        import ray

        try:
            return str(ray.get(self._starts[index], timeout=0.1))
        except ray.exceptions.GetTimeoutError:
            return None
        except ray.exceptions.RayTaskError as error:
            if isinstance(error.cause, UserError):
                raise error.cause from None
            raise EngineFault(f"the local judge could not start: {error.cause}") from None
        except ray.exceptions.RayError as error:
            raise EngineFault(f"the local judge's actor died: {error}") from None

    def _why_late(self, index: int, timeout: float) -> str:
        import ray

        url = self._address(index)
        need = self.spec.judge.tensor_parallel
        free = ray.available_resources().get("GPU", 0)
        if url is None and self.spec.on_gpu and free < need:
            return (
                f"the local judge found no place in {timeout:.0f} s: it needs {need} free GPU(s) "
                f"on one node, and {free:g} are free in the cluster; judge.schedule=after waits "
                "for the engines to end"
            )
        return (
            f"the local judge's server {'at ' + url if url else 'that is to start'} did not answer "
            f"in {timeout:.0f} s; judge.start_timeout_s= gives it longer"
        )

    def _check_stopped(self) -> None:
        # Asking an actor after Ray was shut down would start another Ray.
        if self._stopped.is_set():
            raise EngineFault("the local judge was stopped")

    def _fault(self, index: int) -> str | None:
        import ray

        self._check_stopped()
        try:
            fault: str | None = ray.get(self._actors[index].fault.remote(), timeout=10.0)
        except ray.exceptions.GetTimeoutError:
            return None
        except ray.exceptions.RayError as error:
            return f"its actor died: {error}"
        return fault


def local_servers(
    judge: JudgeConfig,
    key: str,
    *,
    cpu_kv_cache_gb: float = 2.0,
    cpu_threads: int | None = None,
    log_dir: str | None = None,
) -> ServerGroup:
    """The servers of a local judge on the Ray cluster, none of which is started yet.

    Args:
        judge: ``model`` is a Hugging Face id, a folder, or the demo model's preset name.
        key: What callers must send.
        cpu_kv_cache_gb: Key-value cache of a server without a GPU.
        cpu_threads: Threads of a server without a GPU; None: all cores of its node.
        log_dir: Folder of the servers' logs; None: temporary files.
    """
    import ray

    spec = ServerSpec(
        judge,
        key,
        model_path=folder_or_name(judge.model),
        on_gpu=ray.cluster_resources().get("GPU", 0) > 0,
        driver_node=ray.get_runtime_context().get_node_id(),
        cpu_kv_cache_gb=cpu_kv_cache_gb,
        cpu_threads=cpu_threads,
        log_dir=log_dir,
    )
    return ServerGroup(spec)


def folder_or_name(model: str) -> str:
    """What is a folder here travels as an absolute path: a server has another working directory."""
    folder = Path(model).expanduser()
    return os.path.abspath(folder) if folder.is_dir() else model


def _answers(base_url: str) -> bool:
    """Whether the server of ``base_url`` is up. Proxies of the environment cannot reach it."""
    from http.client import HTTPException

    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(base_url.removesuffix("/v1") + "/health", timeout=5.0) as reply:
            return bool(reply.status == 200)
    except (OSError, HTTPException):  # nobody there, or somebody who does not speak HTTP yet
        return False


def _is_alive(actor: Any) -> bool:
    import ray

    try:
        ray.get(actor.fault.remote(), timeout=10.0)
    except ray.exceptions.RayError:
        return False
    return True
