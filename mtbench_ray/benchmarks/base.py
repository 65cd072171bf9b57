"""What a benchmark is: questions, the files they came from, how they are sampled and grouped."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from mtbench_ray.errors import UserError
from mtbench_ray.schema import Question, QuestionId


@dataclass(frozen=True, slots=True)
class BenchmarkData:
    """Everything that a run reads, kept in the workspace so that a report needs nothing else.

    Attributes:
        name: Registered name of the benchmark.
        questions: All questions of the source, in its order, with their references.
        prompts_name: ``fastchat``, ``rubric5`` or the stem of the user's prompt file.
        judge_prompts: Text of the judge prompt file in use (JSON lines).
        files: What each part was read from: ``questions``, ``references``, ``judge_prompts`` to
            ``<file name> sha256:<64 hex digits>``; shown in the summary.
    """

    name: str
    questions: tuple[Question, ...]
    prompts_name: str
    judge_prompts: str
    files: Mapping[str, str]


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


class Benchmark(Protocol):
    """A benchmark's rules. Registered by name in ``benchmarks/__init__.py``."""

    name: str
    categories: tuple[str, ...]
    """In the order of tables and plots."""

    def read(
        self,
        questions: str,
        references: str | None,
        names: Mapping[str, str],
        official: Callable[[], Official | None] = lambda: None,
    ) -> QuestionSet:
        """Parse the text of a question file and of a reference file.

        Args:
            questions: Text of the question file, JSON lines.
            references: Text of the user's reference answer file, or None for none.
            names: File names by part, for messages.
            official: Gives the benchmark's own texts, None where they are not to be had; called
                only where it matters whether a question is an official one.

        Raises:
            UserError: A line is not a question; the message names file and line.
        """
        ...

    def needs_reference(self, category: str) -> bool:
        """Whether questions of a category are meant to be judged with a reference."""
        ...

    def temperature(self, question: Question) -> float:
        """Sampling temperature of a question's answers."""
        ...
