"""The judge modes by name, and what became of a wanted verdict."""

from __future__ import annotations

import dataclasses

from mtbench_ray.errors import unknown_name
from mtbench_ray.judges.base import Answers, Mode
from mtbench_ray.judges.pairwise import Pairwise
from mtbench_ray.judges.prompts import PromptSet
from mtbench_ray.judges.single import Single
from mtbench_ray.models.thinking import THINKING
from mtbench_ray.schema import ANSWERED, Judgment, Outcome, Slot

_MODES: dict[str, Mode] = {
    mode.name: mode for mode in (Single(), Pairwise("pairwise-baseline"), Pairwise("pairwise-all"))
}
NAMES = tuple(_MODES)


def get_mode(name: str) -> Mode:
    """The mode ``single``, ``pairwise-baseline`` or ``pairwise-all``.

    Raises:
        UserError: There is no such mode; the hint is the nearest name.
    """
    if name not in _MODES:
        raise unknown_name("mode", name, _MODES)
    return _MODES[name]


def failed_reason(slot: Slot, answers: Answers) -> str | None:
    """Why the answers of a slot cannot be judged, or None where they can.

    Args:
        slot: The wanted verdict.
        answers: The newest turn by (answer_id, turn), failed ones too.

    Returns:
        ``missing``; ``answer_<status>`` of the first failed turn; or ``stale_answer`` where a turn
        was built on another text of an earlier turn than the one that counts now.
    """
    for answer_id in slot.answer_ids:
        history: tuple[str, ...] = ()
        for number in range(1, slot.turn + 1):
            turn = answers.get((answer_id, number))
            if turn is None:
                return "missing"
            if turn.status not in ANSWERED:
                return f"answer_{turn.status}"
            if turn.history != history:
                return "stale_answer"
            history += (turn.content,)
    return None


def outcome(
    mode: Mode,
    slot: Slot,
    judgment: Judgment | None,
    reason: str,
    parity: str,
    prompts: PromptSet,
    thinking: tuple[str, str] = THINKING,
) -> Outcome:
    """A slot with the judgment that counts for it.

    Args:
        mode: The mode of the evaluation.
        slot: The wanted verdict.
        judgment: Its newest judgment, failed or not, or None.
        reason: Why there is no judgment; empty where there is one.
        parity: ``safe`` or ``fastchat``.
        prompts: The judge prompts in use.
        thinking: Tags of the judge's thinking.
    """
    if judgment is None:
        return Outcome(slot, None, reason or "missing")
    judgment = read_again(mode, judgment, parity, prompts, thinking)
    if judgment.value is None:
        return Outcome(slot, judgment, judgment.error or judgment.status)
    return Outcome(slot, judgment, "")


def read_again(
    mode: Mode,
    judgment: Judgment,
    parity: str,
    prompts: PromptSet,
    thinking: tuple[str, str] = THINKING,
) -> Judgment:
    """A stored judgment as it is read today: its text is kept, so other tags cost no call."""
    # A call that failed has no text; imported scores may come without one.
    if not judgment.text or (parity != "fastchat" and judgment.source == "import"):
        return judgment
    read = mode.read(
        judgment.order, judgment.text, judgment.finish_reason, prompts, parity, thinking
    )
    return dataclasses.replace(
        judgment, label=read.label, value=read.value, status=read.status, error=read.reason or None
    )
