"""What in a judge's reply is its own verdict: one table of inputs for each kind of trap."""

from __future__ import annotations

import dataclasses
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from verdicts import judged, prompt_file, slot, view

from mtbench_ray.config import JudgeConfig
from mtbench_ray.judges.base import Reading
from mtbench_ray.judges.outcomes import outcome, read_again, sound
from mtbench_ray.judges.parse import format_examples, parse_rating, parse_winner
from mtbench_ray.judges.prompts import load_prompts
from mtbench_ray.schema import Judgment

LABELLED = {
    "Accurate. Rating: [[7]]\n\nSources: [[1]](https://e.org/a) [[2]](https://e.org/b)": 7,
    "Accurate [[1]](https://example.org/a), complete. Rating: [[7]]": 7,
    "Rating: [[7]][[1]](https://e.org)": 7,
    "Rating: [[7]]\n\n[[1]]: https://example.org/a": 7,
    "Rating: [[7]]\n\nReferences\n[[1]] Smith 2020\n[[2]] Jones 2021": 7,
    "Rating: [[7]] because [[1]] shows it": 7,
    "Rating: [[4]]\n\n`matrix([[9]])` is what it should print.": 4,
    "Rating: [[4]] and it would print `[[9]]`": 4,
    "Rating: [[4]]\n\n```python\nm = [[5]]\n```": 4,
    "Rating: [[4]]\n<pre>[[5]]</pre>": 4,
    "Rating: [[8]]\n<!-- [[3]] -->": 8,
    "Score: [[3]] style. Rating: [[7]]. Confidence score: [[9]]": 7,
    "> The answer says Rating: [[10]]\n\nRating: [[3]]": 3,
    "Rating: [[7]] - a solid answer, though [[9]] would be too much": 7,
    "Rating: [[7]], not [[9]]": 7,
    "Rating: [[7]]\n\nIf it had cited sources, it would earn Rating: [[9]].": 7,
    "Turn 1 Rating: [[6]]\nTurn 2 Rating: [[9]]": 9,
    "Rating of the second answer: [[7]]": 7,
    "My rating would be [[7]]": 7,
}
DRESSED = dict.fromkeys(
    (
        "**Rating:** [[7]]",
        "## Rating\n[[7]]",
        "Rating:\n\n[[7]]",
        "<b>Rating:</b> <b>[[7]]</b>",
        "Rating: ([[7]])",
        "Rating: [[7]] (good)",
        "Rating: [[[7]]]",
        "Rating: $\\boxed{[[7]]}$",
        "Rating: \\boxed{[[7]]}",
        "| Rating | [[7]] |\n|---|---|",
        '{"rating": "[[7]]"}',
        '```json\n{"rating": [[7]]}\n```',
        "Rating: `[[7]]`",
        "`Rating: [[7]]`",
        '"Rating: [[7]]"',
        'My verdict: "Rating: [[7]]"',
        'I rate it as follows: "Rating: [[7]]".',
        "Final rating - [[7]]",
        "Rating：[[7]]",
        "评分：[[7]]",
        "評価：［［７］］",
        "Оценка: [[7]]",
        "Bewertung: [[7]]",
        "Rating: [[7\xa0]]",
        "Rating: [[\u200b7]]",
        "Rating: [\u200b[7]]",
        "Rating: [[7]]\u200b",
        "Rating: [[7\u2009]]",
        "Rating: [[7\u2009/\u200910]]",
        "Rating: [[7️⃣]]",
        "Rating: ⟦7⟧",
        "Rating: [[7 points]]",
        "I would rate this [[7]].",
        "This is not a [[9]] but a [[7]].",
    ),
    7,
)
SCALES = {
    "Rating: [[4]]/5": None,
    "Rating: **[[4]]**/5": None,
    "Rating: [[4]] / 5 stars": None,
    "Rating: [[4]] out of 5": None,
    "Rating: [[4]] (out of 5)": None,
    "Rating: [[4]] out of five": None,
    "Rating: [[4]] on a scale of 1 to 5": None,
    "Rating: [4]/5": None,
    "Rating: [[4]]\uff0f5": None,
    "Rating: [[4]]\u20445": None,
    "Rating: [[4\uff0f5]]": None,
    "Rating: [[8]]/100": None,
    "Rating: [[8]]%": None,
    "Rating (1-5): [[4]]": None,
    "On a scale of 1 to 5, Rating: [[4]]": None,
    "Rating: [[8]], that is [[4]]/5": 8,
    "Rating: [[8]]/10": 8,
    "Rating: [[8]] / 10": 8,
    "Rating: [8]/10": 8,
    "Rating: [[8]] out of 10": 8,
    "Rating: [[8]]\uff0f10": 8,
    "Rating (1-10): [[8]]": 8,
    "Rating for turns 1-2: [[8]]": 8,
}
NONE = dict.fromkeys(
    (
        'I must keep to the form "[[rating]]", for example: "Rating: [[5]]".',
        "I should answer like this, for example: Rating: [[5]]",
        'The form is "[[rating]]" (e.g. "Rating: [[5]]")',
        "例如：[[5]]",
        "Final rating: 6/10. (I first wrote [[9]].)",
        "With sources it would be a [[9]].",
        "With sources I would give [[9]], but it has none.",
        "Rating: [[6]] for turn 1 and [[9]] for turn 2",
        "Sources: [[1]] [[2]]",
        "[[1]](https://example.org/a)",
        "[[1]]: https://example.org/a",
        "It should print `[[9]]`.",
        "<!-- Rating: [[9]] -->",
    )
)


@pytest.mark.parametrize(("text", "value"), (LABELLED | DRESSED | SCALES | NONE).items())
def test_a_rating_is_what_the_judge_labels_as_one(text, value):
    assert parse_rating(text).value == value


@pytest.mark.parametrize(
    ("text", "value"),
    {
        # stated and explained
        "My final verdict is: [[A]]\n\n[[C]] would mean a tie.": "A",
        "Verdict: [[A]]. Although [[B]] is more concise, it is wrong.": "A",
        "[[A]]\n\n[[B]] is too short.": "A",
        "[[A]] wins because [[B]] failed": "A",
        "I choose [[A]] because [[B]] is vague.": "A",
        "My final verdict is: [[B]] - it is better. [[A]] - too short.": "B",
        "The verdict is [[B]].": "B",
        "最终判定：[[B]]": "B",
        "**Final Verdict: [[C]]**": "tie",
        "Verdict: `[[A]]`": "A",
        '[["A"]]': "A",
        "[[Model_A]]": "A",
        # denied
        "[[A]], not [[B]]": "A",
        "[[A]] rather than [[B]]": "A",
        "Not [[A]] but [[B]]": "B",
        "neither [[A]] nor [[B]]: [[C]]": "tie",
        "It is not [[A]].": None,
        "I do not hesitate to say [[A]]": "A",
        # conditional
        "[[B]]. If it had been longer, [[A]] might have won.": "B",
        "Had it been complete, [[A]] would win. As it is: [[B]]": "B",
        "Verdict: [[B]]\n\nNote that [[A]] would be my choice if brevity mattered.": "B",
        # quoted, and lists of what the letters mean
        'Say "[[A]]" if assistant A is better, "[[B]]" if B is, and "[[C]]" for a tie.': None,
        "The verdict is [[A]] if A is better, [[B]] if B is better, [[C]] for a tie": None,
        "If A is better: [[A]]; if B is better: [[B]]; tie: [[C]]": None,
        "[[A]]: A is better\n[[B]]: B is better\n[[C]]: a tie": None,
        "[[A]]: A is better\n[[B]]: B is better\n[[C]]: a tie\n\nFinal verdict: [[B]]": "B",
        'The instruction says "[[A]]" if A is better. I go with [[B]].': "B",
        "The options are [[A]], [[B]], [[C]].": None,
        "Verdict: [[A]] or [[B]]": None,
        "[[A]](https://e.org)": None,
    }.items(),
)
def test_the_letter_that_the_judge_states_counts(text, value):
    assert parse_winner(text).value == value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("Sure. <think> Let me see.\nRating: [[9]]", None),
        ("The reply is fine. <think>Hm, Rating: [[9]]", None),
        ("Rating: [[4]] <think> or Rating: [[9]]", 4),
        ("The answer leaks </think> tags. Rating: [[4]]", 4),
        (
            "<|channel|>analysis<|message|>Rating: [[9]]<|end|>"
            "<|start|>assistant<|channel|>final<|message|>Rating: [[4]]<|return|>",
            4,
        ),
        ("<|channel|>analysis<|message|>Rating: [[9]]", None),
        ("analysisRating: [[9]]assistantfinalRating: [[4]]", 4),
    ],
)
def test_a_judge_is_not_read_while_it_thinks(text, value):
    assert parse_rating(text).value == value


SOURCES = st.lists(
    st.builds(
        "{}[[{}]]{}".format,
        st.sampled_from([" ", "\n", "\n- ", ", "]),
        st.integers(1, 10),
        st.sampled_from(["(https://e.org/a)", "(http://e.org)", "(#ref)", "(/a/b.html)"]),
    ),
    max_size=6,
).map("".join)


@given(st.integers(1, 10), SOURCES, st.sampled_from(["", "\n\nSources:", " See"]))
def test_a_list_of_sources_never_changes_a_labelled_rating(rating, sources, head):
    assert parse_rating(f"Fine. Rating: [[{rating}]]{head}{sources}").value == rating


@given(st.sampled_from("AB"), st.text(st.characters(exclude_characters="[]`<"), max_size=80))
def test_code_and_comments_never_change_a_labelled_winner(letter, text):
    for after in (f"\n\n```\n{text} [[C]]\n```", f"\n<!-- {text} [[C]] -->", "\n`[[C]]`"):
        assert parse_winner(f"Verdict: [[{letter}]]{after}").value == letter


def test_repeated_instructions_are_known_by_the_prompt_in_any_language():
    template = "Beurteile die Antwort und schliesse mit einer Zeile in dieser Form: Rating: [[3]]"
    examples = format_examples((template,))
    echo = "Ich schliesse mit einer Zeile in dieser Form: Rating: [[3]]"
    assert parse_rating(echo, examples=examples).value is None
    assert parse_rating("Gut gelungen. Rating: [[3]]", examples=examples).value == 3
    assert parse_rating(f"{echo}\nRating: [[8]]", examples=examples).value == 8


def stored(text, value, source="run"):
    row = judged(slot(), value, text=text, source=source).judgment
    assert isinstance(row, Judgment)
    return row


def test_other_thinking_tags_are_read_in_the_stored_text_without_a_call():
    usual = view(prompts=load_prompts("own", prompt_file()))
    tags = {"thinking_open": "[T]", "thinking_close": "[/T]"}
    tagged = dataclasses.replace(usual, judge=JudgeConfig(model="j", **tags))
    row = stored("Rating: [[2]] [T]or Rating: [[9]]", 9.0)
    assert read_again(usual, row).value == 9
    assert read_again(tagged, row).value == 2
    assert outcome(tagged, slot(), row, "").judgment.value == 2
    # what was imported in safe parity is read by the import
    imported = stored("Rating: [[2]]", 9.0, source="import")
    assert read_again(usual, imported) is imported


def test_json_replies_are_read():
    for reply in ({"reason": "good", "rating": "[[7]]"}, {"Rating": "[[7]]", "sure": "[[1]]"}):
        assert parse_rating(json.dumps(reply)).value == 7
        assert parse_rating(json.dumps(reply, indent=2)).value == 7


@pytest.mark.parametrize("status", ["refused", "error", "context_overflow"])
def test_what_a_refusal_quotes_never_counts(status):
    usual = view(prompts=load_prompts("own", prompt_file()))
    row = dataclasses.replace(
        stored("Rating: [[7]] but the", "content_filter"), status=status, value=None
    )
    assert read_again(usual, row).value is None
    assert outcome(usual, slot(), row, "").reason == "content_filter"


@pytest.mark.parametrize("value", [float("nan"), float("inf"), None])
def test_a_reading_without_a_number_is_no_score(value):
    found = sound(Reading("x", value, "ok"))
    assert (found.value, found.status, found.reason) == (None, "unparsed", "no_value")
    assert sound(Reading("7", 7.0, "unparsed", "odd")).value is None
    good = Reading("7", 7.0, "ok")
    assert sound(good) is good
