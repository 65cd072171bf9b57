"""What a page holds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from mtbench_ray.reports.score_tables import Grader, Table
from mtbench_ray.schema import (
    Judgment,
    Turn,
)


@dataclass(frozen=True, slots=True)
class Verdict:
    """A wanted judgment of an answer.

    Attributes:
        grader: Index into the graders.
        value: For the model that it is listed under.
        reason: Why there is no value; empty where there is one.
        opponent: Model index of the other side of a match.
        first: Whether the model's answer was shown first; None without an opponent.
        judgment_id: Of the stored judgment; empty where there is none.
    """

    grader: int
    turn: int
    sample: int
    judge_sample: int
    criterion: str
    label: str
    value: float | None
    reason: str
    opponent: int | None
    first: bool | None
    judgment_id: str


@dataclass
class Item:
    """A question with all that belongs to it.

    Attributes:
        answers: By model index and sample, the turns that are there.
        verdicts: By model index; a match is listed for both of its sides.
    """

    id: str
    benchmark: str
    category: str
    turns: tuple[str, ...] = ()
    references: tuple[str, ...] = ()
    context: tuple[tuple[str, str], ...] = ()
    answers: dict[int, dict[int, list[Turn]]] = field(default_factory=dict)
    verdicts: dict[int, list[Verdict]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Plot:
    """A picture.

    Attributes:
        group: The heading that it stands below.
        svg: An element, see :mod:`mtbench_ray.reports.page.inline_svg`.
    """

    group: str
    title: str
    svg: str


@dataclass(frozen=True)
class Contents:
    """All that the page shows.

    Attributes:
        models: Names, different for different models.
        judgment: The stored judgment of a verdict with its prompt, read from the disk.
    """

    title: str
    models: Sequence[str]
    graders: Sequence[Grader]
    tables: Sequence[Table]
    items: Sequence[Item]
    judgment: Callable[[str], Judgment]
    plots: Sequence[Plot] = ()
