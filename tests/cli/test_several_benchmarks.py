"""``benchmark=[a,b]``: a job for each benchmark, and settings of one of them."""

import json

import pytest
from command import composed

from mtbench_ray.cli.main import main


def jobs(configs):
    return [(config.model.path, config.benchmark.name, config.limit) for config in configs]


@pytest.mark.parametrize("typed", ["[mt_bench,ifeval]", "mt_bench,ifeval", "[mt_bench, ifeval]"])
def test_a_list_is_a_job_for_each(monkeypatch, tmp_path, typed):
    found = composed(monkeypatch, tmp_path, f"benchmark={typed}", "limit=3")
    assert jobs(found) == [("org/m", "mt_bench", 3), ("org/m", "ifeval", 3)]
    assert {config.judge.kind for config in found} == {"none"}
    assert all(config.benchmarks == [] for config in found)


def test_it_may_be_swept_with_models(monkeypatch, tmp_path):
    line = ("-m", "model=org/a,org/b", "benchmark=[mt_bench,ifeval]")
    found = composed(monkeypatch, tmp_path, *line, model=False)
    assert jobs(found) == [
        (model, name, None) for model in ("org/a", "org/b") for name in ("mt_bench", "ifeval")
    ]


def test_a_sweep_over_benchmarks_is_the_same_jobs(monkeypatch, tmp_path):
    found = composed(monkeypatch, tmp_path, "-m", "benchmark=mt_bench,ifeval")
    assert jobs(found) == [("org/m", "mt_bench", None), ("org/m", "ifeval", None)]


def test_a_setting_of_one_benchmark_is_for_its_jobs_alone(monkeypatch, tmp_path):
    found = composed(
        monkeypatch, tmp_path, "benchmark=[mt_bench,ifeval]", "limit=9",
        "benchmark.ifeval.limit=2", "benchmark.ifeval.sampling.max_tokens=77",
        "benchmark.mt_bench.question_path=/data/a=b.jsonl", "benchmark.mt_bench.judge=gpt-4o",
    )  # fmt: skip
    mine, checked = found
    assert (mine.limit, checked.limit) == (9, 2)
    assert (mine.sampling.max_tokens, checked.sampling.max_tokens) == (None, 77)
    assert (mine.question_path, checked.question_path) == ("/data/a=b.jsonl", None)
    assert (mine.judge.model, checked.judge.kind) == ("gpt-4o", "none")


def test_a_setting_of_a_benchmark_that_is_not_run_changes_nothing(monkeypatch, tmp_path):
    (found,) = composed(monkeypatch, tmp_path, "benchmark=ifeval", "benchmark.mt_bench.limit=2")
    assert (found.benchmark.name, found.limit) == ("ifeval", None)
    (found,) = composed(monkeypatch, tmp_path, "benchmark=ifeval", "benchmark.ifeval.limit=2")
    assert found.limit == 2


def test_the_preset_runs_three_benchmarks(monkeypatch, tmp_path):
    found = composed(monkeypatch, tmp_path, "experiment=instruct", "benchmark.ifbench.limit=4")
    assert jobs(found) == [
        ("org/m", "mt_bench", None), ("org/m", "ifeval", None), ("org/m", "ifbench", 4)
    ]  # fmt: skip


def experiment(tmp_path, text):
    """A folder of own settings with one experiment; what names both on a command line."""
    path = tmp_path / "own" / "experiment" / "mine.yaml"
    path.parent.mkdir(parents=True)
    path.write_text(f"# @package _global_\n{text}")
    return "--config-dir", str(tmp_path / "own"), "experiment=mine"


def test_settings_of_one_benchmark_stand_in_an_experiment_file(monkeypatch, tmp_path):
    line = experiment(
        tmp_path,
        """
benchmarks: [mt_bench, ifeval]
limit: 9
benchmark:
  ifeval:
    limit: 2
    sampling: {max_tokens: 77, temperature: null}
    categories: ["a b", "1e5"]
  mt_bench:
    question_path: /data/a=b, c.jsonl
    judge: gpt-4o
    judge.extra_body: {effort: 'low, really'}
""",
    )
    mine, checked = composed(monkeypatch, tmp_path, *line)
    assert jobs([mine, checked]) == [("org/m", "mt_bench", 9), ("org/m", "ifeval", 2)]
    assert (mine.sampling.max_tokens, checked.sampling.max_tokens) == (None, 77)
    assert checked.categories == ["a b", "1e5"]
    assert (mine.question_path, checked.question_path) == ("/data/a=b, c.jsonl", None)
    assert (mine.judge.model, checked.judge.kind) == ("gpt-4o", "none")
    assert mine.judge.extra_body == {"effort": "low, really"}


def test_what_is_typed_for_a_benchmark_beats_the_file_and_the_file_what_is_typed_for_all(
    monkeypatch, tmp_path
):
    line = experiment(
        tmp_path,
        "benchmarks: [mt_bench, ifeval]\nbenchmark: {ifeval: {limit: 2}, mt_bench: {limit: 3}}\n",
    )
    found = composed(monkeypatch, tmp_path, *line, "benchmark.ifeval.limit=5", "limit=7")
    assert jobs(found) == [("org/m", "mt_bench", 3), ("org/m", "ifeval", 5)]


def test_a_file_may_hold_settings_of_benchmarks_that_are_swept_or_not_run(monkeypatch, tmp_path):
    line = experiment(tmp_path, "benchmark: {ifeval: {limit: 2}, ifbench: {limit: 3}}\n")
    found = composed(monkeypatch, tmp_path, *line, "-m", "benchmark=mt_bench,ifeval")
    assert jobs(found) == [("org/m", "mt_bench", None), ("org/m", "ifeval", 2)]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("benchmark: {ifevl: {limit: 2}}", "did you mean ifeval"),
        ("benchmark: {ifeval: {limt: 2}}", "no setting is called 'limt'"),
        ("benchmark: {ifeval: 3}", "benchmark.ifeval in a settings file holds no settings"),
        ("benchmark: {ifeval: {model: {path: x}}}", "the same for all benchmarks"),
        ("benchmark: {ifeval: {limit: many}}", "limit takes a whole number"),
    ],
)
def test_mistakes_in_a_file_are_named(tmp_path, monkeypatch, capsys, text, said):
    line = experiment(tmp_path, text)
    monkeypatch.chdir(tmp_path)
    assert main(["model=org/m", "judge=none", "engine=fake", "benchmark=ifeval", *line]) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        (["benchmark=[mt_bench,ifevl]"], "did you mean ifeval"),
        (["benchmark=[]"], "names none"),
        (["benchmark=[ifeval,ifeval]"], "names one twice"),
        (["benchmark.ifeval.limt=2"], "no setting is called 'limt'"),
        (
            ["benchmark=[ifeval,mt_bench]", "benchmark.ifeval.limit=many"],
            "limit takes a whole number",
        ),
        (["benchmark.ifeval.model.path=x"], "the same for all benchmarks"),
        (["benchmark.mt_bench.judge.extra_body.api_key=k"], "looks like a secret"),
    ],
)
def test_mistakes_are_named(tmp_path, monkeypatch, capsys, typed, said):
    monkeypatch.chdir(tmp_path)
    assert main(["model=org/m", "judge=none", "engine=fake", *typed]) == 2
    assert said in capsys.readouterr().err


def test_two_benchmarks_are_answered_in_one_visit_and_both_are_judged(cli, tmp_path):
    """Each model is started or swapped to once, whatever the number of benchmarks."""
    own = tmp_path / "one_turn.jsonl"
    own.write_text(
        "".join(
            json.dumps({"question_id": n, "category": "generic", "turns": [f"Say {n}."]}) + "\n"
            for n in (1, 2)
        )
    )
    line = ("-m", "model=org/a,org/b", "benchmark=[mt_bench,vicuna]", "engine.replicas=1",
            f"benchmark.vicuna.question_path={own}", "benchmark.vicuna.reference_path=null",
            "benchmark.vicuna.sampling.max_tokens=30")  # fmt: skip
    assert cli(*line) == 0, cli.err
    assert cli.calls == 2 * (8 + 2)
    (record,) = [json.loads(path.read_text()) for path in cli.workspace.glob("runs/*/record.json")]
    kinds = [(event["kind"], event["model"]) for event in record["events"]]
    assert sorted(kinds) == [("start", "org/a"), ("start", "org/b")], "the fake engine swaps none"
    caps = {
        (row["benchmark"], json.loads(row["sampling"])["max_tokens"])
        for row in cli.rows("answers.jsonl")
    }
    assert caps == {("mt_bench", 1024), ("vicuna", 30)}
    assert cli(*line) == 0
    assert cli.calls == 0
    table = cli.out.split("\n\n")[0].splitlines()
    assert table[0].split() == ["model", "mt_bench", "average", "vicuna", "average"]
    means = {
        (result["model"], result["benchmark"]): f"{result['average']['mean']:.2f}"
        for summary in (cli.summary, *cli.summary["other_modes"])
        for result in summary["results"]
    }
    for row in table[2:]:
        model, *cells = row.split()
        assert cells == [means[model, "mt_bench"], means[model, "vicuna"]]
    assert len(table) == 4
    assert [one["benchmark"] for one in cli.summary["suite"]["columns"]] == ["mt_bench", "vicuna"]
    assert {
        (row["model"], column["benchmark"]): f"{score['mean']:.2f}"
        for row in cli.summary["suite"]["rows"]
        for column, score in zip(cli.summary["suite"]["columns"], row["scores"], strict=True)
    } == means
    assert cli.verb("report", "format=json", "model=org/a") == 0
    (row,) = json.loads(cli.out)["suite"]["rows"]
    assert (row["model"], [score["scored"] for score in row["scores"]]) == ("org/a", [8, 2])
    ids = {result["id"] for result in cli.summary["results"]}
    assert row["scores"][0]["id"] in ids or row["scores"][1]["id"] in ids
    assert cli.verb("report", "format=json", "benchmark=vicuna") == 0
    assert json.loads(cli.out)["suite"] is None
    assert cli.verb("report", "benchmark=vicuna") == 0
    assert "mt_bench" not in cli.out
