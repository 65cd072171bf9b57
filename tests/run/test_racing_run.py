"""``select=``: what is judged, what is not needed, what is stored, and what a rerun pays."""

import json
import random
import shutil
from collections import Counter

import pytest
from crash import Run, until
from stub_server import StubServer

from mtbench_ray.cli.main import main
from mtbench_ray.workspace.workspace import Workspace

COUNT = 30
pytestmark = pytest.mark.runs


@pytest.fixture(scope="module")
def imported(tmp_path_factory):
    """Answers of three models to 30 questions; each says what it is worth."""
    tmp_path = tmp_path_factory.mktemp("racing")
    rng = random.Random(0)
    questions = tmp_path / "q.jsonl"
    questions.write_text(
        "".join(
            json.dumps({"question_id": n, "category": "ab"[n % 2], "turns": [f"Is {n} high?"]})
            + "\n"
            for n in range(COUNT)
        )
    )
    folder = tmp_path / "w"
    for model, mean in (("good", 8), ("fair", 6), ("poor", 3)):
        rows = [
            {"question_id": n, "response": f"{model} {n} is worth {rng.choice((mean, mean + 1))}."}
            for n in range(COUNT)
        ]
        answers = tmp_path / f"{model}.jsonl"
        answers.write_text("".join(json.dumps(row) + "\n" for row in rows))
        code = main(["import", "answers", str(answers), "benchmark=mt_bench", f"model={model}",
                     f"question_path={questions}", f"workspace={folder}"])  # fmt: skip
        assert code == 0
    return questions, folder


@pytest.fixture
def race(imported, tmp_path, capsys):
    """A workspace with these answers, and a judge that reads their worth."""
    questions, folder = imported
    shutil.copytree(folder, tmp_path / "w")
    with StubServer(worth=True) as stub:
        yield Line(stub, questions, tmp_path / "w", capsys)


class Line:
    def __init__(self, stub, questions, folder, capsys):
        self.stub, self.folder, self.capsys = stub, folder, capsys
        self.usual = ["stage=judge", f"question_path={questions}", f"workspace={folder}",
                      "judge=openai", "judge.model=stub", f"judge.base_url={stub.url}",
                      "judge.parse_retries=0"]  # fmt: skip

    def __call__(self, *args):
        before = self.stub.stats()["calls"]
        verb = [*args[:1]] if args[:1] == ("plan",) else []
        code = main([*verb, *self.usual, *args[len(verb) :]])
        self.out, self.err = self.capsys.readouterr()
        self.calls = self.stub.stats()["calls"] - before
        return code

    def report(self, *args):
        code = main(["report", *args, f"workspace={self.folder}"])
        self.out, self.err = self.capsys.readouterr()
        return code

    @property
    def judged(self):
        lines = (self.folder / "judgments.jsonl").read_text().splitlines()
        return Counter(json.loads(line)["model"] for line in lines)

    @property
    def record(self):
        with Workspace.open(str(self.folder), write=False) as workspace:
            return workspace.run_records()[-1]


def results(race):
    summary = json.loads((race.folder / "summary.json").read_text())
    return {one["model"]: one["average"] for one in summary["results"]}, summary["notes"]


def test_a_race_ends_early_and_a_rerun_without_it_judges_the_rest_and_pays_nothing_twice(race):
    assert race("-m", "model=good,fair,poor", "select=best") == 0
    first, judged = race.calls, race.judged
    assert first == sum(judged.values()) < 2 * COUNT
    assert judged["poor"] < judged["good"] < COUNT
    (found,) = race.record.races
    assert (found["decided"], found["best"], found["seed"]) == (True, ["good"], 0)
    assert found["saved"] == found["calls"] - first == 3 * COUNT - first
    said = next(line for line in race.err.splitlines() if line.startswith("select=best"))
    assert f"good is best; decided by {found['judged']} of 30 questions" in said
    assert f"{found['saved']} of 90 judge calls were not needed" in said
    # neither missing nor failed
    shown, notes = results(race)
    assert shown["poor"]["failed"] == {}
    assert shown["poor"]["not_needed"] == COUNT - judged["poor"]
    assert (shown["poor"]["scored"], shown["poor"]["planned"]) == (judged["poor"], COUNT)
    assert said in notes
    assert "missing" not in race.out
    assert "Incomplete" not in race.err
    assert race.report() == 0
    assert said in race.out
    # the same line pays nothing; a line without select= the rest, each once
    assert race("-m", "model=good,fair,poor", "select=best") == 0
    assert race.calls == 0
    assert "nothing was pending" in race.err
    assert race("-m", "model=good,fair,poor") == 0
    assert race.calls == 3 * COUNT - first
    assert race.stub.stats()["most_good_per_request"] == 1
    shown, notes = results(race)
    assert [one["scored"] for one in shown.values()] == [COUNT] * 3
    assert not any("select" in note for note in notes)


def test_compare_shows_the_anytime_valid_interval_and_what_was_saved(race):
    race("-m", "model=good,fair,poor", "select=best")
    assert race.report("compare", "fair", "good", "gate=0", "format=json") == 1
    (early,) = json.loads(race.out)
    assert "anytime-valid" in early["all"]["ci_method"]
    assert early["race"]["saved"] == race.record.races[0]["saved"]
    assert early["verdict"].startswith("good is better than fair")
    assert race.report("compare", "fair", "good") == 0
    assert "judge calls were not needed" in race.out
    race("-m", "model=good,fair,poor")
    race.report("compare", "fair", "good", "format=json")
    (whole,) = json.loads(race.out)
    assert "race" not in whole
    assert "bootstrap" in whole["all"]["ci_method"]
    assert early["all"]["ci_low"] <= whole["all"]["mean"] <= early["all"]["ci_high"] < 0


def test_the_best_of_a_race_is_what_the_race_says(race):
    race("-m", "model=good,fair,poor", "select=best")
    assert race.report("best", "format=json") == 0
    (found,) = json.loads(race.out)
    assert (found["best"], found["with_best"]) == ("good", ["good"])
    by = {line["model"]: line for line in found["models"]}
    assert by["fair"]["ci_high"] < 0
    assert by["poor"]["ci_high"] < 0
    assert any("anytime-valid" in note for note in found["notes"])
    assert race.report("best", "baseline=fair", "gate=0.1") == 0
    assert race.report("compare", "good", "fair", "poor") == 0
    assert "not made for an early end" in race.out


def test_a_gate_ends_once_the_new_model_is_not_worse_or_worse(race):
    assert race("-m", "model=good,fair", "select=gate", "gate=0.1") == 0
    assert race.calls < 2 * COUNT
    assert "good is not worse than fair by 0.1 points; decided by" in race.err
    assert race.report("compare", "good", "fair", "gate=0.1") == 0
    assert race("-m", "model=poor,fair", "select=gate", "gate=0.1") == 0
    assert "poor is worse than fair by 0.1 points; decided by" in race.err
    assert race.report("compare", "poor", "fair", "gate=0.1") == 1


def test_the_plan_says_that_calls_may_not_be_needed(race):
    assert race("plan", "-m", "model=good,fair,poor", "select=best") == 0, race.err
    assert "judge calls are those without select=best, which stops once it is decided" in race.out


def test_a_race_that_fails_in_the_middle_goes_on_where_it_was(race):
    """A judge that dies leaves the race undecided: what is not judged is missing."""
    race.stub.script.first = ("ok",) * 10
    race.stub.script.always = "401"
    race.stub.script.only = ""
    assert race("-m", "model=good,fair,poor", "select=best", "judge.concurrency=1") == 3
    assert not race.record.races[0]["decided"]
    shown, _ = results(race)
    assert any(one["failed"].get("missing") for one in shown.values())
    before = sum(race.judged.values())
    race.stub.script.always = ""
    assert race("-m", "model=good,fair,poor", "select=best") == 0
    assert race.record.races[0]["decided"]
    assert race.stub.stats()["most_good_per_request"] == 1
    assert sum(race.judged.values()) == before + race.calls < 2 * COUNT


def test_a_race_that_is_killed_goes_on_and_pays_again_only_what_was_in_flight(race):
    race.stub.script.latency = 0.2
    line = [*race.usual, "-m", "model=good,fair,poor", "select=best", "judge.concurrency=4"]
    run = Run(*line)
    until(lambda: (race.folder / "judgments.jsonl").exists() and sum(race.judged.values()) >= 12)
    run.kill()
    run.gone_after(10.0)
    assert not race.record.races
    race.stub.script.latency = 0.0
    assert race("-m", "model=good,fair,poor", "select=best") == 0
    (found,) = race.record.races
    assert found["best"] == ["good"]
    assert found["saved"] > 0
    stats = race.stub.stats()
    assert stats["good"] - stats["distinct"] <= 4
    assert sum(race.judged.values()) == stats["distinct"]


def test_each_judge_has_a_race_of_its_own(race):
    assert race("-m", "model=good,fair", "judge.model=stub,other", "select=best") == 0
    assert [one["judge"] for one in race.record.races] == ["stub", "other"]
    assert all(one["best"] == ["good"] and one["saved"] for one in race.record.races)
    assert race.err.count("good is best; decided by") == 2


def test_a_model_whose_verdicts_fail_does_not_win_and_they_are_asked_again(race):
    race.stub.script.always = "garbage"
    race.stub.script.only = "good"
    assert race("-m", "model=good,fair,poor", "select=best", "gate=2", "judge.max_retries=0") == 3
    assert not race.record.races[0]["decided"]
    assert results(race)[0]["good"]["scored"] == 0
    assert "select=best, judge" not in race.err
    race.stub.script.always = ""
    assert race("-m", "model=good,fair,poor", "select=best", "gate=2") == 0
    assert race.record.races[0]["best"][0] == "good"
    assert results(race)[0]["good"]["failed"] == {}


def test_a_race_waits_for_answers_that_are_generated_meanwhile(race, cli):
    """Two answers fail; equal models are judged to the end."""
    assert cli("-m", "model=a,b", "select=best", "judge.base_url=" + cli.stub.url,
               "engine.fake_faults={error_on:[2],models:[a]}") == 3  # fmt: skip
    assert cli.calls == 14
    with Workspace.open(str(cli.workspace), write=False) as workspace:
        (found,) = workspace.run_records()[-1].races
    assert (found["decided"], found["judged"], found["saved"]) == (True, 4, 0)
    assert cli("-m", "model=a,b", "select=best") == 0
    assert cli.calls == 2


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["model=good", "select=best"], "only one is judged"),
        (["plan", "model=good", "select=best"], "only one is judged"),
        (["-m", "model=good,fair,poor", "select=gate"], "select=gate is of two models, and 3 are"),
        (["-m", "model=good,fair", "gate=0.1"], "gate=0.1 is of a race"),
        (["-m", "model=good,fair", "select=best", "gate=-1"], "no number of points"),
        (["-m", "model=good,fair", "select=bets"], "did you mean select=best?"),
        (["-m", "model=good,fair", "select=best,gate"], "cannot be swept"),
        (["-m", "model=good,fair", "select=best", "mode=pairwise-all"], "judged one by one"),
        (["-m", "model=good,fair", "select=best", "judge.batch=true"], "within a day"),
    ],
)
def test_a_race_that_cannot_be_run_is_a_mistake_that_costs_nothing(race, words, said):
    assert race(*words) == 2
    assert race.calls == 0
    assert said in race.err
