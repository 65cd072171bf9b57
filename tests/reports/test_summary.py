"""What counts in a summary, and that it says what is missing."""

import json

import pytest

from mtbench_ray.cli.main import main
from mtbench_ray.reports.answer_figures import _covered
from mtbench_ray.reports.results import in_order


def test_categories_come_in_the_order_of_the_benchmark_and_others_after():
    assert in_order("mt_bench")(["own", "math", "humanities", "writing"]) == [
        "writing", "math", "humanities", "own",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("spans", "length"),
    [([], 0), ([(0, 2), (1, 3)], 3), ([(5, 6), (0, 1)], 2), ([(0, 10), (2, 3), (4, 5)], 10)],
)
def test_the_time_that_spans_cover(spans, length):
    assert _covered(spans) == length


def test_a_category_without_a_score_is_null_and_shown_as_missing(
    questions, references, tmp_path, capsys
):
    faults = "engine.fake_faults={error_on: [2, 4]}"
    code = main(
        ["model=org/m", "engine=fake", faults, f"question_path={questions}", "judge=openai",
         "judge.model=stub", "judge.base_url=http://127.0.0.1:9/v1", "stage=answers",
         f"reference_path={references}", f"workspace={tmp_path}"]
    )  # fmt: skip
    assert code == 3
    assert "answered 4/8 turns" in capsys.readouterr().err
    assert main(["model=org/m", "engine=fake", f"question_path={questions}", "judge=openai",
                 "judge.model=stub", "judge.base_url=http://127.0.0.1:9/v1", "stage=judge",
                 "judge.max_retries=0", f"reference_path={references}",
                 f"workspace={tmp_path}"]) == 3  # fmt: skip
    (result,) = json.loads((tmp_path / "summary.json").read_text())["results"]
    assert list(result["categories"]) == ["writing", "math"]
    math = result["categories"]["math"]
    assert (math["mean"], math["planned"], math["scored"]) == (None, 4, 0)
    assert math["failed"] == {"answer_error": 4}
    row = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("org/m"))
    assert "n/a" in row


def test_how_often_a_model_thought_is_told_by_turn(cli):
    def figures(*more):
        assert cli("stage=answers", "limit=2", *more) == 0
        found = cli.summary["results"][-1]["answers"]
        return found["thinking_compliance"], found["thinking_compliance_by_turn"]

    replies = "{1: ['<think>a</think>b', plain], 2: ['<think>c</think>d', '<think>e</think>f']}"
    faults = f"engine.fake_faults={{replies: {replies}}}"
    assert figures("model=org/m", "model.thinking=prompt", faults) == (0.75, {"1": 1.0, "2": 0.5})
    assert figures("model=org/other") == (None, None)


@pytest.mark.runs
@pytest.mark.parametrize("place", [0, 1, 2])
def test_of_all_against_all_a_model_that_cannot_be_loaded_says_why(cli, tmp_path, place):
    """Also the last one, which is nobody's first side."""
    (tmp_path / "empty").mkdir()
    models = ["org/a", "org/b"]
    models.insert(place, str(tmp_path / "empty"))
    assert cli("-m", f"model={','.join(models)}", "mode=pairwise-all") == 3, cli.err
    found = {result["model"]: result for result in cli.summary["results"]}
    empty = found.pop(str(tmp_path / "empty"))
    assert "empty" in empty["error"]
    assert (empty["n"], list(empty["failed"])) == (0, ["model_failed"])
    for result in found.values():
        assert result["error"] is None
        assert result["failed"] == {"model_failed": 8}
        assert result["n"] == 8
    assert cli.verb("report") == 3
    assert "model_failed" in cli.out
