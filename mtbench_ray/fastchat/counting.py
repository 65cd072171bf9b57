"""Which imported judgments count, in both parities."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Sequence

from mtbench_ray.benchmarks import get_benchmark
from mtbench_ray.fastchat.answers import FAILED_TEXT
from mtbench_ray.fastchat.verdicts import game_id
from mtbench_ray.judges.base import Reading
from mtbench_ray.judges.judge_prompt import reading
from mtbench_ray.judges.matches import FOR_MODEL, GAMES
from mtbench_ray.judges.parse import parse_rating, parse_winner
from mtbench_ray.schema import Evaluation, Judgment, Outcome, Slot
from mtbench_ray.workspace.workspace import Workspace

_SCALE = (1, 10)
BENCHMARK = "mt_bench"
"""Whose files FastChat's are."""


def imported_outcomes(workspace: Workspace, evaluation: Evaluation, parity: str) -> list[Outcome]:
    """The verdicts of an imported evaluation, one slot per row that counts.

    In parity ``fastchat`` every row counts with its stored score. In parity ``safe`` the stored
    text is read again and repeated rows of a key count once, see :func:`dedupe`. A stored verdict
    that FastChat's parser does not find in the text was made by other means, and stands.

    Args:
        workspace: Holds the judgments.
        evaluation: One with ``source="import"``.
        parity: ``safe`` or ``fastchat``.
    """
    rows = imported_judgments(workspace, evaluation)
    if parity == "safe":
        rows = dedupe([read_again(row) for row in rows])[0]
    return [
        Outcome(
            _slot(evaluation, row),
            row,
            "" if row.value is not None else row.error or row.status,
        )
        for row in rows
    ]


def imported_judgments(workspace: Workspace, evaluation: Evaluation) -> list[Judgment]:
    """All rows of an imported evaluation in the order of their file, failed ones too."""
    # Once each: the same record may lie in several files. Repeats within a file have own ids.
    ids: Iterable[str] = dict.fromkeys(json.loads(evaluation.judge_settings).get("rows", ()))
    if evaluation.mode != "single":
        ids = (game_id(match_id, order) for match_id in ids for order in GAMES)
    return [workspace.judgments[row_id] for row_id in ids if row_id in workspace.judgments]


def dedupe(rows: Sequence[Judgment]) -> tuple[list[Judgment], list[Judgment]]:
    """Keep one row (one match with both its games) per question, models, judge and turn.

    The newest valid one is kept, else the newest; newest by time, then by place in the file. The
    two orders of a pair are one key.

    Returns:
        The rows kept, in the order in which their keys first appear, and the rows dropped.
    """
    matches: dict[str, list[Judgment]] = {}
    for row in rows:
        matches.setdefault(row.match_id, []).append(row)
    keys: dict[tuple[object, ...], list[list[Judgment]]] = {}
    for games in matches.values():
        row = games[0]
        models = frozenset((row.model, row.opponent))
        key = (row.question_id, models, row.judge, row.turn, row.sample, row.judge_sample)
        keys.setdefault(key, []).append(games)
    kept: list[Judgment] = []
    dropped: list[Judgment] = []
    for group in keys.values():
        best = max(range(len(group)), key=lambda place: (*_rank(group[place]), place))
        for place, games in enumerate(group):
            (kept if place == best else dropped).extend(games)
    return kept, dropped


def coverage_notes(workspace: Workspace, evaluations: Sequence[Evaluation]) -> list[str]:
    """What a reader of imported scores has to know: repeated rows, answers without a verdict."""
    notes = []
    for row in evaluations:
        if not row.judge:
            continue
        where = f"{row.model}" + (f" against {row.baseline}" if row.baseline else "")
        where += f", judge {row.judge}{_in_mode(row.mode)}"
        found = [read_again(judgment) for judgment in imported_judgments(workspace, row)]
        kept, dropped = dedupe(found)
        if dropped:
            notes.append(
                f"{where}{len(dropped)} of {len(found)} judgments repeat a question and turn and "
                "are not counted, the newest valid one is (parity=fastchat counts all)"
            )
        judged = {(judgment.question_id, judgment.turn) for judgment in kept}
        answered = {
            (unit.question_id, turn)
            for unit in row.answers.units
            for turn in (1, 2)
            if (unit.answer_id, turn) in workspace.turns
        }
        if answered - judged:
            notes.append(
                f"{where}{len(answered - judged)} of {len(answered)} answered turns have no "
                "judgment in the files"
            )
    return notes


def concerns(note: str, mode: str) -> bool:
    """Whether a note of an import is about a mode, or about no mode in particular."""
    modes = [grader.name for grader in get_benchmark(BENCHMARK).graders]
    return _in_mode(mode) in note or not any(_in_mode(other) in note for other in modes)


def _in_mode(mode: str) -> str:
    return f", {mode}: "


def read_again(row: Judgment) -> Judgment:
    """The row with the verdict that parity ``safe`` reads from its text."""
    if row.text and row.text != FAILED_TEXT:
        stored, found = (_rating if row.order == 0 else _winner)(row)
        if stored:
            return dataclasses.replace(
                row,
                label=found.label,
                value=found.value,
                status=found.status,
                error=found.reason or None,
            )
    if row.order == 0 and row.value is not None and not _SCALE[0] <= row.value <= _SCALE[1]:
        return dataclasses.replace(
            row, label=None, value=None, status="unparsed", error="out_of_range"
        )
    return row


def _rating(row: Judgment) -> tuple[bool, Reading]:
    """Whether the stored score is what FastChat's parser reads, and the safe reading."""
    safe = parse_rating(row.text)
    value = safe.value if isinstance(safe.value, float) else None
    return parse_rating(row.text, parity="fastchat").value == row.value, reading(safe, value)


def _winner(row: Judgment) -> tuple[bool, Reading]:
    safe = parse_winner(row.text)
    value = FOR_MODEL[row.order][safe.value] if isinstance(safe.value, str) else None
    return parse_winner(row.text, parity="fastchat").value == row.label, reading(safe, value)


def _rank(games: Sequence[Judgment]) -> tuple[bool, float]:
    return all(game.value is not None for game in games), max(game.created for game in games)


def _slot(evaluation: Evaluation, row: Judgment) -> Slot:
    """Told from the evaluation's model, also where the file has the pair the other way round."""
    swapped = row.order != 0 and row.model != evaluation.model
    return Slot(
        model=evaluation.model,
        question_id=row.question_id,
        category=row.category,
        group=str(row.question_id),
        turn=row.turn,
        sample=row.sample,
        answer_ids=row.answer_ids,
        order=3 - row.order if swapped else row.order,
        opponent=row.model if swapped else row.opponent,
        judge_sample=row.judge_sample,
    )
