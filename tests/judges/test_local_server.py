"""The local judge's servers: up, guarded by their key, and gone on every way out.

Most tests run a stub named ``vllm`` that answers /health and has a child process, as vLLM has its
engine; the last one runs vLLM itself.
"""

import concurrent.futures
import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import psutil
import pytest
from paths import ROOT, TESTS

from mtbench_ray.config import JudgeConfig
from mtbench_ray.errors import EngineFault, UserError
from mtbench_ray.judges.local_server import process as server_process
from mtbench_ray.judges.local_server.process import (
    ServerSpec,
    end_of_log,
    free_port,
    server_arguments,
    server_environment,
)
from mtbench_ray.judges.local_server.server import Cards, local_servers

KEY = "a-random-key"
OUTSIDE = dict(os.environ)
"""The environment before the tests with a stub change it."""

STUB = """
import argparse, http.server, os, signal, subprocess, sys, threading, time
if __name__ != "__main__": raise ImportError("nothing to import early")
arguments = argparse.ArgumentParser()
arguments.add_argument("--port", type=int)
arguments.add_argument("--host")
arguments.add_argument("--stub", default="")
known, _ = arguments.parse_known_args()
stub = known.stub
print("the key is", os.environ["VLLM_API_KEY"], flush=True)
print("cards:", os.environ.get("CUDA_VISIBLE_DEVICES"), flush=True)
engine = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
if stub == "crash":
    print("ValueError: no such model", file=sys.stderr)
    for number in range(12): print("line", number, file=sys.stderr)
    os._exit(1)
if stub == "stubborn":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        if self.path == "/v1/die":
            print("RuntimeError: out of memory", flush=True)
            os._exit(3)
        self.send_response(200); self.end_headers()
    def log_message(self, *_): pass
if stub == "silent":
    time.sleep(600)
http.server.ThreadingHTTPServer((known.host, known.port), Handler).serve_forever()
"""


def spec(on_gpu: bool = False, **judge: object) -> ServerSpec:
    return ServerSpec(JudgeConfig(kind="local", model="m", **judge), KEY, on_gpu, "node")  # type: ignore[arg-type]


def test_arguments_of_the_server():
    arguments = server_arguments(
        spec(
            on_gpu=True,
            tensor_parallel=2,
            max_model_len=4096,
            args={"dtype": "half", "prefix_caching": False, "x": {"a": 1}, "lora_modules": ["b"]},
        ),
        "/models/m",
        "127.0.0.1",
        81,
    )
    text = " ".join(arguments)
    assert "--model /models/m --served-model-name m --host 127.0.0.1 --port 81" in text
    assert "--tensor-parallel-size 2 --gpu-memory-utilization 0.9" in text
    assert "--max-model-len 4096" in text
    assert "--generation-config vllm" in text
    assert "--enable-prompt-tokens-details" in arguments
    assert text.endswith('--dtype half --no-prefix-caching --x {"a": 1} --lora-modules b')
    assert KEY not in text
    on_cpu = server_arguments(spec(), "m", "127.0.0.1", 81)
    assert "--enforce-eager" in on_cpu
    assert on_cpu[on_cpu.index("--max-num-seqs") + 1] == "8"
    chosen = server_arguments(spec(args={"max-num-seqs": 3}), "m", "h", 81, dtype="float32")
    assert " ".join(chosen).endswith("UniProcExecutor")
    assert chosen.count("--max-num-seqs") == 1
    assert chosen[chosen.index("--max-num-seqs") + 1] == "3"
    assert chosen[chosen.index("--dtype") + 1] == "float32"
    assert "--tensor-parallel-size" not in on_cpu
    assert "--max-model-len" not in on_cpu


def test_environment_of_the_server(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    on_cpu = server_environment(spec())
    assert on_cpu["VLLM_API_KEY"] == KEY
    assert on_cpu["OMP_NUM_THREADS"] == str(os.cpu_count())
    assert on_cpu["VLLM_CPU_OMP_THREADS_BIND"] == "nobind"
    assert on_cpu["VLLM_CPU_KVCACHE_SPACE"] == "2"
    assert on_cpu["OMP_WAIT_POLICY"] == "PASSIVE"
    assert int(on_cpu["VLLM_REGEX_COMPILATION_TIMEOUT_S"]) > 60
    assert server_environment(spec(on_gpu=True))["OMP_NUM_THREADS"] == "1"
    monkeypatch.setattr(server_process.os, "environ", {"PATH": ""})
    assert "VLLM_CPU_KVCACHE_SPACE" not in server_environment(spec(on_gpu=True))


def test_a_secret_among_the_arguments_is_on_no_command_line():
    secret = spec(args={"hf-token": "hf_x1y2z3w4", "api_key": "k", "seed": 1}, on_gpu=True)
    arguments = server_arguments(secret, "m", "h", 81)
    assert not {"hf_x1y2z3w4", "--hf-token", "--api-key", "k"} & set(arguments)
    assert arguments[arguments.index("--seed") + 1] == "1"
    env = server_environment(secret)
    assert (env["HF_TOKEN"], env["VLLM_API_KEY"]) == ("hf_x1y2z3w4", KEY)


def test_a_taken_port_is_replaced():
    import socket

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        other = free_port("127.0.0.1", port)
        assert other not in (0, port)
    assert free_port("127.0.0.1", other) == other


def test_end_of_log_keep_the_cause_that_stands_far_above():
    log = "start\nValueError: the cause\nValueError: the cause\n" + "frame\n\n" * 30 + "the end\n"
    words = end_of_log(log).splitlines()
    assert words[0] == "ValueError: the cause"
    assert words[1:] == ["frame"] * 5 + ["the end"]
    assert end_of_log("") == ""


# With Ray and the stub -----------------------------------------------------------------------


@pytest.fixture(scope="module")
def stub_path(tmp_path_factory):
    folder = tmp_path_factory.mktemp("stub")
    package = folder / "vllm" / "entrypoints" / "openai"
    package.mkdir(parents=True)
    (package / "api_server.py").write_text(STUB)
    (folder / "vllm" / "__init__.py").write_text("")
    return f"{folder}{os.pathsep}{ROOT}"


@pytest.fixture(scope="module")
def cluster(stub_path):
    import ray

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", stub_path)
        patch.setenv("RAY_AUTH_MODE", "disabled")
        patch.setenv("MTBENCH_RAY_CACHE", os.devnull + "/none")
        ray.init(num_cpus=1, num_gpus=2, include_dashboard=False, log_to_driver=False)
        yield
        ray.shutdown()


@pytest.fixture
def start(cluster, tmp_path):
    groups = []

    def start(stub: str = "", ready: bool = False, **judge: object):
        config = JudgeConfig(kind="local", **{"model": "m", "args": {"stub": stub}, **judge})  # type: ignore[arg-type]
        groups.append(local_servers(config, KEY, log_dir=str(tmp_path / "logs")))
        if ready:
            groups[-1].make_ready()
        else:
            groups[-1].begin()
        return groups[-1]

    yield start
    for group in groups:
        group.stop()


def servers(port_of: str) -> list[psutil.Process]:
    """The supervisor, server and engine processes of a URL's port."""
    port = port_of.split(":")[2].removesuffix("/v1")
    found = []
    for process in psutil.process_iter(["cmdline"]):
        line = process.info["cmdline"] or []
        if "--port" in line and line[line.index("--port") + 1] == port:
            found += [process, *process.children(recursive=True)]
    return list({process.pid: process for process in found}.values())


def servers_of(log: Path) -> list[psutil.Process]:
    """The processes that write to a log, and their children."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if os.readlink(f"/proc/{process.pid}/fd/1") == str(log):
                found += [process, *process.children(recursive=True)]
    return list({process.pid: process for process in found}.values())


def alive(process: psutil.Process) -> bool:
    """A zombie has ended, its parent only has not looked yet."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:  # it ended between the two
        return False


def all_gone(processes: list[psutil.Process], seconds: float = 20.0) -> bool:
    """Whether all end in time."""
    deadline = time.monotonic() + seconds
    while left := [process for process in processes if alive(process)]:
        if time.monotonic() > deadline:
            print("still there:", left)
            return False
        time.sleep(0.1)
    return True


def get(url: str, key: str = "", body: object = None) -> tuple[int, bytes]:
    headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
    data = None if body is None else json.dumps(body).encode()
    try:
        with urllib.request.urlopen(urllib.request.Request(url, data, headers)) as reply:
            return reply.status, reply.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


def port_is_free(base_url: str) -> bool:
    port = int(base_url.split(":")[2].removesuffix("/v1"))
    return free_port("127.0.0.1", port) == port


@pytest.mark.rays
def test_replicas_start_and_stop_without_a_trace(start, tmp_path):
    group = start(replicas=2)
    group.wait_ready(60)
    assert len(set(group.base_urls)) == 2
    assert group.dead() == {}
    processes = [p for url in group.base_urls for p in servers(url)]
    # Each a supervisor, its guard, a server, its engine, the fork server and its tracker.
    assert len(processes) == 12
    for process in processes:
        assert KEY not in " ".join(process.cmdline())
    group.stop()
    assert all_gone(processes)
    assert all(port_is_free(url) for url in group.base_urls)


def free_gpus() -> float:
    import ray

    return ray.available_resources().get("GPU", 0)


def wait_until(true, seconds: float = 30.0) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.1)


@pytest.mark.rays
def test_a_server_is_readied_without_a_gpu_and_served_on_those_that_come_free(start, tmp_path):
    import ray

    engine = ray.remote(num_cpus=0, num_gpus=2)(Cards).remote()
    ray.get(engine.visible.remote())
    group = start(ready=True)
    wait_until(lambda: list(tmp_path.glob("logs/*.log")))
    (log,) = tmp_path.glob("logs/*.log")
    group.read_ahead()
    group.begin()
    with pytest.raises(EngineFault, match=r"needs 1 free GPU"):
        group.wait_ready(2)
    ray.kill(engine)
    group.wait_ready(60)
    assert re.search(r"^cards: [01]$", log.read_text(), re.M)
    assert KEY not in log.read_text().replace(f"the key is {KEY}", "")
    processes = servers_of(log)
    with pytest.raises(OSError, match=r"closed connection|reset"):
        get(f"{group.base_urls[0]}/die")
    wait_until(group.dead)
    group.restart(60)
    assert group.dead() == {}
    assert free_gpus() == 1
    group.stop()
    assert all_gone(processes)
    wait_until(lambda: free_gpus() == 2)


@pytest.mark.rays
@pytest.mark.parametrize("begun", [False, True])
def test_a_readied_server_that_never_serves_leaves_nothing(start, tmp_path, begun):
    group = start(ready=True, tensor_parallel=3)
    wait_until(lambda: list(tmp_path.glob("logs/*.log")))
    (log,) = tmp_path.glob("logs/*.log")
    processes = servers_of(log)
    assert processes
    if begun:
        group.begin()
    group.stop()
    assert all_gone(processes)


@pytest.mark.rays
def test_a_crash_at_the_start_is_told_at_once_and_without_the_key(start):
    begun = time.monotonic()
    group = start("crash")
    with pytest.raises(EngineFault) as caught:
        group.wait_ready(60)
    assert time.monotonic() - begun < 20
    assert "ValueError: no such model" in str(caught.value)
    assert "line 11" in str(caught.value)
    assert "exit code 1" in str(caught.value)
    assert "judge_server_" in str(caught.value)
    assert KEY not in str(caught.value)


@pytest.mark.rays
def test_a_server_that_never_answers_is_given_up_in_time(start):
    group = start("silent")
    with pytest.raises(EngineFault, match=r"did not answer in 4 s.*judge\.start_timeout_s="):
        group.wait_ready(4)


@pytest.mark.rays
def test_a_server_that_ignores_the_request_to_end_is_killed(start):
    group = start("stubborn")
    group.wait_ready(60)
    processes = servers(group.base_urls[0])
    group.stop()
    assert all_gone(processes, 2.0)


@pytest.mark.rays
def test_a_server_that_dies_later_is_noticed_and_started_again_at_its_place(start):
    group = start()
    group.wait_ready(60)
    (url,) = group.base_urls
    processes = servers(url)
    with pytest.raises(OSError, match=r"closed connection|reset"):
        get(f"{url}/die")
    assert all_gone(processes), "its engine and supervisor go with it"
    assert "RuntimeError: out of memory" in group.dead()[0]
    group.restart(60)
    assert group.base_urls == [url]
    assert group.dead() == {}


@pytest.mark.rays
@pytest.mark.parametrize("victim", ["actor", "supervisor"])
def test_killing_what_holds_the_server_leaves_no_orphan(start, victim):
    group = start()
    group.wait_ready(60)
    processes = servers(group.base_urls[0])
    supervisor = next(p for p in processes if "supervise.py" in " ".join(p.cmdline()))
    (supervisor.parent() if victim == "actor" else supervisor).kill()
    if victim == "supervisor":
        assert all_gone([supervisor])
        assert group.dead()
        group.stop()
    assert all_gone(processes)
    if victim == "actor":
        assert "actor" in group.dead()[0]
        group.restart(60)
        assert group.dead() == {}


@pytest.mark.rays
def test_what_a_user_can_mend_stays_a_user_error(start):
    """Here: a node whose cache folder cannot be written."""
    group = start(model="smollm2-135m")
    with pytest.raises(UserError, match="cannot be written") as caught:
        group.wait_ready(60)
    assert "MTBENCH_RAY_CACHE" in caught.value.hint


@pytest.mark.rays
def test_stopping_ends_a_wait_in_another_thread(start):
    group = start("silent")
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(group.wait_ready, 60)
        time.sleep(2.0)
        group.stop()
        with pytest.raises(EngineFault, match="was stopped"):
            waiting.result(10)


@pytest.mark.rays
def test_no_gpu_left_is_told_in_words(start):
    group = start(tensor_parallel=3)
    with pytest.raises(EngineFault, match=r"needs 3 free GPU\(s\) on one node, and 2 are free"):
        group.wait_ready(2)


@pytest.mark.rays
def test_a_killed_driver_leaves_no_orphan(stub_path, tmp_path):
    script = (
        "import ray, time\n"
        "from mtbench_ray.config import JudgeConfig\n"
        "from mtbench_ray.judges.local_server.server import Cards, local_servers\n"
        "ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False)\n"
        "group = local_servers(JudgeConfig(kind='local', model='m'), 'k')\n"
        "group.begin()\n"
        "group.wait_ready(60)\n"
        "print(group.base_urls[0], flush=True)\n"
        "time.sleep(600)\n"
    )
    driver = subprocess.Popen(
        [sys.executable, "-c", script],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": stub_path, "RAY_AUTH_MODE": "disabled"},
        start_new_session=True,
    )
    try:
        assert driver.stdout is not None
        url = driver.stdout.readline().strip()
        processes = servers(url)
        assert len(processes) == 4
        driver.send_signal(signal.SIGKILL)
        assert all_gone(processes, 60.0)
        assert port_is_free(url)
    finally:
        driver.kill()
        driver.wait()


# With vLLM -----------------------------------------------------------------------------------


@pytest.mark.engine
def test_a_real_server_answers_to_its_key_alone_and_leaves_nothing(tmp_path):
    """In a process of its own: this one may run Ray with the stub."""
    pytest.importorskip("vllm")
    done = subprocess.run(
        [sys.executable, "-P", __file__, str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
        env=OUTSIDE | {"RAY_AUTH_MODE": "disabled", "PYTHONPATH": f"{ROOT}:{TESTS}/support"},
    )
    assert done.returncode == 0, done.stdout + done.stderr


def check_real_server(log_dir: str) -> None:
    """One start of the demo model, and every check that needs it."""
    import ray

    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    judge = JudgeConfig(kind="local", model="smollm2-135m", max_model_len=2048)
    group = local_servers(judge, KEY, log_dir=log_dir)
    group.begin()
    group.wait_ready(240)
    (url,) = group.base_urls
    processes = servers(url)
    assert len(processes) >= 4, processes
    body = {
        "model": "smollm2-135m",
        "messages": [{"role": "user", "content": "How good is the word 'fine'? Explain and rate."}],
        "max_tokens": 60,
        "temperature": 0,
        "structured_outputs": {"regex": r"[A-Za-z ,.]{10,60}\nRating: \[\[(10|[1-9])\]\]"},
    }
    assert get(f"{url}/models")[0] == 401
    assert get(f"{url}/chat/completions", "another", body)[0] == 401
    status, reply = get(f"{url}/chat/completions", KEY, body)
    assert status == 200, reply
    text = json.loads(reply)["choices"][0]["message"]["content"]
    head, _, rating = text.rpartition("\nRating: [[")
    assert 10 <= len(head) <= 60
    assert 1 <= int(rating.removesuffix("]]")) <= 10
    (log,) = Path(log_dir).glob("judge_server_*.log")
    assert KEY not in log.read_text()
    assert not any(KEY in word for process in processes for word in process.cmdline())
    supervisor = next(p for p in processes if "supervise.py" in " ".join(p.cmdline()))
    supervisor.parent().kill()
    assert all_gone(processes), "orphans after kill -9 of the actor"
    assert port_is_free(url)
    ray.shutdown()


if __name__ == "__main__":
    check_real_server(sys.argv[1])
