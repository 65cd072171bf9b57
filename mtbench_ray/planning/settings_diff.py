"""Says what differs from the settings that a workspace's earlier answers were made with."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from mtbench_ray.config import JudgeConfig, science
from mtbench_ray.planning.evaluations import DEFAULTS, answer_settings, judge_of
from mtbench_ray.planning.jobs import Job
from mtbench_ray.schema import AnswerSet
from mtbench_ray.workspace.workspace import Workspace

_NAMES = {"fingerprint": "the model's files"}


def describe_changes(jobs: Sequence[Job], workspace: Workspace) -> list[str]:
    """A line for each model and judge that the workspace knows with other settings only.

    Before them, once, what graders cannot do here.

    Rows of different science settings have different ids and are never mixed; this only says so,
    and compares with the newest.
    """
    answers: dict[str, list[AnswerSet]] = {}
    judges: dict[tuple[str, str], dict[str, JudgeConfig]] = {}
    for record in workspace.run_records():
        for row in record.evaluations:
            if row.answers.units and row.answers.source == "run":
                answers.setdefault(row.answers.model, []).append(row.answers)
            if row.judge and row.source == "run":
                # Each settings once, the newest last: a sweep has them hundreds of times.
                known = judges.setdefault((row.judge, row.mode), {})
                known.pop(row.judge_settings, None)
                known[row.judge_settings] = judge_of(row)
    lines = dict.fromkeys(text for job in jobs for text in job.warnings)
    for job in jobs:
        if job.config.stage == "judge":
            lines |= dict.fromkeys(f"{job.answers.model}: {note}" for note in job.notes)
        elif job.error is None:
            before = answers.get(job.answers.model, [])
            lines |= dict.fromkeys(_of_answers(job, before, workspace))
        if job.judged and not job.grader.checker:
            judged = judges.get((job.config.judge.label, job.grader.name), {})
            lines |= dict.fromkeys(_of_judge(job, list(judged.values())))
    return list(lines)


def _of_answers(job: Job, before: Sequence[AnswerSet], workspace: Workspace) -> list[str]:
    now = answer_settings(job.answers)
    what = [_difference(answer_settings(one), now) for one in before]
    missing = sum((unit.answer_id, 1) not in workspace.turns for unit in job.answers.units)
    if not what or not all(what) or not missing:
        return []
    kept = sum((unit.answer_id, 1) in workspace.turns for unit in before[-1].units)
    return [
        f"{job.answers.model}: {', '.join(what[-1])}: {missing} answers to generate; the {kept}"
        " earlier ones stay a row of their own"
    ] * bool(kept)


def _of_judge(job: Job, before: Sequence[JudgeConfig]) -> list[str]:
    """Verdicts of other settings are requested again, which may cost."""
    now = _judge(job.config.judge)
    what = [_difference(_judge(judge), now) for judge in before]
    if not what or not all(what):
        return []
    said = ", ".join(text.removeprefix("judge.") for text in what[-1])
    then = "only verdicts of these settings count; earlier ones stay a row of their own"
    return [f"judge {job.config.judge.label}: {said}: {then}"]


def _judge(judge: JudgeConfig) -> dict[str, Any]:
    return {f"judge.{name}": value for name, value in science(judge).items()}


def _difference(old: dict[str, Any], new: dict[str, Any]) -> list[str]:
    found = []
    for key in dict.fromkeys((*old, *new)):
        was, now = (settings.get(key, DEFAULTS.get(key)) for settings in (old, new))
        if was == now:
            continue
        if key in _NAMES:
            found.append(f"{_NAMES[key]} changed")
        else:
            found.append(f"{key} {_shown(was)} -> {_shown(now)}")
    return found


def _shown(value: Any) -> str:
    text = value if isinstance(value, str) and value else json.dumps(value)
    return text if len(text) <= 60 else text[:57] + "..."
