"""Reading question and reference files (F73 and what users' own files hold)."""

import json

import pytest

from mtbench_ray.benchmarks import get_benchmark
from mtbench_ray.errors import UserError

BENCH = get_benchmark("mt_bench")
NAMES = {"questions": "q.jsonl", "references": "ref.jsonl"}


def lines(*rows):
    return "".join(json.dumps(row) + "\n" for row in rows)


def row(question_id, category="writing", turns=("One?", "Two?"), **more):
    return {"question_id": question_id, "category": category, "turns": list(turns), **more}


def reference(question_id, *turns):
    return {"question_id": question_id, "choices": [{"index": 0, "turns": list(turns)}]}


def read(questions, references=None):
    return BENCH.read(questions, references, NAMES)


def test_rows_become_questions():
    text = lines(row(1), row("b", "math", ["Only"], reference=["not", "shown"]))
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


def test_references_go_to_three_categories_only():
    ids = {"math": 1, "reasoning": 2, "coding": 3, "writing": 4, "stem": 5}
    questions = read(
        lines(*(row(number, category) for category, number in ids.items())),
        lines(*(reference(number, "r1", f"r2 of {number}") for number in ids.values())),
    )
    with_reference = {q.category: q.references for q in questions if q.references}
    assert with_reference == {name: ("r1", f"r2 of {ids[name]}") for name in list(ids)[:3]}


def test_one_turn_takes_one_reference():
    (question,) = read(lines(row(1, "math", ["One?"])), lines(reference(1, "r1", "r2")))
    assert question.references == ("r1",)


def test_references_of_another_question_set_are_left_out():
    (question,) = read(lines(row(1000, "math")), lines(reference(101, "r1", "r2")))
    assert question.references == ()


@pytest.mark.parametrize("torn", [lines(reference(1, "r1", "r2")), lines(reference(2, "r1"))])
def test_a_reference_file_with_a_gap_is_refused(torn):
    with pytest.raises(UserError, match=r"ref\.jsonl has no reference answer .* question"):
        read(lines(row(1, "math"), row(2, "coding")), torn)


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
