"""Conversations that are pending, as the work of engines."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence

from mtbench_ray.engines.base import ShardUnit
from mtbench_ray.generate.shards import Work, join
from mtbench_ray.judges.base import Turns
from mtbench_ray.models.fingerprint import as_planned
from mtbench_ray.planning.jobs import Job, model_of
from mtbench_ray.planning.plan import pending_turns


def pending_work(
    jobs: Sequence[Job], turns: Turns, received: Collection[tuple[str, int]] = ()
) -> list[Work]:
    """Conversations to have, by model: of all benchmarks; adapters of one base together.

    Args:
        turns: Live view of the workspace's turns.
        received: Rows (answer id, turn) of this run. An answer whose next pending turn is among
            them failed, and is not lost: it is left for the next run.
    """
    work: list[Work] = []
    # Jobs that share answers (another judge, say) have the same ids: asked once.
    seen: set[str] = set()
    for job in jobs:
        if job.error is not None:
            continue
        questions = {question.question_id: question for question in job.questions}
        pending = pending_turns(job.answers, questions, turns)
        units = tuple(
            ShardUnit(
                questions[unit.question_id],
                unit.sample,
                unit.answer_id,
                tuple(pending[unit.answer_id]),
            )
            for unit in job.answers.units
            if unit.answer_id in pending
            and unit.answer_id not in seen
            and (unit.answer_id, len(pending[unit.answer_id]) + 1) not in received
        )
        seen.update(unit.answer_id for unit in units)
        if units:
            content = json.loads(job.answers.settings).get("fingerprint", "")
            model = as_planned(model_of(job), content)
            work.append(Work(model, job.config.sampling, job.config.engine, units))
    return join(work)
