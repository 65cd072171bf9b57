"""Process trees are ended to the last one, and what they said last is found."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable

import psutil
import pytest

from mtbench_ray.engines.processes import Children, Output

PARENT = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
print(child.pid, flush=True)
time.sleep(60)
"""


def start_tree() -> tuple[subprocess.Popen[str], int]:
    parent = subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    return parent, int(parent.stdout.readline())


def kill_tree(parent: subprocess.Popen[str]) -> None:
    for process in [*psutil.Process(parent.pid).children(), parent]:
        process.kill()
    parent.wait()


def eventually(condition: Callable[[], bool]) -> bool:
    end = time.monotonic() + 10
    while not condition() and time.monotonic() < end:
        time.sleep(0.02)
    return condition()


def test_whole_tree_is_ended_and_what_was_there_before_is_not() -> None:
    other, _ = start_tree()
    children = Children()
    parent, grandchild = start_tree()
    children.claim()
    assert {p.pid for p in children.look()} == {parent.pid, grandchild}
    children.end()
    parent.wait()
    assert eventually(lambda: not psutil.pid_exists(grandchild))
    assert other.poll() is None
    kill_tree(other)


def test_orphans_are_ended_too() -> None:
    children = Children()
    parent, grandchild = start_tree()
    children.claim()
    children.look()
    parent.kill()
    parent.wait()
    assert psutil.pid_exists(grandchild)
    assert children.lost == 1
    children.end()
    assert eventually(lambda: not psutil.pid_exists(grandchild))
    assert children.lost == 2


def test_what_comes_up_after_the_claim_is_not_the_engines() -> None:
    children = Children()
    children.claim()
    parent, _ = start_tree()
    children.end()
    assert parent.poll() is None
    kill_tree(parent)


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        (["all is well"], ""),
        (["(EngineCore pid=1) ERROR [core.py:9] torch.OutOfMemoryError: CUDA out of memory."],
         "OutOfMemoryError: CUDA out of memory."),
        (["ValueError: first", "RuntimeError: Engine core initialization failed. See root cause"],
         "ValueError: first"),
        (["KeyError: 'a'", "ValueError: second"], "ValueError: second"),
        (["(Worker pid=1) ERROR [core.py:9]     assert size in (2, 4)", "(Worker pid=1) ERROR "
          "[core.py:9]            ^^^^^", "(Worker pid=1) ERROR [core.py:9] AssertionError",
          "RuntimeError: Engine core initialization failed. See root cause above."],
         "AssertionError: assert size in (2, 4)"),
    ],
)  # fmt: skip
def test_last_words(lines: list[str], words: str, capfd: pytest.CaptureFixture[str]) -> None:
    os.write(2, b"OSError: said before, no matter\n")
    output = Output()
    for line in lines:
        os.write(2, f"{line}\n".encode())
    assert output.last_error() == words
