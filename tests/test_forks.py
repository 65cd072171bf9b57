"""Processes out of a fork server; none of these imports vLLM."""

import os
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import psutil
import pytest

TOLD = """
import os, sys
SEEN = os.environ.get("SAID")  # when a process that is to run tell() imports this
def tell(pipe):
    pipe.send([os.environ.get("SAID"), SEEN, "hidden" in sys.modules, os.getppid()])
"""


def script(tmp_path: Path, body: str, preload: str = "mtbench_ray.engines.forked") -> list[str]:
    """A command that runs ``body`` after forks.begin()."""
    (tmp_path / "told.py").write_text(TOLD)
    lines = [
        "import os, time",
        "from multiprocessing import forkserver",
        "from mtbench_ray.engines import forks",
        "if __name__ == '__main__':  # all below, else a process imports it too early",
        "    import told",
        f"    forks._PRELOAD = [{preload!r}]",
        "    forks.begin()",
        "    server = forkserver._forkserver._forkserver_pid",
        textwrap.indent(textwrap.dedent(body), "    "),
    ]
    path = tmp_path / "maker.py"
    path.write_text("\n".join(lines))
    return [sys.executable, str(path)]


def run(tmp_path: Path, body: str, preload: str = "mtbench_ray.engines.forked") -> list[str]:
    env = os.environ | {"PYTHONPATH": f"{Path(__file__).parents[1]}{os.pathsep}{tmp_path}"}
    done = subprocess.run(
        script(tmp_path, body, preload), env=env, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


ASK = """
os.environ["SAID"] = "later"
ours, theirs = forks.process_context().Pipe()
process = forks.process_context().Process(target=told.tell, args=(theirs,))
process.start()
said, seen, hidden, parent = ours.recv()
process.join()
print(said, seen, hidden, parent == server, process.exitcode)
"""


def test_process_has_what_was_imported_and_its_makers_present_environment(tmp_path: Path) -> None:
    (tmp_path / "hidden.py").write_text("")
    assert run(tmp_path, ASK, "hidden") == ["later", "later", "True", "True", "0"]


@pytest.mark.parametrize("fault", ["raise SystemExit('no')", "1 / 0", "import os; os._exit(9)"])
def test_server_that_does_not_come_up_is_done_without(tmp_path: Path, fault: str) -> None:
    (tmp_path / "hidden.py").write_text(fault)
    assert run(tmp_path, ASK, "hidden") == ["later", "later", "False", "False", "0"]


def test_server_that_was_killed_is_done_without(tmp_path: Path) -> None:
    assert run(tmp_path, "os.kill(server, 9)" + ASK)[3:] == ["False", "0"]


def test_server_does_not_outlive_its_maker(tmp_path: Path) -> None:
    body = "print(server, flush=True); time.sleep(60)"
    maker = subprocess.Popen(
        script(tmp_path, body), stdout=subprocess.PIPE, text=True,
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[1])},
    )  # fmt: skip
    assert maker.stdout is not None
    server = psutil.Process(int(maker.stdout.readline()))
    assert server.is_running()
    maker.kill()
    maker.wait()
    end = time.monotonic() + 20
    while server.is_running() and server.status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < end
        time.sleep(0.1)


def test_work_in_a_process_gives_its_result_or_its_error(tmp_path: Path) -> None:
    body = """
    number = 6
    print(forks._in_process(lambda: [number * 7, os.getpid() != %d], None))
    try:
        forks._in_process(lambda: {}["no such model"], None)
    except KeyError as error:
        print(error)
    print(forks._in_process(lambda: os._exit(3), lambda work: "otherwise"))
    """
    words = " ".join(run(tmp_path, body.replace("%d", "os.getppid()")))
    assert words == "[42, True] 'no such model' otherwise"
