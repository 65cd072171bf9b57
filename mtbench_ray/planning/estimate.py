"""``plan``: what a run would do, use and cost, before anything is spent."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mtbench_ray.benchmarks import get_benchmark
from mtbench_ray.endpoint.tokens import cost, estimate_tokens
from mtbench_ray.planning.evaluations import distinguishing_settings, named
from mtbench_ray.planning.jobs import Job
from mtbench_ray.planning.plan import good_turns, outcomes, pending_turns, render, view_of
from mtbench_ray.schema import Evaluation, Slot, Turn
from mtbench_ray.workspace.workspace import Workspace

ANSWER_TOKENS = 270
"""Tokens of an answer that is not there yet: the mean of the published 31 models is 914 characters
a turn, of newer models more."""
JUDGMENT_TOKENS = 230
"""Tokens of a judgment: about 900 characters in the public record."""


@dataclass
class Estimate:
    """What one evaluation has pending.

    Attributes:
        turns: Answers to generate.
        calls: Judge calls.
        done: Verdicts that are there.
        planned: Verdicts wanted.
        prompt_tokens: Of the judge calls.
        output_tokens: Of the judge calls.
        dollars: None where the judge has no price.
        batch_dollars: The same through the service's batch API; None also where there is none.
        minutes: Judge time under its own limits, None where it has none.
    """

    model: str
    judge: str
    turns: int = 0
    calls: int = 0
    done: int = 0
    planned: int = 0
    prompt_tokens: int = 0
    output_tokens: int = 0
    dollars: float | None = None
    batch_dollars: float | None = None
    minutes: float | None = None


def estimate(
    row: Evaluation,
    found: Estimate,
    coming: Mapping[str, int],
    workspace: Workspace,
    parity: str,
    counted: set[str],
) -> Estimate:
    """Estimate what is pending of one evaluation.

    Answers that are not there yet are taken to be as long as the benchmark says, or
    :data:`ANSWER_TOKENS`, and no longer than the run's cap; rendered prompts are measured.

    Args:
        found: Filled in and returned.
        coming: Answers that the run generates, each with its new tokens per turn at most; a
            verdict that needs another one which is not there will not be asked for.
        counted: Answers, and judge calls, that an earlier row of the same plan has counted;
            extended here.
    """
    if row.error is not None:
        return found
    data = workspace.load_data(row.data)
    questions = {question.question_id: question for question in data.questions}
    asked = {unit.answer_id: unit.question_id for unit in row.answers.units}
    for answer, good in pending_turns(row.answers, questions, workspace.turns).items():
        if answer in coming and answer not in counted:
            counted.add(answer)
            found.turns += len(questions[asked[answer]].turns) - len(good)
    if not row.judge:
        return found
    view = view_of(row, data, workspace.turns, parity)
    turns = dict(workspace.turns)
    imagined = dataclasses.replace(view, turns=turns)
    for outcome in outcomes(view, workspace.verdicts):
        found.planned += 1
        if not outcome.reason:
            found.done += 1
            continue
        if not imagine(outcome.slot, turns, coming, row):
            continue
        request = render(imagined, outcome.slot)
        if request.judgment_id in counted:
            continue
        counted.add(request.judgment_id)
        if request.want == "check":
            continue
        found.calls += 1
        found.prompt_tokens += sum(estimate_tokens(m.content) for m in request.messages)
        cap = json.loads(request.params).get("max_tokens", view.judge.max_tokens)
        expected = view.grader.reply_tokens or JUDGMENT_TOKENS
        found.output_tokens += min(expected, cap or expected)
    at_once, later = (dataclasses.replace(view.judge, batch=batch) for batch in (False, True))
    found.dollars = cost(at_once, found.prompt_tokens, found.output_tokens)
    if view.judge.kind == "openai":
        found.batch_dollars = cost(later, found.prompt_tokens, found.output_tokens)
    rates = []
    if view.judge.requests_per_minute:
        rates.append(found.calls / view.judge.requests_per_minute)
    if view.judge.tokens_per_minute:
        rates.append((found.prompt_tokens + found.output_tokens) / view.judge.tokens_per_minute)
    found.minutes = max(rates) if rates else None
    return found


def imagine(
    slot: Slot, turns: dict[tuple[str, int], Turn], coming: Mapping[str, int], row: Evaluation
) -> bool:
    """Put stand-ins where the turns of a slot are not there yet; returns whether all will be.

    Texts of different answers differ, as those of a model do: equal ones would be judged once.
    """
    for answer in slot.answer_ids:
        good = good_turns(answer, turns)
        if len(good) < slot.turn and answer not in coming:
            return False
        for number_ in range(len(good) + 1, slot.turn + 1):
            history = tuple(turn.content for turn in good_turns(answer, turns))
            expected = get_benchmark(row.benchmark).answer_tokens or ANSWER_TOKENS
            length = min(expected, coming[answer] or expected)
            turns[(answer, number_)] = Turn(
                answer_id=answer, turn=number_, benchmark="", question_id=slot.question_id,
                model=row.model, sample=slot.sample, content=answer + " word" * (length - 8),
                status="ok", history=history,
            )  # fmt: skip
    return True


def estimates(
    jobs: Sequence[Job], rows: Sequence[Evaluation], workspace: Workspace
) -> list[Estimate]:
    """What is pending of each evaluation of a run; a call that two of them want counts once."""
    coming = {
        unit.answer_id: job.config.sampling.cap
        for job in jobs
        if job.config.stage != "judge" and job.error is None
        for unit in job.answers.units
    }
    apart = distinguishing_settings(rows)
    counted: set[str] = set()
    found = []
    for row in rows:
        settings = apart[row.evaluation_id]
        judge = named(row.judge, settings, judge=True) if row.judge else "none"
        empty = Estimate(named(row.model, settings), judge)
        parity = jobs[0].config.parity
        found.append(estimate(row, empty, coming, workspace, parity, counted))
    return found
