"""Whole runs that send their scores to real trackers, offline; what they hold is read back."""

import json
import math
import sqlite3
from pathlib import Path

import pytest
from small_models import small_model
from wandb_file import config, history, records

from mtbench_ray.judges.base import ScoreOptions
from mtbench_ray.models.naming import Naming
from mtbench_ray.reports.results import Results, current
from mtbench_ray.run import after_round
from mtbench_ray.trackers.base import Part, Place
from mtbench_ray.trackers.contents import COLUMNS, found_in
from mtbench_ray.trackers.wandb_run import run_arguments
from mtbench_ray.workspace.workspace import Workspace

TWO = ("-m", "model=run_a/step_100,run_a/step_200")
THREE = ("-m", "model=run_a/step_100,run_a/step_200,run_a/step_300")
KEY = "mtbench/mt_bench/stub"
PLAIN = "tracker.pictures=false"
TENSORBOARD = ("tracker=tensorboard", PLAIN)


@pytest.fixture(autouse=True)
def no_account(monkeypatch, tmp_path):
    """Nobody's settings and no key; what a tracker keeps for itself is thrown away."""
    for name in ("WANDB_API_KEY", "WANDB_MODE", "WANDB_PROJECT", "MLFLOW_TRACKING_URI",
                 "MLFLOW_EXPERIMENT_NAME", "TRACKIO_DIR", "TRACKIO_SPACE_ID"):  # fmt: skip
        monkeypatch.delenv(name, raising=False)
    for name in ("WANDB_CACHE_DIR", "WANDB_CONFIG_DIR", "WANDB_DATA_DIR"):
        monkeypatch.setenv(name, str(tmp_path / "own"))
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")


def averages(cli):
    """By step: mean and interval of each evaluation, as the summary has them."""
    return {
        int(result["model"].rpartition("_")[2]): result["average"]
        for result in cli.summary["results"]
    }


def events(folder):
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    found = accumulator.EventAccumulator(str(folder), size_guidance={"tensors": 0, "images": 0})
    return found.Reload()


def scalars(folder, tag):
    return [(one.step, pytest.approx(one.value)) for one in events(folder).Scalars(tag)]


def test_tensorboard_has_each_checkpoint_at_its_step_once(cli):
    pytest.importorskip("tensorboard")
    assert cli(*TWO, *TENSORBOARD) == 0
    assert "2 evaluations written; to look at them: tensorboard --logdir" in cli.err
    folder = cli.workspace / "tensorboard" / "run_a"
    means = {step: average["mean"] for step, average in averages(cli).items()}
    assert scalars(folder, f"{KEY}/average") == list(means.items())
    tags = events(folder).Tags()
    assert {f"{KEY}/{name}" for name in (
        "first_turn", "second_turn", "categories/math", "scored", "planned", "failed_share",
        "judge_error_rate", "answers/failed_share", "answers/truncated_share",
    )} <= set(tags["scalars"])  # fmt: skip
    rows = events(folder).Tensors(f"{KEY}/rows")
    assert [row.step for row in rows] == [100, 200]
    table = rows[0].tensor_proto.string_val[0].decode()
    assert table.count("\n") == 1 + 8, "a head, a rule, and a line for each verdict"
    assert cli(*TWO, *TENSORBOARD) == 0
    assert (cli.calls, "tracker" in cli.err) == (0, False)
    assert len(list(folder.iterdir())) == 1, "nothing was written a second time"
    assert cli(*THREE, *TENSORBOARD) == 0
    assert "1 evaluation written" in cli.err
    assert [step for step, _ in scalars(folder, f"{KEY}/average")] == [100, 200, 300]


def test_the_curve_is_a_picture_of_the_run(cli):
    pytest.importorskip("tensorboard")
    pytest.importorskip("matplotlib")
    assert cli(*TWO, "tracker=tensorboard") == 0
    found = events(cli.workspace / "tensorboard" / "run_a")
    (tag, _) = sorted(found.Tags()["images"])
    assert tag == "mtbench/curves/mt_bench_average-stub-curve"
    (image,) = found.Images(tag)
    assert (image.step, image.encoded_image_string[:4]) == (200, b"\x89PNG")
    assert image.width > image.height > 100


def test_wandb_offline_holds_the_whole_run_in_one_file_and_no_key(cli, monkeypatch):
    pytest.importorskip("wandb")
    key = "5d1c0ffee5d1c0ffee5d1c0ffee5d1c0ffee1234"
    monkeypatch.setenv("WANDB_API_KEY", key)
    offline = ("tracker=wandb", "tracker.offline=true", "tracker.pictures=false")
    assert cli(*TWO, *offline) == 0
    assert f"2 evaluations written; to send them: wandb sync {cli.workspace}/wandb" in cli.err
    (first,) = cli.workspace.glob("wandb/offline-run-*/*.wandb")
    assert cli(*THREE, *offline) == 0
    assert "1 evaluation written" in cli.err
    (file,) = cli.workspace.glob("wandb/offline-run-*/*.wandb")
    assert file.name == first.name, "the same run of wandb's"
    lines = list(history(file))
    means = averages(cli)
    assert [line["mtbench/step"] for line in lines] == [100, 200, 300]
    assert [line[f"{KEY}/average"] for line in lines] == [one["mean"] for one in means.values()]
    ids = {result["id"] for result in cli.summary["results"]}
    known = {name.removeprefix("mtbench."): said for name, said in config(file).items()
             if name.startswith("mtbench.")}  # fmt: skip
    assert set(known) == ids
    assert set(known.values()) == {f"{KEY} step {step}" for step in (100, 200, 300)}
    axes = {one.metric.glob_name: one.metric.step_metric for one in records(file)
            if one.WhichOneof("record_type") == "metric"}  # fmt: skip
    assert axes["mtbench/*"] == "mtbench/step"
    tables = [json.loads(path.read_text()) for path in file.parent.rglob("*.table.json")]
    assert len(tables) == 3
    assert tuple(tables[0]["columns"]) == COLUMNS
    assert len(tables[0]["data"]) == 8
    for path in cli.workspace.rglob("*"):
        assert not path.is_file() or key.encode() not in path.read_bytes(), path


def test_wandb_takes_what_its_online_runs_are_begun_with():
    wandb = pytest.importorskip("wandb")
    part = Part("run_a", "run_a", "", ())
    own, shared = (
        run_arguments(Place("wandb", "", "team/llm", run, False, "/work", "mtbench"), part, "new1")
        for run in ("", "training1")
    )
    assert (own[0]["id"], own[0]["mode"], own[0]["resume"]) == ("new1", "online", "allow")
    assert (shared[0]["id"], shared[0]["mode"]) == ("training1", "shared")
    for _, settings in (own, shared):
        made = wandb.Settings(**settings)
        assert (made.console, made.x_disable_stats) == ("off", True)
    assert not made.x_update_finish_state, "the training's run is not ended by us"


def test_mlflow_gets_it_into_the_trainings_own_run(cli, tmp_path, monkeypatch):
    pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    from mlflow.tracking import MlflowClient

    client = MlflowClient(str(tmp_path / "mlruns"))
    training = client.create_run(client.create_experiment("training"))
    run_id = training.info.run_id
    client.log_metric(run_id, "loss", 2.5, step=100)
    into = (
        "tracker=mlflow",
        f"tracker.uri={tmp_path / 'mlruns'}",
        f"tracker.run_id={run_id}",
        PLAIN,
    )
    assert cli(*TWO, *into) == 0
    assert "tracker=mlflow: 2 evaluations sent" in cli.err
    found = client.get_metric_history(run_id, f"{KEY}/average")
    means = averages(cli)
    assert [(one.step, one.value) for one in found] == [
        (s, one["mean"]) for s, one in means.items()
    ]
    run = client.get_run(run_id)
    assert (run.data.metrics["loss"], run.info.status) == (2.5, "RUNNING")
    ids = {result["id"] for result in cli.summary["results"]}
    tags = {name.removeprefix("mtbench.") for name in run.data.tags if name.startswith("mtbench.")}
    assert tags == ids
    paths = [one.path for one in client.list_artifacts(run_id, f"{KEY}/rows")]
    assert len(paths) == 2
    table = json.loads(Path(client.download_artifacts(run_id, paths[0])).read_text())
    assert tuple(table["columns"]) == COLUMNS
    assert {row[COLUMNS.index("step")] for row in table["data"]} == {100}


def test_trackio_has_it_in_its_database(cli, tmp_path):
    pytest.importorskip("trackio")
    line = ("tracker=trackio", f"tracker.uri={tmp_path / 'tio'}", "tracker.project=llm", PLAIN)
    assert cli(*TWO, *line) == 0
    assert cli(*THREE, *line) == 0
    assert "1 evaluation sent" in cli.err
    (file,) = (tmp_path / "tio").glob("llm*.db")
    with sqlite3.connect(file) as database:
        rows = database.execute(
            "select run_name, step, metrics from metrics order by id"
        ).fetchall()
    found = [(run, step, json.loads(metrics)) for run, step, metrics in rows]
    points = [(run, step, line[f"{KEY}/average"]) for run, step, line in found
              if f"{KEY}/average" in line]  # fmt: skip
    assert points == [("run_a", step, one["mean"]) for step, one in averages(cli).items()]
    assert len({json.dumps(line) for _, _, line in found}) == len(found), "no line came twice"


def test_what_a_failing_tracker_missed_is_sent_by_the_next_run(cli):
    pytest.importorskip("tensorboard")
    blocked = cli.workspace / "tensorboard"
    cli.workspace.mkdir()
    blocked.mkdir()
    (blocked / "run_a").write_text("in the way")
    models = "model=run_a/step_100,run_b/step_100"
    assert cli("-m", models, *TENSORBOARD) == 0, "the run is what it would be without"
    assert "; the next run sends it" in cli.err
    assert "tracker=tensorboard: 1 evaluation written" in cli.err, "the other run's"
    assert (blocked / "run_b").is_dir()
    (record,) = [json.loads(path.read_text()) for path in cli.workspace.glob("runs/*/record.json")]
    assert any("the next run sends it" in note for note in record["notes"])
    (blocked / "run_a").unlink()
    assert cli("-m", models, *TENSORBOARD) == 0
    assert (cli.calls, "1 evaluation written" in cli.err) == (0, True)
    assert [step for step, _ in scalars(blocked / "run_a", f"{KEY}/average")] == [100]
    assert [step for step, _ in scalars(blocked / "run_b", f"{KEY}/average")] == [100]


def test_a_tracker_that_takes_too_long_is_left_for_the_next_run(cli):
    pytest.importorskip("tensorboard")
    line = ("model=run_a/step_100", *TENSORBOARD)
    assert cli(*line, "tracker.timeout_s=0.01") == 0
    assert "not done within 0.01 s (tracker.timeout_s); the next run sends it" in cli.err
    assert cli(*line) == 0
    assert "1 evaluation written" in cli.err


def test_a_service_that_cannot_be_reached_stops_no_run_and_no_login_is_told(cli, monkeypatch):
    pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://somebody:hidden-word-77@127.0.0.1:9")
    assert cli("model=run_a/step_100", "tracker=mlflow", PLAIN) == 0
    assert "tracker=mlflow cannot be reached: MlflowException: " in cli.err
    assert "the run goes on, and what is missed is sent by the next one" in cli.err
    assert "127.0.0.1:9" in cli.err
    assert "hidden-word-77" not in cli.err
    for path in cli.workspace.rglob("*"):
        assert not path.is_file() or b"hidden-word-77" not in path.read_bytes(), path


@pytest.mark.parametrize(
    ("needs", "words", "said"),
    [
        ("wandb", ["tracker=wandb"], "set WANDB_API_KEY or run `wandb login`"),
        ("wandb", ["tracker=wandb", "tracker.offline=true", "tracker.run_id=x"], "write over"),
        ("wandb", ["tracker=wandb", "tracker.uri=http://h"], "tracker.uri is not of wandb"),
        ("", ["tracker=wand"], "did you mean tracker=wandb?"),
        ("", ["tracker.run_id=x"], "names a run of no tracker"),
        ("mlflow", ["tracker=mlflow"], "tracker.uri=http://HOST:5000, or a folder"),
        ("mlflow", ["tracker=mlflow", "tracker.uri={tmp}", "tracker.run_id=no"], "not found"),
        ("mlflow", ["tracker=mlflow", "tracker.uri=http://a:b@h"], "holds a user or a password"),
        ("trackio", ["tracker=trackio", "tracker.uri={tmp}", "tracker.run_id=no"], "not exist in"),
        ("trackio", ["tracker=trackio", "tracker.uri=http://h?write_token=abc"], "a question mark"),
        ("tensorboard", ["tracker=tensorboard", "tracker.uri=/dev/null/x"], "is no folder"),
        ("tensorboard", ["tracker=tensorboard", "tracker.offline=true"], "is of wandb, not of"),
        ("tensorboard", ["tracker=tensorboard", "tracker.prefix=a b"], "tracker.prefix=mtbench"),
        ("tensorboard", ["tracker=tensorboard", "tracker.timeout_s=0"], "is no time"),
        ("tensorboard", ["-m", "tracker=tensorboard,none"], "one line for each: tracker.kind="),
        (
            "tensorboard",
            ["-m", "tracker=tensorboard", "tracker.run_id=r", "model=org/a,org/b"],
            "these have no training step in their names: org/a, org/b",
        ),
    ],
)  # fmt: skip
def test_a_wrong_setting_is_an_error_before_anything_is_paid(needs, words, said, cli, tmp_path):
    if needs:
        pytest.importorskip(needs)
    words = [word.replace("{tmp}", str(tmp_path / "there")) for word in words]
    model = [] if any("model=" in word for word in words) else ["model=run_a/step_100"]
    assert cli(*words, *model) == 2
    assert said in cli.err
    assert cli.err.startswith("error: ")
    assert cli.calls == 0
    assert "write_token=abc" not in cli.err


def test_a_model_without_a_step_stands_at_step_0_or_where_it_is_told_to(cli):
    pytest.importorskip("tensorboard")
    into = ("tracker=tensorboard", "tracker.run_id=training", "tracker.pictures=false")
    assert cli("model=org/base", *into) == 0
    assert "org/base has no training step in its name and stands at step 0" in cli.err
    assert cli("model=run_a/final", *into, "tracker.step=500") == 0
    assert "step 0" not in cli.err
    folder = cli.workspace / "tensorboard" / "training" / "mtbench"
    found = events(folder)
    tags = [tag for tag in found.Tags()["scalars"] if tag.endswith("/average")]
    steps = sorted(one.step for tag in tags for one in found.Scalars(tag))
    assert (steps, len(tags)) == ([0, 500], 2), "each training run has a curve of its own"


def test_a_run_without_a_tracker_tells_it_later_and_other_settings_are_another_curve(cli):
    pytest.importorskip("tensorboard")
    line = ("tracker=tensorboard", "tracker.pictures=false", "tracker.tables=false")
    warm = "sampling.temperature=0.3"
    assert cli("model=run_a/step_100") == 0
    assert cli("model=run_a/step_100", *line) == 0
    assert (cli.calls, "1 evaluation written" in cli.err) == (0, True)
    assert cli("model=run_a/step_100", warm, *line) == 0
    assert cli("model=run_a/step_200", warm, *line) == 0
    assert cli("model=run_a/step_200", *line) == 0
    assert cli("model=run_a/step_100", "limit=2", *line) == 0
    found = events(cli.workspace / "tensorboard" / "run_a")
    curves = {tag.removesuffix("/average").removeprefix("mtbench/"):
              [one.step for one in found.Scalars(tag)]
              for tag in found.Tags()["scalars"] if tag.endswith("/average")}  # fmt: skip
    (other,) = set(curves) - {"mt_bench/stub", "mt_bench-2q/stub"}
    assert other.startswith("mt_bench/stub-")
    assert curves == {"mt_bench/stub": [100, 200], other: [100, 200], "mt_bench-2q/stub": [100]}


def read(cli, texts=True):
    with Workspace.open(cli.workspace, write=False) as workspace:
        results = Results(workspace, ScoreOptions())
        return list(found_in(results, current(workspace), "mtbench", Naming(), texts))


def test_failures_are_figures_and_what_was_not_tried_is_not_sent_yet(cli):
    cli.stub.script.text = "I cannot say."
    assert cli("model=run_a/step_100", "judge.parse_retries=0") == 3
    (found,) = read(cli)
    assert found.whole
    assert found.values["judge_error_rate"] == 1
    assert found.values["failed_share"] == 1
    assert found.values["scored"] == 0
    assert found.values["answers/failed_share"] == 0
    assert "average" not in found.values, "there is none"
    reasons = {row[COLUMNS.index("reason")] for row in found.rows}
    assert reasons == {"no_rating"}
    journal = cli.workspace / "judgments.jsonl"
    journal.write_text("".join(journal.read_text().splitlines(keepends=True)[:-1]))
    assert not read(cli)[0].whole
    cli.stub.script.text = ""
    assert cli("model=run_a/step_100") == 0
    (good,) = read(cli)
    assert good.evaluation_id == found.evaluation_id
    assert good.digest != found.digest, "it is sent again, with its figures"
    assert (good.values["judge_error_rate"], good.values["failed_share"]) == (0, 0)
    assert good.values["average"] == cli.summary["results"][0]["average"]["mean"]


def test_thinking_compliance_is_a_figure_by_turn(cli):
    assert cli("model=run_a/step_100", "model.thinking=on") in (0, 3)
    (found,) = read(cli, texts=False)
    answers = cli.summary["results"][0]["answers"]
    assert found.values["answers/thinking_compliance"] == answers["thinking_compliance"]
    by_turn = answers["thinking_compliance_by_turn"]
    assert {found.values[f"answers/thinking_compliance_turn_{t}"] for t in by_turn} == set(
        by_turn.values()
    )
    assert all(map(math.isfinite, found.values.values()))


def test_answers_alone_and_matches_of_all_models_are_points_too(cli):
    assert cli("model=run_a/step_100", "stage=answers") == 0
    (found,) = read(cli)
    assert (found.key, found.rows, found.step) == ("mtbench/mt_bench", (), 100)
    assert found.values["answers/failed_share"] == 0
    assert cli(*TWO, "mode=pairwise-all") in (0, 3)
    matches = [one for one in read(cli) if "pairwise-all" in one.key]
    assert {one.model for one in matches} == {"run_a/step_100", "run_a/step_200"}
    assert {one.key for one in matches} == {"mtbench/mt_bench/pairwise-all/stub"}
    assert len({one.evaluation_id for one in matches}) == 2
    assert all(one.rows for one in matches)


def test_a_watch_sends_each_checkpoint_with_the_names_of_its_pattern(cli, tmp_path, monkeypatch):
    pytest.importorskip("tensorboard")
    monkeypatch.setattr(after_round.PicturesBeside, "update", lambda self: None)
    root = tmp_path / "ckpts"
    for run, step in (("a", 1), ("a", 2), ("b", 1)):
        small_model(root / run / f"it{step}" / "hf", float(step))
    for run in ("a", "b"):
        (root / run / "DONE").touch()
    line = [f"model.root={root}", "model.runs='*'", "model.pattern='it{step}/hf'", "watch=true",
            "watch.settle_s=0", "watch.look_s=0.1"]  # fmt: skip
    assert cli(*line, *TENSORBOARD) == 0
    assert "tracker=tensorboard: 3 evaluations written" in cli.err
    folder = cli.workspace / "tensorboard"
    steps = {run: [step for step, _ in scalars(folder / run, f"{KEY}/average")] for run in "ab"}
    assert steps == {"a": [1, 2], "b": [1]}
    assert cli(*line, *TENSORBOARD) == 0
    assert "tracker" not in cli.err
