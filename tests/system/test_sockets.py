"""Folders for sockets, whose paths are short by the system's own limit."""

import os
import time
from types import SimpleNamespace

import psutil
import pytest

from mtbench_ray.config import ClusterConfig, JudgeConfig
from mtbench_ray.errors import UserError
from mtbench_ray.generate import cluster
from mtbench_ray.generate.cluster import start_ray
from mtbench_ray.judges.local_server import process as server_process
from mtbench_ray.judges.local_server.process import ServerSpec
from mtbench_ray.system import sockets
from mtbench_ray.system.sockets import ENGINE_NEEDS, RAY_NEEDS, socket_folder


def test_a_folder_that_will_do_is_kept_and_made(tmp_path, monkeypatch):
    monkeypatch.setattr(sockets, "_LONGEST", 500)
    assert socket_folder(RAY_NEEDS, str(tmp_path / "new")) == str(tmp_path / "new")
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    assert socket_folder(RAY_NEEDS) == str(tmp_path)


@pytest.mark.parametrize("needs", [RAY_NEEDS, ENGINE_NEEDS])
def test_a_long_folder_is_replaced_by_a_short_one(needs, tmp_path):
    long = tmp_path / ("d" * 90)
    folder = socket_folder(needs, str(long))
    assert folder is not None
    assert len(folder) + needs <= 107
    assert not long.exists()


def test_a_folder_that_cannot_be_written_is_replaced(tmp_path):
    (tmp_path / "file").touch()
    assert socket_folder(ENGINE_NEEDS, str(tmp_path / "file")) in sockets._SHORT


@pytest.fixture
def init(monkeypatch):
    """Ray's own start: records what it is given, raises ``init.error``."""
    import ray

    def init(**options):
        init.calls.append((options, os.environ.get("RAY_TMPDIR")))
        if init.error:
            raise init.error

    init.calls, init.error = [], None
    monkeypatch.setattr(ray, "init", init)
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    for name in ("RAY_ADDRESS", "PYTHONPATH", "RAY_TMPDIR", "RAY_BACKEND_LOG_LEVEL"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    return init


def test_ray_under_a_long_tmpdir_gets_a_short_folder_of_its_own(init, tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path / ("d" * 60)))
    start_ray(ClusterConfig())
    ((_, folder),) = init.calls
    assert folder in sockets._SHORT


def test_where_no_folder_can_be_written_ray_is_not_started(init, monkeypatch):
    monkeypatch.setattr(cluster, "socket_folder", lambda *_: None)
    with pytest.raises(UserError) as error:
        start_ray(ClusterConfig())
    assert "RAY_TMPDIR=" in error.value.hint
    assert init.calls == []


@pytest.mark.parametrize("error", [OSError(30, "Read-only file system"), RuntimeError("x")])
def test_ray_that_cannot_be_started_is_told_in_one_line(init, error):
    init.error = error
    with pytest.raises(UserError, match="cannot be started on this machine") as caught:
        start_ray(ClusterConfig())
    assert "RAY_TMPDIR" in caught.value.hint
    with pytest.raises(UserError, match=r"Ray at 10\.0\.0\.1:6379 cannot"):
        start_ray(ClusterConfig(address="10.0.0.1:6379"))


def test_ray_that_is_not_up_in_time_is_told_without_a_traceback(init):
    """Ray raises no more than an Exception for it."""
    init.error = Exception("The current node timed out during startup. This could happen because")
    with pytest.raises(
        UserError, match="was not up in time on this machine: The current"
    ) as caught:
        start_ray(ClusterConfig())
    assert "run the same command again" in caught.value.hint
    with pytest.raises(UserError, match=r"Ray at 10\.0\.0\.1:6379 cannot"):
        start_ray(ClusterConfig(address="10.0.0.1:6379"))


@pytest.mark.rays
def test_ray_that_is_not_up_in_time_is_started_once_more(monkeypatch):
    """The first one cannot be asked for its node, as on a machine that is too busy."""
    import ray
    from ray._private import services

    late, theirs, found = [], [], services.get_node

    def get_node(*args):
        if late:
            return found(*args)
        late.extend(mine())
        theirs.extend(child for one in late for child in one.children(recursive=True))
        raise RuntimeError("not there yet")

    def mine():
        return [
            one for one in psutil.Process().children() if one.name() in ("raylet", "gcs_server")
        ]

    monkeypatch.setattr(services, "get_node", get_node)
    # Ray's patience of 30 s is at its end with the first look.
    hurried = SimpleNamespace(**vars(time))
    hurried.monotonic = lambda: time.monotonic() + 1000 * bool(late)
    monkeypatch.setattr("ray._private.node.time", hurried)
    start_ray(ClusterConfig(num_cpus=1))
    try:
        assert ray.get(ray.remote(lambda: 3).remote()) == 3
        _, alive = psutil.wait_procs([*late, *theirs], timeout=5)
        assert (len(late), alive, len(mine())) == (2, [], 2)
    finally:
        ray.shutdown()


def test_a_cluster_that_wants_a_token_says_how_to_give_it(init):
    from ray.exceptions import AuthenticationError

    init.error = AuthenticationError("no token")
    with pytest.raises(UserError, match="wants a token") as error:
        start_ray(ClusterConfig(address="auto"))
    assert "RAY_AUTH_TOKEN_PATH" in error.value.hint


def test_uv_run_is_not_repeated_in_the_workers_of_a_ray_started_here(init, monkeypatch):
    from ray._private import ray_constants, worker

    monkeypatch.setattr(ray_constants, "RAY_ENABLE_UV_RUN_RUNTIME_ENV", True)
    start_ray(ClusterConfig())
    monkeypatch.setattr(
        "ray._private.runtime_env.uv_runtime_env_hook._get_uv_run_cmdline",
        lambda: ["uv", "run", "python"],
    )
    assert worker._maybe_modify_runtime_env({}, False) == {}


def test_the_local_judges_server_gets_a_folder_with_room_for_sockets(monkeypatch, tmp_path):
    monkeypatch.setenv("TMPDIR", str(tmp_path / ("d" * 90)))
    assert (
        server_process.server_environment(
            ServerSpec(JudgeConfig(kind="local", model="m"), "key", False, "node")
        )["TMPDIR"]
        in sockets._SHORT
    )


def test_an_engine_gets_a_folder_with_room_for_sockets(monkeypatch, tmp_path):
    from mtbench_ray.engines.vllm.arguments import socket_environment

    monkeypatch.setenv("TMPDIR", str(tmp_path / ("d" * 90)))
    assert socket_environment()["TMPDIR"] in sockets._SHORT
    monkeypatch.setenv("TMPDIR", "/tmp")
    assert socket_environment() == {}
