"""What became of a wanted verdict: the judgment that counts for it, or why there is none.

A judge's reply is kept and read again whenever it is looked at, so that a better parser or other
tags cost no call. That takes a tenth of a millisecond and more. A row therefore says with what it
was read (``Judgment.read_as``: this program, the settings that matter, the reply and what came of
it): where the same would read it, it says already what it would be read as.
"""

from __future__ import annotations

import dataclasses
import math
from functools import lru_cache

from mtbench_ray.judges.base import EvaluationView, Reading, Reply, Turns
from mtbench_ray.schema import ANSWERED, Judgment, Outcome, Slot, canonical, text_hash
from mtbench_ray.system.program import program

NOT_NEEDED = "not_needed"
"""Why there is no judgment of an answer whose race was decided without it: no failure."""


def failed_reason(slot: Slot, turns: Turns) -> str | None:
    """Why the answers of a slot cannot be judged, or None where they can.

    Args:
        slot: The wanted verdict.
        turns: The newest turn by (answer_id, turn), failed ones too.

    Returns:
        ``missing``; ``answer_<status>`` of the first failed turn; or ``stale_answer`` where a turn
        was built on another text of an earlier turn than the one that counts now.
    """
    for answer_id in slot.answer_ids:
        history: tuple[str, ...] = ()
        for number in range(1, slot.turn + 1):
            turn = turns.get((answer_id, number))
            if turn is None:
                return "missing"
            if turn.status not in ANSWERED:
                return f"answer_{turn.status}"
            if turn.history != history:
                return "stale_answer"
            history += (turn.content,)
    return None


def outcome(view: EvaluationView, slot: Slot, judgment: Judgment | None, reason: str) -> Outcome:
    """A slot with the judgment that counts for it.

    Args:
        judgment: Its newest judgment, failed or not, or None.
        reason: Why there is no judgment; empty where there is one.
    """
    if judgment is None:
        return Outcome(slot, None, reason or "missing")
    judgment = read_again(view, judgment)
    if judgment.value is None:
        return Outcome(slot, judgment, judgment.error or judgment.status)
    return Outcome(slot, judgment, "")


def read_again(view: EvaluationView, judgment: Judgment) -> Judgment:
    """A stored judgment as it is read today: its text is kept, so other tags cost no call."""
    # Imported scores may come without a reply.
    if not judgment.has_reply or (view.parity != "fastchat" and judgment.source == "import"):
        return judgment
    if judgment.read_as and view.parity == "safe" and judgment.read_as == _proof(view, judgment):
        return judgment
    reply = Reply(judgment.text, judgment.finish_reason, judgment.logprobs)
    read = sound(view.grader.read(judgment, view, reply))
    today = read.label, read.value, read.status, read.reason or None
    stored = judgment.label, judgment.value, judgment.status, judgment.error
    if today == stored and type(read.value) is type(judgment.value):
        return judgment  # as nearly all are; a copy of each would be half of a report's memory
    return dataclasses.replace(
        judgment, label=today[0], value=today[1], status=today[2], error=today[3]
    )


def with_proof(view: EvaluationView, judgment: Judgment) -> Judgment:
    """A new judgment that says with what its reply was read, where it was read as it would be now.

    Rows hold what parity ``safe`` reads, in any run.
    """
    plain = dataclasses.replace(judgment, read_as="")
    safely = dataclasses.replace(view, parity="safe")
    if not plain.has_reply or read_again(safely, plain) is not plain:
        return plain
    return dataclasses.replace(plain, read_as=_proof(view, plain))


def _proof(view: EvaluationView, judgment: Judgment) -> str:
    row = view.evaluation
    way = _way(row.benchmark, row.mode, row.judge_settings, row.prompts, row.protocol,
               row.references, row.data)  # fmt: skip
    read = (judgment.judgment_id, judgment.text, judgment.finish_reason, judgment.logprobs,
            judgment.label, judgment.value, judgment.status, judgment.error)  # fmt: skip
    return text_hash(f"{way}{read!r}")[:16]


@lru_cache(maxsize=1024)
def _way(*settings: str) -> str:
    """Of what a reading depends on, apart from the reply. The answers are in a judgment's id."""
    return text_hash(canonical([program(), settings]))


def sound(reading: Reading) -> Reading:
    """A reading whose status is ok exactly where its value is a number, whatever a grader says."""
    good = reading.value is not None and math.isfinite(reading.value)
    if good == (reading.status == "ok"):
        return reading if good else dataclasses.replace(reading, label=None, value=None)
    return Reading(None, None, "unparsed", reading.reason or "no_value", reading.again)
