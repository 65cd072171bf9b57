"""How far two judges, or a judge and people, agree.

Pairwise verdicts are compared vote by vote as in FastChat's ``compute_agreement``: votes on the
same question, turn and pair of models, whichever model stands first. Ratings are compared by exact
equality, correlation and mean difference.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, product
from typing import Any

import numpy as np

from mtbench_ray.errors import UserError
from mtbench_ray.judges.base import Item
from mtbench_ray.judges.matches import Match
from mtbench_ray.schema import QuestionId
from mtbench_ray.stats.correlation import correlation, ranks

TIE = "tie"


@dataclass(frozen=True, slots=True)
class Vote:
    """One verdict on one pair of answers.

    Attributes:
        winner: Name of the winning model, or ``tie`` (an inconsistent match is a tie).
        judge: Who voted; all people are ``human``, the study's authors ``author``.
    """

    question_id: QuestionId
    turn: int
    model_a: str
    model_b: str
    winner: str
    judge: str

    @property
    def key(self) -> tuple[QuestionId, int, str, str]:
        """Equal for both orders of the models."""
        first, second = sorted((self.model_a, self.model_b))
        return self.question_id, self.turn, first, second


@dataclass(frozen=True, slots=True)
class Agreement:
    """Agreement on the pairs of one turn.

    Attributes:
        ties: Whether comparisons with a tie on either side count.
        total: Comparisons.
        agree: Comparisons with the same winner.
    """

    turn: int
    ties: bool
    total: int
    agree: int

    @property
    def ratio(self) -> float | None:
        """Share that agrees; None without comparisons."""
        return self.agree / self.total if self.total else None


@dataclass(frozen=True, slots=True)
class ValueAgreement:
    """Agreement of two judges on the values of single answers.

    Attributes:
        n: Ratings that both gave.
        exact: Share of equal ratings.
        pearson: Correlation; None with fewer than two ratings or where one judge never varies.
        spearman: Correlation of ranks, ties at their mean rank.
        mean_difference: Mean of the first minus the second.
    """

    n: int
    exact: float | None
    pearson: float | None
    spearman: float | None
    mean_difference: float | None


def agreement(votes_a: Iterable[Vote], votes_b: Iterable[Vote] | None = None) -> list[Agreement]:
    """Compare every vote of one group with every vote of the other on the same pair.

    Args:
        votes_a: One group.
        votes_b: The other group; None compares the votes of ``votes_a`` among themselves, each
            two votes on a pair once.

    Returns:
        Per turn, first with ties and then without; only turns that ``votes_a`` has.
    """
    votes_a = list(votes_a)
    found = compared(votes_a, votes_b)
    results = []
    for turn in sorted({vote.turn for vote in votes_a}):
        mine = [one for one in found if one.turn == turn]
        for ties, part in ((True, mine), (False, [one for one in mine if not one.tie])):
            results.append(Agreement(turn, ties, len(part), sum(one.agree for one in part)))
    return results


@dataclass(frozen=True, slots=True)
class Compared:
    """Two votes on one pair of answers.

    Attributes:
        tie: Whether one of them is a tie.
    """

    question_id: QuestionId
    turn: int
    agree: bool
    tie: bool


def compared(votes_a: Iterable[Vote], votes_b: Iterable[Vote] | None = None) -> list[Compared]:
    """The comparisons that :func:`agreement` counts."""
    ours = _by_key(votes_a)
    theirs = None if votes_b is None else _by_key(votes_b)
    return [
        Compared(key[0], key[1], one.winner == other.winner, TIE in (one.winner, other.winner))
        for key, votes in ours.items()
        for one, other in (
            combinations(votes, 2) if theirs is None else product(votes, theirs.get(key, ()))
        )
    ]


def load_votes(rows: Any, where: str) -> list[Vote]:
    """Votes from the parsed JSON array of FastChat's vote files.

    Args:
        rows: Objects with ``question_id``, ``model_a``, ``model_b``, ``winner`` (``model_a``,
            ``model_b`` or any text with "tie" in it), ``judge`` and ``turn``. A judge that is a
            list is known by its first element; ``expert_...`` is ``human``.
        where: Name of the source, for messages.

    Raises:
        UserError: A row is no vote; the message names its place, counted from 1.
    """
    if not isinstance(rows, list):
        raise UserError(f"{where} is not a JSON array of votes")
    return [_vote(row, f"{where}: vote {place}") for place, row in enumerate(rows, start=1)]


def match_votes(matches: Iterable[Match], judge: str) -> list[Vote]:
    """Matches as votes of a judge; matches with a failed game give none."""
    return [
        Vote(
            question_id=match.question_id,
            turn=match.turn,
            model_a=match.model,
            model_b=match.opponent,
            winner={1.0: match.model, 0.0: match.opponent}.get(match.value, TIE),
            judge=judge,
        )
        for match in matches
        if match.value is not None
    ]


@dataclass(frozen=True, slots=True)
class Rated:
    """What a judge gave an answer: the mean of its ratings.

    Attributes:
        answers: Ids of the answers that were rated; empty where they are not known (imports).
    """

    value: float
    answers: tuple[str, ...]


def values_of(items: Iterable[Item]) -> dict[Hashable, Rated]:
    """Valid values by what was rated (model, question, turn, criterion, sample)."""
    found: dict[Hashable, list[float]] = {}
    answers: dict[Hashable, tuple[str, ...]] = {}
    for item in items:
        if item.value is not None:
            slot = item.slot
            key = (slot.model, slot.question_id, slot.turn, slot.criterion, slot.sample)
            found.setdefault(key, []).append(item.value)
            answers[key] = slot.answer_ids
    return {key: Rated(sum(them) / len(them), answers[key]) for key, them in found.items()}


def value_agreement(a: Mapping[Hashable, Rated], b: Mapping[Hashable, Rated]) -> ValueAgreement:
    """Compare two judges on the answers that both rated, see :func:`values_of`."""
    both = [(a[key], b[key]) for key in a if key in b]
    # A model that was answered again under its old name has other answers.
    shared = [(one, two) for one, two in both
              if one.answers == two.answers or not (one.answers and two.answers)]  # fmt: skip
    if not shared:
        return ValueAgreement(0, None, None, None, None)
    x, y = (np.array([pair[side].value for pair in shared]) for side in (0, 1))
    return ValueAgreement(
        n=len(shared),
        exact=float((x == y).mean()),
        pearson=correlation(x, y),
        spearman=correlation(ranks(x), ranks(y)),
        mean_difference=float((x - y).mean()),
    )


def rated_votes(values: Mapping[Hashable, Rated], judge: str) -> list[Vote]:
    """Votes of a judge that rates answers one by one: the higher rated of two wins.

    Args:
        values: See :func:`values_of`; of several samples the first is taken.
    """
    places: dict[tuple[QuestionId, int, str], dict[str, float]] = {}
    parts: Any
    for parts, rated in values.items():
        model, question_id, turn, criterion, sample = parts
        if sample == 0:
            places.setdefault((question_id, turn, criterion), {})[model] = rated.value
    return [
        Vote(question_id, turn, a, b, TIE if x == y else a if x > y else b, judge)
        for (question_id, turn, _), models in places.items()
        for (a, x), (b, y) in combinations(models.items(), 2)
    ]


def _by_key(votes: Iterable[Vote]) -> dict[tuple[QuestionId, int, str, str], list[Vote]]:
    groups: dict[tuple[QuestionId, int, str, str], list[Vote]] = {}
    for vote in votes:
        groups.setdefault(vote.key, []).append(vote)
    return groups


def _vote(row: Any, where: str) -> Vote:
    fields = ("question_id", "model_a", "model_b", "winner", "judge", "turn")
    missing = [name for name in fields if not isinstance(row, dict) or name not in row]
    if missing:
        raise UserError(f"{where} lacks {', '.join(missing)}")
    kinds: dict[str, type | tuple[type, ...]] = {
        "question_id": (int, str), "model_a": str, "model_b": str, "turn": int,
    }  # fmt: skip
    for name, kind in kinds.items():
        if not isinstance(row[name], kind):
            raise UserError(f"{where} has the {name} {row[name]!r}", "FastChat's are like 81 and 1")
    winner = row["winner"]
    if winner in ("model_a", "model_b"):
        winner = row[winner]
    elif isinstance(winner, str) and TIE in winner:
        winner = TIE
    else:
        raise UserError(f"{where} has the winner {winner!r}", "it must be model_a, model_b or tie")
    return Vote(
        question_id=row["question_id"],
        turn=row["turn"],
        model_a=row["model_a"],
        model_b=row["model_b"],
        winner=winner,
        judge=_judge(row["judge"]),
    )


def _judge(value: Any) -> str:
    if isinstance(value, Sequence) and not isinstance(value, str) and value:
        return str(value[0])
    name = str(value)
    if name.startswith("expert"):
        return "human"
    return "author" if name.startswith("author") else name
