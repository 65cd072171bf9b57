"""Plan minus done: what is wanted, what the workspace holds, what is pending.

The :class:`Board` is the list of every wanted verdict. A verdict's request can be rendered, and its
id is known, as soon as the answers that it looks at are there; so the board hears of every new
answer and says which judge calls it makes possible.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from mtbench_ray.benchmarks import grader_of
from mtbench_ray.endpoint.tokens import prompt_tokens
from mtbench_ray.judges.base import EvaluationView, Turns
from mtbench_ray.judges.outcomes import NOT_NEEDED, failed_reason, outcome, read_again
from mtbench_ray.judges.prompts import load_prompts
from mtbench_ray.planning.evaluations import judge_of
from mtbench_ray.schema import (
    ANSWERED,
    AnswerSet,
    BenchmarkData,
    Evaluation,
    Judgment,
    Outcome,
    Question,
    QuestionId,
    Request,
    Slot,
    Turn,
    canonical,
    text_hash,
)

Judgments = Mapping[str, Judgment]


def view_of(
    evaluation: Evaluation, data: BenchmarkData | None, turns: Turns, parity: str = "safe"
) -> EvaluationView:
    """Bind a judged evaluation to its data.

    Args:
        data: None where an import has none.

    Raises:
        UserError: There is no such benchmark or grader, or the stored judge prompts cannot be read.
    """
    grader = grader_of(evaluation.benchmark, evaluation.mode)
    prompts = None
    if grader.prompt_type and evaluation.source != "import" and data is not None:
        prompts = load_prompts(data.prompts_name, data.judge_prompts)
    return EvaluationView(
        evaluation,
        grader,
        {question.question_id: question for question in data.questions} if data else {},
        turns,
        judge_of(evaluation),
        prompts,
        parity,
        json.loads(evaluation.answers.settings).get("salt", ""),
        data.kept if data else {},
    )


def outcomes(
    view: EvaluationView, judgments: Judgments, *, decided: Collection[str] | None = None
) -> list[Outcome]:
    """Every wanted verdict of an evaluation with what became of it.

    Args:
        judgments: The judgments that count, by id.
        decided: See :attr:`Board.decided`; None where the evaluation's race is not, or is none.
    """
    board = Board([view], judgments)
    for _ in board.naming():
        pass
    if decided is not None:
        board.decided[0] = decided
    return [board.outcome(one) for one in board.verdicts[0]]


def value_today(view: EvaluationView, judgment: Judgment | None) -> float | None:
    """The value of a stored judgment as it is read now; None where there is none."""
    return None if judgment is None else read_again(view, judgment).value


def counts(view: EvaluationView, judgment: Judgment | None) -> bool:
    """Whether a stored judgment has a value, so that its verdict is not pending."""
    return value_today(view, judgment) is not None


def render(view: EvaluationView, slot: Slot) -> Request:
    """The request of a slot whose answers are there."""
    request = view.grader.grade(slot, view)
    if request.params != "{}" or request.want not in ("text", "check"):
        # What is sent or read in another way is another verdict, also of a grader that forgets it.
        more = canonical([request.params, request.want])
        request = dataclasses.replace(
            request,
            judgment_id=text_hash(more + request.judgment_id),
            match_id=text_hash(more + request.match_id),
        )
    if view.salt:  # fresh=true: judged again although the texts may be the same
        request = dataclasses.replace(
            request,
            judgment_id=text_hash(view.salt + request.judgment_id),
            match_id=text_hash(view.salt + request.match_id),
        )
    return request


def shortened(view: EvaluationView, slot: Slot, request: Request, tokens: int) -> Request:
    """The request with the ends of its answers cut so that it fits (``truncate=answer_tail``).

    The longest answers are cut first, all to one length. The id stays that of the whole request:
    what is wanted does not depend on what had to be cut.

    Args:
        tokens: What the judge's window leaves for the prompt.

    Returns:
        The longest that fits, or the one without any answer text where none does.
    """

    # The slot's own turns alone: this runs beside the thread that adds rows to the others.
    keys = itertools.product(slot.answer_ids, range(1, slot.turn + 1))
    shown = {key: view.turns[key] for key in keys}

    def cut(length: int) -> Request:
        short = {
            key: dataclasses.replace(turn, content=turn.content[:length])
            for key, turn in shown.items()
        }
        rendered = render(dataclasses.replace(view, turns=short), slot)
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
class WantedVerdict:
    """A verdict that an evaluation wants, and its id once its answers are there.

    Attributes:
        view: Index of the evaluation.
    """

    view: int
    slot: Slot
    judgment_id: str = ""


@dataclass(frozen=True)
class Update:
    """What new answers make possible.

    Attributes:
        named: Verdicts whose ids are known now.
        requests: What is to be judged of them, each id once; with the index of the evaluation.
    """

    named: list[WantedVerdict]
    requests: list[tuple[int, Request]]


class Board:
    """All wanted verdicts of some evaluations: the one list that says what is wanted, what it is
    called and what became of it. The judges, the progress display and the reports read it.

    Args:
        views: The judged evaluations.
        judgments: Live view of the judgments that count, by id.

    Attributes:
        verdicts: Of each evaluation, in its grader's order.
        named: By id, one verdict that has it.
        decided: By index of an evaluation whose race is decided, the groups of questions that it
            was decided by: what is not judged of others is not needed.
    """

    def __init__(self, views: Sequence[EvaluationView], judgments: Judgments) -> None:
        self.views = views
        self.judgments = judgments
        self.decided: dict[int, Collection[str]] = {}
        self.verdicts = [
            [WantedVerdict(index, slot) for slot in view.grader.wanted(view)]
            for index, view in enumerate(views)
        ]
        self.named: dict[str, WantedVerdict] = {}
        self._waiting: dict[str, list[WantedVerdict]] = {}
        for one in (one for wanted in self.verdicts for one in wanted):
            assert one.slot.weight, "a verdict without weight is none"
            for answer in dict.fromkeys(one.slot.answer_ids):
                self._waiting.setdefault(answer, []).append(one)

    @property
    def unnamed(self) -> list[WantedVerdict]:
        """Verdicts that wait for answers."""
        return [one for wanted in self.verdicts for one in wanted if not one.judgment_id]

    def update(self, answer_ids: Iterable[str] | None = None) -> Update:
        """Name the verdicts whose answers are there.

        Args:
            answer_ids: Look only at verdicts on these answers; None looks at all.
        """
        found = Update([], [])
        for one, request in self.naming(answer_ids):
            found.named.append(one)
            if request is None:
                continue
            if not counts(self.views[one.view], self.judgments.get(request.judgment_id)):
                found.requests.append((one.view, request))
        return found

    def naming(
        self, answer_ids: Iterable[str] | None = None
    ) -> Iterator[tuple[WantedVerdict, Request | None]]:
        """Name the verdicts whose answers are there, one after the other.

        Args:
            answer_ids: As of :meth:`update`.

        Yields:
            Each with its request; None where another verdict has it already.
        """
        for answer in list(self._waiting) if answer_ids is None else answer_ids:
            still = []
            for one in self._waiting.get(answer, ()):
                view = self.views[one.view]
                if one.judgment_id:  # by its other answer
                    continue
                if failed_reason(one.slot, view.turns) is not None:
                    still.append(one)
                    continue
                request = render(view, one.slot)
                one.judgment_id = request.judgment_id
                known = request.judgment_id in self.named
                self.named.setdefault(request.judgment_id, one)
                yield one, None if known else request
            self._waiting[answer] = still

    def outcome(self, one: WantedVerdict) -> Outcome:
        """What became of a wanted verdict."""
        view = self.views[one.view]
        if one.judgment_id:
            found = outcome(view, one.slot, self.judgments.get(one.judgment_id), "")
        else:
            reason = failed_reason(one.slot, view.turns) or "missing"
            found = outcome(view, one.slot, None, reason)
        if found.reason and one.slot.group not in self.decided.get(one.view, [one.slot.group]):
            return Outcome(one.slot, None, NOT_NEEDED)
        return found
