"""FastChat's judgment records and judgment rows, both ways, as of FastChat 0.2.36."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from mtbench_ray.fastchat.answers import FAILED_TEXT, as_number, question_id, seconds
from mtbench_ray.judges.matches import FOR_MODEL, GAMES
from mtbench_ray.schema import Judgment, canonical, content_id, text_hash

FAILED_SCORE = -1
FAILED_WINNER = "error"

_LABELS = {
    1: {"model_1": "A", "model_2": "B", "tie": "tie"},
    2: {"model_1": "B", "model_2": "A", "tie": "tie"},
}
"""Game to winner as FastChat writes it to verdict as the judge gave it."""
_WINNERS = {
    order: {label: winner for winner, label in names.items()} for order, names in _LABELS.items()
}

# What FastChat has no field for is written only where it is not 0.
_SAMPLES = ("sample", "judge_sample")
_SINGLE = ("question_id", "model", "judge", "user_prompt", "judgment", "score", "turn", "tstamp")
_PAIR = (
    "question_id", "model_1", "model_2", "g1_winner", "g2_winner", "judge", "g1_user_prompt",
    "g1_judgment", "g2_user_prompt", "g2_judgment", "turn", "tstamp",
)  # fmt: skip


def is_pair(record: Mapping[str, Any]) -> bool:
    """Whether a judgment record is of a match."""
    return "g1_winner" in record


def single_judgment(
    record: Mapping[str, Any], category: str, occurrence: int, run_id: str
) -> Judgment:
    """The judgment row of a single-grading record; a score alone is enough.

    Args:
        occurrence: How many equal records came before it in its file: equal rows are rows too.

    Raises:
        ValueError: It is no such record.
    """
    judge, prompt = _judge(record)
    score = as_number(record.get("score", ""))
    if score is None or (isinstance(score, float) and math.isnan(score)):
        score = FAILED_SCORE
    if isinstance(score, bool) or not isinstance(score, (int, float)) or abs(score) > 1e15:
        raise ValueError("score is not a number")
    text = _text(record, "judgment")
    scored = score != FAILED_SCORE
    identity = content_id(
        "judgment", {**_identity(record, _SINGLE), "score": score, "occurrence": occurrence}
    )
    status, error = ("ok", None) if scored else _failure(text, "no_rating")
    return Judgment(
        judgment_id=identity,
        match_id=identity,
        mode="single",
        benchmark="mt_bench",
        question_id=question_id(record),
        category=category,
        turn=_whole(record, "turn", 1),
        model=_label(record, "model"),
        judge=judge,
        judge_prompt=prompt,
        status=status,
        user_prompt=_text(record, "user_prompt"),
        text=text,
        label=json.dumps(score) if scored else None,
        value=float(score) if scored else None,
        error=error,
        sample=_whole(record, "sample", 0),
        judge_sample=_whole(record, "judge_sample", 0),
        params=_extra(record, _SINGLE),
        created=seconds(record),
        source="import",
        run_id=run_id,
    )


def pair_judgments(
    record: Mapping[str, Any], category: str, occurrence: int, run_id: str
) -> tuple[Judgment, Judgment]:
    """Both games of a pairwise record, told from ``model_1``. Arguments as above.

    Raises:
        ValueError: It is no such record.
    """
    judge, prompt = _judge(record)
    match_id = content_id(
        "judgment",
        {
            **_identity(record, _PAIR),
            "winners": [record.get("g1_winner"), record.get("g2_winner")],
            "occurrence": occurrence,
        },
    )
    games = []
    for order in GAMES:
        winner = _label(record, f"g{order}_winner")
        if winner != FAILED_WINNER and winner not in _LABELS[order]:
            raise ValueError(f"g{order}_winner is not a winner")
        label = _LABELS[order].get(winner)
        text = _text(record, f"g{order}_judgment")
        status, error = ("ok", None) if label else _failure(text, "no_winner")
        games.append(
            Judgment(
                judgment_id=game_id(match_id, order),
                match_id=match_id,
                mode="pairwise-all",
                benchmark="mt_bench",
                question_id=question_id(record),
                category=category,
                turn=_whole(record, "turn", 1),
                model=_label(record, "model_1"),
                opponent=_label(record, "model_2"),
                judge=judge,
                judge_prompt=prompt,
                status=status,
                user_prompt=_text(record, f"g{order}_user_prompt"),
                text=text,
                label=label,
                value=FOR_MODEL[order][label] if label else None,
                error=error,
                order=order,
                sample=_whole(record, "sample", 0),
                judge_sample=_whole(record, "judge_sample", 0),
                params=_extra(record, _PAIR),
                created=seconds(record),
                source="import",
                run_id=run_id,
            )
        )
    return games[0], games[1]


def game_id(match_id: str, order: int) -> str:
    """Id of one game's judgment of an imported match."""
    return text_hash(f"{match_id} game {order}")


def single_record(row: Judgment) -> dict[str, Any]:
    """The record of a single-grading judgment, failed or not."""
    return {
        "question_id": row.question_id,
        "model": row.model,
        "judge": [row.judge, row.judge_prompt],
        "user_prompt": row.user_prompt,
        "judgment": _written(row),
        "score": _score(row),
        "turn": row.turn,
        "tstamp": row.created,
        **_restored(row),
    }


def pair_record(one: Judgment, two: Judgment) -> dict[str, Any]:
    """The record of a match from its games, both told from the same model."""
    return {
        "question_id": one.question_id,
        "model_1": one.model,
        "model_2": one.opponent,
        "g1_winner": _WINNERS[1].get(one.label or "", FAILED_WINNER),
        "g2_winner": _WINNERS[2].get(two.label or "", FAILED_WINNER),
        "judge": [one.judge, one.judge_prompt],
        "g1_user_prompt": one.user_prompt,
        "g1_judgment": _written(one),
        "g2_user_prompt": two.user_prompt,
        "g2_judgment": _written(two),
        "turn": one.turn,
        "tstamp": max(one.created, two.created),
        **_restored(one),
    }


def _score(row: Judgment) -> int | float:
    """The rating as FastChat types it: an int where the judge wrote no dot."""
    if row.value is None:
        return FAILED_SCORE
    try:
        number = json.loads(row.label or "")
    except ValueError:
        number = None
    if isinstance(number, (int, float)) and number == row.value:
        return number
    return int(row.value) if row.value.is_integer() else row.value


def _written(row: Judgment) -> str:
    """The judge's text; a call that failed is marked, as FastChat does."""
    failed = row.value is None and row.source != "import" and row.status != "empty"
    return FAILED_TEXT if failed and not row.text else row.text


def _failure(text: str, reason: str) -> tuple[str, str]:
    if text == FAILED_TEXT:
        return "error", "judge_failed"
    return ("unparsed", reason) if text.strip() else ("empty", "empty")


def _judge(record: Mapping[str, Any]) -> tuple[str, str]:
    judge = record.get("judge")
    if isinstance(judge, str):
        return judge, ""
    if isinstance(judge, Sequence) and judge and all(isinstance(part, str) for part in judge):
        return judge[0], judge[1] if len(judge) > 1 else ""
    raise ValueError("judge is not a name or a list of judge and prompt")


def _label(record: Mapping[str, Any], name: str) -> str:
    value = record.get(name)
    if not isinstance(value, str):
        raise ValueError(f"{name} is not a text")
    return value


def _text(record: Mapping[str, Any], name: str) -> str:
    value = record.get(name)
    return value if isinstance(value, str) else ""


_NO_COUNT = 1 << 31
"""A number of a turn or sample so large is none, and would not fit a column."""


def _whole(record: Mapping[str, Any], name: str, default: int) -> int:
    value = as_number(record.get(name, default))
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or not default <= value < _NO_COUNT:
        raise ValueError(f"{name} is not a whole number from {default} on")
    return value


def _extra(record: Mapping[str, Any], known: Sequence[str]) -> str:
    """Fields that forks of FastChat add, kept for the way back."""
    rest = {
        name: value for name, value in record.items() if name not in known and name not in _SAMPLES
    }
    return canonical({"fields": rest}) if rest else "{}"


def _restored(row: Judgment) -> dict[str, Any]:
    samples = {name: getattr(row, name) for name in (*_SAMPLES, "criterion") if getattr(row, name)}
    fields = json.loads(row.params).get("fields", {}) if row.source == "import" else {}
    return {**samples, **fields}


def _identity(record: Mapping[str, Any], known: Sequence[str]) -> dict[str, Any]:
    """Everything in a record, with what may be left out filled in."""
    texts = [name for name in known if name.endswith(("judgment", "user_prompt"))]
    return {
        "import": "fastchat",
        "question_id": question_id(record),
        "models": [record.get(name) for name in ("model", "model_1", "model_2")],
        "judge": _judge(record),
        "texts": [_text(record, name) for name in texts],
        "turn": _whole(record, "turn", 1),
        "samples": [_whole(record, name, 0) for name in _SAMPLES],
        "tstamp": seconds(record),
        "extra": _extra(record, known),
    }
