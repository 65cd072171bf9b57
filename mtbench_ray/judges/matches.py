"""From games to matches: who won, and where the two games disagree."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import zip_longest

from mtbench_ray.schema import Outcome, QuestionId, Slot

GAMES = (1, 2)
"""Game 1 shows the model as A, game 2 shows it as B."""

FOR_MODEL = {1: {"A": 1.0, "B": 0.0, "tie": 0.5}, 2: {"A": 0.0, "B": 1.0, "tie": 0.5}}
"""Value of a verdict for the model, by game."""


@dataclass(frozen=True, slots=True)
class Match:
    """Both games of one pair of answers.

    Attributes:
        value: 1, 0.5 or 0 for ``model``: a win counts only where both games agree on it, anything
            else is a tie (FastChat ``show_result``); None where a game failed.
        inconsistent: The games disagree.
        reason: Why there is no value; empty where there is one.
    """

    model: str
    opponent: str
    question_id: QuestionId
    group: str
    category: str
    turn: int
    sample: int
    judge_sample: int
    value: float | None
    inconsistent: bool
    reason: str

    def seen_by(self, model: str) -> float | None:
        """The value for one of the two models."""
        if self.value is None or model == self.model:
            return self.value
        return 1.0 - self.value


def matches(outcomes: Iterable[Outcome], parity: str = "safe") -> list[Match]:
    """Put the games together.

    The two orders of a pair, (m, base) and (base, m), are one match, told from the first one
    seen. In parity ``safe`` each game counts once, by its last row with a verdict (``outcomes``
    come oldest first); in parity ``fastchat`` every row counts, the n-th of a game with the n-th of
    the other.
    """
    found: dict[tuple[object, ...], tuple[Slot, tuple[list[Outcome], list[Outcome]]]] = {}
    for outcome in outcomes:
        slot = outcome.slot
        pair = tuple(sorted((slot.model, slot.opponent or "")))
        key = (pair, slot.question_id, slot.turn, slot.sample, slot.judge_sample)
        first, games = found.setdefault(key, (slot, ([], [])))
        swapped = slot.model != first.model
        game = games[(slot.order == 2) != swapped]
        if parity == "safe" and game:
            if game[0].reason or not outcome.reason:
                game[0] = outcome
        else:
            game.append(outcome)
    return [
        _match(slot, one, two) for slot, games in found.values() for one, two in zip_longest(*games)
    ]


def _match(slot: Slot, one: Outcome | None, two: Outcome | None) -> Match:
    values = [_value(slot, game) for game in (one, two)]
    reasons = [
        (game.reason or "unparsed") if game else "missing"
        for game, value in zip((one, two), values, strict=True)
        if value is None
    ]
    value = None if reasons else values[0] if values[0] == values[1] else 0.5
    return Match(
        model=slot.model,
        opponent=slot.opponent or "",
        question_id=slot.question_id,
        group=slot.group,
        category=slot.category,
        turn=slot.turn,
        sample=slot.sample,
        judge_sample=slot.judge_sample,
        value=value,
        inconsistent=not reasons and values[0] != values[1],
        reason=reasons[0] if reasons else "",
    )


def _value(slot: Slot, game: Outcome | None) -> float | None:
    """Value of a game for ``slot.model``.

    Taken from the label where there is one: two equal answers make equal calls, so one stored
    judgment can stand for both games, and its value is that of the game it was made for.
    """
    if game is None or game.reason or game.judgment is None:
        return None
    judgment = game.judgment
    value = FOR_MODEL[game.slot.order].get(judgment.label or "")
    if value is None:
        value = judgment.value
    if value is None:
        return None
    return value if game.slot.model == slot.model else 1.0 - value
