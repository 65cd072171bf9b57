"""Files that survive whatever ends the process: append-only JSON lines, and whole-file writes.

A journal has one writer. Each row is one ``write`` of a whole line, so a killed process leaves at
most one torn line, at the end; opening the file for append cuts it back. Rows reach the operating
system at once, and the disk (``fsync``) once a second while rows come and when the file closes.
"""

from __future__ import annotations

import errno
import json
import logging
import math
import os
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from mtbench_ray.errors import UserError

_log = logging.getLogger(__name__)

_BOM = b"\xef\xbb\xbf"
_BLOCK = 1 << 16


def warn(message: str) -> None:
    """Log one warning; the default of every ``problem`` argument here."""
    _log.warning("%s", message)


def disk_error(path: Path, error: OSError) -> UserError:
    """What a failed write means to the user."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        hint = "Free some space, then re-run the same command: what was written is kept."
    elif error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        hint = "Give a folder you may write to, for example workspace=$HOME/mtbench_results."
    elif error.errno == errno.ELOOP:
        hint = "It is a link; a workspace's own files are never written through links."
    elif error.errno in (errno.ENOTDIR, errno.EEXIST, errno.EISDIR):
        hint = "Something else is in the way there; move it, or give another workspace=<folder>."
    else:
        hint = "Check the disk, then re-run the same command: what was written is kept."
    return UserError(f"cannot write {path}: {error.strerror or error}", hint)


class Journal:
    """An open JSONL file that only grows.

    Args:
        path: The file; made where it is not there.
        sync_s: Seconds between two ``fsync`` at most, while rows come.
        problem: Called with one line where a torn tail was cut back.

    Raises:
        UserError: The file cannot be opened for writing.
    """

    def __init__(
        self, path: Path, *, sync_s: float = 1.0, problem: Callable[[str], None] = warn
    ) -> None:
        self.path = path
        self._sync_s = sync_s
        self._synced = time.monotonic()
        try:
            # No link is followed: a workspace may come from someone else. Without O_NONBLOCK a
            # pipe in the way would hang the program here.
            self._fd = os.open(
                path,
                os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK,
                0o666,
            )
        except OSError as error:
            raise disk_error(path, error) from None
        try:
            if not stat.S_ISREG(os.fstat(self._fd).st_mode):
                raise OSError(errno.EEXIST, "not a regular file")
            _mend_tail(self._fd, path, problem)
            self._end = os.fstat(self._fd).st_size
            sync_folder(path.parent)
        except OSError as error:
            os.close(self._fd)
            raise disk_error(path, error) from None

    def append(self, line: str) -> tuple[int, int]:
        """Write one row: ASCII JSON without a line end.

        Returns:
            First byte and length in bytes of its line in the file.

        Raises:
            UserError: The disk refused it; what was written of the line is taken back.
        """
        if "\n" in line:
            raise ValueError("a row is one line")
        data = line.encode("ascii") + b"\n"
        written = 0
        try:
            while written < len(data):
                written += os.write(self._fd, data[written:])
            if time.monotonic() - self._synced >= self._sync_s:
                self.sync()
        except OSError as error:
            if written < len(data):
                self._take_back(data[:written])
            raise disk_error(self.path, error) from None
        start, self._end = self._end, self._end + len(data)
        return start, len(data)

    def sync(self) -> None:
        """Bring everything written so far to the disk."""
        try:
            os.fsync(self._fd)
            gone = os.fstat(self._fd).st_nlink == 0
        except OSError as error:
            raise disk_error(self.path, error) from None
        self._synced = time.monotonic()
        if gone:
            raise UserError(
                f"{self.path} was deleted while it is being written",
                "Rows written to it are lost; re-run the same command.",
            )

    def close(self) -> None:
        """Sync and close; a second call does nothing."""
        if self._fd < 0:
            return
        try:
            self.sync()
        finally:
            os.close(self._fd)
            self._fd = -1

    def __enter__(self) -> Journal:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _take_back(self, part: bytes) -> None:
        """Remove a partly written line, if it still is the end of the file."""
        with suppress(OSError):  # What stays is cut back by the next opening.
            start = os.fstat(self._fd).st_size - len(part)
            if part and start >= 0 and os.pread(self._fd, len(part), start) == part:
                os.ftruncate(self._fd, start)


@dataclass(frozen=True, slots=True)
class Place:
    """Where a line lies in its file: its number from 1, first byte and length in bytes."""

    number: int
    start: int
    size: int


def read(path: Path, problem: Callable[[str], None] = warn) -> Iterator[tuple[int, dict[str, Any]]]:
    """Rows of a JSON lines file with their line numbers; see :func:`read_places`."""
    return ((place.number, row) for place, row in read_places(path, problem))


def read_places(
    path: Path, problem: Callable[[str], None] = warn
) -> Iterator[tuple[Place, dict[str, Any]]]:
    r"""Rows of a JSON lines file with where they lie, whatever state the file is in.

    Lines end with ``\n`` only (U+2028 and the like are text); CRLF, BOMs (of joined files) and
    blank lines are taken. A line that is no JSON object is reported through ``problem`` and left
    out. Bytes that are not UTF-8 become U+FFFD, which is reported too.

    Raises:
        UserError: The file cannot be read.
    """
    broken: int | None = None
    end = 0
    if path.exists() and not path.is_file():
        raise UserError(f"cannot read {path}: not a regular file")
    try:
        with path.open("rb") as file:
            for number, raw in enumerate(file, start=1):
                start, end = end, end + len(raw)
                line = raw.removeprefix(_BOM).strip(b" \t\r\n")
                if not line:
                    continue
                if broken is not None:
                    problem(f"{path}:{broken}: not a JSON object, left out")
                row, lossy = _parse(line)
                broken = number if row is None else None
                if lossy and row is not None:
                    problem(f"{path}:{number}: bytes that are not UTF-8, replaced")
                if row is not None:
                    yield Place(number, start, len(raw)), row
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror or error}") from None
    if broken is not None:
        problem(f"{path}:{broken}: torn last line, left out")


def read_line(fd: int, start: int, size: int) -> dict[str, Any] | None:
    """The row at a place of an open file, or None where there is none (any more)."""
    return _parse(os.pread(fd, size, start).removeprefix(_BOM).strip(b" \t\r\n"))[0]


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Write a file whole or not at all: yields a temporary path, renamed onto ``path`` at the end.

    Raises:
        UserError: The disk refused it; the old file is as it was.
    """
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.unlink(missing_ok=True)
        yield temporary
        with temporary.open("rb+") as file:
            os.fsync(file.fileno())
        temporary.replace(path)
        sync_folder(path.parent)
    except OSError as error:
        raise disk_error(path, error) from None
    finally:
        with suppress(OSError):  # The reason is already on its way to the user.
            temporary.unlink(missing_ok=True)


def well_formed(text: str) -> str:
    """``text`` as UTF-8 can hold it: surrogate pairs joined, lone surrogates as U+FFFD."""
    if text.isascii():
        return text
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def sync_folder(folder: Path) -> None:
    """Bring a folder's new names to the disk."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError as error:
        # Some network file systems have no fsync of folders.
        if error.errno not in (errno.EINVAL, errno.ENOTSUP, errno.EBADF):
            raise
    finally:
        os.close(handle)


def _parse(line: bytes) -> tuple[dict[str, Any] | None, bool]:
    """One line as an object or None, and whether bytes had to be replaced."""
    lossy = False
    try:
        text = line.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError:
        text, lossy = line.decode("utf-8", "replace"), True
    try:
        row = _JSON.decode(text)
    except (ValueError, RecursionError):
        return None, lossy
    return (row if isinstance(row, dict) else None), lossy


def _finite(text: str) -> float:
    """A number; NaN and infinities, which JSON does not know, would spoil every mean."""
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text} is no number")
    return number


_JSON = json.JSONDecoder(parse_float=_finite, parse_constant=_finite)


def _mend_tail(fd: int, path: Path, problem: Callable[[str], None]) -> None:
    """Make the file end after a whole row: cut a torn last line, end a complete one.

    Only the last line that is not blank is looked at, whether or not a line end follows it: some
    editors and file systems add one, or NUL bytes, behind a torn row.
    """
    size = os.fstat(fd).st_size
    start, tail, block = size, b"", _BLOCK
    while start > 0 and b"\n" not in tail.rstrip(b" \t\r\n"):
        start = max(0, size - block)
        tail = os.pread(fd, size - start, start)
        block *= 2
    body = tail.rstrip(b" \t\r\n")
    if not body:
        return
    begin = body.rfind(b"\n") + 1
    line = body[begin:].strip(b" \t\r")
    if start + begin == 0:
        line = line.removeprefix(_BOM)
    if line and _parse(line)[0] is None:
        os.ftruncate(fd, start + begin)
        problem(
            f"{path}:{_lines_before(fd, start + begin) + 1}: torn last line cut back; "
            "its row will be made again"
        )
    elif not tail.endswith(b"\n"):
        os.write(fd, b"\n")


def _lines_before(fd: int, end: int) -> int:
    count = 0
    for offset in range(0, end, _BLOCK):
        count += os.pread(fd, min(_BLOCK, end - offset), offset).count(b"\n")
    return count
