"""``export``: files that other programs read, with the numbers of the tables."""

import csv
import dataclasses
import json
import statistics
import time
from pathlib import Path

import pytest
from questions import hills
from stub_server import StubServer

from mtbench_ray.cli.main import main
from mtbench_ray.errors import UserError
from mtbench_ray.judges.base import ScoreOptions
from mtbench_ray.reports import exports
from mtbench_ray.reports.results import Results, current
from mtbench_ray.workspace.workspace import Workspace

pytestmark = pytest.mark.runs
duckdb = pytest.importorskip("duckdb")


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Two models with six own questions."""
    folder = tmp_path_factory.mktemp("exports")
    hills(folder)
    with StubServer() as stub:
        main(["-m", "engine=fake", f"question_path={folder / 'q.jsonl'}", "judge.model=stub",
              f"workspace={folder / 'w'}", "judge=openai", f"judge.base_url={stub.url}",
              "model=org/a,b"])  # fmt: skip
    return folder / "w"


@pytest.fixture
def export(made, tmp_path, capsys):
    def run(kind, *words):
        assert main(["export", kind, str(tmp_path / "out"), f"workspace={made}", *words]) == 0
        return tmp_path / "out", capsys.readouterr().out.split()

    return run


def load(path):
    return json.loads(Path(path).read_text())


def values(made, model):
    rows = duckdb.sql(f"select value from '{made}/judgments.parquet' where model = '{model}'")
    return [value for (value,) in rows.fetchall()]


def test_scores_are_the_same_in_csv_and_parquet(export, made):
    out, _ = export("scores")
    with open(out / "scores.csv") as file:
        lines = list(csv.DictReader(file))
    rows = duckdb.sql(f"select * from '{out}/scores.parquet'")
    assert [line["model"] for line in lines] == [row[0] for row in rows.fetchall()]
    (whole,) = [line for line in lines if (line["model"], line["dimension"]) == ("b", "all")]
    assert float(whole["mean"]) == pytest.approx(statistics.fmean(values(made, "b")))
    assert whole["method"].startswith("cluster bootstrap")
    (part,) = [line for line in lines if (line["model"], line["name"]) == ("b", "math")]
    assert (part["ci_low"], part["method"]) == ("", "none: 3 questions, 5 are needed")


def test_each_model_has_a_file_with_mean_std_and_rank(export, made):
    _, paths = export("models")
    files = {found["model"]: found for found in map(load, paths)}
    means = {name: statistics.fmean(values(made, name)) for name in ("org/a", "b")}
    for name, content in files.items():
        (found,) = content["evaluations"]
        assert found["mean"] == pytest.approx(means[name])
        assert found["std"] == pytest.approx(statistics.stdev(values(made, name)))
        assert found["rank"] == 1 + sum(mean > means[name] for mean in means.values())
        assert set(found["parts"]["turn"]) == {"1", "2"}
        assert found["parts"]["category"]["math"]["ci_low"] is None


def test_the_dataset_is_read_by_datasets(export, made):
    datasets = pytest.importorskip("datasets")
    out, _ = export("dataset", "model=b")
    items = datasets.load_from_disk(str(out / "items"))
    assert sorted(items["value"]) == sorted(values(made, "b"))
    assert len(items) == 12
    assert all(items["answer"])
    assert set(datasets.load_from_disk(str(out / "scores"))["model"]) == {"b"}


def test_a_results_file_has_the_layout_of_lm_eval(export, made):
    _, paths = export("lm-eval")
    assert len(paths) == 2
    found = {one["model_name"]: one for one in map(load, paths)}
    results = found["org/a"]["results"]
    assert set(results) == {"mt_bench_single", "mt_bench_single_math", "mt_bench_single_writing"}
    task = results["mt_bench_single"]
    assert task["rating,none"] == pytest.approx(statistics.fmean(values(made, "org/a")))
    assert task["rating_stderr,none"] > 0
    assert results["mt_bench_single_math"]["rating_stderr,none"] == "N/A"  # three questions
    for key in ("configs", "versions", "n-shot", "higher_is_better", "n-samples"):
        assert set(found["org/a"][key]) == set(results), key
    assert found["org/a"]["n-samples"]["mt_bench_single"] == {"original": 12, "effective": 12}
    assert task["sample_len"] == 12
    # What lm-eval asks of names: the time is what stands after the last underscore.
    for path in paths:
        stamp = path[path.rfind("_") + 1 :].removesuffix(".json")
        assert time.strptime(stamp, "%Y-%m-%dT%H-%M-%S")
    # Every key is one of EvalResults in lm-eval 0.4.13 (result_schema.py), but for ours.
    assert set(found["org/a"]) - {"mtbench_ray_version"} <= {
        "results", "groups", "group_subtasks", "configs", "versions", "n-shot", "higher_is_better",
        "n-samples", "samples", "config", "date", "model_name", "model_name_sanitized",
    }  # fmt: skip


def test_lm_eval_itself_reads_its_layout(export, made):
    reader = pytest.importorskip("lm_eval.utils", reason="lm-eval is not installed")
    _, paths = export("lm-eval")
    assert reader.get_results_filenames(paths) == paths
    assert "mt_bench_single_math" in reader.make_table(load(paths[0]))


def test_every_eval_ever_gets_what_its_schema_requires(export, made):
    out, paths = export("every-eval-ever", "model=org/a")
    (path,) = paths
    assert path.startswith(str(out / "data" / "mt_bench" / "org" / "a"))
    found = load(path)
    assert found["schema_version"] == "0.3.0"
    assert found["model_info"] == {
        "name": "org/a", "id": "org/a", "developer": "org",
        "additional_details": {"deployment_type": "unknown", "model_availability": "unknown"},
    }  # fmt: skip
    whole = found["evaluation_results"][0]
    assert whole["score_details"]["score"] == pytest.approx(statistics.fmean(values(made, "org/a")))
    limits = whole["metric_config"]
    assert (limits["min_score"], limits["max_score"], limits["lower_is_better"]) == (1, 10, False)
    interval = whole["score_details"]["uncertainty"]["confidence_interval"]
    assert interval["lower"] < whole["score_details"]["score"] < interval["upper"]
    small = {one["evaluation_name"]: one for one in found["evaluation_results"]}
    assert (
        "confidence_interval"
        not in (small["mt_bench category math"]["score_details"]["uncertainty"])
    )


def test_an_unknown_kind_is_answered_with_the_nearest(made, tmp_path, capsys):
    assert main(["export", "score", str(tmp_path), f"workspace={made}"]) == 2
    assert "did you mean scores?" in capsys.readouterr().err


def test_a_model_card_is_what_the_hubs_own_classes_read(export, made):
    hub = pytest.importorskip("huggingface_hub")
    _, paths = export("model-card")
    assert len(paths) == 2
    (path,) = [path for path in paths if Path(path).name.startswith("org_a")]
    card = hub.ModelCard.load(path)
    assert card.data.model_name == "org/a"
    found = card.data.eval_results
    whole, *parts = found
    assert whole.metric_value == pytest.approx(statistics.fmean(values(made, "org/a")))
    assert (whole.dataset_type, whole.task_type) == ("mt_bench", "text-generation")
    assert whole.metric_name == "mt_bench (single, stub)"
    assert whole.metric_args["judge"] == "stub"
    assert (whole.metric_args["scored"], whole.metric_args["planned"]) == (12, 12)
    assert whole.metric_args["ci_low"] < whole.metric_value < whole.metric_args["ci_high"]
    assert {part.metric_name.split(" (")[0] for part in parts} == {
        "mt_bench turn 1", "mt_bench turn 2", "mt_bench category math",
        "mt_bench category writing",
    }  # fmt: skip
    assert f"| {whole.metric_value:.2f} |" in card.text
    assert "| 12/12 |" in card.text
    mine = hub.ModelCard("---\nlicense: mit\n---\nMine.")
    mine.data.model_name, mine.data.eval_results = "org/a", found
    again = hub.ModelCard(str(mine))
    assert again.data.eval_results == found, "it goes into another card as it is"


def test_scores_of_the_demo_judge_are_not_for_a_model_card(tmp_path, made):
    with Workspace.open(made, write=False) as workspace:
        rows = [dataclasses.replace(row, demo=True) for row in current(workspace)]
        with pytest.raises(UserError, match="scores of the demo judge are not for a model card"):
            exports.model_card(Results(workspace, ScoreOptions()), rows, tmp_path)
    assert not list(tmp_path.iterdir())
