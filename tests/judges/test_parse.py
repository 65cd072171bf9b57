"""Field cases of judge replies (F04 F15 F22 F25 F28 F34 F52 F76) and what is behind each."""

import time
import timeit

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mtbench_ray.judges.parse import outside_thinking, parse_rating, parse_winner

DRESSED = [  # F25
    "**Rating: [[7]]**",
    "Rating: **[[7]]**",
    "Rating: [[**7**]]",
    "Rating: [[ 7 ]]",
    "[[rating: 7]]",
    "[[Rating: 7]]",
    "Rating: \\[\\[7\\]\\]",
    "```\nRating: [[7]]\n```",
    "rating:[[7]]",
    "Rating: [[7]]\r\n",
    "Rating: [[7.]]",
    "Rating: [[7]]/10",
    "Rating: [[7/10]]",
    "Rating: [[7 out of 10]]",
    "Rating: [[_7_]]",
    "Rating: $[[7]]$",
    "[[**Rating:** 7]]",
    "Final rating:[[7]].",
    "Rating: [7]",
    "**Rating:** **[7]**",
    "The rating is [7]",
    "Rating: [[7]",
    "Rating: [ [7] ]",
]


@pytest.mark.parametrize("text", DRESSED)
def test_a_dressed_up_number_is_read(text):
    assert parse_rating(text).value == 7
    assert parse_rating(text, "length").value == 7


@pytest.mark.parametrize(
    ("text", "value", "label"),
    [
        # F04, F34: the last one is the verdict
        ('It printed "Rating: [[10]]" about itself, so what. Rating: [[2]]', 2, "2"),
        ("With a source this is a [[9]], but there is none. Rating: [[4]]", 4, "4"),
        ("First turn: [[6]]. The second is better. Rating: [[9]]", 9, "9"),
        ("Rating: [[4]] ... thinking again: Rating: [[6]]", 6, "6"),
        ("I would say [[9]] were it true. Rating: [4]", 4, "4"),
        # F15: the edges of the scale
        ("Rating: [[1]]", 1, "1"),
        ("Rating: [[10]]", 10, "10"),
        ("Rating: [[10.0]]", 10, "10.0"),
        # F22: an index beside the rating
        ("a[0] is read before a[5]. Rating: [[3]]", 3, "3"),
        ("Rating: [[3]]. The code reads x[[9]] twice.", 3, "3"),
        # F52
        ("Rating: [[08]]", 8, "8"),
        ("Rating: [[8.]]", 8, "8.0"),
        ("Rating: [[8.5]]", 8.5, "8.5"),
        # F76: side by side is not a choice; the last one counts
        ("Rating: [[8]][[9]]", 9, "9"),
        ("Rating: [[8]] or [[8]]", 8, "8"),
        ("Rating: [[\uff17]]", 7, "7"),
    ],
)
def test_the_last_rating_is_taken(text, value, label):
    verdict = parse_rating(text)
    assert (verdict.value, verdict.label, verdict.reason) == (value, label, "")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        # F15: never clamped, never another number
        ("Rating: [[85]]", "out_of_range"),
        ("Rating: [[0]]", "out_of_range"),
        ("Rating: [[11]]", "out_of_range"),
        ("Rating: [[-3]]", "out_of_range"),
        ("Rating: [[10.5]]", "out_of_range"),
        ("Good. Rating: [[5]]. In percent: Rating: [[50]]", "out_of_range"),
        # F22
        ("As [1] says, this is wrong. Rating: 3", "no_rating"),
        ("arr[3] runs over the end; no grade from me.", "no_rating"),
        ("m[[3]] runs over the end; no grade from me.", "no_rating"),
        ("The operating[4] system", "no_rating"),
        # F28
        ("Sorry, that is something I can't do.", "no_rating"),
        ("", "empty"),
        ("   \n", "empty"),
        (None, "empty"),
        ("It is an acceptable answer.", "no_rating"),
        # F52
        ("Rating: [[8.5.1]]", "no_rating"),
        # F76
        ("Rating: [[7-8]]", "no_rating"),
        ("Rating: [7-8]", "no_rating"),
        ("Rating: [[N/A]]", "no_rating"),
        ("Rating: [[?]]", "no_rating"),
        ("Rating: 7 or 8", "no_rating"),
        ("Rating: [[7]] or [[8]]", "no_rating"),
        ("Rating: [[7]] - [[8]]", "no_rating"),
        ("Rating: [[rating]]", "no_rating"),
        ("Rating: [[7/20]]", "no_rating"),
        ("Rating: [[7, 8]]", "no_rating"),
        ("Rating: [[7%]]", "no_rating"),
    ],
)
def test_what_is_no_rating_has_a_reason(text, reason):
    verdict = parse_rating(text)
    assert (verdict.value, verdict.reason) == (None, reason)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("<think>maybe [[9]]</think>Rating: [[4]]", 4),
        ("Rating: [[4]] <think>was [[9]] better?</think>", 4),
        ("maybe [[9]]</think>Rating: [[4]]", 4),
        ("maybe Rating: [[9]]</think> No.", None),
        ("<think>Rating: [[9]]", None),
        ("Rating: [[9]] <think>no</think> wait</think> No.", None),
        ("Rating: [[4]]\n<think>or Rating: [[9]]", 4),
        ("Quotes `</think>` and `<think>` badly. Rating: [[3]]", 3),
        ("Rating: [[3]], as `</think>` is in the text.", 3),
        ("<think>it wrote `</think>`, so [[9]]</think>Rating: [[2]]", 2),
    ],
)
def test_thinking_is_not_read(text, value):
    assert parse_rating(text).value == value


def test_the_judge_may_have_other_tags():
    text = "[THINK]Rating: [[9]][/THINK]Rating: [[4]] [THINK]or Rating: [[5]]"
    assert parse_rating(text, thinking=("[THINK]", "[/THINK]")).value == 4
    assert parse_rating(text).value == 5
    assert outside_thinking("a<think>b</think>c", ("", "")) == "a<think>b</think>c"


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("Reasons. Rating: [[7]]", 7),
        ("Reasons. **Rating: [[7]]**.\n", 7),
        ("Reasons. Rating: [[7]]" + "\n " * 100_000, 7),
        ("Reasons. Rating: [[7]]" + "\n " * 100_000 + "x", None),
        ("I might say [[9]], but the", None),
        ("Rating: [[7]]. The first sentence of the ans", None),
        ("Reasons that never", None),
        ("", None),
        ("<think>Rating: [[7]]", None),
    ],
)
def test_a_reply_that_was_cut_off_counts_only_where_it_ends_with_the_rating(text, value):
    verdict = parse_rating(text, "length")
    assert (verdict.value, verdict.reason) == (value, "" if value else "truncated")


def test_a_filtered_reply_is_refused():
    assert parse_rating("", "content_filter").reason == "refused"
    assert parse_winner("I stop he", "content_filter").reason == "refused"


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("<feedback>Fine.</feedback>\n<score>4</score>", 4),
        ("<score>2</score> no: <score> **4.5** </score>", 4.5),
        ("<SCORE>[[4]]</SCORE>", 4),
        ("<score>4/5</score>", 4),
        ("<think><score>5</score></think><score>1</score>", 1),
        ("<score>6</score>", None),
        ("<score>4/10</score>", None),
        ("<score>4-5</score>", None),
        ("<score>4", None),
        ("Rating: [[4]]", None),
    ],
)
def test_scores_in_tags(text, value):
    for parity in ("safe", "fastchat"):
        assert parse_rating(text, parity=parity, scale=(1, 5), style="tags").value == value
    cut_off = parse_rating("<x><score>4</score></x>", "length", scale=(1, 5), style="tags")
    assert cut_off.value == 4


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('It printed "Rating: [[10]]". Rating: [[2]]', 10),
        ("arr[3] runs over the end.", 3),
        ("Rating: [[0]]", 0),
        ("Rating: [[85]]", 85),
        ("Rating: [[8.]]", 8),
        ("Rating: [[08]]", None),
        ("Rating: [[08.5]]", 8.5),
        ("Rating: [[\uff17]]", None),
        ("Rating: [[8]", 8),
        ("Rating: [[8/10]]", None),
        ("Rating: [[ 8 ]]", None),
        ("<think>[[9]]</think>[[4]]", 9),
        ("[[" + "9" * 400 + "]]", None),
        ("[[" + "9" * 5000 + "]]", None),
        ("$ERROR$", None),
    ],
)
def test_parity_fastchat_is_fastchat(text, value):
    verdict = parse_rating(text, parity="fastchat")
    assert verdict.value == value
    assert (verdict.reason == "") == (value is not None)


@pytest.mark.parametrize(
    ("text", "safe", "fastchat"),
    [
        ("Verdict: [[A]]", "A", "A"),
        ("Verdict: [[B]]", "B", "B"),
        ("Verdict: [[C]]", "tie", "tie"),
        ("Not [[A]], after all [[B]]", "B", "A"),
        ("Verdict: [[ B ]]", "B", None),
        ("Verdict: [[**B**]]", "B", None),
        ("Verdict: \\[\\[B\\]\\]", "B", None),
        ("Verdict: [[Assistant B]]", "B", None),
        ("Verdict: [[tie]]", "tie", None),
        ("Verdict: [[A]] or [[B]]", None, "A"),
        ("Verdict: [[A/B]]", None, None),
        ("Verdict: [[a]]", None, None),
        ("Verdict: [B]", None, None),
        ("<think>[[A]]</think> [[B]]", "B", "A"),
        ("<think>[[A]]", None, "A"),
        ("B is better", None, None),
        ("", None, None),
        (None, None, None),
    ],
)
def test_winners(text, safe, fastchat):
    for parity, value in (("safe", safe), ("fastchat", fastchat)):
        verdict = parse_winner(text, parity=parity)
        assert verdict.value == value
        assert (verdict.reason == "") == (value is not None)


def test_a_winner_that_was_cut_off():
    assert parse_winner("So: [[A]]", "length").value == "A"
    assert parse_winner("At first [[A]] looks good, but then", "length").reason == "truncated"


PIECES = ["[", "]", "[[", "]]", "7", "A", "Rating: ", " ", "*", "\\", ".", "<think>", "</think>"]
PIECES += ["<score>", "</score>", "or", "-", "/10", "`", "\ud800", "\uff17", "\u0665", "\x00"]


@given(
    st.one_of(
        st.text(st.characters(exclude_categories=())),
        st.lists(st.sampled_from(PIECES), max_size=60).map("".join),
    ),
    st.sampled_from([None, "stop", "length", "content_filter"]),
    st.sampled_from(["brackets", "tags"]),
)
def test_no_text_raises_or_gives_a_rating_off_the_scale(text, finish_reason, style):
    for parity in ("safe", "fastchat"):
        rating = parse_rating(text, finish_reason, parity, style=style)
        winner = parse_winner(text, finish_reason, parity)
        assert (rating.reason == "") == (rating.value is not None)
        assert (winner.reason == "") == (winner.value in ("A", "B", "tie"))
    safe = parse_rating(text, finish_reason, style=style)
    assert safe.value is None or 1 <= safe.value <= 10


@given(st.integers(1, 10), st.text(st.characters(exclude_characters="[]<>"), max_size=200))
def test_a_rating_at_the_end_is_found_after_any_text(rating, text):
    assert parse_rating(f"{text}\nRating: [[{rating}]]").value == rating


HEAVY = ["[", "[[", "[[7]]", "[[x]]", "[[1", "1", "rating ", "Rating: [", "[[7]] or ", "<think>"]
HEAVY += ["</think>", "<score>", "\\[", " ", "\ud800", "[[A]]", "[[ * ", "`<think>`", "]"]


@pytest.mark.runs  # as long as a run, in sum
@pytest.mark.parametrize("piece", HEAVY)
def test_a_megabyte_takes_less_than_a_second(piece):
    text = "[[" + piece * (1_000_000 // len(piece))
    for parity in ("safe", "fastchat"):
        for call in (
            lambda parity=parity: parse_rating(text, "length", parity),
            lambda parity=parity: parse_rating(text, "length", parity, style="tags"),
            lambda parity=parity: parse_winner(text, "length", parity),
        ):
            # The best of three: other work on the machine is not the parser's.
            assert any(timeit.timeit(call, timer=time.process_time, number=1) < 1 for _ in "123")


JOINS = ["out of", "of", "/", ">", ">>", "=", "vs.", "versus", "is better than", "beats", "over"]
JOINS += ["and", "to", "is slightly worse than", "≻", "->"]


@pytest.mark.parametrize("join", JOINS)
def test_a_comparison_of_two_verdicts_is_none(join):
    assert parse_rating(f"Rating: [[7]] {join} [[10]]").reason == "no_rating"
    assert parse_winner(f"So [[A]] {join} [[B]]").reason == "no_winner"
    assert parse_winner(f"**[[B]]** {join} **[[A]]** {join} [[C]]").reason == "no_winner"
    assert parse_rating(f"[[7]] {join} [[10]], so Rating: [[7]]").value == 7


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("It opens a <think> tag that it never closes. Rating: [[1]]", 1),
        ("The reply shows its <think>-block. Rating: [[2]]", 2),
        ("Both '<think>' and <think>, unclosed.\nRating: [[3]]", 3),
        ("A <think> tag and its </think> are shown. Rating: [[4]]", 4),
        ("<think>it shows a <think> tag, so [[9]]", None),
        ("I see.\n<think> or Rating: [[9]]", None),
        ("Rating: [[4]] <think>", 4),
    ],
)
def test_an_opening_tag_in_a_sentence_is_only_talked_about(text, value):
    assert parse_rating(text).value == value
