"""Answers that a workspace holds: which of them a run judges or compares with."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Sequence
from typing import TYPE_CHECKING

from mtbench_ray.errors import UserError
from mtbench_ray.planning.evaluations import DEFAULTS, answer_settings, differing
from mtbench_ray.schema import AnswerSet, Question, Unit, content_id, question_hash
from mtbench_ray.workspace.workspace import Workspace

if TYPE_CHECKING:
    from mtbench_ray.planning.jobs import Job


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


def judge_only(
    job: Job, stored: Sequence[AnswerSet], fingerprint: str | UserError
) -> UserError | None:
    """Have a job of ``stage=judge`` look at the answers that are there, and at nothing else.

    No checkpoint, tokenizer or GPU is needed: the settings choose among the stored answers, those
    made with the same settings first, else the newest of that name.

    Args:
        fingerprint: The model's fingerprint, where its files are here.
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
            return 0 if theirs.get("fingerprint") == fingerprint else 1
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
        elif isinstance(fingerprint, str) and fingerprint != theirs.get("fingerprint"):
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
