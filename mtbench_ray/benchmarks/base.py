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
    """

    questions: tuple[Question, ...]
    faults: Mapping[QuestionId, UserError] = field(default_factory=dict)
    notes: Mapping[QuestionId, str] = field(default_factory=dict)
    from_file: bool = False
    from_official: bool = False


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
        categories: In the order of tables and plots; others come after them.
        files: Its own files: ``questions``, and where it has them ``references`` and
            ``judge_prompts``.
        votes: Files of votes on pairs of answers, with the answers, where they are public: who
            voted, and the file; see ``planning/votes.py``.
        graders: The first is the default of ``mode=``.
    """

    name: str
    about: str
    licence: str = ""
    size: int = 0
    turns: int = 1
    categories: Sequence[str] = ()
    files: Mapping[str, Asset]
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

    def temperature(self, question: Question) -> float:
        """Sampling temperature of a question's answers, where the run has none of its own."""
        return OTHER_TEMPERATURE if question.temperature is None else question.temperature

    def max_tokens(self, model: ModelConfig) -> int:
        """New tokens of a turn at most, where the run does not say."""
        return SamplingConfig().cap
