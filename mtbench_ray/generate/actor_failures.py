"""What is known of engine processes and nodes of the cluster that died."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from mtbench_ray.errors import EngineFault

NO_ENGINE_S = 120.0
"""After the loss of a node: seconds in which nobody works until the stream is given up."""
_LAST_LINES = 3


class TaskErrors(logging.Handler):
    """Keeps what Ray says of tasks that ended with their actor; it only logs it."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.words = ""

    def emit(self, record: logging.LogRecord) -> None:
        """Keep the words of an exception."""
        if record.exc_info and record.exc_info[1] is not None:
            self.words = str(record.exc_info[1])

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
    """
    import gc

    import ray
    from ray.actor import ActorHandle

    if not actor_ids or not ray.is_initialized():
        return
    for found in gc.get_objects():
        if issubclass(type(found), ActorHandle) and found._actor_id.hex() in actor_ids:
            with contextlib.suppress(Exception):
                ray.kill(found)


class NodeWatch:
    """Ends a stream that can bring nothing more: a node is gone, and nobody is at work.

    Engine actors at work give signs of life, several in ``NO_ENGINE_S``.
    """

    def __init__(self) -> None:
        self._nodes = _alive_nodes()
        self._heard = time.monotonic()

    def heard(self) -> None:
        """A row or a sign of life came."""
        self._heard = time.monotonic()

    def check(self) -> None:
        """Look at the nodes.

        Raises:
            EngineFault: Nobody is left, for ``NO_ENGINE_S`` now.
        """
        if time.monotonic() - self._heard < NO_ENGINE_S:
            return
        alive = _alive_nodes()
        if self._nodes <= alive:
            return
        raise EngineFault(
            f"{len(self._nodes - alive)} node(s) of the cluster are gone, and no engine has come up"
            f" elsewhere for {NO_ENGINE_S:.0f} s; re-run the same command once there is room"
        )


def _alive_nodes() -> set[str]:
    import ray

    return {node["NodeID"] for node in ray.nodes() if node["Alive"]}


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


def last_words(where: Mapping[str, Any], ray_says: str) -> str:
    """What is known of the end of an engine process, in one line, and where its log is."""
    said = [line.strip() for line in ray_says.splitlines() if line.strip()]
    told = [line for line in said if line.startswith("The actor died")]
    words = f"process {where['pid']} on {where['host']} ended"
    with contextlib.suppress(OSError):
        log = Path(where["log"]).read_text("utf-8", "replace").splitlines()
        # Lines that begin with a colon are Ray's own marks.
        last = [line.strip() for line in log if line.strip(" ") and line[0] != ":"][-_LAST_LINES:]
        words += f", last words: {' / '.join(last)}" if last else ""
    if told or said:
        words += f"; Ray: {(told or said)[-1]}"
    return f"{words} (its log: {where['log']})"
