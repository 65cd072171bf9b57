"""From composed settings to jobs: one model under one judge, checked before anything starts."""

from __future__ import annotations

import dataclasses
import functools
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from mtbench_ray.benchmarks import get_benchmark, grader_of
from mtbench_ray.config import ModelConfig, RunConfig, science
from mtbench_ray.errors import UserError
from mtbench_ray.judges.base import Grader
from mtbench_ray.models.checkpoint import folder_hash, locate
from mtbench_ray.models.fingerprint import answer_id, check_local_judge, check_prompts, fingerprint
from mtbench_ray.planning.plan import pending_turns
from mtbench_ray.planning.questions import Loaded, choose, load_data, remarks_on
from mtbench_ray.planning.stored_answers import choose_stored, stored_answers
from mtbench_ray.schema import (
    AnswerSet,
    BenchmarkData,
    Question,
    QuestionId,
    Unit,
    canonical,
    question_hash,
)
from mtbench_ray.validate import validate
from mtbench_ray.workspace.workspace import Workspace

_T = TypeVar("_T")
Provided = Mapping[str, Mapping[QuestionId, tuple[str, ...]]]


@dataclass
class Job:
    """One model under one judge, checked.

    Attributes:
        config: Settings with every automatic value filled in.
        questions: The questions of this run.
        answers: What the model is to answer.
        error: Why the model cannot be run; the job then fails alone.
        provided: Answers that ship with the benchmark, see ``QuestionSet.provided``.
        notes: What the checks found worth recording (a merged system role, a short window).
        warnings: What its grader cannot do here.
        place: Which of the run's configs it comes from; one config may name several models.
    """

    config: RunConfig
    data: BenchmarkData
    data_name: str
    questions: tuple[Question, ...]
    answers: AnswerSet
    error: str | None = None
    provided: Provided = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    place: int = 0

    @property
    def judged(self) -> bool:
        """Whether this job's answers are judged in this run."""
        if self.config.stage == "answers":
            return False
        return bool(self.grader.checker) or self.config.judge.kind != "none"

    @property
    def grader(self) -> Grader:
        """How its answers are judged."""
        return grader_of(self.data.name, self.config.mode or "")


def expand(config: RunConfig, remarks: list[str] | None = None) -> list[RunConfig]:
    """One config per model: ``models=[...]`` and ``model=checkpoints`` name several.

    Args:
        remarks: Gets a line for each folder that looks like a checkpoint and is not taken.

    Raises:
        UserError: No model is named, or no checkpoint is found.
    """
    if config.models:
        return [
            dataclasses.replace(
                config, models=[], model=dataclasses.replace(config.model, path=path, name="")
            )
            for path in config.models
        ]
    if names_a_run(config):
        from mtbench_ray.models.discovery import find

        found = find(config.model, remarks)
        return [dataclasses.replace(config, model=model) for model in found]
    if not config.model.path:
        raise UserError(
            "no model was chosen",
            "write model=NAME: a preset (`list models`), a Hugging Face id or a local folder",
        )
    return [config]


def names_a_run(config: RunConfig) -> bool:
    """Whether the model is all the checkpoints of a folder."""
    path = config.model.path
    return path == "checkpoints" or bool(config.model.root and not path)


def prepare(
    configs: Sequence[RunConfig], workspace: Workspace, alone_raises: bool = True
) -> list[Job]:
    """Check every job of a run before anything is started.

    A model that cannot be run fails its own job where there are several; a mistake that concerns
    all jobs is raised.

    Args:
        alone_raises: Where there is one model, that it cannot be run is raised too.

    Raises:
        UserError: A mistake in the settings, or the only model cannot be run.
    """
    hashed = functools.cache(folder_hash)
    places: list[int] = []
    settled: list[RunConfig] = []
    passed_over: list[str] = []
    for place, config in enumerate(configs):
        settled += expand(_pinned(validate(config), hashed), passed_over)
        places += [place] * (len(settled) - len(places))
    if not configs[0].quiet:
        for line in dict.fromkeys(passed_over):
            print(line, file=sys.stderr)
    judges = {(config.judge.kind, config.judge.model): config.judge for config in settled}
    for judge in judges.values():
        if settled[0].stage != "answers":
            check_local_judge(judge)
    data: dict[str, tuple[Loaded, str]] = {}
    prints: dict[str, str | UserError] = {}
    notes: dict[str, list[str] | UserError] = {}
    stored = stored_answers(workspace) if settled[0].stage == "judge" else []
    jobs: list[Job] = []
    for place, config in zip(places, settled, strict=True):
        source = canonical(
            [config.benchmark.name, config.question_path, config.reference_path,
             config.judge_prompt_path, config.judge.prompts, config.judge.kind, config.mode,
             config.protocol]
        )  # fmt: skip
        if source not in data:
            loading = load_data(config)
            data[source] = (loading, workspace.save_data(loading.data))
        (loaded, faults, remarks, provided, could_not), data_name = data[source]
        benchmark = get_benchmark(loaded.name)
        questions = tuple(
            dataclasses.replace(question, temperature=benchmark.temperature(question))
            for question in choose(config, loaded.questions)
        )
        for question in questions:
            if question.question_id in faults:
                raise faults[question.question_id]
        who = canonical([dataclasses.asdict(config.model), science(config.engine)])
        if who not in prints:
            prints[who] = _tried(fingerprint, config.model, config.engine.kind)
        known = prints[who]
        content, mistake = ("", known) if isinstance(known, UserError) else (known, None)
        asked = () if config.stage == "judge" else questions
        answers = _answer_set(config, asked, content, workspace.salt)
        job = Job(config, loaded, data_name, questions, answers, provided=provided, place=place)
        if config.stage == "judge":
            chosen = _tried(choose_stored, config, answers, questions, stored, known)
            if isinstance(chosen, UserError):
                mistake = chosen
            else:
                job.answers, job.notes, mistake = chosen.answers, [*chosen.notes], None
        # Loading a template takes seconds: not where all answers are there.
        if mistake is None and config.stage != "judge" and has_pending(job, workspace):
            if who not in notes:
                notes[who] = _tried(check_prompts, config.model, config.engine)
            said = notes[who]
            job.notes, mistake = ([], said) if isinstance(said, UserError) else (said, None)
        if job.judged:
            job.grader.require(questions)
            job.grader.require_judge(config.judge)
            job.warnings = [
                *could_not,
                *job.grader.warnings(questions),
                *job.grader.judge_warnings(config.judge),
            ]
            job.notes = [*job.notes, *remarks_on(questions, remarks)]
        if mistake is not None:
            if len(settled) == 1 and alone_raises:
                raise mistake
            job.error = str(mistake)
        jobs.append(job)
    return jobs


def _pinned(config: RunConfig, hashed: Callable[[Path], str]) -> RunConfig:
    """With what a local judge really is, so that new weights of the same name are a new judge.

    That is the content of its folder, or the commit of its hub id. Where this machine does not
    reach the hub, the machine that serves it decides, and the name alone counts.
    """
    judge = config.judge
    if judge.kind != "local" or judge.demo or not judge.model:
        return config
    folder = Path(judge.model).expanduser()
    if os.path.isdir(folder):
        content = hashed(folder.resolve())
    else:
        commit = _tried(locate, ModelConfig(path=judge.model))
        content = "" if isinstance(commit, UserError) else commit.revision or ""
    return dataclasses.replace(config, judge=dataclasses.replace(judge, content=content))


def _tried(check: Callable[..., _T], *arguments: Any) -> _T | UserError:
    """What a check returns, or the mistake that it found."""
    try:
        return check(*arguments)
    except UserError as error:
        return error


def has_pending(job: Job, workspace: Workspace) -> bool:
    """Whether an answer of a job lacks a turn."""
    questions = {question.question_id: question for question in job.questions}
    return bool(pending_turns(job.answers, questions, workspace.turns))


def _answer_set(
    config: RunConfig, questions: Sequence[Question], fingerprint: str, salt: str
) -> AnswerSet:
    model, engine, sampling = config.model, config.engine, config.sampling
    units = tuple(
        Unit(
            question.question_id,
            sample,
            answer_id(model, engine, sampling, question, sample, fingerprint + salt),
            question_hash(question),
        )
        for question in questions
        for sample in range(sampling.samples)
    )
    settings = canonical(
        {
            "model": science(dataclasses.replace(model, path=model.path.rstrip("/") or model.path)),
            "engine": science(engine),
            "sampling": science(sampling),
            "fingerprint": fingerprint,
            "salt": salt,
        }
    )
    return AnswerSet(model.label, settings, units)


def model_of(job: Job) -> ModelConfig:
    """The model of a job, under the label that its rows carry."""
    return dataclasses.replace(job.config.model, name=job.answers.model)
