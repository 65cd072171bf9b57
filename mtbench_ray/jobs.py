"""From composed settings to evaluations: what is wanted, checked before any model is loaded."""

from __future__ import annotations

import dataclasses
import difflib
import functools
import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from mtbench_ray import assets
from mtbench_ray.benchmarks import get_benchmark
from mtbench_ray.benchmarks.base import BenchmarkData, Official
from mtbench_ray.config import JudgeConfig, ModelConfig, RunConfig, science
from mtbench_ray.engines.checkpoint import folder_hash
from mtbench_ray.engines.identity import answer_id, check_local_judge, check_prompts, fingerprint
from mtbench_ray.errors import UserError
from mtbench_ray.journal import warn
from mtbench_ray.judges.modes import get_mode
from mtbench_ray.judges.prompts import builtin_prompts, load_prompts
from mtbench_ray.plan import owed_turns
from mtbench_ray.redact import hidden
from mtbench_ray.schema import (
    ANSWERS_ONLY,
    AnswerSet,
    Evaluation,
    Question,
    QuestionId,
    Unit,
    canonical,
)
from mtbench_ray.settle import settle
from mtbench_ray.sources import read_source
from mtbench_ray.store import Workspace

_T = TypeVar("_T")


@dataclass
class Job:
    """One model under one judge, checked.

    Attributes:
        config: Settings with every automatic value filled in.
        questions: The questions of this run.
        answers: What the model is to answer.
        error: Why the model cannot be run; the job then fails alone.
        notes: What the checks found worth recording (a merged system role, a short window).
    """

    config: RunConfig
    data: BenchmarkData
    data_name: str
    questions: tuple[Question, ...]
    answers: AnswerSet
    error: str | None = None
    notes: list[str] = field(default_factory=list)

    @property
    def judged(self) -> bool:
        """Whether a judge rates this job's answers in this run."""
        return self.config.judge.kind != "none" and self.config.stage != "answers"


def expand(config: RunConfig) -> list[RunConfig]:
    """One config per model: ``models=[...]`` and ``model=checkpoints`` name several.

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
    if config.model.path == "checkpoints":
        from mtbench_ray.checkpoints import find

        return [dataclasses.replace(config, model=model) for model in find(config.model)]
    if not config.model.path:
        raise UserError(
            "no model was chosen",
            "write model=NAME: a preset (`list models`), a Hugging Face id or a local folder",
        )
    return [config]


class Loaded(NamedTuple):
    """The data of a run, and what is to be said of its questions (see ``QuestionSet``)."""

    data: BenchmarkData
    faults: Mapping[QuestionId, UserError]
    notes: Mapping[QuestionId, str]


def load_data(config: RunConfig) -> Loaded:
    """Questions, references and judge prompts of a run.

    Raises:
        UserError: A file is missing or broken, or no source of the official data is reachable.
    """
    benchmark = get_benchmark(config.benchmark.name)
    official = functools.cache(assets.official_files)
    prompts = config.judge.prompts
    own_prompts = prompts if _is_path(prompts) else config.judge_prompt_path
    builtin = prompts if prompts != "fastchat" and not _is_path(prompts) else None
    files: dict[str, str] = {}

    def read(part: str, typed: str | None) -> str:
        source = read_source(typed or str(official()[part]), part)
        files[part] = source.label
        return source.text

    def official_texts() -> Official | None:
        try:
            paths = official()
        except UserError as error:
            if config.question_path is None:
                raise
            warn(f"whether questions are official ones cannot be looked up: {error.message}")
            return None
        texts = (read_source(str(paths[part]), part).text for part in ("questions", "references"))
        return Official(*texts)

    questions = read("questions", config.question_path)
    references = read("references", config.reference_path) if config.reference_path else None
    paths = {
        "questions": config.question_path or "questions",
        "references": config.reference_path or "references",
    }
    found = benchmark.read(questions, references, paths, official_texts)
    if found.from_official:
        read("references", None)
    elif not found.from_file:
        files.pop("references", None)
    if builtin is not None:
        judge_prompts = builtin_prompts(builtin)
        files["judge_prompts"] = f"{builtin} (built in)"
    else:
        judge_prompts = read("judge_prompts", own_prompts)
    name = builtin or Path(own_prompts or "fastchat").stem
    prompt_set = load_prompts(builtin or own_prompts or name, judge_prompts)
    if config.judge.kind != "none" and config.stage != "answers":
        prompt_set.require(get_mode(config.mode).family)
    data = BenchmarkData(benchmark.name, found.questions, name, judge_prompts, files)
    return Loaded(data, found.faults, found.notes)


def _is_path(prompts: str) -> bool:
    return "/" in prompts or prompts.endswith((".jsonl", ".json")) or os.path.isfile(prompts)


def choose(config: RunConfig, questions: Sequence[Question]) -> tuple[Question, ...]:
    """The questions of a run: by category, then the first ``limit``.

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
    if config.limit is None or config.limit >= len(chosen):
        return tuple(chosen)
    if config.limit_by == "order":
        return tuple(chosen[: config.limit])
    # Round by round over the categories, kept in file order.
    seen: dict[str, int] = {}
    rank: dict[QuestionId, tuple[int, int]] = {}
    for question in chosen:
        rank[question.question_id] = (seen.get(question.category, 0), len(rank))
        seen[question.category] = seen.get(question.category, 0) + 1
    picked = {
        q.question_id for q in sorted(chosen, key=lambda q: rank[q.question_id])[: config.limit]
    }
    return tuple(q for q in chosen if q.question_id in picked)


def prepare(configs: Sequence[RunConfig], workspace: Workspace) -> list[Job]:
    """Check every job of a run before anything is started.

    A model that cannot be run fails its own job where there are several; a mistake that concerns
    all jobs is raised.

    Raises:
        UserError: A mistake in the settings, or the only model cannot be run.
    """
    hashed = functools.cache(folder_hash)
    settled = [one for config in configs for one in expand(_pinned(settle(config), hashed))]
    judges = {(config.judge.kind, config.judge.model): config.judge for config in settled}
    for judge in judges.values():
        if settled[0].stage != "answers":
            check_local_judge(judge)
    data: dict[str, tuple[Loaded, str]] = {}
    prints: dict[str, str | UserError] = {}
    notes: dict[str, list[str] | UserError] = {}
    jobs: list[Job] = []
    for config in settled:
        source = canonical(
            [config.benchmark.name, config.question_path, config.reference_path,
             config.judge_prompt_path, config.judge.prompts, config.judge.kind, config.mode]
        )  # fmt: skip
        if source not in data:
            loading = load_data(config)
            data[source] = (loading, workspace.save_data(loading.data))
        (loaded, faults, remarks), data_name = data[source]
        questions = choose(config, loaded.questions)
        for question in questions:
            if question.question_id in faults:
                raise faults[question.question_id]
        who = canonical([dataclasses.asdict(config.model), science(config.engine)])
        if who not in prints:
            prints[who] = _tried(fingerprint, config.model, config.engine.kind)
        known = prints[who]
        content, mistake = ("", known) if isinstance(known, UserError) else (known, None)
        answers = _answer_set(config, questions, content, workspace.salt)
        job = Job(config, loaded, data_name, questions, answers)
        # Loading a template takes seconds: not where all answers are there.
        if mistake is None and config.stage != "judge" and _owes(job, workspace):
            if who not in notes:
                notes[who] = _tried(check_prompts, config.model, config.engine)
            said = notes[who]
            job.notes, mistake = ([], said) if isinstance(said, UserError) else (said, None)
        if job.judged:
            job.notes = [*job.notes, *_of_questions(questions, remarks)]
        if mistake is not None:
            if len(settled) == 1:
                raise mistake
            job.error = str(mistake)
        jobs.append(job)
    _tell_apart(jobs)
    return jobs


def _of_questions(questions: Sequence[Question], remarks: Mapping[QuestionId, str]) -> list[str]:
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


def _pinned(config: RunConfig, hashed: Callable[[Path], str]) -> RunConfig:
    """With what the folder of a local judge holds, so that new weights in it are a new judge."""
    judge = config.judge
    folder = Path(judge.model).expanduser()
    if judge.kind != "local" or judge.demo or not judge.model or not os.path.isdir(folder):
        return config
    return dataclasses.replace(
        config, judge=dataclasses.replace(judge, content=hashed(folder.resolve()))
    )


def _tell_apart(jobs: Sequence[Job]) -> None:
    """Jobs of one label with different settings get labels that say what differs."""
    by_label: dict[str, list[Job]] = {}
    for job in jobs:
        by_label.setdefault(job.answers.model, []).append(job)
    for label, same in by_label.items():
        settings = [flat(json.loads(job.answers.settings)) for job in same]
        differing = sorted(
            {key for one in settings for key in one if one[key] != settings[0].get(key)}
            - {"fingerprint"}
        )
        for job, values in zip(same, settings, strict=True):
            if differing:
                what = ", ".join(f"{key}={values.get(key)}" for key in differing)
                job.answers = dataclasses.replace(job.answers, model=f"{label} ({what})")


def flat(settings: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested settings with dotted names."""
    found: dict[str, Any] = {}
    for key, value in settings.items():
        if isinstance(value, dict):
            found.update(flat(value, f"{prefix}{key}."))
        else:
            found[f"{prefix}{key}"] = value
    return found


def _tried(check: Callable[..., _T], *arguments: Any) -> _T | UserError:
    """What a check returns, or the mistake that it found."""
    try:
        return check(*arguments)
    except UserError as error:
        return error


def _owes(job: Job, workspace: Workspace) -> bool:
    questions = {question.question_id: question for question in job.questions}
    return bool(owed_turns(job.answers, questions, workspace.turns))


def _answer_set(
    config: RunConfig, questions: Sequence[Question], fingerprint: str, salt: str
) -> AnswerSet:
    sampling = dataclasses.replace(config.sampling)
    units = tuple(
        Unit(
            question.question_id,
            sample,
            answer_id(config.model, config.engine, sampling, question, sample, fingerprint + salt),
        )
        for question in questions
        for sample in range(sampling.samples)
    )
    settings = canonical(
        {
            "model": science(config.model),
            "engine": science(config.engine),
            "sampling": science(config.sampling),
            "fingerprint": fingerprint,
            "salt": salt,
        }
    )
    return AnswerSet(config.model.label, settings, units)


def evaluations(jobs: Sequence[Job], workspace: Workspace) -> list[Evaluation]:
    """The rows of the final table.

    Raises:
        UserError: The baseline is unknown, or there is no model to compare.
    """
    rows: dict[str, Evaluation] = {}
    for job in jobs:
        for opponent in _opponents(job, jobs, workspace):
            row = Evaluation(
                answers=job.answers,
                judge=job.config.judge.label if job.judged else "",
                judge_settings=_judge_settings(job) if job.judged else "{}",
                mode=job.config.mode if job.judged else ANSWERS_ONLY,
                data=job.data_name,
                opponent=opponent,
                judge_samples=job.config.judge.samples,
                error=job.error,
                demo=job.config.judge.demo,
            )
            key = canonical(
                [row.answers.settings, row.model, row.judge, row.mode, row.baseline,
                 row.judge_settings, row.data]
            )  # fmt: skip
            rows[key] = row
    if not rows:
        raise UserError(
            f"nothing to compare: no model but the baseline {jobs[0].config.baseline} is named",
            "name another one: model=NAME",
        )
    return list(rows.values())


def _judge_settings(job: Job) -> str:
    """All settings of the judge; no secret among them, only the name of the key's variable."""
    return json.dumps(hidden(dataclasses.asdict(job.config.judge)), sort_keys=True)


def judges_by_settings(jobs: Sequence[Job]) -> dict[str, JudgeConfig]:
    """The judges of a run, secrets included, by the ``judge_settings`` of their evaluations."""
    return {_judge_settings(job): job.config.judge for job in jobs}


def _opponents(job: Job, jobs: Sequence[Job], workspace: Workspace) -> list[AnswerSet | None]:
    if not job.judged or job.config.mode == "single":
        return [None]
    same = [
        other
        for other in jobs
        if other.config.judge == job.config.judge and other.data_name == job.data_name
    ]
    models = list({other.answers.model: other.answers for other in same}.values())
    if job.config.mode == "pairwise-all":
        if len(models) < 2:
            raise UserError(
                "mode=pairwise-all compares the models of one run, and there is only one",
                "-m model=a,b,c mode=pairwise-all",
            )
        mine = [answers.model for answers in models].index(job.answers.model)
        return list(models[mine + 1 :])
    baseline = job.config.baseline or ""
    if job.answers.model == baseline:
        return []
    return [_baseline(baseline, models, workspace)]


def _baseline(name: str, models: Sequence[AnswerSet], workspace: Workspace) -> AnswerSet:
    """Answers of the baseline: of this run, else the newest ones that the workspace holds."""
    mine = {answers.model for answers in models}
    known = {answers.model: answers for answers in models}
    for record in workspace.run_records():
        for row in record.evaluations:
            # A set without units is of an import that had verdicts only: nothing to show a judge.
            if row.answers.units and row.model not in mine:
                known[row.model] = row.answers
    if name in known:
        return known[name]
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.4)
    raise UserError(
        f"nothing is known of the baseline '{name}'",
        (f"did you mean baseline={near[0]}? " if near else "")
        + f"Answer it first in this workspace: model={name}, or `import fastchat DIR`",
    )


def model_of(job: Job) -> ModelConfig:
    """The model of a job, under the label that its rows carry."""
    return dataclasses.replace(job.config.model, name=job.answers.model)
