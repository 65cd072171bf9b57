"""Writing a workspace as FastChat files."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import Any

from mtbench_ray.errors import UserError
from mtbench_ray.fastchat.answers import answer_record, by_number, official_category
from mtbench_ray.fastchat.counting import BENCHMARK, imported_judgments
from mtbench_ray.fastchat.verdicts import pair_record, single_record
from mtbench_ray.judges.base import EvaluationView
from mtbench_ray.judges.outcomes import NOT_NEEDED
from mtbench_ray.planning.evaluations import (
    DEFAULTS,
    against,
    answer_settings,
    differing,
    judge_names,
    named,
)
from mtbench_ray.planning.plan import good_turns, outcomes, view_of
from mtbench_ray.planning.races import decided_by, races_of
from mtbench_ray.schema import (
    AnswerSet,
    Evaluation,
    Judgment,
    Outcome,
    Question,
    QuestionId,
    Unit,
    canonical,
)
from mtbench_ray.workspace.filenames import safe_names
from mtbench_ray.workspace.journal import replacing
from mtbench_ray.workspace.workspace import Workspace

_MANIFEST = ".mtbench_ray.json"


def export_fastchat(
    workspace: Workspace,
    folder: Path,
    evaluations: Sequence[Evaluation],
    *,
    only_missing: bool = False,
) -> list[Path]:
    """Write ``model_answer/<model>.jsonl``, ``model_judgment/<judge>_single.jsonl`` and ``_pair``.

    As in FastChat's own tree a folder is of one benchmark: MT-Bench's files lie in ``folder``,
    those of others in a folder of their name below it.

    A turn that failed is written as ``$ERROR$``, a wanted verdict that failed or is missing as
    score -1 or winner ``error``; one that was not needed, since its race was decided, is left out.
    Of several answer sets with one label the last one is written, with the other questions that
    were answered with the same settings. Where categories do not follow from the ids,
    ``question.jsonl`` is written too: an import of these files needs it.

    Args:
        workspace: Its rows are exported; it may be open for reading only.
        folder: Made where it is not there. Files of others in it are never overwritten; in the
            workspace itself the files are this program's.
        evaluations: What to export.
        only_missing: Files that are there are as they should be.

    Returns:
        The files of the export.

    Raises:
        UserError: A file that this program did not write is in the way, or the disk refuses.
    """

    ours = folder.resolve() == workspace.root.resolve()
    by_benchmark: dict[str, list[Evaluation]] = {}
    for row in evaluations:
        by_benchmark.setdefault(row.benchmark, []).append(row)
    return [
        path
        for name, rows in by_benchmark.items()
        for path in _export(
            workspace, folder if name == BENCHMARK else folder / name, rows, ours, only_missing
        )
    ]


def _export(
    workspace: Workspace,
    folder: Path,
    evaluations: Sequence[Evaluation],
    ours: bool,
    only_missing: bool,
) -> list[Path]:
    """The files of one benchmark."""

    @lru_cache(maxsize=4)
    def questions(name: str) -> dict[QuestionId, Question]:
        data = workspace.load_data(name).questions if name else ()
        return {question.question_id: question for question in data}

    # Last those that count: a run's own answers before what others compared them with.
    evaluations = list(map(_under_names(evaluations), evaluations))
    sets = [(row.opponent, row.data) for row in evaluations if row.opponent is not None]
    sets += [(row.answers, row.data) for row in evaluations]
    answers = {known.model: known for known, _ in sets}
    asked: dict[str, dict[QuestionId, tuple[list[Unit], Question | None]]] = {}
    for known, name in reversed(sets):
        if known.settings == answers[known.model].settings:
            mine = asked.setdefault(known.model, {})
            for question_id, units in _by_question(known).items():
                mine.setdefault(question_id, (units, questions(name).get(question_id)))
    single: dict[str, list[Iterable[dict[str, Any]]]] = {}
    pair: dict[str, list[Iterable[dict[str, Any]]]] = {}
    seen: set[tuple[object, ...]] = set()
    races = races_of(workspace)
    for row in evaluations:
        if not row.judge:
            continue
        if not against(row):
            decided = decided_by(races, row.evaluation_id)
            single.setdefault(row.judge, []).append(_verdicts(workspace, row, decided))
        else:
            pair.setdefault(row.judge, []).append(_matches(workspace, row, seen))

    models = safe_names(answers)
    judges = safe_names([*single, *pair])
    # Made as they are written: all records of a sweep at once are too much to hold.
    files: dict[str, Iterable[dict[str, Any]]] = {}
    for model in answers:
        if model in asked:
            files[f"model_answer/{models[model]}.jsonl"] = _answers(workspace, model, asked[model])
    for kind, by_judge in (("single", single), ("pair", pair)):
        for judge, rows in by_judge.items():
            files[f"model_judgment/{judges[judge]}_{kind}.jsonl"] = chain.from_iterable(rows)
    every = {q.question_id: q for mine in asked.values() for _, q in mine.values() if q}
    if any(q.category != official_category(q.question_id) for q in every.values()):
        files["question.jsonl"] = map(_question, every.values())
    _write(workspace, folder, files, ours, only_missing)
    return [folder / name for name in files]


def _under_names(
    evaluations: Sequence[Evaluation],
) -> Callable[[Evaluation], Evaluation]:
    """Gives models and judges of equal labels the names that tell them apart.

    FastChat's files know a model by its name, and pool what has one name.
    """
    labels: dict[str, dict[str, AnswerSet]] = {}
    for row in evaluations:
        for known in filter(None, (row.opponent, row.answers)):
            labels.setdefault(known.model, {})[canonical(answer_settings(known))] = known
    judges = judge_names([row for row in evaluations if row.judge])

    def name(answers: AnswerSet) -> AnswerSet:
        same = [answer_settings(known) for known in labels[answers.model].values()]
        mine = answer_settings(answers)
        keys = {key for other in same for key in differing(mine, other)} - {"model.path"}
        settings = {key: mine.get(key, DEFAULTS.get(key)) for key in sorted(keys)}
        return dataclasses.replace(answers, model=named(answers.model, settings))

    def rename(row: Evaluation) -> Evaluation:
        return dataclasses.replace(
            row,
            answers=name(row.answers),
            opponent=row.opponent and name(row.opponent),
            judge=judges.get(row.evaluation_id, row.judge),
        )

    return rename


def _by_question(answers: AnswerSet) -> dict[QuestionId, list[Unit]]:
    found: dict[QuestionId, list[Unit]] = {}
    for unit in answers.units:
        found.setdefault(unit.question_id, []).append(unit)
    return found


def _question(question: Question) -> dict[str, Any]:
    return {
        "question_id": question.question_id,
        "category": question.category,
        "turns": list(question.turns),
    }


def _answers(
    workspace: Workspace,
    model: str,
    asked: Mapping[QuestionId, tuple[Sequence[Unit], Question | None]],
) -> Iterator[dict[str, Any]]:
    for question_id in sorted(asked, key=by_number):
        units, question = asked[question_id]
        record = answer_record(
            model,
            units,
            workspace.turns,
            lambda answer: good_turns(answer, workspace.turns),
            len(question.turns) if question else None,
        )
        if record is not None:
            yield record


def _judgments(
    workspace: Workspace, row: Evaluation, decided: Collection[str] | None
) -> list[Judgment]:
    """The verdicts of an evaluation as rows, with stand-ins for those that are not there.

    Args:
        decided: As of :func:`~mtbench_ray.planning.plan.outcomes`.
    """
    if row.source == "import":
        return imported_judgments(workspace, row)
    view = view_of(row, workspace.load_data(row.data), workspace.turns)
    found = outcomes(view, workspace.judgments, decided=decided)
    return [_row(view, outcome) for outcome in found if outcome.reason != NOT_NEEDED]


def _row(view: EvaluationView, outcome: Outcome) -> Judgment:
    slot = outcome.slot
    question = view.questions[slot.question_id]
    judgment = outcome.judgment
    if judgment is None:
        prompt = ""
        if view.prompts is not None:
            kind, references = view.grader.prompt_type, bool(question.references)
            prompt = view.prompts.pick(kind, slot.turn, references).name
        judgment = Judgment(
            judgment_id="",
            match_id="",
            mode=view.grader.name,
            benchmark=question.benchmark,
            question_id=slot.question_id,
            category=slot.category,
            turn=slot.turn,
            model=slot.model,
            judge=view.evaluation.judge,
            judge_prompt=prompt,
            status="error",
            error=outcome.reason,
        )
    # Equal texts have one judgment, whatever models and questions they belong to.
    return dataclasses.replace(
        judgment,
        question_id=slot.question_id,
        category=slot.category,
        model=slot.model,
        opponent=slot.opponent,
        order=slot.order,
        sample=slot.sample,
        judge_sample=slot.judge_sample,
        criterion=slot.criterion,
        judge=view.evaluation.judge,
    )


def _verdicts(
    workspace: Workspace, row: Evaluation, decided: Collection[str] | None
) -> Iterator[dict[str, Any]]:
    for judgment in _judgments(workspace, row, decided):
        yield single_record(judgment)


def _matches(
    workspace: Workspace, row: Evaluation, seen: set[tuple[object, ...]]
) -> Iterator[dict[str, Any]]:
    """The matches of an evaluation that no other one has brought; ``seen`` is extended."""
    games: dict[tuple[object, ...], list[Judgment]] = {}
    for game in _judgments(workspace, row, None):
        models = tuple(sorted((game.model, game.opponent or "")))
        # Imported rows may repeat a match, and each counts in FastChat.
        row_id = game.match_id if row.source == "import" else ""
        samples = (game.sample, game.judge_sample)
        key = (row.judge, models, game.question_id, game.turn, *samples, row_id)
        games.setdefault(key, []).append(game)
    for match, both in games.items():
        if match not in seen and len(both) == 2:
            yield pair_record(*sorted(both, key=lambda game: game.order))
    seen.update(games)


def _write(
    workspace: Workspace,
    folder: Path,
    files: Mapping[str, Iterable[dict[str, Any]]],
    ours: bool,
    only_missing: bool,
) -> None:
    """Write files by name; those of a folder that is not ``ours`` only where they are known."""
    written = {} if ours else _manifest(folder)
    for name in [] if ours else files:
        path = folder / name
        if path.exists() and _digest(path) != written.get(name):
            raise UserError(
                f"{path} is not of this program, or was changed since",
                "Export into another folder, or move that file away.",
            )
    for name, records in files.items():
        if only_missing and (folder / name).exists():
            continue
        # Line by line: a judge's file of a sweep is hundreds of MB.
        with (
            replacing(folder / name) as temporary,
            temporary.open("w", encoding="ascii", newline="\n") as file,
        ):
            file.writelines(_lines(workspace, records))
        if not ours:
            written[name] = _digest(folder / name)
    if not ours:
        with replacing(folder / _MANIFEST) as temporary:
            temporary.write_text(json.dumps(written, indent=1) + "\n", "utf-8")


def _lines(workspace: Workspace, records: Iterable[dict[str, Any]]) -> Iterator[str]:
    return (workspace.scrub(json.dumps(record)) + "\n" for record in records)


def _manifest(folder: Path) -> dict[str, str]:
    """Hash of each file that an earlier export wrote."""
    try:
        found = json.loads((folder / _MANIFEST).read_text("utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _digest(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror or error}") from None
