"""What a grader is: pure functions from answers to requests, verdicts and scores.

``wanted`` says what is to be judged before any answer exists; ``grade`` renders one request once
its answers are there; ``read`` reads the verdict; ``reduce`` makes scores. Nothing here does I/O,
so the same functions serve the live run, the plan and a report made years later.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

from mtbench_ray.config import JudgeConfig
from mtbench_ray.endpoint.request_adapter import why_no_logprobs
from mtbench_ray.errors import UserError
from mtbench_ray.judges.prompts import PromptSet
from mtbench_ray.schema import (
    Evaluation,
    Judgment,
    Outcome,
    Question,
    QuestionId,
    Request,
    Score,
    Slot,
    Turn,
)

Asked = Request | Judgment
"""What a reply is the answer to; a stored judgment is read again."""
Turns = Mapping[tuple[str, int], Turn]
"""The newest turn by (answer_id, turn), failed ones too."""


@dataclass(frozen=True)
class EvaluationView:
    """An evaluation with all that its grader may look at.

    Attributes:
        questions: By id.
        turns: Live view of the workspace's turns.
        prompts: Judge prompts; None where the grader needs none.
        parity: In which verdicts are read, see :mod:`mtbench_ray.judges.parse`.
        salt: Goes into the ids of judgments after ``fresh=true``.
        kept: What the benchmark keeps for its graders, by name.
    """

    evaluation: Evaluation
    grader: Grader
    questions: Mapping[QuestionId, Question]
    turns: Turns
    judge: JudgeConfig
    prompts: PromptSet | None = None
    parity: str = "safe"
    salt: str = ""
    kept: Mapping[str, str] = field(default_factory=dict)

    @property
    def official(self) -> bool:
        """Whether it is judged as the benchmark's own program does it (``protocol=official``)."""
        return self.evaluation.protocol == "official"

    def content(self, answer_id: str, turn: int) -> str:
        """The text of an answered turn."""
        return self.turns[answer_id, turn].content

    @property
    def thinking(self) -> tuple[str, str]:
        """Tags of the judge's thinking."""
        return self.judge.thinking_open, self.judge.thinking_close


@dataclass(frozen=True, slots=True)
class Reply:
    """What came back for a request; empty for a check, which reads the answer itself.

    Attributes:
        text: In which thinking may still stand.
        logprobs: JSON of the log-probabilities, where they were asked for.
    """

    text: str = ""
    finish_reason: str | None = None
    logprobs: str = ""


@dataclass(frozen=True, slots=True)
class Reading:
    """What was read from one reply.

    Attributes:
        label: The verdict as text, None where there is none.
        value: The verdict as a number, see :class:`~mtbench_ray.schema.Judgment`.
        status: ``ok``, ``unparsed``, ``empty``, ``truncated`` or ``refused``.
        reason: Empty for ok, else for example ``no_rating`` or ``out_of_range``.
        again: Whether the same call may bring another verdict; it is made again only then.
    """

    label: str | None
    value: float | None
    status: str
    reason: str = ""
    again: bool = True


@dataclass(frozen=True, slots=True)
class Column:
    """A score that reports show.

    Attributes:
        key: In ``summary.json``.
        header: In tables.
        metric: Of the score rows, like the next two.
        name: Empty with another dimension than ``all``: every part, in a table of its own.
        digits: Behind the point; 0 is a count.
        headline: The one figure of an evaluation.
        lower_is_better: As of a loss rate.
        interval: Its interval is shown beside it, as the headline's always is.
        of_set: Fitted over all models that the same grader judged, and no mean over items.
    """

    key: str
    header: str
    metric: str
    dimension: str = "all"
    name: str = ""
    digits: int = 2
    headline: bool = False
    lower_is_better: bool = False
    interval: bool = False
    of_set: bool = False

    @property
    def place(self) -> tuple[str, str, str]:
        """Metric, dimension and name of its score rows."""
        return self.metric, self.dimension, self.name

    @property
    def parts(self) -> bool:
        """Whether it stands for all parts of a dimension."""
        return self.dimension != "all" and not self.name


@dataclass(frozen=True, slots=True)
class Item:
    """The smallest thing with a score of its own, see :attr:`Grader.item_column`.

    Attributes:
        slot: One of its wanted verdicts, which says whose it is and where it belongs.
        value: None where it has none.
        reason: Why it has none.
    """

    slot: Slot
    value: float | None
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


class Grader(ABC):
    """A way of judging answers. A benchmark has its graders by name, see ``benchmarks/base.py``.

    Attributes:
        name: What ``mode=`` calls it.
        columns: What reports show, in order; one of them is the headline.
        against: Whose answers a verdict compares the model's with: nobody's (empty), those of the
            ``baseline``, or of ``all`` models of the run. With ``all``, a row of the table is a
            model over all of its comparisons.
        prompt_type: Of the judge prompts that it needs; empty for none.
        checker: Name and version of what judges by itself, without a judge; empty where a judge
            is called. It is part of the identity of an evaluation.
        scored: What tables call the share of wanted things that count in a score.
        note: What the headline is, below a table.
        dimensions: What its items are split by, and the part that each belongs to.
        binary: Whether the value of an item is 1 or 0: then there is a pass@k.
        reply_tokens: Of a judge's reply, in the mean, for ``plan``; 0 where nothing better is known
            than for any other grader.
        without_logprobs: What to type where a judge gives no log-probabilities and this grader
            needs them; empty where it needs none.
    """

    name: str
    columns: Sequence[Column]
    against: str = ""
    prompt_type: str = ""
    checker: str = ""
    scored: str = "scored"
    note: str = ""
    dimensions: Mapping[str, Callable[[Slot], str]] = MappingProxyType(
        {"turn": lambda slot: str(slot.turn), "category": lambda slot: slot.category}
    )
    binary: bool = False
    reply_tokens: int = 0
    without_logprobs: str = ""

    @property
    def headline(self) -> Column:
        """The column of the one figure of an evaluation."""
        return next(column for column in self.columns if column.headline)

    @property
    def item_column(self) -> Column:
        """The column whose figure is the mean over items: what comparisons and curves are of.

        It is the headline, unless that is another figure of the same items.
        """
        return next(iter(self.measures.values()))

    @property
    def item_metrics(self) -> Sequence[str]:
        """The metrics that :meth:`items` knows, that of :attr:`item_column` first."""
        return (self.headline.metric,)

    def dimensions_of(self, metric: str) -> Mapping[str, Callable[[Slot], str]]:
        """What the items of a metric are split by."""
        return self.dimensions

    @property
    def measures(self) -> dict[str, Column]:
        """The columns that are a mean over items, by key, the headline first: for comparisons."""
        return {
            column.key: column
            for column in sorted(self.columns, key=lambda one: not one.headline)
            if column.metric in self.item_metrics
            and (
                column.dimension == "all"
                or (column.name and column.dimension in self.dimensions_of(column.metric))
            )
        }

    def measured(
        self, outcomes: Sequence[Outcome], column: Column, parity: str = "safe"
    ) -> list[Item]:
        """The items that one of :attr:`measures` is the mean of."""
        items = self.items(outcomes, column.metric, parity)
        if column.dimension == "all":
            return items
        part = self.dimensions_of(column.metric)[column.dimension]
        return [item for item in items if part(item.slot) == column.name]

    def require(self, questions: Sequence[Question]) -> None:  # noqa: B027
        """Check, before a run judges, that what the grader needs beside its answers is there.

        Raises:
            UserError: A package or a file is missing, or it cannot grade one of the questions.
        """

    def require_judge(self, judge: JudgeConfig) -> None:
        """Check, before anything is paid, that a judge can give what verdicts are read from.

        Raises:
            UserError: It is known that it cannot.
        """
        if self.without_logprobs and (why := why_no_logprobs(judge)):
            raise UserError(
                f"mode={self.name} reads log-probabilities, and judge {judge.label} gives none:"
                f" {why}",
                self.without_logprobs,
            )

    def warnings(self, questions: Sequence[Question]) -> list[str]:
        """What the user should know before anything is answered, a line each; after ``require``."""
        return []

    def judge_warnings(self, judge: JudgeConfig) -> list[str]:
        """The same of a judge: what makes its verdicts others than those of the benchmark."""
        return []

    @abstractmethod
    def wanted(self, view: EvaluationView) -> list[Slot]:
        """Every wanted verdict of an evaluation, in a stable order; looks at no answer."""

    @abstractmethod
    def grade(self, slot: Slot, view: EvaluationView) -> Request:
        """The request of a slot whose answers are there.

        With ``want="check"`` nothing is called: :meth:`read` finds the verdict in the answer.
        """

    @abstractmethod
    def read(self, asked: Asked, view: EvaluationView, reply: Reply) -> Reading:
        """Read one reply. Never raises, whatever the text."""

    @abstractmethod
    def reduce(
        self, views: Sequence[EvaluationView], outcomes: Sequence[Outcome], options: ScoreOptions
    ) -> list[Score]:
        """Scores of all models in ``outcomes``, each with its coverage.

        Args:
            views: The evaluations that the outcomes are of: one; with ``against="all"`` those of
                one judge; with a column ``of_set`` all that the grader judged against one
                baseline, the models of the outcomes then being the ids of their evaluations. They
                give the weights of questions and the lengths of answers.
            outcomes: Of one judge and one baseline.
        """

    def items(
        self, outcomes: Sequence[Outcome], metric: str = "", parity: str = "safe"
    ) -> list[Item]:
        """What a metric is the mean of; the units of comparisons, curves and spreads.

        Args:
            metric: One of :attr:`item_metrics`; empty for the first of them.
            parity: As of :class:`ScoreOptions`.
        """
        return [Item(one.slot, value_of(one), one.reason) for one in outcomes]

    def remarks(self, view: EvaluationView, scores: Sequence[Score]) -> list[str]:
        """What to mind of the scores of an evaluation, a line each, below its table."""
        return []

    def value_for(self, slot: Slot, judgment: Judgment) -> float | None:
        """The value of a stored judgment for a slot; equal requests share one judgment."""
        return judgment.value

    def pattern(self, view: EvaluationView) -> str | None:
        """Regular expression of a short reply with a verdict, for structured outputs."""
        return None

    def scale(self, view: EvaluationView) -> tuple[float, float]:
        """The lowest and the highest value that the headline may have."""
        return 0.0, 1.0

    def item_scale(self, view: EvaluationView) -> tuple[float, float]:
        """The same of a single item, where it may lie further out."""
        return self.scale(view)

    def criterion_text(self, criterion: str, question: Question) -> str:
        """What a page shows for :attr:`Slot.criterion`."""
        return criterion


def value_of(outcome: Outcome) -> float | None:
    """The value that counts for a wanted verdict."""
    return None if outcome.reason or outcome.judgment is None else outcome.judgment.value
