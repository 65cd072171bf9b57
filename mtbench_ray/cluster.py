"""The Ray cluster of a run: started or joined, and how many engines it has room for."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mtbench_ray.config import ClusterConfig, EngineConfig
from mtbench_ray.errors import UserError

NICENESS = 1
"""Of engines on a Ray that the run starts, so that the driver beside them stays quick. Ray's own 15
would leave an engine beside four busy processes a thirtieth of two cores; this leaves a third."""


def needs_ray(engine: EngineConfig, cluster: ClusterConfig) -> bool:
    """Whether the answers of an engine come through Ray: an endpoint needs no actors."""
    return engine.kind == "vllm" or cluster.ray == "always"


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
    address = cluster.address or os.environ.get("RAY_ADDRESS")
    options: dict[str, Any] = {
        "namespace": cluster.namespace,
        "log_to_driver": False,
        "logging_level": logging.WARNING,
    }
    if address is None:
        # Actors import this package from where the driver did, installed or not.
        here = str(Path(__file__).resolve().parents[1])
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
    try:
        with _quiet_stderr():
            ray.init(address=address, **options)
    except (ConnectionError, TimeoutError, ValueError, RuntimeError) as error:
        raise UserError(
            f"Ray at {address or 'this machine'} cannot be reached: {error}",
            "check cluster.address and RAY_ADDRESS, or unset both to start Ray here",
        ) from None


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
    engine: EngineConfig, cluster: ClusterConfig, models: int, units: int, taken: int = 0
) -> int:
    """Engines to start: what is asked for, or what the cluster's GPUs allow.

    Args:
        engine: Its settings.
        cluster: Where.
        models: Models to answer.
        units: Conversations in all.
        taken: GPUs that a judge on the same cluster holds meanwhile.

    Raises:
        UserError: More GPUs are asked for than the cluster has, with need and have.
    """
    if not needs_ray(engine, cluster):
        return min(engine.replicas or 1, max(1, units))
    import ray

    per_engine = engine.tensor_parallel * engine.pipeline_parallel
    gpus = int(ray.cluster_resources().get("GPU", 0))
    if engine.kind == "fake" or (gpus == 0 and per_engine == 1):
        return min(engine.replicas or 1, max(1, units))
    need = (engine.replicas or 1) * per_engine
    deadline = time.monotonic() + (cluster.wait_s if cluster.address else 0.0)
    while gpus < need and time.monotonic() < deadline:
        time.sleep(1.0)
        gpus = int(ray.cluster_resources().get("GPU", 0))
    biggest = max((int(node["Resources"].get("GPU", 0)) for node in ray.nodes()), default=0)
    if gpus < need or biggest < per_engine:
        raise UserError(
            f"{need} GPUs are needed ({engine.replicas or 1} engines of {per_engine}) and the"
            f" cluster has {gpus}, at most {biggest} on one node",
            "lower engine.replicas or engine.tensor_parallel, or add nodes",
        )
    free = max(1, (gpus - taken) // per_engine)
    return min(engine.replicas or free, max(models, 1) * max(1, units))
