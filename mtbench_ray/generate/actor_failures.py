"""What is known of engine processes and nodes of the cluster that died."""

from __future__ import annotations

import contextlib
import logging
import socket
import time
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from mtbench_ray.errors import EngineFault

ACTOR_CPUS = 0.1
"""Of an engine actor, as Ray counts: it takes what the machine has."""
_LAST_LINES = 3


class TaskErrors(logging.Handler):
    """Keeps what Ray says of tasks that ended with their actor; it only logs it."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.reason = ""

    def emit(self, record: logging.LogRecord) -> None:
        """Keep the text of an exception."""
        if record.exc_info and record.exc_info[1] is not None:
            self.reason = str(record.exc_info[1])

    def __enter__(self) -> TaskErrors:
        logging.getLogger("ray.data").addHandler(self)
        return self

    def __exit__(self, *_: object) -> None:
        logging.getLogger("ray.data").removeHandler(self)


def end_actors(actor_ids: Collection[str]) -> None:
    """Kill those of these actors that this process still refers to.

    Ray ends an actor when nobody refers to it any more. After the death of one, what Ray keeps of
    the failed task (its exception, frames and callbacks, which refer to one another) refers to the
    actor, which it has started again meanwhile: that one would hold its GPUs until Python happens
    to collect them.

    By their ids, as ``ray.kill`` does below its checks. Their handles could be found among all
    objects (``gc.get_objects``), but that takes hold of the tuples that other threads are making,
    and breaks them: judge calls and imports failed with a SystemError.
    """
    import ray

    if not ray.is_initialized():
        return
    for actor_id in actor_ids:
        with contextlib.suppress(Exception):  # this process has no handle of it
            core: Any = ray._private.worker.global_worker.core_worker
            core.kill_actor(ray.ActorID.from_hex(actor_id), True)


class NoRoom(EngineFault):
    """Nodes are lost and no other has room: there is no engine, and there will be none."""


class NodeWatch:
    """Ends a stream that can bring nothing more: nodes are gone, and nobody is at work.

    Args:
        patience_s: Engine actors at work give signs of life, several in this time.
        gpus: Of one engine.
    """

    def __init__(self, patience_s: float, gpus: int) -> None:
        self._patience_s = patience_s
        self._gpus = gpus
        self._nodes = _alive_nodes()
        self._heard = time.monotonic()

    def heard(self) -> None:
        """A row or a sign of life came."""
        self._heard = time.monotonic()

    def check(self) -> None:
        """Look at the nodes.

        Raises:
            NoRoom: Nobody is left, for so long now, and a node is gone since the stream began or
                none that is left could ever hold an engine.
        """
        if time.monotonic() - self._heard < self._patience_s:
            return
        if self._nodes <= _alive_nodes() and any(_holds(node, self._gpus) for node in _alive()):
            return
        raise no_room(self._patience_s)


def no_room(seconds: float) -> NoRoom:
    """What is said of a cluster that has lost its room for engines."""
    return NoRoom(
        f"nodes of the cluster are lost, and no engine has come up on another for {seconds:.0f} s;"
        " re-run the same command once there is room"
    )


def _alive() -> list[dict[str, Any]]:
    import ray

    return [node for node in ray.nodes() if node["Alive"]]


def _alive_nodes() -> set[str]:
    return {node["NodeID"] for node in _alive()}


def node_is_lost(node_id: str) -> bool:
    """Whether a node is gone, which Ray may take a while to notice: its raylet is asked."""
    for node in _alive():
        if node["NodeID"] == node_id:
            return not answers(node["NodeManagerAddress"], node["NodeManagerPort"])
    return True


def answers(host: str, port: int) -> bool:
    """Whether somebody listens there."""
    try:
        with socket.create_connection((host, port), timeout=2.0):
            return True
    except OSError:
        return False


def _holds(node: Mapping[str, Any], gpus: int) -> bool:
    """Whether an engine has room on a node once nothing else is there."""
    have = node["Resources"]
    return bool(have.get("CPU", 0.0) >= ACTOR_CPUS and have.get("GPU", 0.0) >= gpus)


def died_before_it_ran(error: BaseException) -> bool:
    """Whether an error is the end of an actor that Ray cancelled before it was started.

    It happens on a standing cluster, now and then. An actor that could not be made, by an error of
    its own code, would meet the same error again.
    """
    from ray.exceptions import RayActorError

    chain: BaseException | None = error
    while chain is not None:
        if isinstance(chain, RayActorError):
            return not chain.actor_init_failed
        chain = chain.__cause__ or chain.__context__
    return False


def describe_crash(where: Mapping[str, Any], ray_says: str) -> str:
    """What is known of the end of an engine process, in one line, and where its log is."""
    said = [line.strip() for line in ray_says.splitlines() if line.strip()]
    told = [line for line in said if line.startswith("The actor died")]
    text = f"process {where['pid']} on {where['host']} ended"
    with contextlib.suppress(OSError):
        log = Path(where["log"]).read_text("utf-8", "replace").splitlines()
        # Lines that begin with a colon are Ray's own marks.
        last = [line.strip() for line in log if line.strip(" ") and line[0] != ":"][-_LAST_LINES:]
        text += f", last words: {' / '.join(last)}" if last else ""
    if told or said:
        text += f"; Ray: {(told or said)[-1]}"
    return f"{text} (its log: {where['log']})"
