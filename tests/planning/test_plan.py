"""Plan minus done: which turns are pending, and which judge calls the board hands out when."""

import dataclasses
import json

import pytest
from verdicts import evaluation, judged, question

from mtbench_ray.config import JudgeConfig
from mtbench_ray.judges.base import Reply
from mtbench_ray.planning.plan import Board, good_turns, outcomes, pending_turns, shortened, view_of
from mtbench_ray.schema import BenchmarkData, Turn

PROMPTS = "".join(
    json.dumps({"name": f"p{turns}{ref}", "type": "single", "system_prompt": "",
                "prompt_template": text + extra}) + "\n"
    for turns, text in ((1, "{question}/{answer}"),
                        (2, "{question_1}/{answer_1}/{question_2}/{answer_2}"))
    for ref, extra in (("", ""), ("r", "/{ref_answer_1}" + "/{ref_answer_2}" * (turns == 2)))
)  # fmt: skip
NUMBERS = (81, 82)


def make_view(turns, parity="safe", **changes):
    row = dataclasses.replace(
        evaluation(questions=NUMBERS),
        judge_settings=json.dumps(dataclasses.asdict(JudgeConfig(model="j"))),
        **changes,
    )
    data = BenchmarkData("mt_bench", tuple(question(n) for n in NUMBERS), "own", PROMPTS, {})
    return view_of(row, data, turns, parity)


def turn(number, content="text", history=(), status="ok", answer="a"):
    return Turn(answer_id=answer, turn=number, benchmark="b", question_id=81, model="m",
                sample=0, content=content, status=status, history=history)  # fmt: skip


def by_key(*turns):
    return {(one.answer_id, one.turn): one for one in turns}


@pytest.mark.parametrize(
    ("turns", "good"),
    [
        ((), 0),
        ((turn(1),), 1),
        ((turn(1), turn(2, history=("text",))), 2),
        ((turn(1, status="truncated"), turn(2, history=("text",))), 2),
        ((turn(2, history=("text",)),), 0),
        ((turn(1), turn(2, history=("another text",))), 1),
        ((turn(1, status="error"), turn(2, history=("text",))), 0),
        ((turn(1), turn(2, history=("text",), status="error")), 1),
    ],
)
def test_a_later_turn_counts_only_on_the_earlier_ones_that_count(turns, good):
    assert len(good_turns("a", by_key(*turns))) == good


def test_what_is_owed_starts_from_the_turns_that_are_there():
    answers = evaluation(questions=NUMBERS).answers
    first, second = (unit.answer_id for unit in answers.units)
    questions = {n: question(n) for n in NUMBERS}
    turns = by_key(
        turn(1, answer=first), turn(2, history=("text",), answer=first), turn(1, answer=second)
    )
    pending = pending_turns(answers, questions, turns)
    assert {answer: len(done) for answer, done in pending.items()} == {second: 1}


def test_the_board_hands_out_each_call_once_as_soon_as_it_is_possible():
    turns = {}
    board = Board([make_view(turns)], {})
    assert board.update().requests == []
    first, second = (unit.answer_id for unit in evaluation(questions=NUMBERS).answers.units)
    turns[first, 1] = turn(1, answer=first)
    ((index, request),) = board.update([first]).requests
    assert (index, request.turn) == (0, 1)
    assert board.update([first]).requests == board.update().requests == []
    turns[first, 2] = turn(2, history=("text",), answer=first)
    assert [request.turn for _, request in board.update([first]).requests] == [2]
    turns[second, 1] = turn(1, answer=second, status="error")
    assert board.update().requests == []


def test_what_is_judged_is_not_asked_again_and_a_failed_verdict_is():
    unit = evaluation(questions=NUMBERS).answers.units[0]
    turns = by_key(turn(1, answer=unit.answer_id))
    ((_, request),) = Board([make_view(turns)], {}).update().requests
    what = make_view(turns)
    slot = what.grader.wanted(what)[0]
    for value, calls in ((5.0, 0), ("no rating", 1)):
        done = {request.judgment_id: judged(slot, value).judgment}
        assert len(Board([make_view(turns)], done).update().requests) == calls


@pytest.mark.parametrize(
    ("text", "calls"), [("I give it [7].", (1, 0)), ("Rating: [[7/10]]", (0, 1)), ("[[7]]", (0, 0))]
)
def test_a_verdict_is_owed_until_it_has_a_value_in_the_runs_parity(text, calls):
    unit = evaluation(questions=NUMBERS).answers.units[0]
    turns = by_key(turn(1, answer=unit.answer_id))
    what = make_view(turns)
    ((_, request),) = Board([what], {}).update().requests
    read = what.grader.read(request, what, Reply(text, "stop"))
    slot = what.grader.wanted(what)[0]
    stored = judged(slot, read.reason or read.value, text=text).judgment
    done = {request.judgment_id: stored}
    found = [
        len(Board([make_view(turns, parity)], done).update().requests)
        for parity in ("safe", "fastchat")
    ]
    assert tuple(found) == calls


def test_every_wanted_verdict_has_an_outcome():
    found = outcomes(make_view({}), {})
    assert len(found) == 4
    assert all(outcome.judgment is None and outcome.reason for outcome in found)


class OwnTurns(dict):
    """Turns of a run to which another thread adds rows: looking through all of them fails."""

    def __iter__(self):
        raise RuntimeError("dictionary changed size during iteration")

    keys = values = items = __iter__


def test_a_shortened_request_keeps_its_id_and_fits():
    unit = evaluation(questions=NUMBERS).answers.units[0]
    turns = by_key(turn(1, content="word " * 900, answer=unit.answer_id))
    board = Board([make_view(turns)], {})
    ((_, request),) = board.update().requests
    slot = board.named[request.judgment_id].slot
    short = shortened(make_view(OwnTurns(turns)), slot, request, 200)
    assert short.judgment_id == request.judgment_id
    assert 100 < len(short.messages[-1].content) < 1200
