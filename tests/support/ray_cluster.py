"""A Ray cluster of several raylets on this machine, with its job server: real processes."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

RAY = [sys.executable, "-m", "ray.scripts.scripts"]


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


class LocalCluster:
    """Head without CPUs, as KubeRay's, and workers that are added. A context manager."""

    def __init__(self, jobs: bool = True) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="mtr", dir="/tmp"))  # short: sockets are in it
        self.address = f"127.0.0.1:{free_port()}"
        self.jobs_url = f"http://127.0.0.1:{free_port()}"
        self.nodes: list[subprocess.Popen[bytes]] = []
        self._jobs = jobs

    def __enter__(self) -> LocalCluster:
        port = self.address.rpartition(":")[2]
        where = self.jobs_url.rpartition(":")[2]
        dashboard = [f"--dashboard-port={where}"] if self._jobs else []
        self._start(
            [
                "--head",
                f"--port={port}",
                "--num-cpus=0",
                f"--temp-dir={self.folder}",
                f"--include-dashboard={str(self._jobs).lower()}",
                *dashboard,
                f"--dashboard-agent-listen-port={free_port()}",
            ]
        )
        if self._jobs:
            self._wait_for_jobs()
        return self

    def add_node(self, cpus: int = 2, gpus: int = 0) -> subprocess.Popen[bytes]:
        """A further raylet, which may still be joining."""
        return self._start(
            [
                f"--address={self.address}",
                f"--num-cpus={cpus}",
                f"--num-gpus={gpus}",
                f"--dashboard-agent-listen-port={free_port()}",
            ]
        )

    def kill_node(self, node: subprocess.Popen[bytes]) -> None:
        """Kill -9 of all of a node's processes, as when its machine is lost."""
        import psutil

        processes = [psutil.Process(node.pid), *psutil.Process(node.pid).children(recursive=True)]
        for process in processes:
            try:
                process.kill()
            except psutil.NoSuchProcess:
                continue
        node.wait(10)

    def job(self, *words: str) -> subprocess.CompletedProcess[str]:
        """``ray job`` of this cluster."""
        return subprocess.run(
            [*RAY, "job", words[0], "--address", self.jobs_url, *words[1:]],
            capture_output=True, text=True, timeout=120, check=False, env=environment(),
        )  # fmt: skip

    def __exit__(self, *_: object) -> None:
        for node in reversed(self.nodes):
            if node.poll() is None:
                node.send_signal(signal.SIGTERM)
        for node in self.nodes:
            try:
                node.wait(20)
            except subprocess.TimeoutExpired:
                self.kill_node(node)
        shutil.rmtree(self.folder, ignore_errors=True)

    def _start(self, options: list[str]) -> subprocess.Popen[bytes]:
        with open(self.folder / f"start-{len(self.nodes)}.log", "wb") as log:
            node = subprocess.Popen(
                [*RAY, "start", "--block", "--disable-usage-stats", "--node-ip-address=127.0.0.1",
                 "--object-store-memory=100000000", *options],
                stdout=log, stderr=subprocess.STDOUT, env=environment(),
            )  # fmt: skip
        self.nodes.append(node)
        return node

    def _wait_for_jobs(self) -> None:
        deadline = time.monotonic() + 90
        while time.monotonic() < deadline:
            if self.nodes[0].poll() is not None:
                break
            try:
                with urllib.request.urlopen(f"{self.jobs_url}/api/jobs/", timeout=2):
                    return
            except OSError:
                time.sleep(0.5)
        raise AssertionError((self.folder / "start-0.log").read_text()[-2000:])


def environment(**more: str) -> dict[str, str]:
    """Of a shell on a machine of the cluster: nothing of a Ray that a test has started."""
    env = {k: v for k, v in os.environ.items() if not k.startswith("RAY_")}
    quick = {"RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S": "0"}
    return env | {"RAY_AUTH_MODE": "disabled"} | quick | more
