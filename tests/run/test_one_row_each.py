"""Every number belongs to one evaluation: through the command line, with a real HTTP judge."""

import dataclasses
import json
import shutil
from collections import Counter
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyarrow import parquet
from stub_server import StubServer

from mtbench_ray.config import (
    EngineConfig,
    JudgeConfig,
    ModelConfig,
    RunConfig,
    SamplingConfig,
)
from mtbench_ray.judges.base import ScoreOptions
from mtbench_ray.planning.estimate import estimates
from mtbench_ray.planning.evaluations import named
from mtbench_ray.planning.jobs import prepare
from mtbench_ray.planning.plan import render, view_of
from mtbench_ray.planning.run_evaluations import evaluations
from mtbench_ray.reports.results import Results
from mtbench_ray.run.main import run_jobs
from mtbench_ray.workspace.workspace import Workspace


def scored(result):
    return f"{result['average']['scored']}/{result['average']['planned']}"


def called(result):
    judge = named(result["judge"], result["settings"], judge=True)
    return named(result["model"], result["settings"]), judge


def test_two_selections_of_one_sweep_are_two_whole_rows(cli):
    assert cli("-m", "model=org/m", "categories=[math],[writing]") == 0
    assert cli.calls == len(cli.rows("judgments.jsonl")) == 8
    assert [(called(r)[0], scored(r)) for r in cli.summary["results"]] == [
        ("org/m (categories=[math])", "4/4"), ("org/m (categories=[writing])", "4/4"),
    ]  # fmt: skip
    assert cli.out.count("4/4") == 2


@pytest.mark.parametrize(
    ("sweep", "rows", "calls"),
    [("limit=4,1", "8/8", 8), ("limit=1,4", "8/8", 8), ("sampling.samples=3,1", "24/24", 24),
     ("judge.samples=1,2", "16/16", 16)],
)  # fmt: skip
def test_a_part_of_another_job_is_in_its_row_and_is_paid_once(cli, sweep, rows, calls):
    assert cli("-m", "model=org/m", sweep) == 0
    assert [scored(result) for result in cli.summary["results"]] == [rows]
    assert cli.calls == calls
    assert cli("-m", "model=org/m", sweep) == 0
    assert cli.calls == 0


@pytest.mark.parametrize("smoke", ["limit=1", "experiment=quick"])
def test_a_smoke_test_hides_nothing(cli, smoke):
    cli("model=org/m")
    before = cli.summary
    assert cli("model=org/m", smoke) == 0
    assert cli.calls == 0
    assert cli.summary == before
    cli.verb("report", "format=json")
    assert json.loads(cli.out) == before


def test_a_smoke_test_with_other_settings_stands_beside_the_full_one(cli):
    cli("model=org/m")
    assert cli("model=org/m", "limit=1", "sampling.max_tokens=5") == 0
    assert [(called(r)[0], scored(r)) for r in cli.summary["results"]] == [
        ("org/m (4 questions, max_tokens=1024)", "8/8"), ("org/m (limit=1, max_tokens=5)", "2/2"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("sweep", "judges"),
    [
        ("judge.temperature=0.0,1.0", ["stub (temperature=0.0)", "stub (temperature=1.0)"]),
        ("judge.prompts=rubric5,fastchat", ["stub (prompts=rubric5)", "stub (prompts=fastchat)"]),
    ],
)
def test_two_judge_settings_are_two_rows_everywhere(cli, tmp_path, sweep, judges):
    cli.stub.script.text = "<score>4</score> Rating: [[4]]"
    assert cli("-m", "model=org/step_1", sweep) == 0
    assert cli.calls == 16
    results = cli.summary["results"]
    assert [called(result)[1] for result in results] == judges
    assert len({result["id"] for result in results}) == 2
    assert all(judge in cli.out for judge in judges)
    cli.verb("report", "format=json")
    assert [called(result)[1] for result in json.loads(cli.out)["results"]] == judges
    files = sorted(path.name for path in (cli.workspace / "model_judgment").iterdir())
    assert len(files) == 2
    for name in files:
        assert len((cli.workspace / "model_judgment" / name).read_text().splitlines()) == 8
    cli.verb("report", "curve", f"out={tmp_path / 'curve'}")
    lines = (tmp_path / "curve" / "curve.csv").read_text().splitlines()
    assert len([line for line in lines if ",all," in line]) == 2


def config_of(cli, **more):
    return RunConfig(
        ModelConfig("org/m"),
        JudgeConfig(cli.stub.url, model="stub"),
        EngineConfig(kind="fake"),
        question_path=cli.usual[1].partition("=")[2],
        reference_path=cli.usual[2].partition("=")[2],
        workspace=str(cli.workspace),
        **more,
    )


def test_each_job_has_its_own_objective(cli):
    base = config_of(cli)
    configs = [
        *(dataclasses.replace(base, categories=[name]) for name in ("math", "writing")),
        *(
            dataclasses.replace(base, judge=dataclasses.replace(base.judge, temperature=hot))
            for hot in (0.0, 1.0)
        ),
        dataclasses.replace(base, models=["org/m", "org/n"]),
    ]
    *values, several = run_jobs(configs, command=[]).values
    with Workspace.open(cli.workspace, write=False) as workspace:
        for config, value in zip(configs, values, strict=False):
            (mine,) = evaluations(prepare([config], workspace), workspace).of_jobs[0]
            judged = Results(workspace, ScoreOptions()).outcomes(mine)
            found = [one.judgment.value for one in judged]
            assert value == pytest.approx(sum(found) / len(found))
    assert values[0] != values[1]
    assert several is None


def test_a_plan_of_two_prompt_sets_is_what_is_spent(cli):
    line = ["-m", "model=org/m", "judge.prompts=rubric5,fastchat"]
    cli("model=org/m", "judge.prompts=fastchat")
    assert cli.verb("plan", *line, *cli.judge, *cli.usual[:3]) == 0
    total = next(row for row in cli.out.splitlines() if row.startswith("all"))
    assert total.split()[1:4] == ["0", "8", "8/16"]
    cli.stub.script.text = "<score>4</score> Rating: [[4]]"
    assert cli(*line) == 0
    assert cli.calls == 8


@pytest.mark.parametrize(
    ("sweep", "name"),
    [("parity=safe,fastchat", "parity"), ("stage=all,answers", "stage"),
     ("budget_usd=1,2", "budget_usd"), ("report.seed=1,2", "report.seed"),
     ("cluster.num_cpus=1,2", "cluster.num_cpus"), ("workspace=a,b", "workspace"),
     ("engine.tensor_parallel=1,2", "engine.tensor_parallel"), ("fresh=true,false", "fresh")],
)  # fmt: skip
def test_a_setting_of_the_whole_run_cannot_be_swept(cli, sweep, name):
    usual = [word for word in cli.usual if not word.startswith(f"{name}=")]
    cli.usual = usual
    assert cli("-m", "model=org/m", sweep) == 2
    assert f"{name} cannot be swept" in cli.err
    assert cli.calls == 0
    shutil.rmtree("a", ignore_errors=True)
    shutil.rmtree("b", ignore_errors=True)


def test_judging_needs_rows_only(cli, tmp_path):
    model = tmp_path / "ckpt" / "step_1"
    model.mkdir(parents=True)
    (model / "config.json").write_text("{}")
    template = tmp_path / "chat.jinja"
    template.write_text("{{ messages }}")
    line = [f"model={model}", f"model.chat_template={template}"]
    assert cli(*line, "stage=answers") == 0
    shutil.rmtree(model)
    template.unlink()
    moved = tmp_path / "elsewhere"
    shutil.copytree(cli.workspace, moved)
    shutil.rmtree(cli.workspace)
    cli.usual[-1], cli.workspace = f"workspace={moved}", moved
    assert cli(*line, "stage=judge") == 0
    assert (cli.calls, scored(cli.summary["results"][0])) == (8, "8/8")
    assert cli(f"model={model}", "stage=judge", "judge.model=other", "limit=2") == 0
    assert cli.calls == 4


def test_answers_made_in_parts_are_judged_as_one(cli):
    cli("model=org/m", "stage=answers", "categories=[math]")
    cli("model=org/m", "stage=answers", "categories=[writing]")
    assert cli("model=org/m", "stage=judge") == 0
    assert [scored(result) for result in cli.summary["results"]] == ["8/8"]


def test_answers_to_other_questions_of_the_same_number_are_not_judged(cli, tmp_path):
    cli("model=org/m", "stage=answers")
    rows = [
        json.loads(line)
        for line in Path(cli.usual[1].partition("=")[2]).read_text().split("\n")
        if line
    ]
    rows[0]["turns"][0] = "Something else?"
    own = tmp_path / "changed.jsonl"
    own.write_text("".join(json.dumps(row) + "\n" for row in rows))
    cli.usual[1] = f"question_path={own}"
    assert cli("model=org/m", "stage=judge") == 3
    assert (cli.calls, scored(cli.summary["results"][0])) == (6, "6/8")


def test_imported_answers_are_judged_by_any_judge(cli, tmp_path):
    cli("model=org/m", "stage=answers")
    assert cli.verb("export", "fastchat", str(tmp_path / "out")) == 0
    cli.workspace = tmp_path / "fresh"
    cli.usual[-1] = f"workspace={cli.workspace}"
    assert cli.verb("import", "fastchat", str(tmp_path / "out")) == 0
    assert cli("model=org/m", "stage=judge") == 0
    assert (cli.calls, scored(cli.summary["results"][0])) == (8, "8/8")
    assert cli("model=org/m", "stage=judge") == 0
    assert cli.calls == 0
    assert cli("model=org/n", "mode=pairwise-baseline", "baseline=org/m") == 0
    assert cli.calls == 16


def test_a_baseline_may_be_a_model_that_was_only_the_other_side(cli):
    assert cli("-m", "model=org/a,org/b", "mode=pairwise-all") == 0
    assert cli("model=org/c", "mode=pairwise-baseline", "baseline=org/b") == 0
    assert cli.calls == 16
    result = cli.summary["results"][0]
    assert (result["baseline"], result["n"]) == ("org/b", 8)


def test_models_compared_with_themselves_at_other_settings_have_two_names(cli):
    assert cli("-m", "model=org/a", "sampling.max_tokens=5,9", "mode=pairwise-all") == 0
    assert {result["model"] for result in cli.summary["results"]} == {
        "org/a (max_tokens=5)", "org/a (max_tokens=9)",
    }  # fmt: skip
    assert all(result["n"] == result["planned"] == 8 for result in cli.summary["results"])


def test_a_run_of_two_modes_prints_both(cli):
    line = ["-m", "model=org/m", "mode=single,pairwise-baseline", "baseline=org/b"]
    cli("model=org/b", "stage=answers")
    assert cli(*line) == 0
    assert "8/8" in cli.out
    assert "against" in cli.out


def test_parquet_has_every_model_and_one_row_for_each_figure(cli):
    replies = "{" + ", ".join(f"{number}: [same, text]" for number in range(1, 5)) + "}"
    line = ["-m", "model=org/a,org/b", f"engine.fake_faults={{replies: {replies}}}"]
    assert cli(*line) == 0
    assert cli.calls == 8
    judgments = parquet.read_table(cli.workspace / "judgments.parquet").to_pylist()
    assert Counter(row["model"] for row in judgments) == {"org/a": 8, "org/b": 8}
    scores = parquet.read_table(cli.workspace / "scores.parquet").to_pylist()
    keys = Counter((r["evaluation_id"], r["metric"], r["dimension"], r["name"]) for r in scores)
    assert set(keys.values()) == {1}
    assert len(scores) == 2 * (1 + 2 + 2)
    ids = {result["id"]: result for result in cli.summary["results"]}
    for row in scores:
        if row["dimension"] == "all":
            assert row["mean"] == ids[row["evaluation_id"]]["average"]["mean"]
            assert row["benchmark"] == "mt_bench"


def test_an_old_run_without_its_questions_is_left_out_and_the_rest_stands(cli):
    cli("model=org/old", "categories=[math]")
    (data,) = (cli.workspace / "data").iterdir()
    record = next((cli.workspace / "runs").glob("*/record.json"))
    record.write_text(record.read_text().replace(data.stem, "0" * 32))
    assert cli("model=org/m") == 0
    assert [result["model"] for result in cli.summary["results"]] == ["org/m"]
    assert cli.verb("report") == 0


def test_a_setting_of_another_version_is_no_traceback(cli):
    cli("model=org/m")
    record = next((cli.workspace / "runs").glob("*/record.json"))
    record.write_text(
        record.read_text().replace('\\"name\\": ', '\\"from_the_future\\": 1, \\"name\\": ')
    )
    assert cli.verb("report") == 0
    assert "8/8" in cli.out


# Random runs -------------------------------------------------------------------------------

QUESTIONS = [
    {
        "question_id": number,
        "category": "math" if number % 2 else "own",
        "turns": [f"{number}?", "?"],
    }
    for number in range(1, 4)
]

JOBS = st.lists(
    st.fixed_dictionaries(
        {
            "model": st.sampled_from(["org/a", "org/b"]),
            "categories": st.sampled_from([[], ["math"], ["own"]]),
            "limit": st.sampled_from([None, 1, 2]),
            "samples": st.integers(1, 2),
            "temperature": st.sampled_from([0.0, 1.0]),
            "prompts": st.sampled_from(["rubric5", "fastchat"]),
            "mode": st.sampled_from(["single", "single", "pairwise-baseline"]),
            "judge_samples": st.integers(1, 2),
        }
    ),
    min_size=1,
    max_size=4,
)


@settings(
    max_examples=8, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)  # a run takes a second
@given(JOBS, st.booleans(), st.booleans())
def test_any_list_of_jobs_is_shown_whole_planned_right_and_paid_once(jobs, equal, in_two_stages):
    with TemporaryDirectory() as folder, StubServer() as stub:
        stub.script.text = "<score>4</score> Rating: [[4]] [[A]]"
        (Path(folder) / "q.jsonl").write_text("".join(json.dumps(q) + "\n" for q in QUESTIONS))
        replies = {str(q["question_id"]): ["same", "text"] for q in QUESTIONS} if equal else {}
        base = RunConfig(
            engine=EngineConfig(kind="fake", fake_faults={"replies": replies}),
            question_path=f"{folder}/q.jsonl", workspace=f"{folder}/w", baseline="org/base",
            models=[],
        )  # fmt: skip
        first = dataclasses.replace(
            base, model=ModelConfig("org/base"), judge=JudgeConfig(kind="none"),
            sampling=SamplingConfig(samples=2), stage="answers",
        )  # fmt: skip
        configs = [
            dataclasses.replace(
                base,
                model=ModelConfig(job["model"]),
                judge=JudgeConfig(
                    stub.url, model="j", temperature=job["temperature"],
                    samples=job["judge_samples"],
                    # The shipped rubric has no prompts for pairs.
                    prompts=job["prompts"] if job["mode"] == "single" else "fastchat",
                ),
                sampling=SamplingConfig(samples=job["samples"]),
                categories=job["categories"], limit=job["limit"], mode=job["mode"],
            )
            for job in jobs
        ]  # fmt: skip
        with redirect_stdout(StringIO()) as out, redirect_stderr(StringIO()):
            run_jobs([first], command=[])
            if in_two_stages:
                answers = [dataclasses.replace(one, stage="answers") for one in configs]
                run_jobs(answers, command=[])
                configs = [dataclasses.replace(one, stage="judge") for one in configs]
            with Workspace.open(f"{folder}/w", write=False) as workspace:
                prepared = prepare(configs, workspace)
                rows = evaluations(prepared, workspace).rows
                planned = sum(found.calls for found in estimates(prepared, rows, workspace))
            out.truncate(0)
            before = stub.stats()["calls"]
            run_jobs(configs, command=[])
            made = stub.stats()["calls"] - before
            run_jobs(configs, command=[])
        assert stub.stats()["calls"] == before + made, "a second run pays nothing"
        # Answers that are not there yet may turn out equal, and are judged once then.
        assert made == planned if in_two_stages or not equal else made <= planned
        with Workspace.open(f"{folder}/w", write=False) as workspace:
            wanted = [wanted_by(job_rows, workspace) for job_rows in
                      evaluations(prepare(configs, workspace), workspace).of_jobs]  # fmt: skip
            shown = [one for row in rows for one in wanted_by([row], workspace)]
            assert len(shown) == len(set(shown))
            assert set(shown) == {one for mine in wanted for one in mine}
            assert all(not one.reason for row in rows
                       for one in Results(workspace, ScoreOptions()).outcomes(row))  # fmt: skip


def wanted_by(rows, workspace):
    """Every wanted verdict of some evaluations: by its request and the answers it is about."""
    found = []
    for row in rows:
        view = view_of(row, workspace.load_data(row.data), workspace.turns)
        for slot in view.grader.wanted(view):
            name = render(view, slot).judgment_id
            found.append((name, row.mode, slot.model, slot.opponent, slot.order, slot.answer_ids,
                          slot.turn, slot.judge_sample))  # fmt: skip
    return found
