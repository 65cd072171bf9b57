"""Parts of an engine's start that only vLLM's workers know, by what they log.

They log at INFO, which an engine's log does not keep: here it is heard, not written.
"""

from __future__ import annotations

import logging
import re
import time

_MARKS = (
    (r"Starting to load model|Loading model from scratch", "worker and device"),
    (r"Model loading took", "weights"),
    (r"Available KV cache memory|[Ss]kipped memory profiling", "memory profile"),
    (r"Graph capturing finished", "graphs"),
)
"""Messages, in the order of a start, and what is over when each comes."""


class StartMarks(logging.Handler):
    """Hears what vLLM's loggers of this process say, until :meth:`phases` is called.

    Args:
        name: Of the logger above all of vLLM's.
    """

    def __init__(self, name: str = "vllm") -> None:
        super().__init__(logging.INFO)
        self._logger = logging.getLogger(name)
        self._level = self._logger.level
        self._began = time.time()
        self._seen: dict[str, float] = {}
        for handler in self._logger.handlers:
            handler.setLevel(max(handler.level, self._level))  # what is printed stays the same
        self._logger.setLevel(min(self._level, logging.INFO))
        self._logger.addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        """Note the time of a message that marks the end of a part."""
        for words, name in _MARKS:
            if re.search(words, str(record.msg)):
                self._seen.setdefault(name, time.time())

    def phases(self) -> list[tuple[str, float, float]]:
        """Name, end (seconds since the epoch) and length in seconds of each part; ends listening.

        A part whose mark did not come counts to the next.
        """
        self._logger.removeHandler(self)
        self._logger.setLevel(self._level)
        found, began = [], self._began
        for name, ended in sorted(self._seen.items(), key=lambda item: item[1]):
            found.append((name, ended, ended - began))
            began = ended
        return found
