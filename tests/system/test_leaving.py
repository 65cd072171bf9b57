"""The end of the command: what others registered is done, and nothing is taken apart after it."""

import subprocess
import sys

import pytest

SCRIPT = """
import atexit
from mtbench_ray.system import leaving

class Kept:
    def __del__(self):
        print("taken apart", flush=True)

kept = Kept()
atexit.register(lambda: print("registered"))
print("said", end=" ")
if {at_once}:
    leaving.leave_at_once()
code = {code}
if code is not None:
    leaving.leave(code)
"""


@pytest.mark.parametrize(
    ("at_once", "code", "said"),
    [(False, 3, "said registered\n"), (True, 3, "said "),
     (False, None, "said registered\ntaken apart\n")],
)  # fmt: skip
def test_the_process_ends_with_its_code_and_what_was_registered(at_once, code, said):
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT.format(at_once=at_once, code=code)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (code or 0, said, "")
