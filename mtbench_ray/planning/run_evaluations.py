"""What a run evaluates: the rows of its table, from its jobs."""

from __future__ import annotations

import dataclasses
import difflib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mtbench_ray.config import JudgeConfig, RunConfig
from mtbench_ray.errors import UserError
from mtbench_ray.judges.prompts import is_shipped
from mtbench_ray.planning.evaluations import (
    DEFAULTS,
    answer_settings,
    differing,
    identified,
    joined,
    named,
    union,
)
from mtbench_ray.planning.jobs import Job
from mtbench_ray.planning.provided import provided_answers
from mtbench_ray.planning.questions import selection
from mtbench_ray.planning.stored_answers import restricted, stored_answers
from mtbench_ray.schema import ANSWERS_ONLY, AnswerSet, Evaluation, canonical, text_hash
from mtbench_ray.system.redact import hidden
from mtbench_ray.workspace.workspace import Workspace


@dataclass(frozen=True)
class RunEvaluations:
    """The evaluations of a run.

    Attributes:
        rows: The rows of its table: each wanted verdict is in exactly one (of a comparison: match).
        of_jobs: For each job its own, which may be part of one of ``rows``.
    """

    rows: list[Evaluation]
    of_jobs: list[list[Evaluation]]


def evaluations(jobs: Sequence[Job], workspace: Workspace) -> RunEvaluations:
    """What a run evaluates.

    Raises:
        UserError: The baseline is unknown, or there is no model to compare.
    """
    stored: list[AnswerSet] = []
    if any(job.grader.against == "baseline" and job.judged for job in jobs):
        stored = stored_answers(workspace)
    failed = {job.answers.settings: job.error for job in jobs if job.error}
    of_jobs = [
        [
            _evaluation(job, opponent, failed)
            for opponent in _opponents(job, jobs, stored, workspace)
        ]
        for job in jobs
    ]
    rows = joined(row for mine in of_jobs for row in mine)
    if not rows:
        raise UserError(
            f"nothing to compare: no model but the baseline {jobs[0].config.baseline} is named",
            "name another one: model=NAME",
        )
    return RunEvaluations(rows, of_jobs)


def _evaluation(job: Job, opponent: AnswerSet | None, failed: Mapping[str, str]) -> Evaluation:
    """What a job evaluates.

    Args:
        failed: Why models of the run cannot be run, by the settings of their answers.
    """
    config, data, judged = job.config, job.data, job.judged
    grader = job.grader
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
    references: dict[str, object] = {
        str(q.question_id): q.references for q in data.questions if q.references
    }
    # What a grader goes by (a rubric, rules) is as much a part of an evaluation.
    references |= {
        f"grading {q.question_id}": q.grading for q in data.questions if q.grading != "{}"
    }
    prompts = data.prompts_name
    if prompts and not is_shipped(prompts):
        prompts += f"@{text_hash(data.judge_prompts)[:8]}"
    return identified(
        Evaluation(
            answers=answers,
            judge=(grader.checker or config.judge.label) if judged else "",
            judge_settings=_judge_settings(job) if judged else "{}",
            mode=grader.name if judged else ANSWERS_ONLY,
            data=job.data_name,
            opponent=opponent,
            judge_samples=config.judge.samples if judged and not grader.checker else 1,
            error=job.error,
            opponent_error=failed.get(opponent.settings) if opponent is not None else None,
            demo=config.judge.demo and not grader.checker,
            benchmark=data.name,
            prompts=prompts,
            references=text_hash(canonical(references)) if references else "",
            selection=selection(config),
            protocol=config.protocol if judged else RunConfig.protocol,
        )
    )


def _judge_settings(job: Job) -> str:
    """All settings of the judge; no secret among them, only the name of the key's variable."""
    if job.grader.checker:
        return canonical({"kind": "none"})
    return json.dumps(hidden(dataclasses.asdict(job.config.judge)), sort_keys=True)


def judges_by_settings(jobs: Sequence[Job]) -> dict[str, JudgeConfig]:
    """The judges of a run, secrets included, by the ``judge_settings`` of their evaluations."""
    return {_judge_settings(job): job.config.judge for job in jobs}


def _opponents(
    job: Job, jobs: Sequence[Job], stored: Sequence[AnswerSet], workspace: Workspace
) -> list[AnswerSet | None]:
    against = job.grader.against
    if not job.judged or not against:
        return [None]
    same = [
        other.answers
        for other in jobs
        if (other.config.judge, other.config.mode, other.data_name)
        == (job.config.judge, job.config.mode, job.data_name)
    ]
    if against == "all":
        # Each model once, over all questions that jobs of this run ask it.
        models: dict[str, AnswerSet] = {}
        for answers in same:
            before = models.get(answers.settings)
            models[answers.settings] = union(before, answers) if before else answers
        if len(models) < 2:
            raise UserError(
                f"mode={job.config.mode} compares the models of one run, and there is only one",
                f"-m model=a,b,c mode={job.config.mode}",
            )
        later = list(models)[list(models).index(job.answers.settings) + 1 :]
        return [_facing(job, [models[name]]) for name in later]
    baseline = job.config.baseline or ""
    if job.answers.model == baseline:
        return []
    if baseline in job.provided:
        turns, answers = provided_answers(job.provided[baseline], baseline, job.data)
        facing = _facing(job, [answers])
        wanted = {unit.answer_id for unit in facing.units}
        workspace.provide(turn for turn in turns if turn.answer_id in wanted)
        return [facing]
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
    labels = [*job.provided, *(answers.model for answers in (*same, *stored))]
    near = difflib.get_close_matches(name, labels, n=1, cutoff=0.4)
    raise UserError(
        f"nothing is known of the baseline '{name}'",
        (f"did you mean baseline={near[0]}? " if near else "")
        + f"Answer it first in this workspace: model={name}, or `import fastchat DIR`",
    )
