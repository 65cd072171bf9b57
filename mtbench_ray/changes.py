"""Says what differs from the settings that a workspace's earlier answers were made with."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from mtbench_ray.jobs import Job, flat
from mtbench_ray.schema import AnswerSet
from mtbench_ray.store import Workspace

_NAMES = {"fingerprint": "the model's files"}


def describe_changes(jobs: Sequence[Job], workspace: Workspace) -> list[str]:
    """A line for each model whose newest earlier answers were made with other science settings.

    Answers of different settings have different ids and are never mixed; this only says so.
    """
    earlier: dict[str, AnswerSet] = {}
    for record in workspace.run_records():
        earlier |= {row.answers.model: row.answers for row in record.evaluations}
    lines: dict[str, None] = {}
    for job in jobs:
        before = earlier.get(job.answers.model)
        if before is None or job.error is not None or not before.units:
            continue
        what = _difference(json.loads(before.settings), json.loads(job.answers.settings))
        if not what:
            continue
        there = sum((unit.answer_id, 1) in workspace.turns for unit in job.answers.units)
        kept = sum((unit.answer_id, 1) in workspace.turns for unit in before.units)
        missing = len(job.answers.units) - there
        if missing and job.config.stage == "judge":
            then = f"{missing} answers are missing, and stage=judge makes none"
        elif missing:
            then = f"{missing} answers are made anew; the {kept} earlier ones stay, not counted"
        else:
            then = "the answers made with these settings are there already"
        lines[f"{job.answers.model}: {', '.join(what)}: {then}"] = None
    return list(lines)


def _difference(before: dict[str, Any], now: dict[str, Any]) -> list[str]:
    old, new = flat(before), flat(now)
    found = []
    for key in dict.fromkeys((*old, *new)):
        if old.get(key) == new.get(key) or key == "salt":
            continue
        if key in _NAMES:
            found.append(f"{_NAMES[key]} changed")
        else:
            found.append(f"{key} {_shown(old.get(key))} -> {_shown(new.get(key))}")
    return found


def _shown(value: Any) -> str:
    text = value if isinstance(value, str) and value else json.dumps(value)
    return text if len(text) <= 60 else text[:57] + "..."
