"""The next checkpoint's weights, held ready in staging memory by a process beside the engine.

Reading a checkpoint takes seconds, copying it from the card's own memory a fraction of one.
The reading is done by another process, since a thread of the engine's would slow its steps down,
and while requests run. It reads into one buffer, which the engine maps once:

- ``device``: memory of the card, shared by CUDA IPC;
- ``host``: memory of the machine without a name in any file system, which the engine pins.

Nothing is left when the process ends, however it ends, and it ends with its parent.
"""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mtbench_ray.engines import fork_server as forks
from mtbench_ray.engines.hot_swap.staging_process import Entry, StagingError, serve

OVERHEAD_GB = 1.0
"""Memory of the card that the process takes beside the weights: CUDA's own, and a forward pass."""
_JOIN_S = 10.0


@dataclass(frozen=True, slots=True)
class StagedWeights:
    """Weights that lie ready.

    Attributes:
        handle: For ``map_buffer`` of the staging process, in a process on the same card.
        table: All tensors, layer by layer.
    """

    place: str
    handle: bytes
    table: tuple[Entry, ...]


class Staging:
    """The process, from the side of the engine actor. Calls wait for one another.

    Args:
        place: ``device`` or ``host``.

    Raises:
        OSError: No process can be started.
    """

    def __init__(self, place: str) -> None:
        context = forks.process_context()
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(
            target=serve, args=(theirs, place), name="staging", daemon=True
        )
        self._process.start()
        theirs.close()
        self._place = place
        # A call that nobody waits for any more still gets its own reply.
        self._turn = threading.Lock()
        self._tickets = itertools.count()
        self._newest = -1

    async def stage(self, folder: Path) -> StagedWeights:
        """Read the weights of a folder, over those held before.

        Raises:
            StagingError: They cannot be read, the memory cannot be had, or a later call has come.
        """
        self._newest = ticket = next(self._tickets)
        handle, table = await self._ask("load", str(folder), ticket)
        return StagedWeights(self._place, handle, table)

    async def logprobs(self, ids: Sequence[int]) -> list[float]:
        """Log-probability in nats of each token but the first, by a forward pass of transformers
        over the weights held now, where they are.

        Raises:
            StagingError: transformers cannot run them.
        """
        return [float(value) for value in await self._ask("logprobs", list(ids))]

    def close(self) -> None:
        """End the process; its memory is free once the engine has ended too. Harmless twice."""
        self._process.kill()
        self._process.join(_JOIN_S)
        self._pipe.close()

    async def _ask(self, what: str, argument: Any, ticket: int | None = None) -> Any:
        def exchange() -> tuple[bool, Any]:
            with self._turn:
                if ticket is not None and ticket != self._newest:
                    return False, "another checkpoint is wanted by now"
                self._pipe.send((what, argument))
                good, reply = self._pipe.recv()
            return good, reply

        try:
            good, reply = await asyncio.to_thread(exchange)
        except (OSError, EOFError, ValueError) as error:
            raise StagingError("the process that stages weights is gone") from error
        if not good:
            raise StagingError(reply)
        return reply
