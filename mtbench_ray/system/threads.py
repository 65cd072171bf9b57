"""The one way to start a thread: no thread ends without somebody being told.

An exception in a thread goes nowhere by itself, and whoever waits for the thread's work waits for
ever. So every thread has a callback that takes what ended it. Where nobody in particular waits for
a thread (the loop that all endpoints share), those who :func:`listen` are told: a run, which then
ends with a message.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass

Ended = Callable[[BaseException | None], None]
"""Takes what ended a thread, None where its work was done. Called in the thread; must not raise."""


@dataclass(frozen=True)
class ThreadEnded:
    """A thread that should be running has ended.

    Attributes:
        thread: Its name.
        error: None where it ended without one.
    """

    thread: str
    error: BaseException | None

    def __str__(self) -> str:
        if self.error is None:
            return f"thread {self.thread} ended"
        return f"thread {self.thread} ended: {type(self.error).__name__}: {self.error}"


_listeners: list[Callable[[ThreadEnded], None]] = []


@contextlib.contextmanager
def listen(listener: Callable[[ThreadEnded], None]) -> Iterator[None]:
    """Have ``listener`` called with every thread that ends and that nobody in particular awaits."""
    _listeners.append(listener)
    try:
        yield
    finally:
        _listeners.remove(listener)


def start_thread(name: str, work: Callable[[], object], ended: Ended) -> threading.Thread:
    """Run ``work`` in a daemon thread; ``ended`` is called however it ends."""

    def run() -> None:
        error: BaseException | None = None
        try:
            work()
        except BaseException as caught:
            error = caught
        ended(error)

    thread = threading.Thread(target=run, name=name, daemon=True)
    thread.start()
    return thread


def start_loop(
    name: str, ended: Ended | None = None
) -> tuple[asyncio.AbstractEventLoop, threading.Thread]:
    """An event loop that runs in a thread of its own until it is stopped.

    Args:
        ended: None: it is to run as long as the process, and its end is told to all listeners.
    """
    loop = asyncio.new_event_loop()

    def tell(error: BaseException | None) -> None:
        for listener in list(_listeners):
            listener(ThreadEnded(name, error))

    def work() -> None:
        try:
            loop.run_forever()
        except BaseException:
            # Whoever waits for a call on the loop waits no more.
            with contextlib.suppress(BaseException):
                loop.run_until_complete(_cancel_all())
            raise

    return loop, start_thread(name, work, ended or tell)


async def _cancel_all() -> None:
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
