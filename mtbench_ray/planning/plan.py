"""Plan minus done: what is wanted, what the workspace holds, what is pending.

The :class:`Board` knows every wanted answer and every wanted verdict. A verdict's request can be
rendered, and its id is known, as soon as the answers that it looks at are there; so the board is
told of every new row and says which judge calls it makes possible.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from mtbench_ray.benchmarks.base import BenchmarkData
from mtbench_ray.config import JudgeConfig
from mtbench_ray.endpoint.tokens import prompt_tokens
from mtbench_ray.judges.base import Mode
from mtbench_ray.judges.prompts import PromptSet, load_prompts
from mtbench_ray.judges.registry import failed_reason, get_mode, outcome, read_again
from mtbench_ray.planning.evaluations import judge_of
from mtbench_ray.schema import (
    ANSWERED,
    AnswerSet,
    Evaluation,
    Judgment,
    Outcome,
    Question,
    QuestionId,
    Request,
    Slot,
    Turn,
    text_hash,
)

Turns = Mapping[tuple[str, int], Turn]
Judgments = Mapping[str, Judgment]


@dataclass(frozen=True)
class Setting:
    """An evaluation with everything needed to render its requests."""

    evaluation: Evaluation
    mode: Mode
    judge: JudgeConfig
    prompts: PromptSet
    questions: Mapping[QuestionId, Question]
    salt: str = ""


def setting(evaluation: Evaluation, data: BenchmarkData) -> Setting:
    """Bind an evaluation to its data.

    Raises:
        UserError: The stored judge prompts cannot be read.
    """
    return Setting(
        evaluation,
        get_mode(evaluation.mode),
        judge_of(evaluation),
        load_prompts(data.prompts_name, data.judge_prompts),
        {question.question_id: question for question in data.questions},
        json.loads(evaluation.answers.settings).get("salt", ""),
    )


def outcomes(
    what: Setting, turns: Turns, judgments: Judgments, parity: str = "safe"
) -> list[Outcome]:
    """Every wanted verdict of an evaluation with what became of it.

    Args:
        what: The evaluation.
        turns: Newest turns by (answer_id, turn), failed ones too.
        judgments: The judgments that count, by id.
        parity: ``fastchat`` reads the stored texts again in FastChat's way.
    """
    result = []
    for slot in what.mode.slots(what.evaluation, what.questions):
        reason = failed_reason(slot, turns)
        judgment = None
        if reason is None:
            judgment = judgments.get(render(what, slot, turns).judgment_id)
        result.append(
            outcome(what.mode, slot, judgment, reason or "", parity, what.prompts, tags(what.judge))
        )
    return result


def value_today(what: Setting, judgment: Judgment | None, parity: str) -> float | None:
    """The value of a stored judgment as it is read now; None where there is none."""
    if judgment is None:
        return None
    return read_again(what.mode, judgment, parity, what.prompts, tags(what.judge)).value


def counts(what: Setting, judgment: Judgment | None, parity: str) -> bool:
    """Whether a stored judgment has a value in a parity, so that its verdict is not pending."""
    return value_today(what, judgment, parity) is not None


def tags(judge: JudgeConfig) -> tuple[str, str]:
    """Tags of the judge's thinking."""
    return judge.thinking_open, judge.thinking_close


def render(what: Setting, slot: Slot, turns: Turns) -> Request:
    """The judge call of a slot whose answers are there."""
    request = what.mode.request(
        slot, what.questions[slot.question_id], turns, what.judge, what.prompts
    )
    if what.salt:  # fresh=true: judged again although the texts may be the same
        request = dataclasses.replace(
            request,
            judgment_id=text_hash(what.salt + request.judgment_id),
            match_id=text_hash(what.salt + request.match_id),
        )
    return request


def shortened(what: Setting, slot: Slot, request: Request, tokens: int, turns: Turns) -> Request:
    """The request with the ends of its answers cut so that it fits (``truncate=answer_tail``).

    The longest answers are cut first, all to one length. The id stays that of the whole request:
    what is wanted does not depend on what had to be cut.

    Args:
        tokens: What the judge's window leaves for the prompt.

    Returns:
        The longest that fits, or the one without any answer text where none does.
    """

    # The slot's own turns alone: this runs beside the thread that adds rows to ``turns``.
    shown = {key: turns[key] for key in itertools.product(slot.answer_ids, range(1, slot.turn + 1))}

    def cut(length: int) -> Request:
        short = {
            key: dataclasses.replace(turn, content=turn.content[:length])
            for key, turn in shown.items()
        }
        rendered = render(what, slot, short)
        return dataclasses.replace(
            rendered, judgment_id=request.judgment_id, match_id=request.match_id
        )

    low, high = 0, max(len(turn.content) for turn in shown.values())
    while low < high:
        middle = (low + high + 1) // 2
        if prompt_tokens(cut(middle).messages) <= tokens:
            low = middle
        else:
            high = middle - 1
    return cut(low)


def pending_turns(
    answers: AnswerSet, questions: Mapping[QuestionId, Question], turns: Turns
) -> dict[str, list[Turn]]:
    """Answers that lack a turn, by answer id, each with the good turns that it starts from.

    A later turn counts only if it was built on the earlier ones that count now.
    """
    pending: dict[str, list[Turn]] = {}
    for unit in answers.units:
        good = good_turns(unit.answer_id, turns)
        if len(good) < len(questions[unit.question_id].turns):
            pending[unit.answer_id] = good
    return pending


def good_turns(answer_id: str, turns: Turns) -> list[Turn]:
    """The turns of an answer that count, from the first one on without a gap."""
    good: list[Turn] = []
    while True:
        turn = turns.get((answer_id, len(good) + 1))
        if turn is None or turn.status not in ANSWERED:
            return good
        if turn.history != tuple(earlier.content for earlier in good):
            return good
        good.append(turn)


@dataclass
class _Waiting:
    """A wanted verdict whose answers are not all there yet."""

    setting: int
    slot: Slot


@dataclass
class Board:
    """All wanted verdicts of a run, and which of them can be judged by now.

    Args:
        settings: The judged evaluations.
        turns: Live view of the workspace's turns.
        judgments: Live view of the workspace's counting judgments.
        parity: A verdict without a value in it is pending.
    """

    settings: Sequence[Setting]
    turns: Turns
    judgments: Judgments
    parity: str = "safe"
    _waiting: dict[str, list[_Waiting]] = field(default_factory=dict)
    slots: dict[str, Slot] = field(default_factory=dict)
    """Of every request handed out, by its judgment_id."""

    def __post_init__(self) -> None:
        for index, what in enumerate(self.settings):
            for slot in what.mode.slots(what.evaluation, what.questions):
                for answer in dict.fromkeys(slot.answer_ids):
                    self._waiting.setdefault(answer, []).append(_Waiting(index, slot))

    def waiting(self) -> set[int]:
        """Indices of the settings some of whose verdicts wait for answers."""
        return {item.setting for items in self._waiting.values() for item in items}

    @property
    def pending(self) -> int:
        """Verdicts that wait for answers."""
        return len({id(item.slot) for items in self._waiting.values() for item in items})

    def ready(self, answer_ids: Iterable[str] | None = None) -> list[tuple[int, Request]]:
        """Judge calls that are possible now and have not been handed out, each once.

        Args:
            answer_ids: Look only at verdicts on these answers; None looks at all.

        Returns:
            Pairs of the setting's index and the request.
        """
        found: list[tuple[int, Request]] = []
        for answer in list(self._waiting) if answer_ids is None else answer_ids:
            still = []
            for item in self._waiting.get(answer, ()):
                if failed_reason(item.slot, self.turns) is not None:
                    still.append(item)
                    continue
                what = self.settings[item.setting]
                request = render(what, item.slot, self.turns)
                done = self.judgments.get(request.judgment_id)
                if request.judgment_id in self.slots or counts(what, done, self.parity):
                    continue
                self.slots[request.judgment_id] = item.slot
                found.append((item.setting, request))
            self._waiting[answer] = still
        return found
