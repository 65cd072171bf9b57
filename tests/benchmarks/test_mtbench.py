"""Reading question and reference files (F73 and what users' own files hold)."""

import json

import pytest

from mtbench_ray.benchmarks import get_benchmark
from mtbench_ray.benchmarks.base import Official
from mtbench_ray.errors import UserError

BENCH = get_benchmark("mt_bench")
NAMES = {"questions": "q.jsonl", "references": "ref.jsonl"}


def lines(*rows):
    return "".join(json.dumps(row) + "\n" for row in rows)


def row(question_id, category="writing", turns=("One?", "Two?"), **more):
    return {"question_id": question_id, "category": category, "turns": list(turns), **more}


def reference(question_id, *turns):
    return {"question_id": question_id, "choices": [{"index": 0, "turns": list(turns)}]}


OFFICIAL = Official(
    lines(
        row(101, "math", ["Official one?", "Two?"], reference=["short", ""]),
        row(102, "coding", ["Official code?", "More?"]),
        row(103, "writing", ["Official poem?", "More?"], reference=["not", "shown"]),
    ),
    lines(reference(101, "o1", "o2"), reference(102, "c1", "c2")),
)


def read_set(questions, references=None):
    return BENCH.read(questions, references, NAMES, lambda: OFFICIAL)


def read(questions, references=None):
    return read_set(questions, references).questions


def test_rows_become_questions():
    text = lines(row(1), row("b", "math", ["Only"]))
    one, other = read(text)
    assert (one.question_id, one.category, one.turns) == (1, "writing", ("One?", "Two?"))
    assert (one.group, one.references, one.benchmark) == ("1", (), "mt_bench")
    assert (other.question_id, other.turns, other.references) == ("b", ("Only",), ())
    assert one.revision == other.revision
    assert read(lines(row(1)))[0].revision != one.revision


def test_bom_crlf_blank_lines_and_line_separators_are_fine():
    odd = "a\u2028b\x85c"
    text = "\ufeff" + json.dumps(row(1, turns=[odd]), ensure_ascii=False) + "\r\n\r\n  \n"
    (question,) = read(text + json.dumps(row(2)))[:1]
    assert question.turns == (odd,)


@pytest.mark.parametrize(
    ("category", "temperature"),
    [
        ("writing", 0.7),
        ("roleplay", 0.7),
        ("reasoning", 0.0),
        ("math", 0.0),
        ("coding", 0.0),
        ("extraction", 0.0),
        ("stem", 0.1),
        ("humanities", 0.1),
        ("arena-hard-200", 0.0),
        ("cooking", 0.7),
    ],
)
def test_temperature_by_category(category, temperature):
    (question,) = read(lines(row(1, category)))
    assert BENCH.temperature(question) == temperature


def test_a_question_may_bring_its_temperature():
    (question,) = read(lines(row(1, required_temperature=0)))
    assert BENCH.temperature(question) == 0.0


def test_a_reference_file_is_shown_in_every_category():
    questions = read(
        lines(row(1, "math"), row(4), row(5, "stem")),
        lines(reference(1, "r1", "r2"), reference(4, "w1", "w2")),
    )
    assert [q.references for q in questions] == [("r1", "r2"), ("w1", "w2"), ()]


def test_one_turn_takes_one_reference():
    (question,) = read(lines(row(1, "math", ["One?"])), lines(reference(1, "r1", "r2")))
    assert question.references == ("r1",)


def test_an_official_reference_belongs_to_the_official_text_whatever_its_number():
    found = read_set(
        lines(
            row(101, "math", ["Own sum?", "More?"]),
            row(7, "coding", ["Official code?", "More?"]),
            row(500, "math", ["Own too?", "More?"]),
        )
    )
    assert [q.references for q in found.questions] == [(), ("c1", "c2"), ()]
    assert found.from_official
    assert not found.faults
    assert "math is judged without one" in found.notes[101]
    assert set(found.notes) == {101, 500}


def test_the_official_file_is_read_as_fastchat_does():
    found = read_set(OFFICIAL.questions)
    assert [q.references for q in found.questions] == [("o1", "o2"), ("c1", "c2"), ()]
    assert (found.notes, found.faults) == ({}, {})


def test_no_official_reference_is_looked_up_where_none_can_matter():
    def unreachable():
        raise AssertionError

    BENCH.read(lines(row(1), row(2, "stem")), None, NAMES, unreachable)
    BENCH.read(lines(row(1, "math")), lines(reference(1, "a", "b")), NAMES, unreachable)


@pytest.mark.parametrize("category", ["writing", "math", "cooking"])
def test_the_reference_of_a_row_is_used(category):
    text = lines(
        row(1, category, reference=["a", "b"]),
        row(2, category, ["Only"], reference="a"),
        row(3, category, ["Official one?", "Two?"], reference=["mine", "too"]),
    )
    assert [q.references for q in read(text)] == [("a", "b"), ("a",), ("mine", "too")]


@pytest.mark.parametrize("torn", [["a"], ["a", ""], ["a", " "], ["$ERROR$", "b"]])
def test_a_reference_of_a_row_that_is_not_of_every_turn_is_left_out_and_told(torn):
    found = read_set(lines(row(1, reference=torn)))
    assert found.questions[0].references == ()
    assert "not of every turn" in found.notes[1]


def test_a_reference_file_goes_before_the_reference_of_a_row():
    found = read_set(
        lines(row(1, reference=["a", "b"]), row(2, reference=["c", "d"])),
        lines(reference(1, "r1", "r2")),
    )
    assert [q.references for q in found.questions] == [("r1", "r2"), ("c", "d")]
    assert found.from_file


@pytest.mark.parametrize("text", ["", "\n", lines(reference(101, "r1", "r2"))])
def test_a_reference_file_that_fits_no_question_is_an_error(text):
    with pytest.raises(UserError, match=r"ref\.jsonl holds no reference answer to any"):
        read(lines(row(1000, "math")), text)


@pytest.mark.parametrize(
    "torn",
    [
        lines(reference(1, "r1", "r2")),
        lines(reference(1, "r1", "r2"), reference(2, "r1")),
        lines(reference(1, "r1", "r2"), reference(2, "r1", "")),
        lines(reference(1, "r1", "r2"), reference(2, "$ERROR$", "r2")),
    ],
)
def test_a_gap_in_a_reference_file_is_a_fault_of_that_question_alone(torn):
    found = read_set(lines(row(1, "math"), row(2, "coding")), torn)
    assert set(found.faults) == {2}
    assert "ref.jsonl has no reference answer" in found.faults[2].message
    assert found.questions[1].references == ()


def test_an_id_in_quotes_or_of_pandas_is_the_same_id():
    text = lines(row("101", "math", ["A", "B"]), row(81.0), row("007"), row("one"))
    questions = read(text, lines(reference(101.0, "a", "b")))
    assert [q.question_id for q in questions] == [101, 81, "007", "one"]
    assert questions[0].references == ("a", "b")
    with pytest.raises(UserError, match="question 1 comes twice"):
        read(lines(row("1"), row(1)))


def test_categories_compare_without_case():
    questions = read(
        lines(row(1, "Math"), row(2, " WRITING"), row(3, "Cooking"), row(4, "cooking")),
        lines(reference(1, "a", "b")),
    )
    assert [q.category for q in questions] == ["math", "writing", "Cooking", "Cooking"]
    assert BENCH.temperature(questions[0]) == 0.0


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no questions"),
        ("[1]\n", "line 1 is not a JSON object"),
        (lines(row(1)) + '{"question_id": 2, "cat', "line 2 is not JSON"),
        (lines(row(1), row(2), row(1)), "line 3: question 1 comes twice"),
        (lines(row(1, turns=[])), "question 1 has 0 turns"),
        (lines(row(1, turns=["a", "b", "c"])), "question 1 has 3 turns"),
        (lines(row(1, turns=["a", 2])), "turns must be a list of texts"),
        (lines(row(None)), "question_id must be"),
        (lines(row(True)), "question_id must be"),
        (lines(row(81.5)), "question_id must be a whole number or a text"),
        (lines(row(1, reference=[1])), "reference must be a list of texts"),
        (lines(row(1, category=3)), "category must be"),
        (lines(row(1, required_temperature="hot")), "required_temperature must be"),
    ],
)
def test_a_bad_question_file_is_named_with_its_line(text, message):
    with pytest.raises(UserError, match=message) as caught:
        read(text)
    assert "q.jsonl" in caught.value.message


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (lines({"question_id": 1}), "line 1: choices"),
        (lines({"question_id": 1, "choices": [{"turns": "x"}]}), "line 1: turns must be"),
        (lines(reference(1, "a", "b"), reference(1, "a", "b")), "line 2: question 1 comes twice"),
    ],
)
def test_a_bad_reference_file_is_named_with_its_line(text, message):
    with pytest.raises(UserError, match=message) as caught:
        read(lines(row(1, "math")), text)
    assert "ref.jsonl" in caught.value.message


def test_an_unknown_benchmark_names_the_nearest():
    with pytest.raises(UserError, match="mt-bench") as caught:
        get_benchmark("mt-bench")
    assert "mt_bench" in caught.value.hint
