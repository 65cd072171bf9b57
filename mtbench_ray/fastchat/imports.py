"""Reading a tree of FastChat files into a workspace."""

from __future__ import annotations

import dataclasses
import hashlib
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mtbench_ray.benchmarks import get_benchmark
from mtbench_ray.errors import UserError
from mtbench_ray.fastchat.answers import answer_turns, by_number, official_category, question_id
from mtbench_ray.fastchat.counting import BENCHMARK, coverage_notes
from mtbench_ray.fastchat.tree import find_files, find_root
from mtbench_ray.fastchat.verdicts import is_pair, pair_judgments, single_judgment
from mtbench_ray.planning.evaluations import identified
from mtbench_ray.schema import (
    ANSWERS_ONLY,
    AnswerSet,
    BenchmarkData,
    Evaluation,
    Judgment,
    Question,
    QuestionId,
    Turn,
    Unit,
    canonical,
)
from mtbench_ray.workspace.filenames import is_name_of
from mtbench_ray.workspace.journal import read
from mtbench_ray.workspace.workspace import Workspace

_SHOWN = 20  # notes; what matters to the scores comes last
_KEPT = 1000  # notes in the run record


@dataclass
class ImportReport:
    """What an import found and added.

    Attributes:
        turns: Turn rows in the files; ``new_turns`` of them were not in the workspace.
        judgments: Judgment rows (two per match); ``new_judgments`` as above.
        evaluations: What can be reported now.
        notes: Torn and broken lines, repeated rows, and what was done about them.
    """

    folder: Path
    turns: int = 0
    new_turns: int = 0
    judgments: int = 0
    new_judgments: int = 0
    evaluations: list[Evaluation] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def text(self) -> str:
        """Some lines for the user, safe to print."""
        models = {row.model for row in self.evaluations}
        models |= {row.baseline for row in self.evaluations if row.baseline}
        lines = [
            f"{self.folder}: {len(models)} models, {self.turns} answered turns "
            f"({self.new_turns} new), {self.judgments} judgments ({self.new_judgments} new)",
            *self.notes[-_SHOWN:],
        ]
        if len(self.notes) > _SHOWN:
            lines.append(f"and {len(self.notes) - _SHOWN} more lines like these, in runs/")
        return "\n".join(map(_printable, lines))


@dataclass
class _Import:
    """An import under way."""

    workspace: Workspace
    report: ImportReport
    run_id: str
    questions: Mapping[QuestionId, Question]
    data: str

    def category(self, question: QuestionId) -> str:
        """The question file's category; without one, that of the official ids 81 to 160."""
        known = self.questions.get(question)
        return known.category if known else official_category(question)

    def keep(self, row: Turn | Judgment) -> None:
        """Append a row that the workspace does not have."""
        if isinstance(row, Turn):
            new = (row.answer_id, row.turn) not in self.workspace.turns
            self.report.turns += 1
            self.report.new_turns += new
        else:
            new = row.judgment_id not in self.workspace.judgments
            self.report.judgments += 1
            self.report.new_judgments += new
        if new:
            self.workspace.append(row)


def import_fastchat(
    folder: Path,
    workspace: Workspace,
    *,
    question_path: Path | None = None,
    baseline: str | None = None,
) -> ImportReport:
    """Read answers and judgments; importing the same files again adds no row.

    Args:
        folder: The folder that holds ``model_answer`` and ``model_judgment``, one with them below
            ``data/mt_bench``, or one file.
        workspace: Open for writing.
        question_path: Question file, for the categories of questions that are not the official
            ones; a ``question.jsonl`` beside the folders is found without it.
        baseline: Also make evaluations of each model that has matches with this one.

    Raises:
        UserError: There is nothing to import, or the workspace cannot be written.
    """
    root = find_root(folder)
    if root.resolve() == workspace.root.resolve():
        raise UserError(
            f"{folder} is the workspace itself: its rows are there already",
            "name another folder, or another workspace=",
        )
    report = ImportReport(folder)
    record = workspace.new_run({"import": str(folder)}, [], ["import", "fastchat", str(folder)])
    data, questions = _questions(root, question_path, workspace)
    run = _Import(workspace, report, record.run_id, questions, data)
    answer_files, judgment_files = find_files(root)
    answers = {}
    for path, name in answer_files:
        found = _read_answers(run, path, name)
        if found.units:
            answers[found.model] = found
    singles: dict[tuple[str, str], list[str]] = {}
    pairs: dict[tuple[str, str, str], list[str]] = {}
    for path in judgment_files:
        _read_judgments(run, path, singles, pairs)
    if not report.turns and not report.judgments:
        raise UserError(
            f"{folder} holds no row of FastChat's", _printable("; ".join(report.notes[:3]))
        )
    report.evaluations = [
        identified(row) for row in _evaluations(run.data, answers, singles, pairs, baseline, folder)
    ]
    report.notes += coverage_notes(workspace, report.evaluations)
    record.evaluations = report.evaluations
    record.notes = report.notes[-_KEPT:]
    record.counts = {"turns": report.new_turns, "judgments": report.new_judgments}
    record.status, record.finished, record.exit_code = "finished", time.time(), 0
    workspace.save_run(record)
    workspace.write_parquet()
    return report


def _questions(
    root: Path, question_path: Path | None, workspace: Workspace
) -> tuple[str, dict[QuestionId, Question]]:
    """Name of the snapshot (empty without a question file) and the questions by id."""
    path = question_path or root / "question.jsonl"
    if question_path is None and not path.is_file():
        return "", {}
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror or error}") from None
    text = raw.decode("utf-8", "replace")
    found = get_benchmark(BENCHMARK).read(text, None, {"questions": str(path)}).questions
    # What its judge was shown is not known.
    questions = tuple(dataclasses.replace(question, references=()) for question in found)
    files = {"questions": f"{path.name} sha256:{hashlib.sha256(raw).hexdigest()}"}
    name = workspace.save_data(BenchmarkData(BENCHMARK, questions, "fastchat", "", files))
    return name, {question.question_id: question for question in questions}


def _records(run: _Import, path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    return read(path, run.report.notes.append)


def _read_answers(run: _Import, path: Path, name: str) -> AnswerSet:
    """One model's answers. FastChat takes the last line of a repeated question, so do we."""
    records: dict[QuestionId, tuple[int, dict[str, Any]]] = {}
    repeated = 0
    for number, record in _records(run, path):
        try:
            question = question_id(record)
        except ValueError as error:
            run.report.notes.append(f"{path}:{number}: {error}, left out")
            continue
        repeated += question in records
        records[question] = number, record
    if repeated:
        run.report.notes.append(f"{path}: {repeated} lines repeat a question, the last one counts")
    # FastChat goes by the file's name; only a name that was made safe is told by the row.
    told = (record.get("model_id") for _, record in records.values())
    model = next((text for text in told if isinstance(text, str) and is_name_of(name, text)), name)
    units: list[Unit] = []
    for question in sorted(records, key=by_number):
        number, record = records[question]
        try:
            found = answer_turns(record, model, run.run_id)
        except ValueError as error:
            run.report.notes.append(f"{path}:{number}: {error}, left out")
            continue
        units += found
        for turns in found.values():
            for turn in turns:
                run.keep(turn)
    return AnswerSet(model, _settings(model, run.report.folder), tuple(units), source="import")


def _settings(model: str, folder: Path) -> str:
    """All that is known of imported answers: whose they are, and where they were."""
    return canonical({"import": str(folder.resolve()), "model": {"name": model}})


def _read_judgments(
    run: _Import,
    path: Path,
    singles: dict[tuple[str, str], list[str]],
    pairs: dict[tuple[str, str, str], list[str]],
) -> None:
    """Rows of one file; match ids go into ``singles`` by model and judge, and into ``pairs`` by
    both models, in the order first met, and judge."""
    seen: Counter[str] = Counter()
    for number, record in _records(run, path):
        same = canonical(record)
        try:
            category = run.category(question_id(record))
            if is_pair(record):
                one, two = pair_judgments(record, category, seen[same], run.run_id)
                models = (one.model, one.opponent or "")
                key = (*models, one.judge)
                if (*models[::-1], one.judge) in pairs:
                    key = (*models[::-1], one.judge)
                pairs.setdefault(key, []).append(one.match_id)
                run.keep(two)
            else:
                one = single_judgment(record, category, seen[same], run.run_id)
                singles.setdefault((one.model, one.judge), []).append(one.match_id)
        except ValueError as error:
            run.report.notes.append(f"{path}:{number}: {error}, left out")
            continue
        seen[same] += 1
        run.keep(one)


def _evaluations(
    data: str,
    answers: Mapping[str, AnswerSet],
    singles: Mapping[tuple[str, str], Sequence[str]],
    pairs: Mapping[tuple[str, str, str], Sequence[str]],
    baseline: str | None,
    folder: Path,
) -> list[Evaluation]:
    def row(model: str, judge: str, mode: str, ids: Sequence[str], other: str | None) -> Evaluation:
        sets = [
            answers.get(label, AnswerSet(label, _settings(label, folder), (), "import"))
            for label in (model, other or "")
        ]
        return Evaluation(
            answers=sets[0],
            judge=judge,
            judge_settings=canonical({"rows": list(ids)}),
            mode=mode,
            data=data,
            opponent=sets[1] if other is not None else None,
            source="import",
        )

    rated = {model for model, _ in singles}
    rows = [row(model, "", ANSWERS_ONLY, (), None) for model in answers if model not in rated]
    for (one, two, judge), ids in pairs.items():
        rows.append(row(one, judge, "pairwise-all", ids, two))
    for (one, two, judge), ids in pairs.items():
        if baseline in (one, two):
            model, other = (one, two) if two == baseline else (two, one)
            rows.append(row(model, judge, "pairwise-baseline", ids, other))
    rows += [row(model, judge, "single", ids, None) for (model, judge), ids in singles.items()]
    return rows


def _printable(text: str) -> str:
    """With escapes for what a terminal would act on or cannot show."""
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode() for char in text
    )
