"""Verdicts written as JSON: found wherever they stand, of the wanted type, and never evaluated."""

import json
import time

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mtbench_ray.judges.json_verdict import boolean, only_json, read_json, whole_number

GOOD = '{"score": 7, "reason": "It is {well} put, and \\"short\\"."}'
TEN = whole_number(1, 10)
RELAXED = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
"""On a machine that others use, too."""


def score(text, finish_reason=None):
    return read_json(text, "score", TEN, finish_reason)


@pytest.mark.parametrize(
    "text",
    [
        GOOD,
        f"```json\n{GOOD}\n```",
        f"```\n{GOOD}\n```",
        f"I looked at it closely.\n\n{GOOD}\n\nThat is all.",
        f'<think>Perhaps {{"score": 3}}, or 4?</think>{GOOD}',
        f'The criterion {{"name": "clear"}} is met: {GOOD}',
        GOOD.replace("It is", "It\nis"),
        '{"score": 7.0}',
        f"{GOOD} {GOOD}",
        'A set {1, 2} and f{x}: {"score": 7}',
    ],
)
def test_a_whole_object_is_found_wherever_it_stands(text):
    assert (score(text).value, score(text).label) == (7.0, "7")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "empty"),
        (" \n", "empty"),
        ("<think>{\"score\": 7}", "empty"),
        ("<think>{\"score\": 7}</think>I would say 7.", "no_json"),
        ("Score: 7", "no_json"),
        ("{'score': 7}", "bad_json"),
        ('{"score": 7,}', "bad_json"),
        ('{"score": 7', "bad_json"),
        ('{"score": NaN}', "bad_json"),
        ('{"score": 7, "reason": "It says "no" here"}', "bad_json"),
        ('{"score": 2, "reason": "It writes "{"score": 9}" itself"}', "bad_json"),
        ('{"rating": 7}', "no_verdict"),
        ('{"score": "7"}', "wrong_type"),
        ('{"score": 7.5}', "wrong_type"),
        ('{"score": true}', "wrong_type"),
        ('{"score": null}', "wrong_type"),
        ('{"score": [7]}', "wrong_type"),
        ('{"score": 1e999}', "wrong_type"),
        ('{"score": 0}', "out_of_range"),
        ('{"score": 11}', "out_of_range"),
        ('{"score": 7} or {"score": 8}', "two_verdicts"),
        ('__import__("os").abort()', "no_json"),
    ],
)  # fmt: skip
def test_what_is_no_verdict_has_a_reason_and_no_value(text, reason):
    assert (score(text).value, score(text).reason) == (None, reason)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (f"```json\n{GOOD}\n```", 7.0),
        (GOOD, 7.0),
        (f'{GOOD} Or rather {{"sco', None),
        (f"{GOOD} On second", None),
        ('{"score": 7, "reason": "It is', None),
        ("I think", None),
    ],
)
def test_a_reply_that_was_cut_off_counts_only_where_it_was_complete(text, value):
    found = score(text, "length")
    assert (found.value, found.reason) == (value, "" if value else "truncated")


def test_a_filtered_reply_is_refused():
    assert score(GOOD, "content_filter").reason == "refused"


@pytest.mark.parametrize("value", [True, False])
def test_a_boolean_is_true_or_false_and_nothing_else(value):
    found = read_json(json.dumps({"why": "x", "met": value}), "met", boolean)
    assert (found.value, found.label) == (float(value), "true" if value else "false")
    for other in (1, 0, "true", None, [True]):
        assert read_json(json.dumps({"met": other}), "met", boolean).reason == "wrong_type"


def test_the_whole_reply_can_be_asked_to_be_the_object():
    assert only_json(GOOD) == json.loads(GOOD)
    for text in (f"So: {GOOD}", "[1]", "{'score': 7}", "", '{"a":' * 5000):
        assert only_json(text) is None


@RELAXED
@given(
    st.dictionaries(st.text(max_size=5), st.text(max_size=20) | st.integers(), max_size=4),
    st.integers(1, 10),
    st.text(alphabet='ab {}"\\:[],\n', max_size=40),
)
def test_any_object_around_the_score_is_read(more, value, reason):
    text = json.dumps({**more, "reason": reason, "score": value})
    assert score(text).value == value
    assert score(f"```json\n{text}\n```").value == value


@RELAXED
@given(st.text(alphabet='{}[]":\\,score17 e-.\n`', max_size=300))
def test_no_text_raises_and_a_value_is_on_the_scale(text):
    found = score(text)
    assert found.reason or found.value in range(1, 11)


@pytest.mark.parametrize(
    "piece", ['{"a":', '{"', '{"a":[', '{"\\"', '{"a":"', "{", '{"}', '{"a":1}', '{"score": 4} ']
)
def test_the_time_grows_with_the_length_only(piece):
    began = time.process_time()
    score(piece * (200_000 // len(piece)))
    assert time.process_time() - began < 2.0
