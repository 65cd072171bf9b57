"""What a benchmark is: questions, the files that they come from, and its graders."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import NamedTuple

from mtbench_ray.config import ModelConfig, SamplingConfig
from mtbench_ray.errors import UserError
from mtbench_ray.judges.base import Grader
from mtbench_ray.models.sampling import OTHER_TEMPERATURE
from mtbench_ray.schema import Question, QuestionId
from mtbench_ray.system.assets import Asset


class Official(NamedTuple):
    """The texts of the benchmark's own files, JSON lines."""

    questions: str
    references: str


@dataclass(frozen=True, slots=True)
class QuestionSet:
    """The questions of a file with their references.

    Attributes:
        faults: Questions that cannot be judged as asked for, and why. Whether one of them is among
            the questions of a run is for the caller to see.
        notes: What a user should know, by question.
        from_file: Whether a reference of the reference file is shown.
        from_official: Whether an official reference is shown with a question of the user's file.
        provided: Answers that ship with the benchmark: by model, the texts of the turns of a
            question's answer. They are rows like any other once a run compares with that model.
        kept: What graders need beside the questions, by name; it stays with the workspace, and
            :attr:`mtbench_ray.judges.base.EvaluationView.kept` has it.
    """

    questions: tuple[Question, ...]
    faults: Mapping[QuestionId, UserError] = field(default_factory=dict)
    notes: Mapping[QuestionId, str] = field(default_factory=dict)
    from_file: bool = False
    from_official: bool = False
    provided: Mapping[str, Mapping[QuestionId, tuple[str, ...]]] = field(default_factory=dict)
    kept: Mapping[str, str] = field(default_factory=dict)


READ_WITH_QUESTIONS = frozenset({"questions", "references", "judge_prompts"})
"""Files that :meth:`Benchmark.read` and the judge prompts know; all others are further ones."""


class Benchmark(ABC):
    """A benchmark: a data module with its graders.

    Those of this package are registered in ``benchmarks/__init__.py``, those of others by an entry
    point of the group ``mtbench_ray.benchmarks`` that names an instance.

    Attributes:
        name: What ``benchmark=`` calls it; stands in every row.
        about: One line for ``list benchmarks``.
        licence: Of its questions; empty where it is not known.
        size: Number of its own questions; 0 where it is not known.
        turns: Of each of them.
        calls: Judge calls for one answer to each of them, by its first grader; 0: one a turn.
        answer_tokens: Of an answer, in the mean, for ``plan``; 0 where nothing better is known
            than for any other benchmark.
        categories: In the order of tables and plots; others come after them.
        files: Its own files: ``questions``, and where it has them ``references``,
            ``judge_prompts`` and further ones of any name, see :meth:`complete`.
        optional: Those of its further files that it can go without.
        baseline: What ``baseline=`` is where a mode needs one and none is typed: a model of
            ``QuestionSet.provided``; empty where no answers ship with it.
        official: The program and version that ``protocol=official`` is exact to; empty where it
            has one protocol only.
        official_is: What to type instead, where that is so.
        differs: In one line, what ``protocol=default`` does otherwise than that program.
        votes: Files of votes on pairs of answers, with the answers, where they are public: who
            voted, and the file; see ``planning/votes.py``.
        graders: The first is the default of ``mode=``.
    """

    name: str
    about: str
    licence: str = ""
    size: int = 0
    turns: int = 1
    calls: int = 0
    answer_tokens: int = 0
    categories: Sequence[str] = ()
    files: Mapping[str, Asset]
    optional: frozenset[str] = frozenset()
    baseline: str = ""
    official: str = ""
    official_is: str = ""
    differs: str = ""
    votes: Mapping[str, Asset] = MappingProxyType({})
    graders: Sequence[Grader]

    @abstractmethod
    def read(
        self,
        questions: str,
        references: str | None,
        names: Mapping[str, str],
        official: Callable[[], Official | None] = lambda: None,
    ) -> QuestionSet:
        """Parse the text of a question file and of a reference file.

        Args:
            questions: Text of the question file.
            references: Text of the user's reference answer file, or None for none.
            names: File names by part, for messages.
            official: Gives the benchmark's own texts, None where they are not to be had; called
                only where it matters whether a question is an official one.

        Raises:
            UserError: A line is not a question; the message names file and line.
        """

    @property
    def further(self) -> dict[str, Asset]:
        """Its files beside those that :meth:`read` is given."""
        return {name: one for name, one in self.files.items() if name not in READ_WITH_QUESTIONS}

    def complete(self, found: QuestionSet, texts: Mapping[str, str]) -> QuestionSet:
        """Add to the questions what further files hold: tags, answers that ship, tables to keep.

        Args:
            found: What :meth:`read` gave, of the official questions or a user's own.
            texts: Of the further files by name; an optional one may be missing.
        """
        return found

    def officially(self, found: QuestionSet) -> QuestionSet:
        """The questions as ``protocol=official`` asks them, where it does so in another way."""
        return found

    def temperature(self, question: Question) -> float:
        """Sampling temperature of a question's answers, where the run has none of its own."""
        return OTHER_TEMPERATURE if question.temperature is None else question.temperature

    def max_tokens(self, model: ModelConfig) -> int:
        """New tokens of a turn at most, where the run does not say."""
        return SamplingConfig().cap
