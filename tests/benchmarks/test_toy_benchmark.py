"""A benchmark of another package, without one edit in this one: see toy/toy_benchmark.py."""

import csv
import json
import sys
from collections import defaultdict
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from mtbench_ray import benchmarks
from mtbench_ray.cli.main import main
from mtbench_ray.errors import UserError
from mtbench_ray.judges.base import Column

TOY = Path(__file__).with_name("toy")
WEIGHTS = {"length": 1.0, "word": 3.0}


def forget():
    """Look for entry points again."""
    benchmarks.benchmarks.cache_clear()
    benchmarks._registered.cache_clear()


@pytest.fixture
def toy(tmp_path, monkeypatch, capsys):
    """The command line with the toy's package on the path, as if it were installed."""
    monkeypatch.syspath_prepend(str(TOY))
    monkeypatch.setenv("MTBENCH_RAY_CACHE", str(tmp_path / "cache"))
    forget()
    workspace = tmp_path / "work"

    def run(*args):
        code = main([*args, f"workspace={workspace}"])
        run.out, run.err = capsys.readouterr()
        return code

    run.workspace = workspace
    yield run
    forget()
    sys.modules.pop("toy_benchmark", None)


def rows(toy, name):
    return [json.loads(line) for line in (toy.workspace / name).read_text().splitlines()]


def expected(toy, model):
    """The toy's scores, worked out from the stored answers alone."""
    lines = (TOY / "toy_questions.jsonl").read_text().splitlines()
    questions = {row["id"]: row for row in map(json.loads, lines)}
    scores, criteria = {}, defaultdict(list)
    for turn in rows(toy, "answers.jsonl"):
        if turn["model"] != model:
            continue
        asked, text = questions[turn["question_id"]], turn["content"]
        kept = {"length": len(text.split()) <= asked["length"], "word": asked["word"] in text}
        scores[turn["question_id"]] = sum(WEIGHTS[name] * kept[name] for name in kept) / 4
        for name, value in kept.items():
            criteria[name].append(value)
    return scores, {name: sum(values) / len(values) for name, values in criteria.items()}


RUN = ("engine=fake", "benchmark=toy", "sampling.max_tokens=200")


def test_it_is_listed(toy):
    assert main(["list", "benchmarks"]) == 0
    assert toy("plan", "model=org/a", *RUN) == 0


def test_it_is_planned_run_and_resumed_without_a_judge(toy):
    assert toy("plan", "model=org/a", *RUN) == 0, toy.err
    assert "0/8" in toy.out
    assert not toy.workspace.exists()
    assert toy("model=org/a", *RUN, "limit=2") == 0, toy.err
    assert len(rows(toy, "judgments.jsonl")) == 4
    assert toy("model=org/a", *RUN) == 0, toy.err
    judged = rows(toy, "judgments.jsonl")
    assert len(judged) == len({row["judgment_id"] for row in judged}) == 8
    assert {(row["judge"], row["mode"], row["attempts"]) for row in judged} == {
        ("toy-rules 1", "rules", 0)
    }
    assert {row["criterion"] for row in judged} == {"length", "word"}
    assert toy("model=org/a", *RUN) == 0
    assert "nothing was pending" in toy.err
    assert rows(toy, "judgments.jsonl") == judged


def test_scores_are_weighted_and_every_report_shows_them(toy, tmp_path):
    line = ("-m", "model=run/step_1,run/step_2", *RUN, "sampling.samples=2")
    assert toy(*line) == 0, toy.err
    (summary,) = [json.loads((toy.workspace / "summary.json").read_text())]
    assert (summary["benchmark"], summary["mode"], summary["complete"]) == ("toy", "rules", True)
    for result in summary["results"]:
        by_sample = [
            turn for turn in rows(toy, "answers.jsonl") if turn["model"] == result["model"]
        ]
        assert len(by_sample) == 8
        assert (result["score"]["planned"], result["score"]["scored"]) == (8, 8)
        assert list(result["categories"]) == ["sea", "land"]
    assert "share of the rules" in toy.out
    assert toy("report") == 0
    assert "criterion" not in toy.out
    assert "length" in toy.out
    assert toy("report", "format=markdown", "category=sea") == 0
    assert "4/4" in toy.out
    assert toy("report", "compare", "step_1", "step_2", "format=json") == 0
    (compared,) = json.loads(toy.out)
    means = {result["model"]: result["score"]["mean"] for result in summary["results"]}
    assert compared["all"]["mean"] == pytest.approx(means["run/step_1"] - means["run/step_2"])
    assert toy("report", "curve") == 0, toy.err
    with open(toy.workspace / "curve" / "curve.csv") as file:
        points = [row for row in csv.DictReader(file) if row["category"] == "all"]
    assert [float(row["mean"]) for row in points] == [
        pytest.approx(means[f"run/step_{step}"]) for step in (1, 2)
    ]
    assert {row["metric"] for row in points} == {"toy score"}
    assert (toy.workspace / "curve" / "curve.svg").stat().st_size > 1000
    table = pq.read_table(toy.workspace / "scores.parquet").to_pylist()
    found = {(row["model"], row["dimension"], row["name"]): row["mean"] for row in table}
    assert found["run/step_1", "all", ""] == means["run/step_1"]
    assert ("run/step_1", "criterion", "word") in found
    judged = pq.read_table(toy.workspace / "judgments.parquet").to_pylist()
    assert len(judged) == 2 * 2 * 4 * 2
    assert toy("export", "fastchat", str(tmp_path / "out")) == 0
    answers = list((tmp_path / "out").rglob("model_answer/*.jsonl"))
    assert len(answers) == 2


def test_the_scores_are_those_of_an_independent_computation(toy):
    assert toy("model=org/a", *RUN) == 0, toy.err
    by_question, by_criterion = expected(toy, "org/a")
    assert len(by_question) == 4
    (result,) = json.loads((toy.workspace / "summary.json").read_text())["results"]
    assert result["score"]["mean"] == pytest.approx(sum(by_question.values()) / 4)
    assert 0 < result["score"]["mean"] < 1
    shown = {name: part["mean"] for name, part in result["criteria"].items()}
    assert shown == pytest.approx(by_criterion)


def test_a_report_without_its_package_leaves_it_out_and_says_so(toy, monkeypatch, caplog):
    assert toy("model=org/a", *RUN) == 0
    monkeypatch.setattr(sys, "path", [place for place in sys.path if place != str(TOY)])
    forget()
    assert toy("report") == 2
    assert "unknown benchmark 'toy'" in caplog.text + toy.err


def test_a_broken_plug_in_is_named(toy, monkeypatch, tmp_path):
    broken = tmp_path / "broken"
    folder = broken / "broken_benchmark-1.0.dist-info"
    folder.mkdir(parents=True)
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: broken-benchmark\nVersion: 1\n")
    (folder / "entry_points.txt").write_text("[mtbench_ray.benchmarks]\nbad = not_there:X\n")
    monkeypatch.syspath_prepend(str(broken))
    forget()
    assert toy("model=org/a", *RUN) == 0, "the others are not harmed"
    assert toy("model=org/a", "engine=fake", "benchmark=bad") == 2
    assert "bad" in toy.err
    with pytest.raises(UserError, match=r"the benchmark bad \(not_there:X\) cannot be loaded"):
        benchmarks.get_benchmark("bad")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda grader: setattr(grader, "columns", ()), "must be the headline"),
        (lambda grader: setattr(grader, "columns", (*grader.columns, grader.columns[0])),
         "must be the headline"),
        (lambda grader: setattr(grader, "columns", (Column("answers", "", "kept", headline=True),)),
         "double or reserved"),
    ],
)  # fmt: skip
def test_columns_that_reports_could_not_show_are_refused(toy, change, words):
    one = benchmarks.get_benchmark("toy")
    (grader,) = one.graders
    before = grader.columns
    try:
        change(grader)
        with pytest.raises(UserError, match=words):
            benchmarks.check(one, "toy")
    finally:
        grader.columns = before
