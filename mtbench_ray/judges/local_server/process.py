"""One server of the local judge: a vLLM subprocess that goes with the Ray actor that holds it.

However the actor ends, :mod:`~mtbench_ray.judges.local_server.supervise` ends the server and all
its processes.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mtbench_ray
from mtbench_ray.config import DEMO_MODEL, JudgeConfig, ModelConfig
from mtbench_ray.engines.cpu import BLOCK, CALLS, EXECUTOR, Dtype, choose_dtype
from mtbench_ray.engines.hot_swap.page_cache import ReadAhead
from mtbench_ray.errors import UserError
from mtbench_ray.judges.local_server.serve import API_SERVER, WAIT, Order
from mtbench_ray.judges.local_server.supervise import GRACE_S
from mtbench_ray.models.demo_model import demo_model
from mtbench_ray.models.layout import load_layout
from mtbench_ray.system.redact import without_secrets
from mtbench_ray.system.sockets import ENGINE_NEEDS, socket_folder

_VLLM = [sys.executable, "-m", API_SERVER]
_SERVE = [sys.executable, "-m", "mtbench_ray.judges.local_server.serve"]
"""The same with early imports, where an engine has a process of its own."""


@dataclass(frozen=True)
class ServerSpec:
    """What one server needs to know.

    Attributes:
        key: What callers must send; reaches the server by its environment, never by its arguments.
        on_gpu: Whether the cluster has GPUs; else the server runs on the node's cores.
        driver_node: Ray node id of the driver.
        cpu_kv_cache_gb: Key-value cache of a server without a GPU.
        cpu_threads: Threads of a server without a GPU; None: all cores.
        log_dir: Folder of the server's log on its node; None: a temporary one.
        model_path: Folder or hub id of the model; empty: as the judge's name says.
    """

    judge: JudgeConfig
    key: str
    on_gpu: bool
    driver_node: str
    cpu_kv_cache_gb: float = 2.0
    cpu_threads: int | None = None
    log_dir: str | None = None
    model_path: str = ""


def server_arguments(
    spec: ServerSpec, model_path: str, host: str, port: int, dtype: str = "auto"
) -> list[str]:
    """Arguments of the vLLM server, without the key and other secrets: everybody on the machine
    sees a command line, and vLLM logs it.

    Args:
        dtype: Of the weights, where the judge's own arguments do not say.
    """
    judge = spec.judge
    flags: dict[str, Any] = {
        "model": model_path,
        "served_model_name": judge.model,
        "host": host,
        "port": port,
        "disable_uvicorn_access_log": True,
        # The folder's own sampling defaults would stand in for what is not sent.
        "generation_config": "vllm",
        "max_model_len": judge.max_model_len,
        # Says how many tokens of a prompt its cache had.
        "enable_prompt_tokens_details": True,
    }
    # As typed: with underscores or with dashes.
    given = {name.replace("-", "_"): value for name, value in judge.args.items()}
    if spec.on_gpu:
        flags["tensor_parallel_size"] = judge.tensor_parallel
        flags["gpu_memory_utilization"] = judge.gpu_memory_utilization
        flags["max_num_seqs"] = judge.concurrency
        if judge.tensor_parallel == 1 and not {"enforce_eager", "O"} & given.keys():
            # As the engines do: compiling takes longer than all that it could save.
            flags["compilation_config"] = {"mode": 0, "cudagraph_mode": "FULL_DECODE_ONLY"}
    else:
        flags |= {
            "dtype": dtype,
            "enforce_eager": True,
            "max_num_seqs": CALLS,
            "block_size": BLOCK,
            "distributed_executor_backend": EXECUTOR,
        }
    arguments = []
    for name, value in {**flags, **without_secrets(given)}.items():
        flag = name.replace("_", "-")
        if value is None:
            continue
        if isinstance(value, bool):
            arguments.append(f"--{flag}" if value else f"--no-{flag}")
        elif isinstance(value, Mapping):
            arguments += [f"--{flag}", json.dumps(dict(value))]
        elif isinstance(value, list):
            arguments += [f"--{flag}", *map(str, value)]
        else:
            arguments += [f"--{flag}", str(value)]
    return arguments


def server_environment(spec: ServerSpec) -> dict[str, str]:
    """Environment of the vLLM server: this process's own, the key, and the CPU settings.

    ``judge.args.hf_token`` becomes HF_TOKEN, as any secret there.
    """
    env = {**os.environ, "VLLM_NO_USAGE_STATS": "1"}
    given = spec.judge.args
    for name in given.keys() - without_secrets(given).keys():
        if isinstance(given[name], str):
            env[name.replace("-", "_").upper()] = given[name]
    if "TMPDIR" in env and (folder := socket_folder(ENGINE_NEEDS, env["TMPDIR"])):
        env["TMPDIR"] = folder  # one that has room for sockets
    if spec.key:
        env["VLLM_API_KEY"] = spec.key
    if spec.on_gpu:
        home = str(Path(mtbench_ray.__file__).parents[1])
        env["PYTHONPATH"] = os.pathsep.join(filter(None, [env.get("PYTHONPATH"), home]))
    if not spec.on_gpu:
        # Ray sets OMP_NUM_THREADS to the actor's CPUs, here none. Without "nobind" vLLM would pin
        # every engine of a node to the same cores.
        env["OMP_NUM_THREADS"] = str(spec.cpu_threads or os.cpu_count() or 1)
        env["VLLM_CPU_OMP_THREADS_BIND"] = "nobind"
        # Threads that spin while they wait bring a second engine on the same cores to a halt.
        env.setdefault("OMP_WAIT_POLICY", "PASSIVE")
        # The pattern of a constrained reply takes vLLM a second, and more than its five on a busy
        # machine: calls would fail for it.
        env.setdefault("VLLM_REGEX_COMPILATION_TIMEOUT_S", "120")
        env["VLLM_CPU_KVCACHE_SPACE"] = str(max(1, round(spec.cpu_kv_cache_gb)))
    return env


class JudgeServer:
    """One server; made into a Ray actor by ``server.local_servers``.

    Args:
        spec: The server's settings.
    """

    def __init__(self, spec: ServerSpec) -> None:
        self._spec = spec
        self._process: subprocess.Popen[bytes] | None = None
        self._port = 0
        self._log: Path | None = None
        self._remark = ""
        self._order: Path | None = None
        self._reading: ReadAhead | None = None
        self._cards: str | None = None

    def ready(self) -> None:
        """Do what needs no GPU: the server's imports.

        Raises:
            UserError: As :meth:`start`.
        """
        self._model_path()
        folder = Path(tempfile.mkdtemp(prefix="judge_order_"))
        self._order = folder / "order.json"
        env = server_environment(self._spec)
        # Ray hides all cards from an actor without any; vLLM would believe that there are none.
        env.pop("CUDA_VISIBLE_DEVICES", None)
        self._launch([*_SERVE, WAIT, str(self._order)], env)

    def read_ahead(self) -> None:
        """Read the weights into the page cache."""
        self._reading = ReadAhead(ModelConfig(path=self._model_path()))

    def start(self, cards: str | None = None) -> str:
        """Start the server, or start it again where it died, if possible on the same port.

        Args:
            cards: CUDA_VISIBLE_DEVICES of a server that was readied by an actor without a GPU.

        Returns:
            Root of its API; nothing listens there until the model is loaded.

        Raises:
            UserError: vLLM is not installed on this node, or the demo model cannot be fetched.
        """
        path = self._model_path()
        self._cards = cards if cards is not None else self._cards
        host = self._host()
        dtype = self._dtype(path)
        self._remark = dtype.why
        order, self._order = self._order, None
        if order is not None and self._process is not None and self._process.poll() is None:
            self._port = free_port(host)
            arguments = server_arguments(self._spec, path, host, self._port, dtype.name)
            Order(arguments, self._cards or "").write(order)
        else:
            self.stop()
            self._port = free_port(host, self._port)
            arguments = server_arguments(self._spec, path, host, self._port, dtype.name)
            env = server_environment(self._spec)
            if self._cards is not None:
                env["CUDA_VISIBLE_DEVICES"] = self._cards
            self._launch([*(_SERVE if self._spec.on_gpu else _VLLM), *arguments], env)
        address = f"[{host}]" if ":" in host else host
        return f"http://{address}:{self._port}/v1"

    def _model_path(self) -> str:
        """Where the model's files are on this node.

        Raises:
            UserError: vLLM is not installed on this node, or the demo model cannot be fetched.
        """
        if importlib.util.find_spec("vllm") is None:
            raise UserError(
                f"the local judge needs vLLM, and {sys.executable} has none",
                "pip install 'mtbench-ray[gpu]' (or cpu), or take a hosted judge: judge=gpt-4o",
            )
        judge = self._spec.judge
        if judge.model == DEMO_MODEL:
            return str(demo_model())
        return self._spec.model_path or judge.model

    def remark(self) -> str:
        """What a user should know of how it was started; mostly empty."""
        return self._remark

    def _dtype(self, path: str) -> Dtype:
        args = self._spec.judge.args
        if self._spec.on_gpu or "dtype" in args:
            return Dtype(str(args.get("dtype", "auto")))
        layout = load_layout(Path(path)) if Path(path).is_dir() else None
        return choose_dtype("auto", layout, bool(args.get("quantization")))

    def fault(self) -> str | None:
        """The last words of a server that has ended; None while it runs."""
        if self._process is None or self._process.poll() is None:
            return None
        assert self._log is not None
        text = self._log.read_text(encoding="utf-8", errors="replace")
        if self._spec.key:
            text = text.replace(self._spec.key, "***")
        return f"{end_of_log(text)}\n(its whole log: {self._log})"

    def stop(self) -> None:
        """End the server and every process of it. Never raises."""
        if self._reading is not None:
            self._reading.stop()
        process = self._process
        if process is None:
            return
        died = process.poll() is not None
        assert process.stdin is not None
        with contextlib.suppress(OSError):
            process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(GRACE_S + 2.0)
        # The supervisor does this itself, unless it was killed.
        with contextlib.suppress(OSError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        self._process = None
        if self._log is not None and self._spec.log_dir is None and not died:
            self._log.unlink(missing_ok=True)

    def __ray_shutdown__(self) -> None:
        """End the server with the actor."""
        self.stop()

    def _host(self) -> str:
        import ray

        if ray.get_runtime_context().get_node_id() == self._spec.driver_node:
            return "127.0.0.1"
        return str(ray.util.get_node_ip_address())

    def _launch(self, command: list[str], env: dict[str, str]) -> None:
        folder = self._spec.log_dir
        if folder is not None:
            Path(folder).mkdir(parents=True, exist_ok=True)
        descriptor, name = tempfile.mkstemp(prefix="judge_server_", suffix=".log", dir=folder)
        self._log = Path(name)
        supervisor = Path(__file__).with_name("supervise.py")
        with os.fdopen(descriptor, "wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-P", str(supervisor), *command],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=env,
                start_new_session=True,
            )


def free_port(host: str, preferred: int = 0) -> int:
    """A free TCP port of ``host``: ``preferred`` if it is one."""
    for port in (preferred, 0):
        with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            with contextlib.suppress(OSError):
                probe.bind((host, port))
                return int(probe.getsockname()[1])
    raise UserError(f"{host} has no free port", "free some ports, or take a hosted judge")


def end_of_log(log: str) -> str:
    """What a dead server's log says about why: its last errors and its last lines."""
    lines = [line.rstrip() for line in log.splitlines() if line.strip()]
    errors = list(dict.fromkeys(line for line in lines[:-6] if "Error" in line))
    return "\n".join([*errors[-6:], *lines[-6:]])
