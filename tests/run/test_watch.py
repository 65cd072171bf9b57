"""Beside a training run: checkpoints are taken as they land. No test waits for a clock."""

import json
import shutil
from pathlib import Path

import pytest
from crash import until
from small_models import files_of, small_model
from watching import Watching, count_rows

from mtbench_ray.cli.main import main
from mtbench_ray.generate import engine_pool
from mtbench_ray.generate.worker import ShardWorker
from mtbench_ray.run import after_round

pytestmark = pytest.mark.runs


@pytest.fixture
def root(tmp_path):
    (tmp_path / "ckpts").mkdir()
    return tmp_path / "ckpts"


@pytest.fixture
def watching(stub, questions, references, tmp_path, root, capsys):
    line = [
        "model=checkpoints", f"model.root={root}", "engine=fake", "judge=openai",
        "judge.model=stub", f"judge.base_url={stub.url}", f"question_path={questions}",
        f"reference_path={references}", "sampling.max_tokens=40",
    ]  # fmt: skip
    return Watching(tmp_path / "work", line, capsys)


@pytest.fixture
def pictures():
    """With the files that are drawn, which takes seconds a round."""


@pytest.fixture(autouse=True)
def no_pictures(request, monkeypatch):
    if "pictures" not in request.fixturenames:
        monkeypatch.setattr(after_round.PicturesBeside, "update", lambda self: None)


def lands(root, step, value=None):
    """A step of the training: a whole checkpoint is there at once."""
    return lambda: small_model(root / f"step_{step}", value or float(step))


def done(root):
    return lambda: (root / "DONE").touch()


def empty(workspace):
    shutil.rmtree(workspace)
    workspace.mkdir()


def calls(stub):
    return stub.stats()["calls"]


@pytest.mark.usefixtures("pictures")
def test_each_checkpoint_is_taken_as_it_lands_until_the_training_is_over(watching, root, stub):
    small_model(root / "step_1")
    seen = []

    def after(step):
        def look():
            if not seen:  # a process beside the watch draws, and each time takes a while
                until((watching.workspace / "curve" / "curve.csv").exists, timeout=60)
            seen.append(watching.scored())
            small_model(root / f"step_{step}", float(step))

        return look

    code = watching(3, after(2), 3, after(10), 3, done(root), 1)
    assert code == 0, watching.err
    assert watching.rounds == [["step_1"], ["step_2"], ["step_10"]]
    assert seen == [{"step_1": "8/8"}, {"step_1": "8/8", "step_2": "8/8"}]
    assert watching.scored() == dict.fromkeys(("step_1", "step_2", "step_10"), "8/8")
    assert calls(stub) == 24
    assert count_rows(watching.workspace) == (0, 0, 0)
    lines = (watching.workspace / "curve" / "curve.csv").read_text().splitlines()
    assert [line.split(",")[2] for line in lines if ",all," in line] == ["1", "2", "10"]
    assert (watching.workspace / "report.html").exists()
    assert watching.out.count("step_1 ") >= 3, "the table is shown after each round"
    assert "the watch ends: the training is over (DONE)" in watching.err


def test_a_watch_that_is_started_again_pays_nothing_twice(watching, root, stub):
    small_model(root / "step_1")
    small_model(root / "step_2", 2.0)
    assert watching(3, done(root), 1) == 0
    assert calls(stub) == 16
    assert watching(4) == 0
    assert calls(stub) == 16
    small_model(root / "step_3", 3.0)
    assert watching(4) == 0
    assert calls(stub) == 24
    assert watching.scored() == dict.fromkeys(("step_1", "step_2", "step_3"), "8/8")


def test_a_folder_that_grows_in_slow_motion_gives_no_wrong_row(watching, root):
    """File by file, half a file, under another name, with long pauses: one evaluation, one hash."""
    files = files_of(3.0, shards=2)
    hidden, folder = root / "tmp-step_7", root / "step_7"
    script = [lambda: hidden.mkdir(), 5]
    for name, content in files.items():
        script += [
            lambda n=name, c=content: (hidden / n).write_bytes(c[: len(c) // 2]), 5,
            lambda n=name, c=content: (hidden / n).write_bytes(c), 1,
        ]  # fmt: skip
    script += [
        lambda: hidden.rename(folder),
        1,
        lambda: (folder / "optimizer.pt").write_bytes(b"x"),
        4,
    ]
    slow = root / "step_8"
    script += [lambda: slow.mkdir()]
    for name, content in files_of(4.0, shards=2).items():
        rests = 5 if "model-" in name else 1  # shards are to come: it shows
        script += [
            lambda n=name, c=content: (slow / f"{n}.tmp").write_bytes(c[:-1]), 5,
            lambda n=name, c=content: (slow / f"{n}.tmp").write_bytes(c), 1,
            lambda n=name: (slow / f"{n}.tmp").rename(slow / n), rests,
        ]  # fmt: skip
    code = watching(*script, 4, done(root), 1)
    assert code == 0, watching.err
    assert watching.rounds == [["step_7"], ["step_8"]]
    assert watching.scored() == {"step_7": "8/8", "step_8": "8/8"}
    assert count_rows(watching.workspace) == (0, 0, 0)


def test_a_broken_checkpoint_is_told_once_and_skipped_until_it_changes(watching, root):
    small_model(root / "step_1")
    folder = small_model(root / "step_2", 2.0, shards=2)
    lost = folder / "model-00002-of-00002.safetensors"
    content = lost.read_bytes()
    lost.unlink()
    assert watching(60, lands(root, 3), 4, done(root), 1) == 3
    assert watching.err.count("step_2 is skipped until it changes") == 1
    assert "lacks weights: model-00002-of-00002.safetensors" in watching.err
    assert watching.rounds == [["step_1"], ["step_3"]]
    assert watching(lambda: lost.write_bytes(content), 4) == 0
    assert watching.scored() == dict.fromkeys(("step_1", "step_2", "step_3"), "8/8")


def test_sharded_state_is_told_with_its_tool(watching, root):
    small_model(root / "step_1")
    (root / "global_step_2" / "actor").mkdir(parents=True)
    (root / "global_step_2" / "actor" / "model_world_size_1_rank_0.pt").touch()
    assert watching(4, done(root), 1) == 3
    assert "verl.model_merger" in watching.err
    assert watching.rounds == [["step_1"]]


def test_a_checkpoint_that_cannot_be_run_ends_nothing(watching, root):
    folder = small_model(root / "step_1", base="x")
    (folder / "adapter_config.json").write_text('{"base_model_name_or_path": null}')
    repaired = lambda: (folder / "adapter_config.json").write_text(  # noqa: E731
        '{"base_model_name_or_path": "org/base"}'
    )
    assert watching(5, lands(root, 2), 4, repaired, 4, done(root), 1) == 0, watching.err
    assert watching.err.count("names no base model") == 1
    assert watching.rounds == [["step_2"], ["step_1"]]


@pytest.mark.parametrize(
    ("until", "rounds"),
    [("2", [["step_1"], ["step_2"]]), ("5min", [["step_1"], ["step_2"], ["step_3"]]),
     ("2 5min", [["step_1"], ["step_2"]])],
)  # fmt: skip
def test_it_ends_with_a_step_or_without_news(until, rounds, watching, root):
    small_model(root / "step_1")
    steps = [4, lands(root, 2), 4, lands(root, 3), 40]
    assert watching(*steps, args=[f"watch.until='{until}'"]) == 0
    assert watching.rounds == rounds
    waited = 50 - watching.left
    assert waited == (8 if until != "5min" else 10 + 3 + 30), "three looks until it is settled"
    assert "watch.until" in watching.err


def test_after_the_last_step_no_later_one_is_taken(watching, root):
    for step in (1, 2, 3):
        small_model(root / f"step_{step}", float(step))
    small_model(root / "final", 9.0)
    assert watching(4, args=["watch.until=2"]) == 0
    assert watching.rounds == [["step_1", "step_2"]]


def test_a_selection(watching, root):
    for step in (1, 2, 3):
        small_model(root / f"step_{step}", float(step))
    assert watching(4, args=["model.steps=[1,3]"]) == 0
    assert "all steps of model.steps are done" in watching.err
    assert watching.rounds == [["step_1", "step_3"]]
    empty(watching.workspace)
    assert watching(4, lands(root, 4), 4, lands(root, 5), 4, done(root), 1,
                    args=["model.every=2"]) == 0  # fmt: skip
    assert watching.rounds == [["step_1", "step_3"], ["step_5"]]
    empty(watching.workspace)
    (root / "DONE").unlink()
    assert watching(4, lands(root, 6), 4, done(root), 1, args=["model.last=1"]) == 0
    assert watching.rounds == [["step_5"], ["step_6"]]
    assert "step_4 is passed over: model.last=1" in watching.err


@pytest.mark.usefixtures("pictures")
def test_a_run_of_runs_and_names_of_ones_own(watching, root):
    for run in ("a", "b"):
        small_model(root / run / "it1" / "hf", 1.0 if run == "a" else 2.0)

    def over():
        small_model(root / "a" / "it2" / "hf", 3.0)
        for run in ("a", "b"):
            (root / run / "DONE").touch()

    args = ["model.runs='*'", "model.pattern='it{step}/hf'"]
    assert watching(4, over, 4, args=args) == 0, watching.err
    assert [len(one) for one in watching.rounds] == [2, 1]
    lines = (watching.workspace / "curve" / "curve.csv").read_text().splitlines()[1:]
    points = sorted((Path(line.split(",")[0]).name, line.split(",")[2]) for line in lines
                    if ",all," in line)  # fmt: skip
    assert points == [("a", "1"), ("a", "2"), ("b", "1")]


def test_a_training_that_has_not_begun_is_waited_for(watching, root):
    shutil.rmtree(root)
    assert watching(3, lambda: root.mkdir(), lands(root, 1), 4, done(root), 1) == 0
    assert watching.rounds == [["step_1"]]


def test_a_training_without_a_checkpoint_is_no_success(watching, root):
    assert watching(done(root)) == 3
    assert "no checkpoint was there" in watching.err


def test_what_failed_is_tried_again_a_few_times(watching, root, stub):
    small_model(root / "step_1")
    stub.script.always = "500"
    args = ["judge.max_retries=0", "judge.retry_wait_s=0"]

    def better():
        stub.script.always = ""

    assert watching(5, better, 35, done(root), 1, args=args) == 0, watching.err
    assert watching.scored() == {"step_1": "8/8"}
    assert len(watching.rounds) == 2


def test_what_fails_each_time_is_told_and_the_others_go_on(watching, root):
    small_model(root / "step_1")
    small_model(root / "step_2", 2.0)
    faults = f"engine.fake_faults={{models: [{root}/step_1], error_on: [2]}}"
    assert watching(5, done(root), 1, args=[faults]) == 3
    assert "step_1 stays incomplete after 3 rounds" in watching.err
    assert watching.scored() == {"step_1": "6/8", "step_2": "8/8"}


def test_weights_that_are_written_again_are_another_checkpoint(watching, root):
    small_model(root / "final", 1.0)
    assert watching(4, lambda: small_model(root / "final", 2.0), 4, done(root), 1) == 0
    assert watching.rounds == [["final"], ["final"]]
    answers = (watching.workspace / "answers.jsonl").read_text().splitlines()
    assert len({json.loads(row)["answer_id"] for row in answers}) == 8


def test_a_long_list_is_done_in_several_rounds_and_what_is_done_in_none(watching, root, stub):
    for step in range(1, 11):
        small_model(root / f"step_{step}", float(step))
    assert watching(4, done(root), 1, args=["limit=1"]) == 0
    assert [len(one) for one in watching.rounds] == [8, 2]
    assert watching(4, args=["limit=1"]) == 0
    assert calls(stub) == 20


@pytest.mark.parametrize(("release", "workers"), [("false", 1), ("true", 2)])
def test_engines_stay_warm_unless_they_are_to_be_released(
    release, workers, watching, root, monkeypatch
):
    made = []

    def worker(name):
        made.append(name)
        return ShardWorker(name)

    monkeypatch.setattr(engine_pool, "ShardWorker", worker)
    small_model(root / "step_1")
    assert watching(4, lands(root, 2), 4, done(root), 1, args=[f"watch.release={release}"]) == 0
    assert len(watching.rounds) == 2
    assert len(made) == workers


def test_a_signal_while_it_waits_ends_it_in_order(watching, root):
    small_model(root / "step_1")
    assert watching(4, lambda: watching.interrupts._on_signal(2, None)) == 130
    assert watching.scored() == {"step_1": "8/8"}


def test_several_judges_and_a_budget_of_the_whole_watch(watching, root, stub):
    small_model(root / "step_1")
    price = ["judge.price_prompt=1000", "judge.price_completion=1000", "judge.max_tokens=100"]
    assert watching(4, lands(root, 2), 4, done(root), 1, args=[*price, "budget_usd=2"]) == 3
    spent = calls(stub)
    assert 0 < spent < 16
    assert "budget_usd=2" in watching.err
    done(root)()
    assert watching(4, args=["-m", "judge.temperature=0,1"]) == 0, watching.err
    assert len(watching.summary["results"]) == 3, "of step_1: two, and the one that was too dear"


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["fresh=true"], "watch=true takes no fresh=true"),
        (["stage=judge"], "watch=true takes no stage=judge"),
        (["mode=pairwise-all"], "watch=true takes no mode=pairwise-all"),
        (["judge.batch=true"], "watch=true takes no judge.batch=true"),
        (["select=best"], "watch=true takes no select=best"),
        (["watch.until=soon"], "watch.until='5000 90min'"),
        (["watch.alert=http://example.com/hook/sekrit"], "not an https one"),
        (["watch.look_s=0"], "watch.look_s"),
        (["model=org/m"], "model.root="),
        (["watch=false", "watch.until=5"], "add watch=true"),
    ],
)
def test_mistakes(args, said, cli, tmp_path):
    usual = [] if any(arg.startswith("model=") for arg in args) else ["model=checkpoints"]
    watch = [] if "watch=false" in args else ["watch=true"]
    assert cli(*usual, *watch, f"model.root={tmp_path}" if usual else "limit=1", *args) == 2
    assert said in cli.err
    assert "sekrit" not in cli.err


def test_the_command_line_watches_too(cli, root, stub):
    small_model(root / "step_1")
    (root / "DONE").touch()
    line = [f"model.root={root}", "watch=true", "watch.settle_s=0", "watch.look_s=0.1"]
    assert cli(*line) == 0
    assert "8/8" in cli.out
    assert main(["report", f"workspace={cli.workspace}"]) == 0
