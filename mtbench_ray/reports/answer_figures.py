"""Counts, speed and sizes of a model's answers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from mtbench_ray.models.messages import thinking_compliance
from mtbench_ray.planning.plan import good_turns
from mtbench_ray.schema import ANSWERED, EngineEvent, Evaluation, Question, QuestionId, Turn
from mtbench_ray.workspace.workspace import Workspace

_ERRORS = 20
"""Different texts of failed answers that are kept for a model."""


def answer_figures(
    workspace: Workspace, row: Evaluation, events: Sequence[EngineEvent] = ()
) -> dict[str, Any]:
    """Counts, speed and sizes of a model's answers, from the stored rows.

    ``output_tokens_per_s`` is all output tokens over the time in which any turn was being
    generated, so pauses between runs do not count.
    """
    questions: dict[QuestionId, Question] = (
        {question.question_id: question for question in workspace.load_data(row.data).questions}
        if row.data
        else {}
    )
    planned, turns, failed, errors = 0, list[Turn](), Counter[str](), Counter[str]()
    for unit in row.answers.units:
        good = good_turns(unit.answer_id, workspace.turns)
        question = questions.get(unit.question_id)
        wanted = len(question.turns) if question else len(good)
        planned += wanted
        turns += good
        for number in range(len(good) + 1, wanted + 1):
            newest_turn = workspace.turns.get((unit.answer_id, number))
            bad = newest_turn is not None and newest_turn.status not in ANSWERED
            failed[newest_turn.status if newest_turn and bad else "missing"] += 1
            if newest_turn and bad and newest_turn.error:
                errors[newest_turn.error] += 1
    seconds = _covered((turn.created - turn.latency_s, turn.created) for turn in turns)
    tokens = sum(turn.output_tokens for turn in turns)
    mine = [event for event in events if event.model == row.model]
    starts = [event.seconds for event in mine if event.kind in ("start", "swap")]
    memory = [event.gpu_memory_gb for event in mine if event.gpu_memory_gb is not None]
    judged = [turn.compliant for turn in turns if turn.compliant is not None]
    return {
        "planned": planned,
        "answered": len(turns),
        "failed": dict(sorted(failed.items())),
        "errors": dict(errors.most_common(_ERRORS)),
        # Imported answers do not say whether they were cut.
        "truncated": None
        if row.answers.source == "import"
        else sum(turn.status == "truncated" or turn.finish_reason == "length" for turn in turns),
        "empty": sum(not turn.content for turn in turns),
        "output_tokens_per_s": round(tokens / seconds, 1) if seconds > 0 else None,
        "prompt_tokens": sum(turn.prompt_tokens for turn in turns),
        "output_tokens": tokens,
        "seconds_per_answer": (
            round(sum(turn.latency_s for turn in turns) / len(turns), 3) if turns else None
        ),
        "engine_start_s": round(starts[-1], 1) if starts else None,
        "peak_gpu_memory_gb": max(memory) if memory else None,
        "thinking_compliance": round(sum(judged) / len(judged), 4) if judged else None,
        "thinking_compliance_by_turn": {
            str(number): round(share, 4) for number, share in thinking_compliance(turns).items()
        }
        or None,
        "origins": dict(sorted(Counter(turn.engine_origin for turn in turns).items())),
    }


def _covered(spans: Iterable[tuple[float, float]]) -> float:
    """Length of the union of time spans, in their unit."""
    total, end = 0.0, float("-inf")
    for begin, finish in sorted(spans):
        if finish > end:
            total += finish - max(begin, end)
            end = finish
    return total
