"""The workspace: a folder of rows that only grows, with one writer.

Layout: ``answers.jsonl`` (turns), ``judgments.jsonl``, ``runs/<run_id>/record.json`` and
``timeline.jsonl``, ``data/<hash>.json`` (benchmark snapshots), ``summary.json``, and at the end of
a run ``answers.parquet`` and ``judgments.parquet``. The journals are the truth; everything else
can be made from them and the run records again.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
import secrets as random
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Any, BinaryIO

from mtbench_ray.errors import UserError
from mtbench_ray.schema import (
    ANSWERED,
    BenchmarkData,
    Evaluation,
    Judgment,
    Question,
    Score,
    Turn,
    decode,
    encode,
    text_hash,
)
from mtbench_ray.system.redact import redact_json, redactor
from mtbench_ray.workspace.journal import (
    Journal,
    disk_error,
    read_line,
    replacing,
    warn,
    well_formed,
)
from mtbench_ray.workspace.lock import WorkspaceLock
from mtbench_ray.workspace.parquet import read_journal, write_table
from mtbench_ray.workspace.run_record import (
    RunRecord,
    Timeline,
    check_run_id,
    format_record,
    parse_record,
    start_record,
)

_REMOTE = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):/")

_SHOWN = 20
"""Warnings of reading that are logged; a file full of junk has one for each line."""

_REPEATED = frozenset(
    ("answer_id", "benchmark", "category", "engine_origin", "finish_reason", "judge",
     "judge_prompt", "label", "mode", "model", "opponent", "params", "prompt_hash",
     "reference_hash", "run_id", "sampling", "served_model", "source", "status",
     "system_fingerprint", "template_hash")
)  # fmt: skip
"""Fields whose few values stand in many rows."""
_HELD = (*_REPEATED, "content", "history", "judgment_id", "match_id", "raw", "user_prompt")
"""Fields that decide how much memory a row takes."""

_FILES: dict[type[Any], str] = {Turn: "answers.jsonl", Judgment: "judgments.jsonl"}


class Workspace:
    """An open workspace. Made by :meth:`open`; a context manager.

    Attributes:
        root: The folder.
        salt: Goes into the content ids of answers and judgments: empty, or what the newest
            ``fresh=true`` run chose, so that earlier rows are not found any more.
        problems: Warnings of reading (torn or broken lines and the like), in order.
        scrub: Replaces every secret in a text by ``***``; all that is written passes through it.
    """

    def __init__(self, root: Path, *, secrets: Sequence[str] = ()) -> None:
        """Use :meth:`open`."""
        self.root = root
        self.salt = ""
        self.problems: list[str] = []
        self.scrub = redactor(secrets)
        self._fresh = False
        self._unsaved: dict[str, BenchmarkData] = {}
        self._data: dict[tuple[str, int, int], BenchmarkData] = {}
        self._reported: set[str] = set()
        self._turns: dict[tuple[str, int], Turn] = {}
        self._judgments: dict[str, Judgment] = {}
        self._places: dict[str, tuple[int, int]] = {}
        self._view = _Judgments(self.root / _FILES[Judgment], self._judgments, self._places)
        self._journals: dict[type[Any], Journal] = {}
        self._lock: WorkspaceLock | None = None

    @classmethod
    def open(
        cls,
        root: Path | str,
        *,
        write: bool,
        secrets: Sequence[str] = (),
    ) -> Workspace:
        """Open a workspace and read its rows.

        Args:
            root: A local folder; made for ``write`` where it is not there.
            write: Take the lock and open the journals for append.
            secrets: API keys, replaced by ``***`` in all that is written, see
                :func:`mtbench_ray.system.redact.redactor`.

        Raises:
            UserError: Not a usable folder, held by another run, or of a newer version.
        """
        if remote := _REMOTE.match(str(root)):
            raise UserError(
                f"workspace {root} is remote ({remote[1]}); a workspace is a local folder or one "
                "on a mounted file system",
                "Give a folder, for example workspace=results, and copy it afterwards "
                f"(aws s3 sync, gsutil rsync) if it shall live on {remote[1]}.",
            )
        workspace = cls(Path(os.path.expanduser(root)), secrets=secrets)
        try:
            if write:
                workspace._lock = WorkspaceLock(workspace.root)
                for kind, name in _FILES.items():
                    path = workspace.root / name
                    workspace._journals[kind] = Journal(path, problem=workspace._problem)
            elif not workspace.root.is_dir():
                raise UserError(
                    f"there is no workspace at {root}",
                    "Give the folder of a run: workspace=<folder>.",
                )
            workspace._load()
        except BaseException:
            workspace.close()
            raise
        return workspace

    @property
    def turns(self) -> Mapping[tuple[str, int], Turn]:
        """The turn row that counts for each (answer_id, turn): the newest good one, else the
        newest failure. "Newest" is file order. Whether a turn 2 still fits its turn 1
        (``history``) is for the reader to check."""
        return MappingProxyType(self._turns)

    @property
    def judgments(self) -> Mapping[str, Judgment]:
        """The judgment that counts for each judgment_id, by the same rule; read from disk each."""
        return self._view

    @property
    def verdicts(self) -> Mapping[str, Judgment]:
        """The same from memory, with ``user_prompt`` left empty: for all that counts verdicts."""
        return MappingProxyType(self._judgments)

    def append(self, row: Turn | Judgment) -> None:
        """Write one row and count it.

        Raises:
            UserError: The disk refused it.
        """
        line = encode(row)
        clean = redact_json(self.scrub, line)
        if clean != line:
            row = decode(type(row), json.loads(clean))
        place = self._journal(type(row)).append(clean)
        fields = {name: getattr(row, name) for name in _HELD if hasattr(row, name)}
        self._lean(fields)
        self._count(dataclasses.replace(row, **fields), place)

    def provide(self, rows: Iterable[Turn]) -> None:
        """Count answers that ship with a benchmark, where they are not there yet.

        A workspace that is open for reading keeps them in memory only (a plan leaves no file).

        Raises:
            UserError: The disk refused them.
        """
        for row in rows:
            key = (row.answer_id, row.turn)
            if key in self._turns:
                continue
            if self._lock is None:
                self._turns[key] = row
            else:
                self.append(row)

    def start_over(self, command: Sequence[str]) -> str:
        """Choose a new salt (``fresh=true``): earlier rows stay, and are not found any more.

        It lasts from the moment that this run's record is saved. Where the newest run was a
        fresh one of the same command that did not finish, its salt is kept: a job that is
        started again after a kill goes on and does not pay twice.
        """
        newest = next(reversed(self.run_records()), None)
        resumed = (
            newest is not None
            and newest.fresh
            and newest.status != "finished"
            and newest.command == [self.scrub(word) for word in command]
        )
        if not resumed:
            self.salt = random.token_hex(8)
        self._fresh = True
        return self.salt

    def new_run(
        self,
        config: Mapping[str, Any],
        evaluations: Sequence[Evaluation],
        command: Sequence[str],
    ) -> RunRecord:
        """A record for a run that starts now; nothing is written before :meth:`save_run`."""
        numbers = [record.number for record in self.run_records()]
        record = start_record(max(numbers, default=0) + 1, self.salt, self._fresh)
        record.config = dict(config)
        record.evaluations = list(evaluations)
        record.command = list(command)
        return record

    def save_run(self, record: RunRecord) -> Path:
        """Write a run record whole; returns its path."""
        folder = Path("runs") / check_run_id(record.run_id)
        return self.write_text(folder / "record.json", format_record(record))

    def run_records(self) -> list[RunRecord]:
        """All run records, oldest first. A file that is none is left out with a warning."""
        records = []
        for path in sorted(self.root.glob("runs/*/record.json")):
            try:
                records.append(parse_record(path.read_text("utf-8")))
            except (OSError, ValueError, TypeError, RecursionError) as error:
                self._problem(f"{path}: left out: {error}")
        return sorted(records, key=lambda record: (record.number, record.run_id))

    def timeline(self, run_id: str) -> Timeline:
        """The event log of a run."""
        path = self.root / "runs" / check_run_id(run_id) / "timeline.jsonl"
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise disk_error(path, error) from None
        return Timeline(path, partial(redact_json, self.scrub))

    def save_data(self, data: BenchmarkData) -> str:
        """Keep a benchmark snapshot; returns its name, the hash of its text.

        A workspace that is open for reading keeps it in memory only (a plan leaves no file).
        """
        fields = asdict(data)
        if not data.kept:  # names of snapshots from before there was any stay as they are
            del fields["kept"]
        text = json.dumps(fields, ensure_ascii=True, indent=1)
        text = redact_json(self.scrub, text) + "\n"
        name = text_hash(text)
        path = Path("data") / f"{name}.json"
        if self._lock is None:
            self._unsaved[name] = data
        elif not _holds(self.root / path, text):
            self.write_text(path, text)
        return name

    def load_data(self, name: str) -> BenchmarkData:
        """A snapshot by name.

        Raises:
            UserError: It is missing, or not what was saved.
        """
        if name in self._unsaved:
            return self._unsaved[name]
        path = self.root / "data" / f"{name}.json"
        hint = "Copy the whole workspace folder, data/ too, or run again."
        if not re.fullmatch(r"[0-9a-f]{32}", name) or not path.is_file():
            raise UserError(f"{self.root} has no benchmark data {name!r}", hint)
        # Every evaluation of a sweep asks for it; a file that is as it was is read once.
        stat = path.stat()
        key = (name, stat.st_mtime_ns, stat.st_size)
        if key in self._data:
            return self._data[key]
        text = path.read_bytes().decode("utf-8", "replace")
        if text_hash(text) != name:
            raise UserError(f"{path} was changed after it was saved", hint)
        try:
            fields = json.loads(text)
            questions = tuple(decode(Question, item) for item in fields.pop("questions"))
            self._data[key] = BenchmarkData(questions=questions, **fields)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise UserError(f"{path} is not benchmark data: {error}", hint) from None
        return self._data[key]

    def has_data(self, name: str) -> bool:
        """Whether a snapshot is there and whole; warns where it is not."""
        try:
            self.load_data(name)
        except UserError as error:
            self._problem(f"evaluations left out: {error.args[0]}")
            return False
        return True

    def write_text(self, relative: Path | str, text: str) -> Path:
        """Write a file of the workspace whole or not at all, without any secret.

        Args:
            relative: Path below :attr:`root`.
            text: Lone surrogates become U+FFFD.
        """
        path = self.root / relative
        with replacing(path) as temporary:
            clean = redact_json(self.scrub, text)
            temporary.write_bytes(well_formed(clean).encode())
        return path

    @property
    def tables_current(self) -> bool:
        """Whether the Parquet tables were written after the last row of the journals.

        They are not after a crash between a run's last row and its end.
        """
        try:
            written = min(
                (self.root / f"{name}.parquet").stat().st_mtime_ns
                for name in ("answers", "judgments", "scores")
            )
        except OSError:
            return False
        journals = [self.root / name for name in _FILES.values()]
        return all(p.stat().st_mtime_ns <= written for p in journals if p.exists())

    def write_parquet(
        self, judgments: Iterable[Judgment] | None = None, scores: Iterable[Score] | None = None
    ) -> list[Path]:
        """Write ``answers.parquet``, ``judgments.parquet`` and, if given, ``scores.parquet``.

        Args:
            judgments: Rows of the second table; None: those that count, one per id.
            scores: Rows of the third.
        """
        tables: dict[str, tuple[type[Any], Iterable[Any]]] = {
            "answers": (Turn, self._turns.values()),
            "judgments": (Judgment, self.judgments.values() if judgments is None else judgments),
        }
        if scores is not None:
            tables["scores"] = (Score, scores)
        paths = []
        for name, (kind, rows) in tables.items():
            paths.append(self.root / f"{name}.parquet")
            write_table(paths[-1], kind, rows)
        return paths

    def close(self) -> None:
        """Sync and close the journals and give the lock back; a second call does nothing."""
        self._view.close()
        try:
            while self._journals:
                self._journals.popitem()[1].close()
        finally:
            if self._lock is not None:
                self._lock.release()
                self._lock = None

    def __enter__(self) -> Workspace:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _load(self) -> None:
        for cls, name in _FILES.items():
            path = self.root / name
            if path.exists():
                for place, row in read_journal(path, cls, self._problem, self._lean):
                    self._count(row, (place.start, place.size))
        for record in self.run_records():
            self.salt = record.salt

    def _count(self, row: Turn | Judgment, place: tuple[int, int]) -> None:
        """Let a lean ``row`` count unless a better one is there."""
        if isinstance(row, Turn):
            turn = (row.answer_id, row.turn)
            if _worth(row) >= _worth(self._turns.get(turn)):
                self._turns[turn] = row
        elif _worth(row) >= _worth(self._judgments.get(row.judgment_id)):
            self._judgments[row.judgment_id] = row
            self._places[row.judgment_id] = place

    def _lean(self, fields: dict[str, Any]) -> None:
        """Let the fields of a row hold equal texts once, and no judge prompt.

        A sweep's texts fill the memory. Texts that are there already are taken instead of copies of
        them; judge prompts, which hold the answers again, stay on disk.
        """
        if isinstance(fields.get("user_prompt"), str):
            fields["user_prompt"] = ""
        for name in _REPEATED & fields.keys():
            if type(value := fields[name]) is str:
                fields[name] = sys.intern(value)
        for name, other in (("raw", "content"), ("match_id", "judgment_id")):
            if name in fields and fields[name] == fields.get(other):
                fields[name] = fields[other]
        history, answer = fields.get("history"), fields.get("answer_id")
        if history and isinstance(history, (list, tuple)) and isinstance(answer, str):
            earlier = [self._turns.get((answer, number)) for number in range(1, len(history) + 1)]
            fields["history"] = type(history)(
                turn.content if turn is not None and turn.content == text else text
                for turn, text in zip(earlier, history, strict=True)
            )

    def _journal(self, cls: type[Any]) -> Journal:
        if cls not in self._journals:
            raise RuntimeError(f"workspace {self.root} is not open for writing")
        return self._journals[cls]

    def _problem(self, message: str) -> None:
        if message in self._reported:
            return
        self._reported.add(message)
        self.problems.append(message)
        if len(self.problems) < _SHOWN:
            warn(message)
        elif len(self.problems) == _SHOWN:
            warn(f"{message}; more like this is not shown")


class _Judgments(Mapping[str, Judgment]):
    """Judgments by id, each with its judge prompt read from the journal when it is asked for."""

    def __init__(
        self, path: Path, rows: dict[str, Judgment], places: dict[str, tuple[int, int]]
    ) -> None:
        self._path = path
        self._rows = rows
        self._places = places
        self._file: BinaryIO | None = None

    def __getitem__(self, judgment_id: str) -> Judgment:
        row = self._rows[judgment_id]
        try:
            self._file = self._file or self._path.open("rb")
            line = read_line(self._file.fileno(), *self._places[judgment_id])
        except OSError as error:
            raise UserError(f"cannot read {self._path}: {error.strerror or error}") from None
        if line is None or line.get("judgment_id") != judgment_id:
            raise UserError(f"{self._path} was changed while it is in use", "Run it again.")
        return dataclasses.replace(row, user_prompt=line.get("user_prompt", ""))

    def close(self) -> None:
        """Close the file; it is opened again where it is needed."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def __contains__(self, judgment_id: object) -> bool:
        return judgment_id in self._rows

    def __iter__(self) -> Iterator[str]:
        return iter(self._rows)

    def __len__(self) -> int:
        return len(self._rows)


def _holds(path: Path, text: str) -> bool:
    try:
        return path.read_bytes() == text.encode()
    except OSError:  # not there; a disk that fails says so when the file is written
        return False


def _worth(row: Turn | Judgment | None) -> int:
    """Of rows with one id the newest of the most worth counts."""
    if row is None:
        return 0
    if isinstance(row, Turn):
        return 3 if row.status in ANSWERED else 1
    if row.status == "ok":
        return 3
    # A reply that could not be read was paid: other tags may read it, and parity=fastchat counts it
    # as it is. A later call that brought none must not take its place.
    return 2 if row.has_reply else 1
