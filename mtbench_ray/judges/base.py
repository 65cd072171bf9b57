"""What a judge mode is: three pure functions over rows.

``slots`` says what is wanted before any answer exists; ``request`` renders one judge call once its
answers are there; ``reduce`` turns outcomes into scores. Reading a reply is ``read``. Nothing here
does I/O, so the same functions serve the live run, the plan and a report made years later.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from mtbench_ray.config import JudgeConfig
from mtbench_ray.judges.prompts import PromptSet
from mtbench_ray.models.thinking import THINKING
from mtbench_ray.schema import Evaluation, Outcome, Question, QuestionId, Request, Score, Slot, Turn

Answers = Mapping[tuple[str, int], Turn]
"""Turns by (answer_id, turn): the good ones that count now."""


@dataclass(frozen=True, slots=True)
class Reading:
    """What was read from one judge reply.

    Attributes:
        label: The verdict as text, None where there is none.
        value: Rating, or 1, 0.5, 0 for ``model`` after un-swapping.
        status: ``ok``, ``unparsed``, ``empty``, ``truncated`` or ``refused``.
        reason: Empty for ok, else for example ``no_rating`` or ``out_of_range``.
    """

    label: str | None
    value: float | None
    status: str
    reason: str = ""


@dataclass(frozen=True, slots=True)
class ScoreOptions:
    """Aggregation settings: parity, the bootstrap, and the judge's label for the score rows.

    An empty ``judge`` is read from the judgments; give it where there may be none.
    """

    parity: str = "safe"
    resamples: int = 2000
    seed: int = 0
    judge: str = ""


class Mode(Protocol):
    """A way of judging. Registered by name in ``judges/modes.py``."""

    name: str
    family: str
    """Type of its judge prompts: ``single`` or ``pairwise``."""

    def slots(self, evaluation: Evaluation, questions: Mapping[QuestionId, Question]) -> list[Slot]:
        """Every wanted verdict of an evaluation, in a stable order."""
        ...

    def request(
        self,
        slot: Slot,
        question: Question,
        answers: Answers,
        judge: JudgeConfig,
        prompts: PromptSet,
    ) -> Request:
        """Render one judge call. All turns of ``slot`` must be in ``answers``."""
        ...

    def read(
        self,
        order: int,
        text: str,
        finish_reason: str | None,
        prompts: PromptSet,
        parity: str,
        thinking: tuple[str, str] = THINKING,
    ) -> Reading:
        """Read one reply. Never raises, whatever the text.

        ``thinking`` holds the judge's tags where its thinking may still be in ``text``.
        """
        ...

    def reduce(self, outcomes: Sequence[Outcome], options: ScoreOptions) -> list[Score]:
        """Scores of all models in ``outcomes`` (one judge, one baseline), with coverage."""
        ...
