"""A second benchmark with the same graders, and two benchmarks in one workspace."""

import json

from mtbench_ray.benchmarks import get_benchmark

ONE_TURN = [
    (1, "generic", "How do I learn to whistle?"),
    (41, "fermi", "How many doors are in a town?"),
    (71, "writing", "Write a note to a neighbour."),
]


def questions(tmp_path):
    path = tmp_path / "one_turn.jsonl"
    path.write_text(
        "".join(
            json.dumps({"question_id": number, "category": category, "turns": [text]}) + "\n"
            for number, category, text in ONE_TURN
        )
    )
    return path


def test_single_turns_are_judged_and_no_second_turn_is_shown(cli, tmp_path):
    own = ("benchmark=vicuna", f"question_path={questions(tmp_path)}", "reference_path=null")
    assert cli("model=org/a", *own) == 0, cli.err
    assert cli.calls == 3
    (result,) = cli.summary["results"]
    assert (cli.summary["benchmark"], result["benchmark"]) == ("vicuna", "vicuna")
    assert (result["average"]["scored"], result["first_turn"]["scored"]) == (3, 3)
    assert "second_turn" not in result
    assert list(result["categories"]) == ["generic", "fermi", "writing"]
    assert "second turn" not in cli.out
    order = get_benchmark("vicuna").categories
    assert sorted(result["categories"], key=order.index) == list(result["categories"])


def test_two_benchmarks_in_one_workspace_are_two_tables_and_two_folders(cli, tmp_path):
    own = ("benchmark=vicuna", f"question_path={questions(tmp_path)}", "reference_path=null")
    assert cli("model=org/a") == 0, cli.err
    assert cli("model=org/a", *own) == 0, cli.err
    others = [one["benchmark"] for one in cli.summary["other_modes"]]
    assert (cli.summary["benchmark"], others) == ("vicuna", ["mt_bench"])
    assert cli.verb("report") == 0
    assert "vicuna single\n" in cli.out
    assert "mt_bench single\n" in cli.out
    assert cli.verb("report", "benchmark=vicuna") == 0
    assert "second turn" not in cli.out
    answers = {
        path.relative_to(cli.workspace).as_posix(): len(path.read_text().splitlines())
        for path in cli.workspace.rglob("model_answer/*.jsonl")
    }
    assert sorted(answers.values()) == [3, 4]
    assert any(name.startswith("vicuna/model_answer/") for name in answers)
