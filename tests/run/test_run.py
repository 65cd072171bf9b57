"""Whole runs with the fake engine and a real HTTP judge: what is done, counted and paid."""

import json
import os
import re
import sys

import pytest
from verdicts import prompt_file

from mtbench_ray.cli.main import main
from mtbench_ray.config import EngineConfig, JudgeConfig, ModelConfig, RunConfig
from mtbench_ray.errors import UserError
from mtbench_ray.models.checkpoint import Source
from mtbench_ray.planning import jobs
from mtbench_ray.planning.jobs import prepare
from mtbench_ray.planning.run_evaluations import evaluations
from mtbench_ray.workspace.workspace import Workspace


def test_a_run_scores_every_turn_and_the_same_line_again_does_nothing(cli):
    assert cli("model=org/m") == 0
    first = cli.out
    (result,) = cli.summary["results"]
    assert result["average"]["scored"] == result["average"]["planned"] == 8
    assert cli.calls == 8
    files = {path: path.read_bytes() for path in cli.workspace.glob("*.jsonl")}
    assert cli("model=org/m") == 0
    assert (cli.calls, cli.out) == (0, first)
    assert {path: path.read_bytes() for path in files} == files
    assert len(list((cli.workspace / "runs").iterdir())) == 1


def test_tables_and_fastchats_files_are_written_where_rows_came_and_after_a_crash(cli):
    assert cli("model=org/m") == 0
    made = [*cli.workspace.glob("*.parquet"), *cli.workspace.glob("model_*/*.jsonl")]
    before = {path: path.stat().st_mtime_ns for path in made}
    assert len(before) == 5
    assert cli("model=org/m") == 0
    assert {path: path.stat().st_mtime_ns for path in made} == before
    # As a crash leaves them: the last rows came after the tables.
    table = cli.workspace / "scores.parquet"
    os.utime(table, ns=(0, 0))
    assert cli("model=org/m") == 0
    assert cli.calls == 0
    assert all(path.stat().st_mtime_ns > before[path] for path in made)


def test_the_report_is_the_summary_and_nothing_else(cli):
    cli("model=org/m")
    assert cli.verb("report", "format=json") == 0
    assert json.loads(cli.out) == cli.summary
    assert set(cli.summary["results"][0]) >= {
        "model", "judge", "first_turn", "second_turn", "average", "categories", "truncated",
        "output_tokens_per_s",
    }  # fmt: skip


def test_in_parity_fastchat_a_row_that_counts_is_paid_once(cli):
    cli.stub.script.text = "I give it [7]."
    assert cli("model=org/m", "parity=fastchat") == 0
    assert (cli.calls, cli.summary["results"][0]["average"]["mean"]) == (8, 7.0)
    assert "8/8 scored" in cli.err
    assert cli("model=org/m", "parity=fastchat") == 0
    assert cli.calls == 0
    assert {row["value"] for row in cli.rows("judgments.jsonl")} == {None}
    # A call that fails later takes nothing of what was paid for.
    cli.stub.script.always = "500"
    assert cli("model=org/m", "judge.max_retries=0") == 3
    assert cli.calls >= 8
    assert cli("model=org/m", "parity=fastchat") == 0
    assert (cli.calls, cli.summary["results"][0]["average"]["mean"]) == (0, 7.0)
    cli.stub.script.always = cli.stub.script.text = ""
    assert cli("model=org/m") == 0
    assert cli.calls == 8


def test_a_file_that_was_deleted_is_written_again_and_no_other(cli):
    assert cli("model=org/m") == 0
    made = [next(cli.workspace.glob(f"model_{kind}/*.jsonl")) for kind in ("answer", "judgment")]
    texts = [path.read_bytes() for path in made]
    before = made[1].stat().st_mtime_ns
    made[0].unlink()
    assert cli("model=org/m") == 0
    assert cli.calls == 0
    assert [path.read_bytes() for path in made] == texts
    assert made[1].stat().st_mtime_ns == before


def test_more_samples_another_judge_or_model_only_add_work(cli):
    cli("model=org/m")
    assert cli("model=org/m", "sampling.samples=2") == 0
    assert cli.calls == 8
    assert cli("model=org/m", "judge.samples=3") == 0
    assert cli.calls == 16
    assert cli("model=org/m", "judge.model=other") == 0
    assert cli.calls == 8
    assert len(cli.rows("answers.jsonl")) == 16


def test_prompts_are_checked_only_of_models_that_owe_answers(cli, monkeypatch):
    cli("model=org/done")

    def check(model, engine):
        raise UserError(f"{model.path} has no template")

    monkeypatch.setattr(jobs, "check_prompts", check)
    assert cli("model=org/done", "judge.model=other") == 0
    assert cli.calls == 8
    assert cli("model=org/new") == 2
    assert "org/new has no template" in cli.err
    assert cli("-m", "model=org/done,org/new") == 3
    assert "org/new has no template" in cli.out + cli.err
    assert cli("model=org/new", "stage=judge") == 3
    assert cli.calls == 0


def test_the_plan_says_what_is_odd_about_prompts_once(cli, monkeypatch):
    monkeypatch.setattr(jobs, "check_prompts", lambda model, engine: ["the date is in it"])
    assert cli.verb("plan", *cli.usual, *cli.judge, "model=org/m", "judge.model=a,b", "-m") == 0
    assert cli.out.count("org/m: the date is in it") == 1


def test_answers_of_other_settings_are_never_mixed_in(cli):
    cli("model=org/m")
    cold = cli.summary["results"][0]["average"]["mean"]
    assert cli("model=org/m", "sampling.temperature=1.5") == 0
    assert len(cli.rows("answers.jsonl")) == 16
    assert cli("model=org/m") == 0
    assert cli.calls == 0
    assert cli("model=org/m", "engine.max_num_seqs=2", "judge.concurrency=3", "quiet=true") == 0
    assert cli.calls == 0
    assert cold == cli.summary["results"][0]["average"]["mean"]


def test_fresh_starts_over_and_deletes_nothing(cli):
    cli("model=org/m")
    before = cli.rows("judgments.jsonl")
    assert cli("model=org/m", "fresh=true") == 0
    assert cli.calls == 8
    assert cli.rows("judgments.jsonl")[:8] == before
    assert cli("model=org/m") == 0
    assert cli.calls == 0


def test_a_selection_of_questions(cli):
    assert cli("model=org/m", "categories=[math]") == 0
    assert set(cli.summary["results"][0]["categories"]) == {"math"}
    assert cli("model=org/m", "limit=2", "limit_by=category") == 0
    assert set(cli.summary["results"][-1]["categories"]) == {"math", "writing"}
    assert cli("model=org/m", "limit=1") == 0
    assert len(cli.summary["results"]) == 2, "a smoke test is part of what was run before"
    assert [result["settings"]["questions"] for result in cli.summary["results"]] == [
        "categories=[math]", "limit=2 limit_by=category",
    ]  # fmt: skip
    assert cli("model=org/m", "categories=[maths]") == 2
    assert "did you mean math?" in cli.err


def test_only_math_gets_its_reference(cli):
    cli("model=org/m")
    prompts = {row["question_id"]: row["judge_prompt"] for row in cli.rows("judgments.jsonl")}
    assert all(("math" in name) == (number in (2, 4)) for number, name in prompts.items())


def test_a_forced_rating_is_on_the_scale_of_the_judge_prompts(cli, tmp_path):
    for name, scale, offered in (("five", [1, 5], "(5|4|3|2|1)"), ("ten", [1, 10], "(10|9|")):
        (tmp_path / f"{name}.jsonl").write_text(prompt_file(scale=scale))
        prompts = f"judge_prompt_path={tmp_path}/{name}.jsonl"
        assert cli("model=org/m", "limit=1", prompts, "judge.constrain=true") in (0, 3)
        assert offered in cli.stub.seen.bodies[-1]["structured_outputs"]["regex"]
    assert cli("model=org/m", "limit=1", "judge.prompts=rubric5", "judge.constrain=true") == 3
    assert "structured_outputs" not in cli.stub.seen.bodies[-1]


def test_a_judge_is_read_outside_its_own_thinking_alone(cli):
    cli.stub.script.text = "Rating: [[2]] [T]or Rating: [[9]]"
    tags = ("judge.thinking_open='[T]'", "judge.thinking_close='[/T]'")
    assert cli("model=org/m", "limit=1", *tags) == 0
    assert cli.summary["results"][0]["average"]["mean"] == 2
    cli.stub.script.text = "<think>Rating: [[3]]"
    assert cli("model=org/m", "limit=1", "judge.model=other", *tags) == 0
    assert cli.summary["results"][-1]["average"]["mean"] == 3

    # other tags: the stored replies are read again, and no call is made
    before = len(cli.stub.seen.bodies)
    assert cli("model=org/m", "limit=1") == 0
    assert 9 in [row["average"]["mean"] for row in cli.summary["results"]]
    assert len(cli.stub.seen.bodies) == before


def test_a_local_judge_is_known_by_what_its_folder_holds(questions, tmp_path):
    judge = tmp_path / "judge"
    judge.mkdir()
    (judge / "model.safetensors").write_bytes(b"\x02" + bytes(7) + b"{}")  # no tensor in it

    def settings(model):
        config = RunConfig(
            ModelConfig("org/m"),
            JudgeConfig(kind="local", model=str(model), prompts="rubric5"),
            EngineConfig(kind="fake"),
            question_path=str(questions),
        )
        with Workspace.open(tmp_path, write=False) as workspace:
            jobs = prepare([config, config], workspace)
            (row,) = evaluations(jobs, workspace).rows
        return json.loads(row.judge_settings)["content"]

    (judge / "config.json").write_text("{}")
    first = settings(judge)
    (judge / "config.json").write_text('{"new": 1}')
    assert len({first, settings(judge), settings("org/judge")}) == 3
    assert settings("org/judge") == settings("smollm2-135m") == ""


def test_a_local_judge_of_the_hub_is_known_by_its_commit(questions, tmp_path, monkeypatch):
    def settings(commit):
        def found(model):
            assert model.path == "org/judge"
            if commit is None:
                raise UserError("this machine does not reach the hub")
            return Source("org/judge", commit, tmp_path)

        monkeypatch.setattr("mtbench_ray.planning.jobs.locate", found)
        config = RunConfig(
            ModelConfig("org/m"),
            JudgeConfig(kind="local", model="org/judge", prompts="rubric5"),
            EngineConfig(kind="fake"),
            question_path=str(questions),
        )
        with Workspace.open(tmp_path, write=False) as workspace:
            (row,) = evaluations(prepare([config], workspace), workspace).rows
        return json.loads(row.judge_settings)["content"], row.evaluation_id

    one, two, unknown = settings("a" * 40), settings("b" * 40), settings(None)
    assert [content for content, _ in (one, two, unknown)] == ["a" * 40, "b" * 40, ""]
    assert len({one, two, unknown}) == 3
    assert settings("a" * 40) == one


def test_a_default_that_is_typed_changes_no_id(cli):
    assert cli("model=org/m") == 0
    typed = [
        "sampling.max_tokens=1024", "sampling.seed=0", "sampling.top_p=1.0", "sampling.top_k=-1",
        "sampling.temperature=null", "sampling.repetition_penalty=1", "model.thinking=unset",
        "model.stop=[]", "model.stop_token_ids=[]", "model.thinking_open='<think>'",
        "model.system_prompt=null", "model.split_thinking=auto", "engine.dtype=auto",
        "engine.max_model_len=null", "engine.args={}", "judge.temperature=0.0",
        "judge.max_tokens=2048", "judge.truncate=never", "judge.extra_body={}",
    ]  # fmt: skip
    before = cli.summary
    assert cli("model=org/m", *typed) == 0
    assert (cli.calls, len(cli.rows("answers.jsonl"))) == (0, 8)
    assert "nothing was pending: no engine was started, no judge was called" in cli.err
    assert cli.summary == before


@pytest.mark.parametrize("spelling", ["{url}/", "{url}//", " {url}", "HTTP{rest}"])
def test_an_address_in_another_spelling_is_the_same_service(spelling, cli):
    assert cli("model=org/m", "limit=1") == 0
    url = cli.stub.url
    address = spelling.format(url=url, rest=url.removeprefix("http"))
    assert cli("model=org/m", "limit=1", f"judge.base_url={address}") == 0
    assert cli.calls == 0
    assert [result["average"]["planned"] for result in cli.summary["results"]] == [2]


@pytest.mark.parametrize(
    ("one", "two"),
    [
        (None, "https://api.openai.com/v1"),
        (None, "https://api.openai.com:443/v1/"),
        ("http://host/v1", "http://HOST:80/v1/"),
    ],
)
def test_a_default_address_or_port_is_in_no_id(one, two, questions, tmp_path, monkeypatch):
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    ids = []
    for address in (one, two, "http://other/v1"):
        config = RunConfig(
            ModelConfig("org/m"),
            JudgeConfig(address, model="j", prompts="rubric5"),
            EngineConfig(kind="openai", base_url=address or "https://api.openai.com/v1"),
            question_path=str(questions),
        )
        with Workspace.open(tmp_path, write=False) as workspace:
            (row,) = evaluations(prepare([config], workspace), workspace).rows
        ids.append((row.evaluation_id, row.answers.units[0].answer_id))
    assert ids[0] == ids[1]
    assert {*ids[0]}.isdisjoint(ids[2])


def test_keys_of_judges_with_one_label_are_both_hidden(cli, monkeypatch):
    keys = {"ONE": "sk-planted-number-1", "TWO": "sk-planted-number-2"}
    for name, key in keys.items():
        monkeypatch.setenv(name, key)
    cli.stub.script.text = f"{' '.join(keys.values())} Rating: [[5]]"
    assert cli("-m", "model=org/m", "judge.name=one", "judge.api_key_env=ONE,TWO") == 0
    written = b"".join(p.read_bytes() for p in cli.workspace.rglob("*") if p.is_file())
    assert b"planted" not in written


def test_stages(cli):
    assert cli("model=org/m", "stage=answers") == 0
    assert cli.calls == 0
    assert "8/8" in cli.out
    assert cli("model=org/m", "stage=judge") == 0
    assert cli.calls == 8
    assert len(cli.rows("answers.jsonl")) == 8


def test_judging_what_is_not_answered_says_so(cli):
    assert cli("model=org/m", "stage=judge") == 2
    assert "the workspace holds no answers of org/m" in cli.err
    assert cli.calls == 0


def test_one_bad_checkpoint_fails_alone_and_only_it_is_owed(cli, tmp_path):
    bad = tmp_path / "step_2"
    assert (
        cli(
            "-m",
            f"model=org/a,{bad},org/c",
            f"engine.fake_faults={{models: [{bad}], fail_start: no room}}",
        )
        == 3
    )
    results = {result["model"]: result for result in cli.summary["results"]}
    assert results["org/a"]["average"]["scored"] == results["org/c"]["average"]["scored"] == 8
    assert results[str(bad)]["average"]["mean"] is None
    assert results[str(bad)]["average"]["failed"] == {"answer_error": 8}
    assert cli.calls == 16
    assert cli("-m", f"model=org/a,{bad},org/c") == 0
    assert cli.calls == 8


def test_a_sweep_gives_each_job_its_folder_and_shares_answers(cli):
    assert cli("-m", "model=org/a,org/b", "judge.model=one,two") == 0
    assert len(cli.rows("answers.jsonl")) == 16
    assert len(cli.summary["results"]) == 4
    jobs = list(cli.workspace.glob("hydra/*/*/*/.hydra/config.yaml"))
    assert len(jobs) == 4


def test_models_of_a_file_are_jobs(cli):
    assert cli("models=[org/a,org/b]") == 0
    assert [result["model"] for result in cli.summary["results"]] == ["org/a", "org/b"]


def test_one_label_with_two_settings_stays_two_rows(cli):
    assert cli("-m", "model=org/a", "sampling.max_tokens=10,20") == 0
    results = cli.summary["results"]
    assert [result["model"] for result in results] == ["org/a", "org/a"]
    assert [result["settings"] for result in results] == [
        {"sampling.max_tokens": 10}, {"sampling.max_tokens": 20},
    ]  # fmt: skip
    assert {"org/a (max_tokens=10)", "org/a (max_tokens=20)"} <= set(re.split(r" {2,}|\n", cli.out))


def test_pairwise_against_a_model_of_the_workspace(cli):
    cli("model=org/base", "stage=answers")
    assert cli("model=org/m", "mode=pairwise-baseline", "baseline=org/base") == 0
    assert cli.calls == 16
    (result,) = cli.summary["results"]
    assert result["win"] + result["loss"] + result["tie"] == result["n"] == 8
    assert cli("model=org/m", "mode=pairwise-baseline", "baseline=org/base") == 0
    assert cli.calls == 0
    assert cli("model=org/base", "mode=pairwise-baseline", "baseline=org/m") == 0
    assert cli.calls == 0, "the order of a pair must not make a second match"
    swapped = cli.summary["results"][-1]
    assert (swapped["win"], swapped["loss"]) == (result["loss"], result["win"])
    assert cli("model=org/m", "mode=pairwise-baseline", "baseline=org/bas") == 2
    assert "did you mean baseline=org/base?" in cli.err


def test_why_answers_failed_and_what_to_do_stand_below_the_table(cli):
    faults = "engine.fake_faults={fail_start: 'no room: 3 GB are missing'}"
    assert cli("model=org/m", faults, "engine.max_restarts=0") == 3
    assert "org/m failed: " in cli.out
    assert "no room: 3 GB are missing" in cli.out
    assert "Re-run the same command" in cli.err
    assert cli("model=org/m", "stage=judge") == 3
    assert "Run the line without stage=judge" in cli.err
    assert "nothing was pending" not in cli.err


def test_a_cell_says_the_kind_of_failure_and_the_table_the_words(cli):
    down = ["judge.base_url=http://127.0.0.1:9/v1", "judge.max_retries=0"]
    assert cli("model=org/m", *down) == 3
    row = next(line for line in cli.out.splitlines() if line.startswith("org/m"))
    assert "8 connection " in row
    assert len(row) < 120
    assert any(line.startswith("connection: ") for line in cli.out.splitlines())


def test_imported_answers_do_not_say_whether_they_were_cut(cli, tmp_path):
    cli("model=org/a")
    assert cli.verb("export", "fastchat", str(tmp_path / "out")) == 0
    cli.workspace = tmp_path / "other"
    assert cli.verb("import", "fastchat", str(tmp_path / "out")) == 0
    cli.verb("report", "format=json")
    assert json.loads(cli.out)["results"][0]["truncated"] is None
    assert cli.verb("report") == 0


def test_tables_of_several_modes_have_headings(cli):
    cli("-m", "model=org/a,org/b")
    cli("-m", "model=org/a,org/b", "mode=pairwise-all")
    cli.verb("report")
    assert "\n\nsingle\n\nmodel" in cli.out
    cli.verb("report", "format=markdown")
    assert cli.out.startswith("## pairwise-all\n\n| model")


def test_a_baseline_alone_is_no_comparison(cli):
    assert cli("model=org/a", "mode=pairwise-baseline", "baseline=org/a") == 2
    assert "no model but the baseline org/a" in cli.err


def test_a_summary_keeps_what_other_modes_found(cli):
    cli("model=org/a")
    cli("model=org/b", judge=False)
    assert cli("model=org/c", "stage=answers") == 0
    assert (cli.summary["mode"], cli.summary["results"][0]["model"]) == ("single", "org/a")
    assert [other["mode"] for other in cli.summary["other_modes"]] == ["answers"]
    assert cli("-m", "model=org/a,org/b", "mode=pairwise-all") == 0
    assert [cli.summary["mode"], *(o["mode"] for o in cli.summary["other_modes"])] == [
        "pairwise-all", "single", "answers",
    ]  # fmt: skip
    cli.verb("report", "format=json")
    assert json.loads(cli.out) == cli.summary
    cli.verb("report", "format=json", "mode=single")
    assert json.loads(cli.out)["results"][0]["model"] == "org/a"
    assert cli.verb("report", "mode=pairwise-baseline") == 2


def test_answers_that_were_judged_later_are_not_shown_twice(cli):
    cli("model=org/m", "stage=answers")
    cli("model=org/m", "stage=judge")
    assert cli.verb("report") == 0
    assert "answered" not in cli.out


def test_what_is_not_to_be_compared_is_said(cli):
    cli("model=org/a")
    cli("model=org/b", "judge.prompts=rubric5")
    cli("model=org/a", "judge.model=other", "sampling.max_tokens=5")
    cli.verb("report")
    assert "not to be compared: judge stub had other questions" in cli.out
    assert "org/a: its rows are of answers made with different settings" in cli.out
    assert cli.verb("report", "compare", "org/a", "org/b") == 0
    assert "not to be compared: scores from 1 to 10 and from 1 to 5" in cli.out
    assert "better" not in cli.out


def test_a_comparison_names_the_settings_that_differ(cli):
    cli("model=org/a")
    cli("model=org/b", "sampling.max_tokens=5", "judge.concurrency=3")
    cli.verb("report", "compare", "org/a", "org/b")
    assert "answered with different settings: sampling.max_tokens" in cli.out
    assert "the judge had other settings" not in cli.out
    cli("model=org/b", "judge.temperature=0.5")
    assert cli.verb("report", "compare", "org/a", "org/b") == 2
    assert "may be any of org/b (max_tokens=5), org/b (max_tokens=1024)" in cli.err
    cli.verb("report", "compare", "org/a", "org/b (max_tokens=1024)")
    assert "the judge had other settings for one of them: temperature" in cli.out
    cli.verb("report", "compare", "org/a", "org/b (max_tokens=1024)", "resamples=0")
    assert "no test was made" in cli.out


@pytest.mark.parametrize("words", [("seed=-1",), ("resamples=x",), ("curve", "format=json")])
def test_odd_words_of_a_report_are_told(words, cli):
    cli("model=org/a")
    assert cli.verb("report", *words) == 2


def test_a_negative_seed_of_the_report_is_told_before_anything_is_paid(cli):
    assert cli("model=org/a", "report.seed=-1") == 2
    assert cli.calls == 0


def test_categories_with_markup_in_their_names(cli, tmp_path):
    names = ["[/b]", "x [easy]", "x [hard]", ":smile: | a"]
    path = tmp_path / "odd.jsonl"
    path.write_text(
        "".join(
            json.dumps({"question_id": n, "category": name, "turns": ["Why?"]}) + "\n"
            for n, name in enumerate(names)
        )
    )
    assert cli("model=org/a", f"question_path={path}") == 0
    for name in names:
        assert name in cli.out
    cli.verb("report", "format=markdown")
    assert ":smile: \\| a" in cli.out


def test_pairwise_all_meets_each_pair_once(cli):
    assert cli("-m", "model=org/a,org/b,org/c", "mode=pairwise-all") == 0
    assert cli.calls == 3 * 16
    assert [result["n"] for result in cli.summary["results"]] == [16, 16, 16]


def test_a_refused_key_stops_judging_and_keeps_the_answers(cli, monkeypatch):
    monkeypatch.setenv("MY_KEY", "sk-planted-secret-123")
    cli.stub.script.always = "401"
    assert cli("model=org/m", "judge.api_key_env=MY_KEY", "judge.concurrency=2") == 3
    assert cli.calls <= 4
    assert "MY_KEY" in cli.err
    assert len(cli.rows("answers.jsonl")) == 8
    cli.stub.script.always = ""
    assert cli("model=org/m", "judge.api_key_env=MY_KEY") == 0
    assert cli.calls == 8
    written = b"".join(p.read_bytes() for p in cli.workspace.rglob("*") if p.is_file())
    assert b"sk-planted-secret" not in written
    assert "sk-planted-secret" not in cli.out + cli.err


def test_a_budget_stops_cleanly(cli):
    prices = ("judge.price_prompt=1000", "judge.price_completion=1000", "judge.max_tokens=100")
    assert cli("model=org/m", *prices, "budget_usd=4", "judge.concurrency=1") == 3
    done = cli.calls
    assert 0 < done < 8
    assert sum(row["cost_usd"] for row in cli.rows("judgments.jsonl")) <= 4
    assert "budget" in cli.err
    assert cli("model=org/m", *prices) == 0
    assert cli.calls == 8 - done
    assert cli("model=org/m", "budget_usd=4", "judge.model=unpriced") == 2


def test_the_plan_counts_and_spends_nothing(cli):
    assert cli("model=org/m") == 0
    cli.out = ""
    assert main(["plan", "-m", "model=org/m,org/n", *cli.judge, *cli.usual, "show=1"]) == 0
    out = cli.capsys.readouterr().out
    lines = {line.split()[0]: line.split() for line in out.splitlines() if line.startswith("org/")}
    assert lines["org/m"][2:5] == ["0", "0", "8/8"]
    assert lines["org/n"][2:5] == ["8", "8", "0/8"]
    assert cli.stub.stats()["calls"] == 8
    assert "Describe a lighthouse in {two} lines." in out


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["model=org/m", "judge=gpt-4o"], ["OPENAI_API_KEY"]),
        (["model=org/m"], ["no judge was chosen", "judge=gpt-4o"]),
        (["judge=none"], ["no model was chosen", "model=NAME"]),
        (["model=org/m", "judge=none", "stage=answer"], ["stage=answers"]),
        (["model=org/m", "judge=none", "limit=0"], ["limit=0"]),
        (["model=org/m", "judge=none", "question_path=/nowhere.jsonl"], ["/nowhere.jsonl"]),
        (["model=/no/model", "judge=none", "engine=vllm"], ["/no/model"]),
        (["model=checkpoints", "judge=none"], ["model.root="]),
        (["model=org/m", "judge=none", "mode=pairwise-baseline"], ["baseline=<model>"]),
        (["model=org/m", "judge=none", "engine=openai"], ["engine.base_url"]),
        (["model=org/m", "judge=none", "limit=abc"], ["limit"]),
    ],
)
def test_mistakes_are_found_before_anything_starts(args, words, cli, monkeypatch):
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    usual = [item for item in cli.usual if not any(item.split("=")[0] in arg for arg in args)]
    assert main([*args, *usual]) == 2
    err = cli.capsys.readouterr().err
    assert "Traceback" not in err
    for word in words:
        assert word in err


def test_a_workspace_that_cannot_be_written(cli, tmp_path):
    (tmp_path / "file").write_text("")
    cli.usual = [item for item in cli.usual if not item.startswith("workspace")]
    assert cli("model=org/m", f"workspace={tmp_path}/file") == 2
    assert "cannot be written" in cli.err
    assert cli("model=org/m", "workspace=s3://bucket/x") == 2


def test_an_interpolation_in_a_name_is_a_name(cli):
    assert cli("model=/d/${x}/m", "judge=none", judge=False) == 0
    assert cli.summary["results"][0]["model"] == "/d/${x}/m"


def test_hydra_runs_without_a_terminal_and_stdin(cli, monkeypatch):
    monkeypatch.setattr(sys, "stdin", None)
    assert cli("model=org/m") == 0


def test_hydras_own_launcher_runs_job_after_job(cli):
    assert cli("-m", "model=org/a,org/b", "hydra/launcher=basic") == 0
    assert cli.calls == 16
    assert [result["model"] for result in cli.summary["results"]] == ["org/a", "org/b"]
    assert len(list((cli.workspace / "runs").iterdir())) == 2


def test_agreement_of_the_mode_that_is_asked_for(cli):
    for judge in ("one", "two"):
        cli("-m", "model=org/a,org/b", f"judge.model={judge}")
        cli("-m", "model=org/a,org/b", f"judge.model={judge}", "mode=pairwise-all")
    cli.verb("report", "agreement", "one", "two")
    assert "pearson" in cli.out
    assert cli.verb("report", "agreement", "one", "two", "mode=pairwise-all") == 0
    assert "pearson" not in cli.out
    cli.verb("report", "agreement", "one", "two", "format=markdown")
    assert cli.out.startswith("| n |")


@pytest.mark.parametrize("parity", ["safe", "fastchat"])
def test_a_game_that_two_modes_hold_is_one_vote(parity, cli, tmp_path):
    cli("-m", "model=org/a,org/b", "mode=pairwise-all")
    (question, *_) = {row["question_id"] for row in cli.rows("answers.jsonl")}
    vote = {"question_id": question, "turn": 1, "model_a": "org/a", "model_b": "org/b",
            "winner": "model_a", "judge": "human"}  # fmt: skip
    votes = tmp_path / "votes.json"
    votes.write_text(json.dumps([vote]))

    def compared():
        words = ("report", "agreement", "stub", str(votes), f"parity={parity}", "format=json")
        assert cli.verb(*words) == 0
        return json.loads(cli.out)

    before = compared()
    assert before[0]["compared"] == 1
    # Told from the other side.
    cli("model=org/b", "mode=pairwise-baseline", "baseline=org/a")
    assert compared() == before


def test_agreement_of_two_judges_and_of_a_judge_with_people(cli, tmp_path):
    cli("-m", "model=org/m", "judge.model=one,two")
    assert cli.verb("report", "agreement", "one", "two", "format=json") == 0
    (found,) = json.loads(cli.out)
    rated = {judge: {} for judge in ("one", "two")}
    for row in cli.rows("judgments.jsonl"):
        rated[row["judge"]][row["question_id"], row["turn"]] = row["value"]
    equal = sum(rated["one"][key] == value for key, value in rated["two"].items())
    assert (found["n"], found["exact"]) == (8, equal / 8)

    cli("model=org/base", "stage=answers")
    cli("model=org/m", "mode=pairwise-baseline", "baseline=org/base")
    votes = tmp_path / "votes.json"
    pair = {"model_a": "org/base", "model_b": "org/m", "winner": "model_b", "turn": 1}
    people = [pair | {"question_id": n, "judge": f"expert_{n}"} for n in (1, 2)]
    votes.write_text(json.dumps(people))
    assert cli.verb("report", "agreement", "stub", str(votes), "format=json") == 0
    with_ties = next(row for row in json.loads(cli.out) if row["ties"] == "with")
    assert (with_ties["turn"], with_ties["compared"]) == (1, 2)
    assert cli.verb("report", "agreement", "one", "nobody") == 2
    assert "two" in cli.err


def test_the_next_run_begins_at_the_pace_that_one_has_learned(cli):
    line = ("model=org/m", "sampling.samples=4", "judge.retry_wait_s=0.05")
    cli.stub.script.bucket = 600.0  # calls a minute; 10 at once
    assert cli(*line) == 0
    first = cli.calls - 32
    record = json.loads(next(cli.workspace.glob("runs/*/record.json")).read_text())
    ((name, rate),) = record["rates"].items()
    assert name.startswith(f"{cli.stub.url} ")
    assert name.endswith(" stub")
    assert 300 < rate < 900
    assert cli(*line, "judge.samples=2") == 0
    assert cli.calls - 32 < first, "refusals"
