"""Agreement of judges with each other and with people."""

import math

import pytest
from verdicts import games, items, judged, rated, slot

from mtbench_ray.errors import UserError
from mtbench_ray.judges.agreement import (
    Rated,
    Vote,
    agreement,
    load_votes,
    match_votes,
    value_agreement,
    values_of,
)
from mtbench_ray.judges.matches import matches


def vote(winner, q=81, number=1, pair=("a", "b"), judge="j"):
    return Vote(q, number, *pair, winner, judge)


def given(*values, answers=()):
    return {number: Rated(value, answers) for number, value in enumerate(values)}


def table(results):
    return {(r.turn, r.ties): (r.agree, r.total) for r in results}


def test_votes_meet_whichever_model_stands_first():
    one = [vote("a"), vote("b", q=82), vote("tie", q=83)]
    other = [vote("a", pair=("b", "a")), vote("a", q=82), vote("a", q=83), vote("a", q=99)]
    assert table(agreement(one, other)) == {(1, True): (1, 3), (1, False): (1, 2)}


def test_turns_are_apart_and_every_vote_of_a_group_counts():
    one = [vote("a"), vote("tie", number=2)]
    other = [vote("a"), vote("b"), vote("tie"), vote("tie", number=2)]
    results = agreement(one, other)
    assert table(results) == {
        (1, True): (1, 3),
        (1, False): (1, 2),
        (2, True): (1, 1),
        (2, False): (0, 0),
    }
    assert [r.ratio for r in results] == [1 / 3, 1 / 2, 1.0, None]


def test_one_group_is_compared_among_itself():
    votes = [vote("a"), vote("a"), vote("b"), vote("tie"), vote("a", q=82)]
    assert table(agreement(votes)) == {(1, True): (1, 6), (1, False): (1, 3)}


def test_votes_from_json():
    row = {"question_id": 81, "model_a": "a", "model_b": "b", "turn": 1}
    votes = load_votes(
        [
            row | {"winner": "model_b", "judge": ["gpt-4", "pair-v2"]},
            row | {"winner": "tie (inconsistent)", "judge": "expert_3"},
            row | {"winner": "model_a", "judge": "author_0"},
            row | {"winner": "tie", "judge": "gpt4_pair"},
        ],
        "v.json",
    )
    assert [(v.winner, v.judge) for v in votes] == [
        ("b", "gpt-4"),
        ("tie", "human"),
        ("a", "author"),
        ("tie", "gpt4_pair"),
    ]


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ({"question_id": 81}, "v.json is not a JSON array"),
        ([3], "v.json: vote 1 lacks question_id"),
        ([{"question_id": 81, "model_a": "a"}], "vote 1 lacks model_b, winner, judge, turn"),
        (
            [
                dict.fromkeys(("model_a", "model_b", "judge", "winner"), "a")
                | {"question_id": 81, "turn": 1}
            ],
            "vote 1 has the winner 'a'",
        ),
    ],
)
def test_a_row_that_is_no_vote_is_named(rows, message):
    with pytest.raises(UserError, match=message):
        load_votes(rows, "v.json")


def test_matches_as_votes():
    rows = [
        *games("a", "b", 81, 1, "model_1", "model_1"),
        *games("a", "b", 82, 1, "model_2", "model_2"),
        *games("a", "b", 83, 1, "model_1", "model_2"),
        *games("a", "b", 84, 1, "error", "tie"),
    ]
    votes = match_votes(matches(rows), "mine")
    assert [(v.question_id, v.winner, v.judge) for v in votes] == [
        (81, "a", "mine"),
        (82, "b", "mine"),
        (83, "tie", "mine"),
    ]


def test_ratings_of_two_judges():
    first, second = (
        values_of(items([rated("m", q, 1, float(v)) for q, v in pairs]))
        for pairs in (((1, 2), (2, 4), (3, 6), (4, 6)), ((1, 2), (2, 3), (3, 9), (5, 1)))
    )
    result = value_agreement(first, second)
    assert (result.n, result.exact, result.mean_difference) == (3, 1 / 3, pytest.approx(-2 / 3))
    assert result.spearman == pytest.approx(1)
    # by hand: deviations -2, 0, 2 and -8/3, -5/3, 13/3
    assert result.pearson == pytest.approx(14 / math.sqrt(8 * 258 / 9))


def test_ranks_share_ties():
    a = given(1.0, 2.0, 2.0, 3.0)
    b = given(1.0, 2.0, 3.0, 4.0)
    # ranks 1, 2.5, 2.5, 4 and 1, 2, 3, 4
    assert value_agreement(a, b).spearman == pytest.approx(4.5 / math.sqrt(4.5 * 5))


def test_repeats_are_averaged_and_failures_left_out():
    rows = [rated("m", 1, 1, 8.0), rated("m", 1, 1, 9.0, repeat=1), rated("m", 2, 1, "no_rating")]
    assert values_of(items([*rows, judged(slot(q=3), "timeout")])) == {
        ("m", 1, 1, "", 0): Rated(8.5, ("m-1",))
    }


def test_ratings_of_other_answers_are_not_compared():
    one = given(1.0, 2.0, 3.0, answers=("x",))
    assert value_agreement(one, given(1.0, 2.0, 3.0, answers=("y",))).n == 0
    assert value_agreement(one, given(1.0, 2.0, answers=("x",))).n == 2
    # An import does not say which answers they were.
    assert value_agreement(one, given(1.0, 2.0)).n == 2


@pytest.mark.parametrize(
    "odd", [{"model_a": None}, {"question_id": [81]}, {"turn": "1"}, {"model_b": 3}]
)
def test_a_vote_of_odd_types_is_named(odd):
    row = {"question_id": 81, "model_a": "a", "model_b": "b", "turn": 1, "winner": "tie",
           "judge": "j"}  # fmt: skip
    with pytest.raises(UserError, match=r"vote 2 has the"):
        load_votes([row, row | odd], "votes.json")


def test_nothing_to_compare_is_none():
    nothing = value_agreement(given(5.0), {})
    assert (nothing.n, nothing.exact, nothing.pearson, nothing.spearman) == (0, None, None, None)
    constant = value_agreement(given(5.0, 5.0), given(4.0, 6.0))
    assert (constant.n, constant.exact, constant.pearson) == (2, 0.0, None)
    assert agreement([], []) == []
