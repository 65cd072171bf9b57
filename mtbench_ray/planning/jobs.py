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

from mtbench_ray.benchmarks import assets, get_benchmark
from mtbench_ray.benchmarks.base import BenchmarkData, Official
from mtbench_ray.benchmarks.sources import read_source
from mtbench_ray.config import JudgeConfig, ModelConfig, RunConfig, science
from mtbench_ray.errors import UserError
from mtbench_ray.judges.prompts import builtin_prompts, load_prompts
from mtbench_ray.judges.registry import get_mode
from mtbench_ray.models.checkpoint import folder_hash, locate
from mtbench_ray.models.fingerprint import answer_id, check_local_judge, check_prompts, fingerprint
from mtbench_ray.planning.evaluations import (
    DEFAULTS,
    answer_settings,
    differing,
    identified,
    joined,
    named,
    union,
)
from mtbench_ray.planning.plan import pending_turns
from mtbench_ray.schema import (
    ANSWERS_ONLY,
    AnswerSet,
    Evaluation,
    Question,
    QuestionId,
    Unit,
    canonical,
    content_id,
    question_hash,
    text_hash,
)
from mtbench_ray.system.redact import hidden
from mtbench_ray.validate import validate
from mtbench_ray.workspace.journal import warn
from mtbench_ray.workspace.workspace import Workspace

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
        place: Which of the run's configs it comes from; one config may name several models.
    """

    config: RunConfig
    data: BenchmarkData
    data_name: str
    questions: tuple[Question, ...]
    answers: AnswerSet
    error: str | None = None
    notes: list[str] = field(default_factory=list)
    place: int = 0

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
        from mtbench_ray.models.discovery import find

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
    places: list[int] = []
    settled: list[RunConfig] = []
    for place, config in enumerate(configs):
        settled += expand(_pinned(validate(config), hashed))
        places += [place] * (len(settled) - len(places))
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
        asked = () if config.stage == "judge" else questions
        answers = _answer_set(config, asked, content, workspace.salt)
        job = Job(config, loaded, data_name, questions, answers, place=place)
        if config.stage == "judge":
            mistake = _judge_only(job, stored, known)
        # Loading a template takes seconds: not where all answers are there.
        if mistake is None and config.stage != "judge" and _has_pending(job, workspace):
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


def stored_answers(workspace: Workspace) -> list[AnswerSet]:
    """All answer sets that a workspace knows, of runs and imports, the newest last.

    Also those that were only the other side of a comparison.
    """
    found: dict[AnswerSet, None] = {}
    for record in workspace.run_records():
        for row in record.evaluations:
            for answers in (row.opponent, row.answers):
                # A set without units is of an import that had verdicts only: nothing to judge.
                if answers is not None and answers.units:
                    found.pop(answers, None)
                    found[answers] = None
    return list(found)


def _judge_only(job: Job, stored: Sequence[AnswerSet], print_: str | UserError) -> UserError | None:
    """Have a job of ``stage=judge`` look at the answers that are there, and at nothing else.

    No checkpoint, tokenizer or GPU is needed: the settings choose among the stored answers, those
    made with the same settings first, else the newest of that name.

    Args:
        print_: The model's fingerprint, where its files are here.
    """
    config, mine = job.config, answer_settings(job.answers)
    path = config.model.path.rstrip("/")
    known = [
        one
        for one in stored
        if one.model == config.model.label
        or (path and answer_settings(one).get("model.path") == path)
    ]
    if not known:
        near = difflib.get_close_matches(config.model.label, [one.model for one in stored], 3, 0.4)
        return UserError(
            f"the workspace holds no answers of {config.model.label}, and stage=judge makes none",
            f"it has answers of {', '.join(dict.fromkeys(near))}"
            if near
            else "answer first: the same line without stage=judge, or `import fastchat DIR`",
        )

    def distance(one: AnswerSet) -> int:
        theirs = answer_settings(one)
        if differing(mine, theirs) <= {"fingerprint"}:
            return 0 if theirs.get("fingerprint") == print_ else 1
        return 2

    best = min(reversed(known), key=distance)
    theirs = answer_settings(best)
    same = [one for one in known if answer_settings(one) == theirs]
    answers = restricted(same, job.questions, config.sampling.samples)
    job.answers = dataclasses.replace(answers, model=config.model.label)
    if best.source == "run":
        other = sorted(differing(mine, theirs) - {"fingerprint"})
        if other:
            shown = ", ".join(f"{key}={theirs.get(key, DEFAULTS.get(key))}" for key in other)
            job.notes.append(f"the answers that are there were made with {shown}")
        elif isinstance(print_, str) and print_ != theirs.get("fingerprint"):
            job.notes.append("the model's files have changed since these answers were made")
    return None


def restricted(sets: Sequence[AnswerSet], questions: Sequence[Question], samples: int) -> AnswerSet:
    """Stored answers with one kind of settings to some questions, as one set.

    Args:
        sets: Oldest first; the newest answer of a question and sample is taken.
        samples: Answers wanted of each question. What is not there is wanted all the same, so that
            it counts as missing.
    """
    there = {
        (str(unit.question_id), unit.question_hash, unit.sample): unit
        for answers in sets
        for unit in answers.units
    }
    units = []
    for question in questions:
        asked = question_hash(question)
        for sample in range(samples):
            name = str(question.question_id)
            # An import does not say what was asked.
            unit = there.get((name, asked, sample)) or there.get((name, "", sample))
            missing = {"of": sets[-1].settings, "question": asked, "sample": sample}
            answer = unit.answer_id if unit else content_id("answer", missing)
            units.append(Unit(question.question_id, sample, answer, asked))
    return dataclasses.replace(sets[-1], units=tuple(units))


def _tried(check: Callable[..., _T], *arguments: Any) -> _T | UserError:
    """What a check returns, or the mistake that it found."""
    try:
        return check(*arguments)
    except UserError as error:
        return error


def _has_pending(job: Job, workspace: Workspace) -> bool:
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


@dataclass(frozen=True)
class Wanted:
    """The evaluations of a run.

    Attributes:
        rows: The rows of its table: each wanted verdict is in exactly one (pairwise-all: match).
        of_jobs: For each job its own, which may be part of one of ``rows``.
    """

    rows: list[Evaluation]
    of_jobs: list[list[Evaluation]]


def evaluations(jobs: Sequence[Job], workspace: Workspace) -> Wanted:
    """What a run evaluates.

    Raises:
        UserError: The baseline is unknown, or there is no model to compare.
    """
    stored: list[AnswerSet] = []
    if any(job.config.mode == "pairwise-baseline" and job.judged for job in jobs):
        stored = stored_answers(workspace)
    of_jobs = [
        [_evaluation(job, opponent) for opponent in _opponents(job, jobs, stored)] for job in jobs
    ]
    rows = joined(row for mine in of_jobs for row in mine)
    if not rows:
        raise UserError(
            f"nothing to compare: no model but the baseline {jobs[0].config.baseline} is named",
            "name another one: model=NAME",
        )
    return Wanted(rows, of_jobs)


def _evaluation(job: Job, opponent: AnswerSet | None) -> Evaluation:
    config, data, judged = job.config, job.data, job.judged
    answers = job.answers
    if opponent is not None and opponent.model == answers.model:
        # In a comparison two models need two names.
        pair = [answer_settings(answers), answer_settings(opponent)]
        keys = sorted(differing(*pair))
        answers, opponent = (
            dataclasses.replace(
                one, model=named(one.model, {key: mine.get(key, DEFAULTS.get(key)) for key in keys})
            )
            for one, mine in zip((answers, opponent), pair, strict=True)
        )
    references = {str(q.question_id): q.references for q in data.questions if q.references}
    official = data.prompts_name in ("fastchat", "rubric5")
    prompts = f"{data.prompts_name}@{text_hash(data.judge_prompts)[:8]}"
    return identified(
        Evaluation(
            answers=answers,
            judge=config.judge.label if judged else "",
            judge_settings=_judge_settings(job) if judged else "{}",
            mode=config.mode if judged else ANSWERS_ONLY,
            data=job.data_name,
            opponent=opponent,
            judge_samples=config.judge.samples if judged else 1,
            error=job.error,
            demo=config.judge.demo,
            benchmark=data.name,
            prompts=data.prompts_name if official else prompts,
            references=text_hash(canonical(references)) if references else "",
            selection=_selection(config),
        )
    )


def _selection(config: RunConfig) -> str:
    """How the questions were chosen, in the words of the command line."""
    said = []
    if config.categories:
        said.append(f"categories=[{','.join(config.categories)}]")
    if config.limit is not None:
        said.append(f"limit={config.limit}")
        said += ["limit_by=category"] * (config.limit_by == "category")
    return " ".join(said)


def _judge_settings(job: Job) -> str:
    """All settings of the judge; no secret among them, only the name of the key's variable."""
    return json.dumps(hidden(dataclasses.asdict(job.config.judge)), sort_keys=True)


def judges_by_settings(jobs: Sequence[Job]) -> dict[str, JudgeConfig]:
    """The judges of a run, secrets included, by the ``judge_settings`` of their evaluations."""
    return {_judge_settings(job): job.config.judge for job in jobs}


def _opponents(
    job: Job, jobs: Sequence[Job], stored: Sequence[AnswerSet]
) -> list[AnswerSet | None]:
    if not job.judged or job.config.mode == "single":
        return [None]
    same = [
        other.answers
        for other in jobs
        if (other.config.judge, other.config.mode, other.data_name)
        == (job.config.judge, job.config.mode, job.data_name)
    ]
    if job.config.mode == "pairwise-all":
        # Each model once, over all questions that jobs of this run ask it.
        models: dict[str, AnswerSet] = {}
        for answers in same:
            before = models.get(answers.settings)
            models[answers.settings] = union(before, answers) if before else answers
        if len(models) < 2:
            raise UserError(
                "mode=pairwise-all compares the models of one run, and there is only one",
                "-m model=a,b,c mode=pairwise-all",
            )
        later = list(models)[list(models).index(job.answers.settings) + 1 :]
        return [_facing(job, [models[name]]) for name in later]
    baseline = job.config.baseline or ""
    if job.answers.model == baseline:
        return []
    return [_baseline(baseline, job, same, stored)]


def _facing(job: Job, sets: Sequence[AnswerSet]) -> AnswerSet:
    """Answers of an opponent to the questions that a job asks its own model."""
    samples = max((unit.sample for one in sets for unit in one.units), default=0) + 1
    return restricted(sets, job.questions, min(samples, job.config.sampling.samples))


def _baseline(
    name: str, job: Job, same: Sequence[AnswerSet], stored: Sequence[AnswerSet]
) -> AnswerSet:
    """Answers of the baseline: of this run, else of the workspace; with the same sampling first."""
    mine = answer_settings(job.answers)

    def unlike(one: AnswerSet) -> int:
        other = differing(mine, answer_settings(one))
        return sum(key.startswith(("sampling.", "engine.")) for key in other)

    for known in (same, stored):
        found = [answers for answers in known if answers.model == name]
        if found:
            best = min(reversed(found), key=unlike)
            return _facing(job, [one for one in found if one.settings == best.settings])
    labels = [answers.model for answers in (*same, *stored)]
    near = difflib.get_close_matches(name, labels, n=1, cutoff=0.4)
    raise UserError(
        f"nothing is known of the baseline '{name}'",
        (f"did you mean baseline={near[0]}? " if near else "")
        + f"Answer it first in this workspace: model={name}, or `import fastchat DIR`",
    )


def model_of(job: Job) -> ModelConfig:
    """The model of a job, under the label that its rows carry."""
    return dataclasses.replace(job.config.model, name=job.answers.model)
