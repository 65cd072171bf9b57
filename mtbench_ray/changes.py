"""Says what differs from the settings that a workspace's earlier answers were made with."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from mtbench_ray.config import science
from mtbench_ray.evaluations import DEFAULTS, flat, judge_of
from mtbench_ray.jobs import Job
from mtbench_ray.schema import AnswerSet, Evaluation
from mtbench_ray.store import Workspace

_NAMES = {"fingerprint": "the model's files"}


def describe_changes(jobs: Sequence[Job], workspace: Workspace) -> list[str]:
    """A line for each model and judge whose newest earlier rows were made with other settings.

    Rows of different science settings have different ids and are never mixed; this only says so.
    """
    answers: dict[str, AnswerSet] = {}
    judges: dict[tuple[str, str], Evaluation] = {}
    for record in workspace.run_records():
        for row in record.evaluations:
            answers[row.answers.model] = row.answers
            if row.judge and row.source == "run":
                judges[row.judge, row.mode] = row
    lines: dict[str, None] = {}
    for job in jobs:
        before = answers.get(job.answers.model) if job.config.stage != "judge" else None
        if before is not None and job.error is None and before.units and before.source == "run":
            lines |= dict.fromkeys(_of_answers(job, before, workspace))
        judged = judges.get((job.config.judge.label, job.config.mode))
        if judged is not None and job.judged:
            lines |= dict.fromkeys(_of_judge(job, judged))
    return list(lines)


def _of_answers(job: Job, before: AnswerSet, workspace: Workspace) -> list[str]:
    kept = sum((unit.answer_id, 1) in workspace.turns for unit in before.units)
    what = _difference(json.loads(before.settings), json.loads(job.answers.settings))
    if not what or not kept:
        return []
    there = sum((unit.answer_id, 1) in workspace.turns for unit in job.answers.units)
    missing = len(job.answers.units) - there
    if missing:
        then = f"{missing} answers to generate; the {kept} earlier ones stay a row of their own"
    else:
        then = "the answers made with these settings are there already"
    return [f"{job.answers.model}: {', '.join(what)}: {then}"]


def _of_judge(job: Job, before: Evaluation) -> list[str]:
    """Verdicts of other settings are asked for anew, which may cost."""
    old, new = ({"judge": science(judge)} for judge in (judge_of(before), job.config.judge))
    what = [text.removeprefix("judge.") for text in _difference(old, new)]
    if not what:
        return []
    then = "only verdicts of these settings count; earlier ones stay"
    return [f"judge {job.config.judge.label}: {', '.join(what)}: {then}"]


def _difference(before: dict[str, Any], now: dict[str, Any]) -> list[str]:
    old, new = flat(before), flat(now)
    found = []
    for key in dict.fromkeys((*old, *new)):
        was, now_ = (settings.get(key, DEFAULTS.get(key)) for settings in (old, new))
        if was == now_ or key == "salt":
            continue
        if key in _NAMES:
            found.append(f"{_NAMES[key]} changed")
        else:
            found.append(f"{key} {_shown(was)} -> {_shown(now_)}")
    return found


def _shown(value: Any) -> str:
    text = value if isinstance(value, str) and value else json.dumps(value)
    return text if len(text) <= 60 else text[:57] + "..."
