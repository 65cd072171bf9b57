"""The logs of engine actors, read on their nodes: a pod's disk is gone after the run."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

TAIL_BYTES = 256 * 1024
"""Of each log, its end: the whole of an engine that is well."""
_WAIT_S = 20.0
"""For all nodes together: a worker process of Ray may have to be started on each."""


@dataclass(frozen=True)
class EngineLog:
    """What an engine's process wrote, engine cores and all.

    Attributes:
        name: Of a file: its node and its process.
        text: The end of its output; unredacted.
    """

    name: str
    text: str


def engine_logs(actors: Collection[Mapping[str, Any]]) -> Iterator[EngineLog]:
    """The logs of actors; those of nodes that are lost are left out. Never raises.

    Args:
        actors: Of each, its ``host``, ``pid``, ``node`` and ``log``, the path there of what it
            writes to standard error.
    """
    with contextlib.suppress(Exception):
        import ray
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        here = ray.get_runtime_context().get_node_id()
        alive = {node["NodeID"] for node in ray.nodes() if node["Alive"]}
        # A node that is as good as lost is not waited for longer than the others.
        read = ray.remote(num_cpus=0, max_retries=0)(tail)
        asked: dict[Any, Mapping[str, Any]] = {}
        for actor in actors:
            if actor["node"] == here or Path(actor["log"]).exists():
                yield _log(actor, tail(actor["log"]))
            elif actor["node"] in alive:
                place = NodeAffinitySchedulingStrategy(actor["node"], soft=False)
                asked[read.options(scheduling_strategy=place).remote(actor["log"])] = actor
        if asked:
            for reference in ray.wait(list(asked), num_returns=len(asked), timeout=_WAIT_S)[0]:
                with contextlib.suppress(Exception):
                    yield _log(asked[reference], ray.get(reference))


def _log(actor: Mapping[str, Any], text: str) -> EngineLog:
    host = re.sub(r"[^A-Za-z0-9.-]", "_", str(actor["host"]))
    return EngineLog(f"engine_{host}_{actor['pid']}.log", text)


def tail(log: str, size: int = TAIL_BYTES) -> str:
    """The ends of a worker's standard output and error; empty where there are none."""
    texts = []
    for path in (Path(log).with_suffix(".out"), Path(log)):
        with contextlib.suppress(OSError), path.open("rb") as file:
            left_out = max(0, path.stat().st_size - size)
            file.seek(left_out)
            text = file.read(size).decode("utf-8", "replace")
            texts.append(f"... {left_out} bytes left out ...\n{text}" if left_out else text)
    return "\n".join(filter(None, texts))
