"""Processes out of a fork server; none of these imports vLLM."""

import contextlib
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import psutil
import pytest
from paths import ROOT

pytestmark = pytest.mark.runs

TOLD = """
import os, sys
SEEN = os.environ.get("SAID")  # when a process that is to run tell() imports this
def tell(pipe):
    threads = sys.modules["torch"].get_num_threads() if "torch" in sys.modules else 0
    pipe.send([os.environ.get("SAID"), SEEN, "hidden" in sys.modules, os.getppid(), threads])
"""


def script(tmp_path: Path, body: str, preload: str = "mtbench_ray.engines.forked") -> list[str]:
    """A command that runs ``body`` after forks.begin()."""
    (tmp_path / "told.py").write_text(TOLD)
    lines = [
        "import os, time",
        "from mtbench_ray.engines import fork_server as forks",
        "if __name__ == '__main__':  # all below, else a process imports it too early",
        "    import told",
        f"    forks._PRELOAD = [{preload!r}]",
        "    forks.begin()",
        "    server = forks.server_pid()",
        textwrap.indent(textwrap.dedent(body), "    "),
    ]
    path = tmp_path / "maker.py"
    path.write_text("\n".join(lines))
    return [sys.executable, str(path)]


def run(tmp_path: Path, body: str, preload: str = "mtbench_ray.engines.forked") -> list[str]:
    env = os.environ | {"PYTHONPATH": f"{ROOT}{os.pathsep}{tmp_path}"}
    done = subprocess.run(
        script(tmp_path, body, preload), env=env, capture_output=True, text=True, timeout=180
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


ASK = """
os.environ["SAID"] = "later"
ours, theirs = forks.process_context().Pipe()
process = forks.process_context().Process(target=told.tell, args=(theirs,))
process.start()
said, seen, hidden, parent, threads = ours.recv()
process.join()
print(said, seen, hidden, parent == server, process.exitcode, threads)
"""


def test_process_has_what_was_imported_and_its_makers_present_environment(tmp_path: Path) -> None:
    (tmp_path / "hidden.py").write_text("")
    assert run(tmp_path, ASK, "hidden") == ["later", "later", "True", "True", "0", "0"]


def test_threads_are_those_of_the_present_environment(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    body = "os.environ['OMP_NUM_THREADS'] = '3'" + ASK
    assert run(tmp_path, body, "torch")[-1] == "3"


def test_without_it_processes_are_spawned(tmp_path: Path) -> None:
    """``engine.fork_server=false``."""
    assert run(tmp_path, "forks.end()" + ASK)[:4] == ["later", "later", "False", "False"]


@pytest.mark.parametrize("fault", ["raise SystemExit('no')", "1 / 0", "import os; os._exit(9)"])
def test_server_that_does_not_come_up_is_done_without_and_not_tried_again(
    tmp_path: Path, fault: str
) -> None:
    tried = tmp_path / "tried"
    (tmp_path / "hidden.py").write_text(f"open({str(tried)!r}, 'a').write('x')\n{fault}")
    words = run(tmp_path, ASK + ASK, "hidden")
    assert words == 2 * ["later", "later", "False", "False", "0", "0"]
    # Once more where it had not failed yet when the first process was wanted.
    assert tried.read_text() in ("x", "xx")


def test_server_that_was_ended_is_done_without(tmp_path: Path) -> None:
    (tmp_path / "hidden.py").write_text("")
    words = run(tmp_path, "forks.end()" + ASK, "hidden")
    assert words == ["later", "later", "False", "False", "0", "0"]


def test_server_that_somebody_killed_costs_no_process(tmp_path: Path) -> None:
    """Where its death is not seen in time a new one is started."""
    said, seen, _, ours, code, _ = run(tmp_path, "os.kill(server, 9)" + ASK)
    assert (said, seen, ours, code) == ("later", "later", "False", "0")


def test_server_is_no_process_of_an_engine(tmp_path: Path) -> None:
    body = """
    from mtbench_ray.engines.processes import Children
    children = Children(set())  # as if it were made before the server
    process = forks.process_context().Process(target=time.sleep, args=(60,))
    process.start()
    children.claim()
    print([p.pid for p in children.look()] == [process.pid])
    children.end()
    """
    assert run(tmp_path, body) == ["True"]


def test_start_that_is_given_up_does_not_wait_for_the_servers_imports(tmp_path: Path) -> None:
    (tmp_path / "hidden.py").write_text("import time; time.sleep(50)")
    body = """
    import asyncio, types
    from mtbench_ray.engines.vllm import core as vllm_core
    from mtbench_ray.engines.processes import Children
    vllm_core._ABANDON_S = 1.0
    def build():
        forks.process_context().Process(target=time.sleep, args=(60,), daemon=True).start()
        return types.SimpleNamespace(shutdown=lambda: None)
    async def work():
        children = Children()
        starting = asyncio.ensure_future(asyncio.to_thread(build))
        await asyncio.sleep(0.2)
        await vllm_core._abandon(starting, children)
        print(starting.done(), children.look())
    asyncio.run(work())
    """
    assert run(tmp_path, body, "hidden") == ["True", "[]"]


def test_server_does_not_outlive_a_killed_maker(tmp_path: Path) -> None:
    body = "print(server, flush=True); time.sleep(60)"
    maker = subprocess.Popen(
        script(tmp_path, body), stdout=subprocess.PIPE, text=True,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert maker.stdout is not None
    server = psutil.Process(int(maker.stdout.readline()))
    assert server.is_running()
    maker.kill()
    maker.wait()
    with contextlib.suppress(psutil.NoSuchProcess):
        server.wait(20)
    assert not server.is_running()


def test_work_in_a_process_gives_its_result_or_its_error(tmp_path: Path) -> None:
    body = """
    number, maker = 6, os.getpid()
    print(forks._in_process(lambda: [number * 7, os.getpid() != maker], None))
    try:
        forks._in_process(lambda: {}["no such model"], None)
    except KeyError as error:
        print(error)
    print(forks._in_process(lambda: os._exit(3), lambda work: "otherwise"))
    """
    assert " ".join(run(tmp_path, body)) == "[42, True] 'no such model' otherwise"
