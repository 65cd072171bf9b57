"""Pairwise modes: games, matches and win rates (F17 F18 F21 and what is behind them)."""

import dataclasses
import json

import pytest
from verdicts import answered, evaluation, games, judged, question, read, slot, view

from mtbench_ray.benchmarks import grader_of
from mtbench_ray.errors import UserError
from mtbench_ray.judges.base import ScoreOptions
from mtbench_ray.judges.matches import matches
from mtbench_ray.judges.outcomes import failed_reason, outcome
from mtbench_ray.judges.pairwise import tally
from mtbench_ray.judges.prompts import builtin_prompts, load_prompts
from mtbench_ray.schema import Outcome

BASELINE, ALL = grader_of("mt_bench", "pairwise-baseline"), grader_of("mt_bench", "pairwise-all")
OPTIONS = ScoreOptions(resamples=200)
PROMPTS = load_prompts(
    "own",
    "".join(
        json.dumps(
            {"name": name, "type": "pairwise", "system_prompt": "S", "prompt_template": text}
        )
        + "\n"
        for name, text in (
            ("t1", "{question} A={answer_a} B={answer_b}"),
            ("t1-ref", "{question} R={ref_answer_1} A={answer_a} B={answer_b}"),
            (
                "t2",
                "{question_1}{question_2} A={answer_a_1},{answer_a_2} B={answer_b_1},{answer_b_2}",
            ),
            (
                "t2-ref",
                "{question_1}{question_2} {ref_answer_1},{ref_answer_2} "
                "A={answer_a_1},{answer_a_2} B={answer_b_1},{answer_b_2}",
            ),
        )
    ),
)
F18 = [
    ("model_1", "model_1"),
    ("model_1", "model_2"),
    ("tie", "model_1"),
    ("model_1", "tie"),
    ("error", "model_1"),
    ("tie", "tie"),
]


A_FIRST_THEN_B_FIRST = [("a", 81, 1, 1, "b"), ("b", 81, 1, 1, "a")]


def f18_rows():
    return [
        game for q, (g1, g2) in enumerate(F18, start=81) for game in games("a", "b", q, 1, g1, g2)
    ]


def request(model="m", opponent="base", order=1, number=1, answers=None, q=None):
    where = dataclasses.replace(
        slot(model, 81, number, order, opponent), answer_ids=(model, opponent)
    )
    answers = answers or answered(m=["m1", "m2"], base=["b1", "b2"])
    questions = {81: q or question()}
    what = view("pairwise-all", questions=questions, turns=answers, prompts=PROMPTS)
    return ALL.grade(where, what)


def test_slots():
    wanted = evaluation(opponent="base", mode="pairwise-baseline", repeats=2)
    slots = BASELINE.wanted(view("pairwise-baseline", wanted))
    assert [(s.turn, s.judge_sample, s.order) for s in slots] == [
        (number, repeat, order) for number in (1, 2) for repeat in (0, 1) for order in (1, 2)
    ]
    assert {(s.model, s.opponent, s.answer_ids) for s in slots} == {
        ("m", "base", ("m81-0", "base81-0"))
    }


def test_no_slots_for_a_model_against_itself_or_without_an_opponent():
    for opponent in ("m", None):
        wanted = evaluation(opponent=opponent, mode="pairwise-baseline")
        assert BASELINE.wanted(view("pairwise-baseline", wanted)) == []


def test_every_sample_meets_an_answer_and_a_gap_is_a_failure():
    wanted = evaluation(questions=(81, 82), opponent="base", samples=2)
    theirs = dataclasses.replace(wanted.opponent, units=wanted.opponent.units[:1])
    slots = ALL.wanted(
        view(
            "pairwise-all",
            dataclasses.replace(wanted, opponent=theirs),
            questions={81: question(81), 82: question(82)},
        )
    )
    opponents = {(s.question_id, s.sample): s.answer_ids[1] for s in slots}
    assert opponents == {
        (81, 0): "base81-0",
        (81, 1): "base81-0",
        (82, 0): "",
        (82, 1): "",
    }
    unmet = slots[-2]
    assert failed_reason(unmet, answered(**{unmet.answer_ids[0]: ["x", "y"]})) == "missing"


def test_messages_of_both_games():
    assert request(order=1).messages[1].content == "First? A=m1 B=b1"
    assert request(order=2).messages[1].content == "First? A=b1 B=m1"
    assert request(order=2, number=2).messages[1].content == "First?Second? A=b1,b2 B=m1,m2"
    with_reference = question(category="math", references=["r1", "r2"])
    assert request(q=with_reference).messages[1].content == "First? R=r1 A=m1 B=b1"


def test_pair_order_makes_no_second_match():  # F21
    one, two = request(order=1), request(order=2)
    other_one, other_two = (request("base", "m", order=order) for order in (1, 2))
    assert one.judgment_id == other_two.judgment_id != two.judgment_id == other_one.judgment_id
    assert len({made.match_id for made in (one, two, other_one, other_two)}) == 1
    assert request(number=2).match_id != one.match_id


def test_games_told_from_both_sides_are_one_match():
    told = games("a", "b", 81, 1, "model_1", "model_1")
    told += games("b", "a", 81, 1, "model_2", "model_2")
    (match,) = matches(told)
    assert (match.model, match.value) == ("a", 1.0)
    counts = tally(matches(told), "all")
    assert [(c.model, c.win, c.n) for c in counts] == [("a", 1, 1), ("b", 0, 1)]


def test_the_two_games_of_a_match_may_be_told_from_different_sides():
    shown_first = [judged(slot(*side), 1.0, "A") for side in A_FIRST_THEN_B_FIRST]
    (match,) = matches(shown_first)
    assert (match.model, match.value, match.inconsistent) == ("a", 0.5, True)
    shown_second = judged(slot(*A_FIRST_THEN_B_FIRST[1]), 0.0, "B")
    (match,) = matches([shown_first[0], shown_second])
    assert (match.model, match.value, match.inconsistent) == ("a", 1.0, False)


@pytest.mark.parametrize(
    ("order", "text", "label", "value"),
    [
        (1, "[[A]]", "A", 1.0),
        (2, "[[B]]", "B", 1.0),
        (2, "[[A]]", "A", 0.0),
        (1, "[[B]]", "B", 0.0),
        (1, "[[C]]", "tie", 0.5),
        (2, "[[C]]", "tie", 0.5),
        (2, "no", None, None),
    ],
)
def test_who_won_in_the_swapped_game(order, text, label, value):  # F17
    found = read("pairwise-all", text, "stop", PROMPTS, order)
    assert (found.label, found.value) == (label, value)
    assert found.reason == ("" if label else "no_winner")


@pytest.mark.parametrize(
    ("second", "value", "inconsistent"), [("[[B]]", 1.0, False), ("[[A]]", 0.5, True)]
)
def test_two_games_make_a_match(second, value, inconsistent):  # F17
    rows = []
    for order, text in ((1, "[[A]]"), (2, second)):
        where = slot("m", 81, 1, order, "base")
        found = read("pairwise-all", text, "stop", PROMPTS, order)
        rows.append(judged(where, found.value, found.label))
    (match,) = matches(rows)
    assert (match.value, match.inconsistent) == (value, inconsistent)


def test_equal_answers_share_one_call_and_are_read_for_each_game():
    answers = answered(m=["same", "x"], base=["same", "y"])
    one, two = request(answers=answers), request(answers=answers, order=2)
    assert one.judgment_id == two.judgment_id
    stored = judged(slot("m", 81, 1, 1, "base"), 1.0, "A", text="[[A]]").judgment
    for parity in ("safe", "fastchat"):
        rows = [
            outcome(
                view("pairwise-all", prompts=PROMPTS, parity=parity),
                slot("m", 81, 1, order, "base"),
                stored,
                "",
            )
            for order in (1, 2)
        ]
        (match,) = matches(rows, parity)
        # "A" in both games: the judge likes the first place, not the model.
        assert (match.value, match.inconsistent) == (0.5, True)


def test_ties_disagreements_and_errors():  # F18
    a, b = tally(matches(f18_rows()), "all")
    assert (a.model, a.win, a.loss, a.tie, a.n) == ("a", 1, 0, 4, 5)
    assert (a.win_rate, a.loss_rate, a.win_rate_adjusted) == (0.2, 0.0, 0.6)
    assert (b.win, b.loss, b.tie, b.win_rate, b.win_rate_adjusted) == (0, 1, 4, 0.0, 0.4)
    assert a.failed == b.failed == {"no_winner": 1}
    assert (a.inconsistent, a.inconsistent_rate, a.planned) == (3, 0.6, 6)


def test_ties_count_half():  # F18
    rows = games("a", "b", 1, 1, "model_1", "model_1") + games("a", "b", 2, 1, "model_2", "model_2")
    rows += [game for q in range(3, 101) for game in games("a", "b", q, 1, "tie", "tie")]
    (a,) = tally(matches(rows), "baseline")
    assert (a.win, a.loss, a.tie, a.win_rate_adjusted) == (1, 1, 98, 0.5)


def test_scores_of_a_baseline_mode():
    found = BASELINE.reduce([], f18_rows(), OPTIONS)
    scores = {score.metric: score for score in found if score.dimension == "all"}
    counts = {name: scores[name].mean for name in ("win", "loss", "tie", "inconsistent")}
    assert counts == {"win": 1, "loss": 0, "tie": 4, "inconsistent": 0.6}
    score = scores["win_rate_adjusted"]
    assert (score.model, score.metric, score.dimension) == ("a", "win_rate_adjusted", "all")
    assert score.mean == pytest.approx(0.6)
    assert (score.planned, score.scored, json.loads(score.failed)) == (6, 5, {"no_winner": 1})
    assert (score.mode, score.judge) == ("pairwise-baseline", "j")


def test_scores_of_all_against_all_count_for_both_sides():
    rows = [
        *games("a", "b", 81, 1, "model_1", "model_1", category="math"),
        *games("a", "c", 81, 1, "model_1", "model_1", category="math"),
        *games("b", "c", 82, 2, "model_2", "model_2"),
        *games("a", "b", 82, 2, "error", "error"),
    ]
    scores = ALL.reduce([], rows, OPTIONS)
    adjusted = [score for score in scores if score.place == ("win_rate_adjusted", "all", "")]
    assert {s.model: (s.mean, s.planned, s.scored) for s in adjusted} == {
        "a": (1.0, 3, 2),
        "b": (0.0, 3, 2),
        "c": (0.5, 2, 2),
    }
    assert [t.model for t in tally(matches(rows), "all")] == ["a", "b", "c"]
    parts = {(s.model, s.dimension, s.name): (s.mean, s.planned) for s in scores
             if s.metric == "win_rate_adjusted"}  # fmt: skip
    assert parts["a", "category", "math"] == (1.0, 2)
    assert parts["a", "category", "writing"] == (None, 1)  # its one match failed
    assert parts["b", "category", "writing"] == (0.0, 2)
    assert parts["c", "turn", "1"] == (0.0, 1)
    assert parts["c", "turn", "2"] == (1.0, 1)


def test_a_match_fails_once_with_the_first_reason():
    first, second = slot("m", 81, 1, 1, "base"), slot("m", 81, 1, 2, "base")
    rows = [Outcome(first, None, "answer_error"), judged(second, "timeout")]
    (counts,) = tally(matches(rows), "baseline")
    assert (counts.failed, counts.n, counts.win_rate) == ({"answer_error": 1}, 0, None)
    assert counts.win_rate_adjusted is counts.loss_rate is counts.inconsistent_rate is None
    (half,) = tally(matches(rows[1:]), "baseline")
    assert half.failed == {"missing": 1}
    assert BASELINE.reduce([], rows, OPTIONS)[0].mean is None


def test_duplicate_rows_count_once_in_safe_parity_and_all_in_fastchat():
    rows = [
        *games("a", "b", 81, 1, "error", "error"),
        *games("a", "b", 81, 1, "model_1", "model_1"),
        *games("a", "b", 81, 1, "model_2", "model_2"),
        *games("a", "b", 81, 1, "error", "error"),
    ]
    (safe,) = tally(matches(rows), "baseline")  # the newest valid row
    assert (safe.win, safe.loss, safe.failed) == (0, 1, {})
    (strict,) = tally(matches(rows, "fastchat"), "baseline")
    assert (strict.win, strict.loss, strict.failed) == (1, 1, {"no_winner": 2})
    # What comparisons are made of agrees with the table, in both.
    for parity, counted in (("safe", [0.0]), ("fastchat", [None, 1.0, 0.0, None])):
        options = dataclasses.replace(OPTIONS, parity=parity)
        scores = BASELINE.reduce([], rows, options)
        found = {score.metric: score.mean for score in scores if score.dimension == "all"}
        for key, column in BASELINE.measures.items():
            values = [item.value for item in BASELINE.measured(rows, column, parity)]
            assert len(values) == len(counted)
            valid = [value for value in values if value is not None]
            assert found[column.metric] == sum(valid) / len(valid), key
        assert [item.value for item in BASELINE.items(rows, parity=parity)] == counted


def test_the_rubric_cannot_compare():
    rubric = load_prompts("rubric5", builtin_prompts("rubric5"))
    where = dataclasses.replace(slot("m", 81, 1, 1, "base"), answer_ids=("m", "base"))
    with pytest.raises(UserError, match="no pairwise prompts"):
        ALL.grade(
            where,
            view("pairwise-all", turns=answered(m=["x"], base=["y"]), prompts=rubric),
        )
