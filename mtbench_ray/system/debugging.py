"""``debug=true``: every request, retry and line of an engine on standard error."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

DEBUG_ENV = "MTBENCH_RAY_DEBUG"
"""Set for the processes of a run that is debugged: Ray then passes their lines on."""


@contextmanager
def debugging(on: bool, scrub: Callable[[str], str]) -> Iterator[None]:
    """Show this package's log while a run goes on.

    Args:
        scrub: Takes keys and other secrets out of each line.
    """
    if not on:
        yield
        return

    class Scrubbed(logging.Formatter):
        def format(self, record: logging.LogRecord) -> str:
            return scrub(super().format(record))

    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(Scrubbed("%(asctime)s %(name)s: %(message)s"))
    log = logging.getLogger("mtbench_ray")
    level, propagate = log.level, log.propagate
    log.addHandler(handler)
    log.setLevel(logging.DEBUG)
    log.propagate = False
    before = {name: os.environ.get(name) for name in (DEBUG_ENV, "VLLM_LOGGING_LEVEL")}
    os.environ[DEBUG_ENV] = "1"
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "INFO")
    try:
        yield
    finally:
        log.removeHandler(handler)
        log.setLevel(level)
        log.propagate = propagate
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
