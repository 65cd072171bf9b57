"""Answers from other tools, and to them."""

import json

import pytest
from questions import QUESTIONS

from mtbench_ray.cli.main import main


@pytest.fixture
def run(cli, questions, tmp_path):
    """``import answers`` of some rows, with our four questions of two turns."""

    def call(*rows, model="theirs"):
        path = tmp_path / "answers.jsonl"
        path.write_text("".join(
            row if isinstance(row, str) else json.dumps(row) + "\n" for row in rows
        ))  # fmt: skip
        return cli.verb("import", "answers", str(path), "benchmark=mt_bench", f"model={model}",
                        f"question_path={questions}")  # fmt: skip

    return call


def row(number, *texts, **more):
    return {"question_id": number, "response": list(texts)} | more


WHOLE = [row(number, f"first {number}", f"then {number}") for number, _, _ in QUESTIONS]


def test_answers_by_id_and_by_prompt_are_judged_as_if_they_were_ours(run, cli):
    by_prompt = {"prompt": QUESTIONS[3][2][0], "response": ["first 4", "then 4"]}
    assert run(*WHOLE[:3], by_prompt) == 0, cli.err
    assert "4 answers to mt_bench, 4 new" in cli.out
    assert "stage=judge benchmark=mt_bench model=theirs" in cli.out
    assert cli("stage=judge", "model=theirs") == 0, cli.err
    assert cli.calls == 8
    (result,) = cli.summary["results"]
    assert (result["model"], result["average"]["scored"]) == ("theirs", 8)
    assert {turn["content"] for turn in cli.rows("answers.jsonl")} >= {"first 4", "then 4"}


def test_importing_again_adds_nothing_and_what_is_missing_is_said(run, cli):
    assert run(*WHOLE[:3]) == 0
    assert "3 answers to mt_bench, 3 new; 1 questions have none" in cli.out
    assert run(*WHOLE[:3]) == 0
    assert "3 answers to mt_bench, 0 new" in cli.out
    assert len(cli.rows("answers.jsonl")) == 6
    assert cli("stage=judge", "model=theirs") == 3
    (result,) = cli.summary["results"]
    assert (result["average"]["planned"], result["average"]["scored"]) == (8, 6)


def test_further_lines_and_lists_of_lists_are_samples(run, cli):
    first, *others = WHOLE
    again = {"question_id": 2, "response": [["a", "b"], ["c", "d"]]}
    assert run(first, row(1, "other", "text"), again, *others[1:]) == 0, cli.err
    assert "sampling.samples=2" in cli.out
    assert cli("stage=judge", "model=theirs", "sampling.samples=2", "limit=2") == 0, cli.err
    assert cli.calls == 8


def test_thinking_that_leads_is_kept_apart(run, cli):
    assert run(row(1, "<think>long</think>\nshort", "no <think> here"), *WHOLE[1:]) == 0
    kept = {
        (turn["question_id"], turn["turn"]): (turn["content"], turn["reasoning"])
        for turn in cli.rows("answers.jsonl")
    }
    assert kept[1, 1] == ("short", "long")
    assert kept[1, 2] == ("no <think> here", None)


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        ("{\n", "answers.jsonl line 2 is not JSON"),
        ("[]\n", "answers.jsonl line 2 is not a JSON object"),
        ({"response": "x"}, "line 2 names no question"),
        (row(99, "x", "y"), "line 2: question_id 99 is no question"),
        ({"prompt": "Unheard of", "response": "x"}, "line 2: prompt is of no question"),
        ({"question_id": 2}, "line 2 has no response"),
        (row(2, "x"), "line 2: response has 1 turns, question 2 has 2"),
        (row(2, "x", 5), "line 2: response must be a text"),
        ({"question_id": 2, "answer": []}, "line 2: answer is empty"),
    ],
)
def test_a_mistake_is_named_with_its_line_and_nothing_is_added(run, cli, bad, said):
    assert run(WHOLE[0], bad) == 2
    assert said in cli.err
    assert not cli.rows("answers.jsonl")


def test_what_is_exported_can_be_imported(cli, tmp_path, questions, capsys):
    assert cli("model=org/a", "sampling.samples=2") == 0, cli.err
    assert cli.verb("export", "answers", str(tmp_path / "out")) == 0, cli.err
    (path,) = (tmp_path / "out" / "mt_bench").glob("*.jsonl")
    assert cli.out.strip() == str(path)
    lines = [json.loads(text) for text in path.read_text().splitlines()]
    assert len(lines) == 8
    other = tmp_path / "other"
    assert main(["import", "answers", str(path), "benchmark=mt_bench", "model=again",
                 f"question_path={questions}", f"workspace={other}"]) == 0  # fmt: skip
    capsys.readouterr()
    theirs = [json.loads(text) for text in (other / "answers.jsonl").read_text().splitlines()]

    def texts(rows):
        return sorted((r["question_id"], r["sample"], r["turn"], r["content"]) for r in rows)

    assert texts(theirs) == texts(cli.rows("answers.jsonl"))


def test_stage_judge_takes_the_answers_to_the_benchmark_that_it_grades(run, cli, tmp_path):
    """The newest answers of a label may be to another benchmark."""
    own = tmp_path / "one_turn.jsonl"
    own.write_text(json.dumps({"question_id": 1, "category": "generic", "turns": ["Hum."]}) + "\n")
    assert run(*WHOLE) == 0
    theirs = tmp_path / "theirs.jsonl"
    theirs.write_text('{"question_id": 1, "response": "Hm."}\n')
    assert cli.verb("import", "answers", str(theirs), "benchmark=vicuna", "model=theirs",
                    f"question_path={own}") == 0, cli.err  # fmt: skip
    assert cli("stage=judge", "model=theirs") == 0, cli.err
    assert cli.calls == 8
