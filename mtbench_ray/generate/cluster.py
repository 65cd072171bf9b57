"""The Ray cluster of a run: started or joined, and how many engines it has room for."""

from __future__ import annotations

import atexit
import contextlib
import dataclasses
import logging
import os
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil

from mtbench_ray.config import ClusterConfig, EngineConfig
from mtbench_ray.endpoint.shared_limit import NAMESPACE
from mtbench_ray.errors import UserError
from mtbench_ray.system.debugging import DEBUG_ENV
from mtbench_ray.system.leaving import leave_at_once
from mtbench_ray.system.sockets import RAY_NEEDS, socket_folder

NICENESS = 1
"""Of engines on a Ray that the run starts, so that the driver beside them stays quick. Ray's own 15
would leave an engine beside four busy processes a thirtieth of two cores; this leaves a third."""


def needs_ray(engine: EngineConfig, cluster: ClusterConfig) -> bool:
    """Whether the answers of an engine come through Ray: an endpoint needs no actors."""
    return engine.kind == "vllm" or cluster.ray == "always"


def asks_for_gpus(engine: EngineConfig) -> bool:
    """Whether an engine takes GPUs of the cluster where it has some.

    The fake engine does where a test wants Ray to place it as it would a real one.
    """
    return engine.kind == "vllm" or bool(engine.fake_faults.get("asks_for_gpus"))


def gpus_of_engine(engine: EngineConfig, cluster: ClusterConfig) -> int:
    """GPUs that Ray finds for an engine: none where no node has, or is to have, a GPU."""
    if not asks_for_gpus(engine) or not (cluster.num_gpus or gpus_by_node()):
        return 0
    return engine.tensor_parallel * engine.pipeline_parallel


def joined(cluster: ClusterConfig) -> str | None:
    """Address of the Ray cluster that the run joins; None where it starts Ray itself."""
    return cluster.address or os.environ.get("RAY_ADDRESS")


def start_ray(cluster: ClusterConfig) -> None:
    """Start Ray on this machine, or join the cluster that is named.

    Raises:
        UserError: The named cluster cannot be reached.
    """
    import ray

    if ray.is_initialized():
        return
    # Its core worker prints advice to the developers of Ray Data; logs keep everything.
    os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")
    address = joined(cluster)
    options: dict[str, Any] = {
        "namespace": NAMESPACE,
        "log_to_driver": DEBUG_ENV in os.environ,
        "logging_level": logging.WARNING,
    }
    if address is None:
        # Actors import this package from where the driver did, installed or not.
        here = str(Path(__file__).resolve().parents[2])
        paths = os.environ.get("PYTHONPATH", "").split(os.pathsep)
        if here not in paths:
            os.environ["PYTHONPATH"] = os.pathsep.join([here, *filter(None, paths)])
        # Below the driver, and not by far: see there.
        os.environ.setdefault("RAY_worker_niceness", str(NICENESS))
        options |= {
            "include_dashboard": False,
            "num_cpus": cluster.num_cpus,
            "num_gpus": cluster.num_gpus,
        }
        # `uv run` would be repeated in each worker, with a copy of the whole working directory.
        ray._private.ray_constants.RAY_ENABLE_UV_RUN_RUNTIME_ENV = False
        folder = socket_folder(RAY_NEEDS, os.environ.get("RAY_TMPDIR"))
        if folder is None:
            raise UserError(
                "Ray finds no folder for its sockets: TMPDIR is too long or cannot be written",
                "set RAY_TMPDIR to a short folder that can be written: RAY_TMPDIR=/tmp/me",
            )
        os.environ["RAY_TMPDIR"] = folder
    try:
        with _quiet_stderr():
            _init(address, options)
    except ray.exceptions.AuthenticationError:
        raise UserError(
            f"the Ray cluster at {address or 'this machine'} wants a token, or another one",
            "set RAY_AUTH_TOKEN or RAY_AUTH_TOKEN_PATH to the cluster's token; for a cluster "
            "without tokens set RAY_AUTH_MODE=disabled",
        ) from None
    except Exception as error:
        # Of any kind: a node that does not come up in time is a bare Exception.
        said = " ".join(str(error).split())[:300]
        if address is None and "timed out" in said:
            raise UserError(
                f"Ray was not up in time on this machine: {said}",
                "it may only be busy: run the same command again",
            ) from None
        if address is None:
            raise UserError(
                f"Ray cannot be started on this machine: {said}",
                "Ray writes to RAY_TMPDIR and, for its token, to the home folder: set RAY_TMPDIR "
                "to one that can be written, and RAY_AUTH_MODE=disabled or RAY_AUTH_TOKEN_PATH",
            ) from None
        raise UserError(
            f"Ray at {address} cannot be reached: {said}",
            "check cluster.address and RAY_ADDRESS, or unset both to start Ray here",
        ) from None


def _init(address: str | None, options: dict[str, Any]) -> None:
    """``ray.init``, once more where Ray's processes here were not up in the 30 s it gives them."""
    import ray

    before = set(psutil.Process().children())
    try:
        ray.init(address=address, **options)
    except Exception as error:
        if address is not None or "timed out during startup" not in str(error):
            raise
        # They would stay until this process ends, and hold up the next ones.
        for process in set(psutil.Process().children()) - before:
            with contextlib.suppress(psutil.Error):
                if process.name() in ("raylet", "gcs_server"):
                    for one in (*process.children(recursive=True), process):
                        one.kill()
        ray.init(address=address, **options)


def forget_ray() -> None:
    """Leave a Ray whose head is lost as it is: to shut it down would wait for the head."""
    import ray

    atexit.unregister(ray._private.worker.shutdown)
    leave_at_once()


@contextlib.contextmanager
def _quiet_stderr() -> Iterator[None]:
    """What Ray's processes and libraries say at their start is not for a user.

    Python's own writes go on; errors of the start come as exceptions.
    """
    logging.getLogger("ray._private.authentication").setLevel(logging.ERROR)
    try:
        saved = os.dup(2)
    except OSError:  # no standard error at all
        yield
        return
    text = sys.stderr
    try:
        with open(os.devnull, "wb") as nothing:
            os.dup2(nothing.fileno(), 2)
        yield
    finally:
        text.flush()
        os.dup2(saved, 2)
        os.close(saved)


def count_replicas(
    engine: EngineConfig,
    cluster: ClusterConfig,
    models: int,
    units: int,
    beside: Sequence[int] = (),
    again: bool = False,
) -> int:
    """Engines to start: what is asked for, or what the cluster's GPUs allow.

    Args:
        engine: Its settings.
        cluster: Where.
        models: Models to answer.
        units: Conversations in all.
        beside: GPUs of each judge server that runs on the same cluster meanwhile.
        again: In mid-run, where nodes may be lost: what is left of the cluster is used, and one
            engine's room is waited for.

    Raises:
        UserError: More GPUs are asked for than the cluster has, with need and have.
    """
    per_engine = engine.tensor_parallel * engine.pipeline_parallel
    if not needs_ray(engine, cluster) or not asks_for_gpus(engine):
        return min(engine.replicas or 1, max(1, units))
    if again and cluster.num_gpus:
        nodes = require_gpus(
            1, per_engine, beside, dataclasses.replace(cluster, wait_s=cluster.lost_wait_s)
        )
        most = min(engine.replicas or sum(nodes), max(models, 1) * max(1, units))
        return max(n for n in range(1, most + 1) if fits(nodes, [*beside, *[per_engine] * n]))
    most = engine.replicas or max(models, 1) * max(1, units)
    if joined(cluster) and cluster.num_gpus:
        hoped = min(most, (cluster.num_gpus - sum(beside)) // per_engine)
        _wait_for([*beside, *[per_engine] * hoped], cluster.wait_s)
        cluster = dataclasses.replace(cluster, wait_s=0.0)
    if per_engine == 1 and not sum(gpus_by_node()) and not cluster.num_gpus:
        return min(engine.replicas or 1, max(1, units))
    nodes = require_gpus(engine.replicas or 1, per_engine, beside, cluster)
    count = engine.replicas or 1
    while count < most and fits(nodes, [*beside, *[per_engine] * (count + 1)]):
        count += 1
    return min(count, max(models, 1) * max(1, units))


def require_gpus(
    engines: int, per_engine: int, beside: Sequence[int], cluster: ClusterConfig
) -> list[int]:
    """Compare need and have; waits a while for the nodes of a growing cluster.

    Args:
        engines: Engines that must run at once.
        per_engine: GPUs of each, on one node.
        beside: GPUs of each judge server, on one node, that must run at the same time.

    Returns:
        GPUs of each node.

    Raises:
        UserError: They do not fit.
    """
    need = [*beside, *[per_engine] * engines]
    nodes = _wait_for(need, cluster.wait_s if joined(cluster) else 0.0)
    if fits(nodes, need):
        return nodes
    who = [f"{engines} engine{'s' * (engines > 1)} of {per_engine}"] * bool(engines)
    who += [f"judge servers of {'+'.join(map(str, beside))}"] * bool(beside)
    have = f"{sum(nodes)}" + (f" ({'+'.join(map(str, nodes))} by node)" if len(nodes) > 1 else "")
    lower = "engine.replicas or engine.tensor_parallel" if engines else "judge.tensor_parallel"
    after = "judge.schedule=after starts the judge after the answers; or " if engines else ""
    raise UserError(
        f"{sum(need)} GPUs are needed ({' and '.join(who)}) and the cluster has {have}",
        f"{after if beside else ''}lower {lower}, or add nodes (one engine or server stays on one)",
    )


def _wait_for(need: Sequence[int], seconds: float) -> list[int]:
    """GPUs of each node once blocks of ``need`` fit, or after so long a time.

    A cluster that grows by itself is asked for them; what has come stays while it is used.
    """
    deadline = time.monotonic() + seconds
    asked = False
    while not fits(nodes := gpus_by_node(), need) and time.monotonic() < deadline:
        if not asked:
            asked = True
            print(
                f"waiting up to {seconds:g} s for {sum(need)} GPUs: the cluster has {sum(nodes)}",
                file=sys.stderr,
            )
            _ask_autoscaler([{"GPU": block} for block in need])
        time.sleep(1.0)
    if asked:
        _ask_autoscaler([])
    return nodes


def _ask_autoscaler(bundles: list[dict[str, int]]) -> None:
    from ray.autoscaler.sdk import request_resources

    request_resources(bundles=bundles)


def gpus_by_node() -> list[int]:
    """GPUs of each node of the cluster that has some."""
    import ray

    found = [int(n["Resources"].get("GPU", 0)) for n in ray.nodes() if n["Alive"]]
    return [gpus for gpus in found if gpus]


def fits(nodes: Sequence[int], blocks: Sequence[int]) -> bool:
    """Whether blocks of GPUs, each on one node, have room at the same time.

    The largest first, each on the fullest node that still takes it.
    """
    free = sorted(nodes)
    for block in sorted(blocks, reverse=True):
        place = next((index for index, left in enumerate(free) if left >= block), None)
        if place is None:
            return False
        free[place] -= block
        free.sort()
    return True
