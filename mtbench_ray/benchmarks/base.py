"""What a benchmark is: questions, the files they came from, how they are sampled and grouped."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from mtbench_ray.schema import Question


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


class Benchmark(Protocol):
    """A benchmark's rules. Registered by name in ``benchmarks/__init__.py``."""

    name: str
    categories: tuple[str, ...]
    """In the order of tables and plots."""

    def read(
        self, questions: str, references: str | None, names: Mapping[str, str]
    ) -> tuple[Question, ...]:
        """Parse the text of a question file and of a reference file.

        Args:
            questions: Text of the question file, JSON lines.
            references: Text of the reference answer file, or None for none.
            names: File names by part, for messages.

        Raises:
            UserError: A line is not a question; the message names file and line.
        """
        ...

    def temperature(self, question: Question) -> float:
        """Sampling temperature of a question's answers."""
        ...
