"""Alerts of a watch: somebody is told once when a checkpoint is worse than the best before it.

``alerts.json`` in the workspace has all of them with whether they were sent, so that a watch that
is started again sends none twice, and sends those that it could not. An alert that fails is told
and ends nothing.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from mtbench_ray.endpoint.keys import display_host
from mtbench_ray.reports.falls import new_falls
from mtbench_ray.reports.results import Results, current
from mtbench_ray.schema import Evaluation
from mtbench_ray.workspace.workspace import Workspace

FILE = "alerts.json"
TIMEOUT_S = 30.0
"""For a command or a webhook to end."""


def alert(
    results: Results, rows: Sequence[Evaluation], target: str, tell: Callable[[str], None]
) -> None:
    """Say which of some checkpoints fell, and send what has not been sent.

    Args:
        target: ``watch.alert``: a command, the address of a webhook, or nothing.
        tell: Takes lines for the user.
    """
    workspace = results.workspace
    known = _known(workspace)
    for found in new_falls(results, rows, current(workspace)):
        entry = found.as_json()
        if entry["evaluation_id"] not in {one["evaluation_id"] for one in known}:
            tell(f"alert: {entry['text']}")
            known.append(entry | {"workspace": str(workspace.root.resolve()), "sent": False})
    for entry in known:
        if target and not entry["sent"]:
            body = {name: value for name, value in entry.items() if name != "sent"}
            if why := send(target, json.dumps(body)):
                tell(f"an alert could not be sent: {workspace.scrub(why)}")
            else:
                entry["sent"] = True
    if known:
        workspace.write_text(FILE, json.dumps(known, indent=1) + "\n")


def send(target: str, body: str) -> str:
    """Give an alert to a command or a webhook; returns why it failed, empty where it did not.

    Nothing of the target is in the reason but the host of a webhook.

    Args:
        body: A JSON object.
    """
    if "://" in target.split(" ")[0]:
        return _post(target, body)
    return _run(target, body)


def _post(address: str, body: str) -> str:
    import httpx

    host = display_host(address)
    try:
        reply = httpx.post(
            address, content=body, headers={"Content-Type": "application/json"}, timeout=TIMEOUT_S
        )
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        return f"{host}: {type(error).__name__}"  # its text may have the address
    return "" if reply.is_success else f"{host}: status {reply.status_code}"


def _run(command: str, body: str) -> str:
    try:
        process = subprocess.Popen(
            command, shell=True, text=True, start_new_session=True,
            stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
    except OSError as error:
        return f"the command cannot be run: {error.strerror}"
    try:
        process.communicate(body, timeout=TIMEOUT_S)
    except subprocess.TimeoutExpired:
        with suppress(OSError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        return f"the command took longer than {TIMEOUT_S:g} s"
    code = process.returncode
    return f"the command ended with exit code {code}" if code else ""


def _known(workspace: Workspace) -> list[dict[str, Any]]:
    try:
        found = json.loads((workspace.root / FILE).read_text("utf-8"))
        return [one for one in found if {"evaluation_id", "sent"} <= one.keys()]
    except (OSError, ValueError, TypeError, AttributeError):
        return []
