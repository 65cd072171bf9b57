"""Single mode: slots, requests and ids, outcomes, and scores (F01 F09 F26 F53 F71 F73)."""

import dataclasses
import json

import pytest
from verdicts import (
    answered,
    by_part,
    evaluation,
    judged,
    question,
    rated,
    read,
    slot,
    turn,
    view,
)

from mtbench_ray.benchmarks import grader_of
from mtbench_ray.config import JudgeConfig
from mtbench_ray.errors import UserError
from mtbench_ray.judges.base import ScoreOptions
from mtbench_ray.judges.outcomes import failed_reason, outcome
from mtbench_ray.judges.prompts import builtin_prompts, load_prompts

SINGLE = grader_of("mt_bench", "single")
PROMPTS = load_prompts(
    "own",
    "".join(
        json.dumps(
            {"name": name, "type": "single", "system_prompt": system, "prompt_template": text}
        )
        + "\n"
        for name, system, text in (
            ("t1", "", "Q={question} A={answer}"),
            ("t1-ref", "", "Q={question} R={ref_answer_1} A={answer}"),
            ("t2", "Sys {x}", "{question_1}|{answer_1}|{question_2}|{answer_2}"),
            (
                "t2-ref",
                "Sys",
                "{question_1}|{ref_answer_1}|{answer_1}|{question_2}|{ref_answer_2}|{answer_2}",
            ),
        )
    ),
)
OPTIONS = ScoreOptions(resamples=200)


def request(number=1, judge=None, q=None, prompts=PROMPTS, answers=None, **changes):
    return SINGLE.grade(
        dataclasses.replace(slot(number=number), answer_ids=("m",), **changes),
        view(
            questions={81: q or question()},
            turns=answers or answered(m=["a1", "a2"]),
            judge=judge,
            prompts=prompts,
        ),
    )


def test_slots_in_a_stable_order():
    wanted = evaluation(questions=(81, 82), samples=2, repeats=2)
    slots = SINGLE.wanted(
        view(row=wanted, questions={81: question(81), 82: question(82, ["One?"])})
    )
    assert [(s.question_id, s.sample, s.turn, s.judge_sample) for s in slots] == [
        *((81, sample, number, repeat) for sample in (0, 1) for number in (1, 2)
          for repeat in (0, 1)),
        *((82, sample, 1, repeat) for sample in (0, 1) for repeat in (0, 1)),
    ]  # fmt: skip
    assert {(s.model, s.order, s.opponent, s.group) for s in slots} == {
        ("m", 0, None, "81"),
        ("m", 0, None, "82"),
    }
    assert slots[0].answer_ids == ("m81-0",)


def test_an_answer_without_its_question_is_an_error():
    with pytest.raises(UserError, match="m: question 99 is not in the question file"):
        SINGLE.wanted(view(row=evaluation(questions=(99,))))


def test_messages():
    assert [(m.role, m.content) for m in request(1).messages] == [("user", "Q=First? A=a1")]
    assert [(m.role, m.content) for m in request(2).messages] == [
        ("system", "Sys {x}"),
        ("user", "First?|a1|Second?|a2"),
    ]
    with_reference = question(category="math", references=["r1", "r2"])
    assert request(1, q=with_reference).messages[0].content == "Q=First? R=r1 A=a1"
    assert request(2, q=with_reference).messages[1].content == "First?|r1|a1|Second?|r2|a2"


def test_braces_in_questions_and_answers_are_left_alone():
    q = question(turns=("Is {answer} {{x}}?", "B {0}"))
    made = request(1, q=q, answers=answered(m=["{question} {", "x"]))
    assert made.messages[0].content == "Q=Is {answer} {{x}}? A={question} {"


def test_a_lone_surrogate_becomes_valid_text():
    made = request(1, answers=answered(m=["x\ud835y", "z"]))  # F53
    assert made.messages[0].content == "Q=First? A=x\ufffdy"
    made.messages[0].content.encode("utf-8")


def test_what_the_request_carries():
    made = request(2, judge=JudgeConfig(model="j", name="shown"), judge_sample=3)
    assert made.match_id == made.judgment_id
    assert (made.judge, made.judge_prompt, made.judge_sample) == ("shown", "t2", 3)
    assert made.prompt_hash == PROMPTS.prompts["t2"].hash
    assert (made.order, made.opponent, made.reference_hash) == (0, None, "")


def test_the_id_covers_everything_that_changes_the_result():  # F33
    base = JudgeConfig(model="j")
    with_reference = question(category="math", references=["r1", "r2"])
    other_prompts = load_prompts("rubric5", builtin_prompts("rubric5"))
    own = PROMPTS.prompts
    renamed = dict(own, t1=dataclasses.replace(own["t1"], name="t1-b"))
    rescaled = dict(own, t1=dataclasses.replace(own["t1"], scale=(1, 5)))
    different = [
        request(),
        request(2),
        request(judge_sample=1),
        request(answers=answered(m=["b1", "a2"])),
        request(q=question(turns=("Other?", "Second?"))),
        request(q=with_reference),
        request(q=dataclasses.replace(with_reference, references=("r0", "r2"))),
        request(prompts=other_prompts),
        request(prompts=dataclasses.replace(PROMPTS, prompts=renamed)),
        request(prompts=dataclasses.replace(PROMPTS, prompts=rescaled)),
        *(
            request(judge=dataclasses.replace(base, **{name: value}))
            for name, value in {
                "model": "k",
                "base_url": "http://host/v1",
                "temperature": 0.5,
                "max_tokens": 10,
                "truncate": "answer_tail",
                "reasoning_effort": "low",
                "constrain": True,
                "extra_body": {"top_p": 0.5},
            }.items()
        ),
    ]
    assert len({made.judgment_id for made in different}) == len(different)
    assert request(q=with_reference).reference_hash != ""


def test_the_id_covers_nothing_else():
    base = JudgeConfig(model="j")
    same = [
        request(),
        request(answers=answered(m=["a1", "another second answer"])),
        request(model="another label"),
        request(sample=1),
        *(
            request(judge=dataclasses.replace(base, **{name: value}))
            for name, value in {
                "name": "label",
                "concurrency": 1,
                "temperature": 0,
                "requests_per_minute": 5.0,
                "timeout_s": 1.0,
                "parse_retries": 0,
                "price_prompt": 1.0,
            }.items()
        ),
    ]
    assert len({made.judgment_id for made in same}) == 1


def test_what_changes_a_local_judges_words_is_in_its_id():
    more = [{}, {"args": {"quantization": "fp8"}}, {"content": "1f"}, {"content": "2f"}]
    local, remote = (
        {request(judge=JudgeConfig(model="j", kind=kind, **one)).judgment_id for one in more}
        for kind in ("local", "openai")
    )
    assert (len(local), len(remote)) == (4, 1)


def test_the_port_of_a_local_judge_is_not_in_its_id():
    judges = [
        JudgeConfig(model="j", kind="local", base_url=f"http://127.0.0.1:{port}/v1")
        for port in (1, 2)
    ]
    assert request(judge=judges[0]).judgment_id == request(judge=judges[1]).judgment_id


@pytest.mark.parametrize(
    ("text", "finish_reason", "label", "value", "status", "reason"),
    [
        ("Rating: [[7]]", "stop", "7", 7, "ok", ""),
        ("Rating: [[70]]", "stop", None, None, "unparsed", "out_of_range"),
        ("Well.", "stop", None, None, "unparsed", "no_rating"),
        ("", "stop", None, None, "empty", "empty"),
        ("Well, it", "length", None, None, "truncated", "truncated"),
        ("", "content_filter", None, None, "refused", "refused"),
    ],
)
def test_readings(text, finish_reason, label, value, status, reason):
    found = read("single", text, finish_reason, PROMPTS)
    assert (found.label, found.value, found.status, found.reason) == (label, value, status, reason)


def test_the_rubric_is_read_from_its_tags():
    rubric = load_prompts("rubric5", builtin_prompts("rubric5"))
    assert read("single", "<score>4</score>", "stop", rubric).value == 4
    assert read("single", "<score>7</score>", "stop", rubric).reason == "out_of_range"
    assert read("single", "Rating: [[4]]", "stop", rubric).reason == "no_rating"


@pytest.mark.parametrize(
    ("turns", "first", "second"),
    [
        ([], "missing", "missing"),
        ([turn("m-81", 1, "a")], None, "missing"),  # F73: turn 1 is judged, turn 2 is pending
        ([turn("m-81", 1, "", status="error")], "answer_error", "answer_error"),
        ([turn("m-81", 1, "", status="empty"), turn("m-81", 2, "b", [""])], None, None),
        ([turn("m-81", 1, "a"), turn("m-81", 2, "b", ["a"], "truncated")], None, None),
        (
            [turn("m-81", 1, "a"), turn("m-81", 2, "", ["a"], "context_overflow")],
            None,
            "answer_context_overflow",
        ),
        ([turn("m-81", 1, "new"), turn("m-81", 2, "b", ["old"])], None, "stale_answer"),
    ],
)
def test_why_an_answer_cannot_be_judged(turns, first, second):
    answers = {(t.answer_id, t.turn): t for t in turns}
    assert failed_reason(slot(number=1), answers) == first
    assert failed_reason(slot(number=2), answers) == second


def test_outcomes_read_stored_texts_again_in_parity_fastchat():
    stored = judged(slot(), 2.0, "2", text="It says [[10]]. Rating: [[2]]").judgment
    failed = judged(slot(), "timeout").judgment
    imported = judged(slot(), 3.0, "3", source="import").judgment

    def value(judgment, parity, reason=""):
        made = outcome(view(prompts=PROMPTS, parity=parity), slot(), judgment, reason)
        return (made.judgment.value if made.judgment else None), made.reason

    assert value(stored, "safe") == (2, "")
    assert value(stored, "fastchat") == (10, "")
    assert value(failed, "safe") == value(failed, "fastchat") == (None, "timeout")
    assert value(imported, "fastchat") == (3, "")
    assert value(None, "safe", "answer_error") == (None, "answer_error")
    assert value(None, "safe") == (None, "missing")
    unreadable = dataclasses.replace(stored, text="Rating: [[05]]")
    assert value(unreadable, "fastchat") == (None, "no_rating")


def test_failed_judgments_are_counted_and_not_averaged():  # F01
    rows = [rated("m", 81, 1, 9.0), rated("m", 82, 1, "no_rating"), rated("m", 83, 1, 3.0)]
    score = by_part(SINGLE.reduce([], rows, OPTIONS))["m", "all", ""]
    assert (score.mean, score.planned, score.scored) == (6.0, 3, 2)
    assert json.loads(score.failed) == {"no_rating": 1}
    assert score.judge == "j"


def test_the_average_is_over_all_rows():  # F26
    rows = [
        rated("m", 81, 1, 9.0),
        rated("m", 81, 2, "no_rating"),
        rated("m", 82, 1, 5.0),
        rated("m", 82, 2, 4.0, category="math"),
    ]
    parts = by_part(SINGLE.reduce([], rows, OPTIONS))
    assert {key[1:]: (s.mean, s.scored, s.planned) for key, s in parts.items()} == {
        ("all", ""): (6.0, 3, 4),
        ("turn", "1"): (7.0, 2, 2),
        ("turn", "2"): (4.0, 1, 2),
        ("category", "writing"): (7.0, 2, 3),
        ("category", "math"): (4.0, 1, 1),
    }


def test_repeats_are_rows_and_not_duplicates():  # F71
    rows = [rated("m", 81, 1, value, repeat) for repeat, value in enumerate((8.0, 9.0, 8.0))]
    score = by_part(SINGLE.reduce([], rows, OPTIONS))["m", "all", ""]
    assert (score.mean, score.scored, score.planned) == (25 / 3, 3, 3)
    assert (score.ci_low, score.ci_high) == (None, None)  # one question says nothing about others


def test_given_duplicates_are_pooled():  # F09: strict parity; the safe one drops them before
    rows = [rated("m", 81, 1, 8.0), rated("m", 82, 1, 2.0), rated("m", 81, 1, 8.0)]
    assert by_part(SINGLE.reduce([], rows, OPTIONS))["m", "all", ""].mean == 6.0
    assert by_part(SINGLE.reduce([], rows[:2], OPTIONS))["m", "all", ""].mean == 5.0


def test_nothing_scored_is_none():
    rows = [judged(slot(), "timeout"), rated("m", 81, 2, "no_rating")]
    missing = outcome(view(prompts=PROMPTS), slot(q=82), None, "answer_error")
    scores = SINGLE.reduce([], [*rows, missing], dataclasses.replace(OPTIONS, judge="given"))
    score = by_part(scores)["m", "all", ""]
    assert (score.mean, score.ci_low, score.ci_high, score.scored) == (None, None, None, 0)
    assert json.loads(score.failed) == {"answer_error": 1, "no_rating": 1, "timeout": 1}
    assert {s.judge for s in scores} == {"given"}


def test_planned_is_scored_plus_failed_and_order_of_rows_does_not_matter():
    rows = [
        rated(model, q, number, "no_rating" if (q + number) % 5 == 0 else 1.0 + q * number % 9)
        for model in ("m", "n")
        for q in range(81, 101)
        for number in (1, 2)
    ]
    scores = SINGLE.reduce([], rows, OPTIONS)
    for score in scores:
        assert score.planned == score.scored + sum(json.loads(score.failed).values())
        assert score.ci_low <= score.mean <= score.ci_high
    again = SINGLE.reduce([], rows[::-1], OPTIONS)
    assert by_part(scores) == by_part(again)
    assert SINGLE.reduce([], [], OPTIONS) == []


def test_an_unknown_mode_names_the_nearest():
    with pytest.raises(UserError, match="pairwise-al") as caught:
        grader_of("mt_bench", "pairwise-al")
    assert "pairwise-all" in caught.value.hint
