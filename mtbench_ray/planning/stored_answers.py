"""Answers that a workspace holds: which of them a run judges or compares with."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Sequence
from dataclasses import dataclass

from mtbench_ray.config import RunConfig
from mtbench_ray.errors import UserError
from mtbench_ray.planning.evaluations import DEFAULTS, answer_settings, differing
from mtbench_ray.schema import AnswerSet, Question, Unit, content_id, question_hash
from mtbench_ray.workspace.workspace import Workspace


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


@dataclass(frozen=True)
class Chosen:
    """The stored answers that a job of ``stage=judge`` judges.

    Attributes:
        notes: What a user should know of them.
    """

    answers: AnswerSet
    notes: tuple[str, ...] = ()


def choose_stored(
    config: RunConfig,
    wanted: AnswerSet,
    questions: Sequence[Question],
    stored: Sequence[AnswerSet],
    fingerprint: str | UserError,
) -> Chosen:
    """The answers that are there, for a job that makes none.

    No checkpoint, tokenizer or GPU is needed: the settings choose among the stored answers, those
    made with the same settings first, else the newest of that name.

    Args:
        wanted: What the job's settings would ask for.
        stored: From :func:`stored_answers`.
        fingerprint: Of the model, where its files are here.

    Raises:
        UserError: There are no answers of this model.
    """
    mine, label = answer_settings(wanted), config.model.label
    path = config.model.path.rstrip("/")
    known = [
        one
        for one in stored
        if one.model == label or (path and answer_settings(one).get("model.path") == path)
    ]
    if not known:
        near = difflib.get_close_matches(label, [one.model for one in stored], 3, 0.4)
        raise UserError(
            f"the workspace holds no answers of {label}, and stage=judge makes none",
            f"it has answers of {', '.join(dict.fromkeys(near))}"
            if near
            else "answer first: the same line without stage=judge, or `import fastchat DIR`",
        )

    def distance(one: AnswerSet) -> int:
        theirs = answer_settings(one)
        if differing(mine, theirs) <= {"fingerprint"}:
            return 0 if theirs.get("fingerprint") == fingerprint else 1
        return 2

    # A label may have answers to several benchmarks, of different settings.
    asked = {(str(one.question_id), question_hash(one)) for one in questions}
    asked |= {(name, "") for name, _ in asked}
    known = [
        one
        for one in known
        if any((str(unit.question_id), unit.question_hash) in asked for unit in one.units)
    ] or known
    best = min(reversed(known), key=distance)
    theirs = answer_settings(best)
    same = [one for one in known if answer_settings(one) == theirs]
    answers = restricted(same, questions, config.sampling.samples)
    notes = []
    if best.source == "run":
        other = sorted(differing(mine, theirs) - {"fingerprint"})
        if other:
            shown = ", ".join(f"{key}={theirs.get(key, DEFAULTS.get(key))}" for key in other)
            notes.append(f"the answers that are there were made with {shown}")
        elif isinstance(fingerprint, str) and fingerprint != theirs.get("fingerprint"):
            notes.append("the model's files have changed since these answers were made")
    return Chosen(dataclasses.replace(answers, model=label), tuple(notes))


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
