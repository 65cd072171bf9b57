"""What a run says when the workspace holds answers of other settings."""

import json

import pytest
from crash import settings
from stub_server import StubServer

from mtbench_ray.cli.main import main


@pytest.fixture
def run(questions, tmp_path, capsys):
    with StubServer() as stub:
        line = settings(questions, stub, tmp_path / "work", "engine.fake_seconds_per_token=0")

        def run(*more):
            assert main([*line, *more]) == 0
            return capsys.readouterr().err

        run.workspace = tmp_path / "work"
        yield run


def test_a_changed_setting_is_told_with_what_it_means(run):
    assert "->" not in run()
    assert "->" not in run("judge.concurrency=2", "sampling.samples=5")
    err = run("sampling.temperature=1.0", "sampling.top_p=0.9")
    assert (
        "org/m: sampling.temperature null -> 1.0, sampling.top_p 1.0 -> 0.9: "
        "16 answers to generate; the 20 earlier ones stay a row of their own" in err
    )
    newest = max(run.workspace.glob("runs/*/record.json"), key=lambda path: path.stat().st_mtime)
    assert any("sampling.top_p" in note for note in json.loads(newest.read_text())["notes"])
    assert "->" not in run(), "answers with these settings are there"


def test_a_changed_judge_is_told_before_it_is_paid_again(run):
    run()
    assert "->" not in run("judge.concurrency=2", "judge.timeout_s=50")
    err = run("judge.temperature=0.5")
    assert "judge stub: temperature 0.0 -> 0.5: only verdicts of these settings count" in err
    assert "->" not in run("judge.temperature=0.5")
    # Another judge is no change of this one.
    assert "->" not in run("judge.name=other")


def test_it_is_silent_where_asked_and_where_all_is_made_anew_on_purpose(run):
    run()
    assert "->" not in run("sampling.temperature=1.0", "quiet=true")
    assert "->" not in run("fresh=true", "sampling.temperature=0.5")


def test_stage_judge_judges_what_is_there_and_says_how_it_was_made(run):
    run()
    err = run("stage=judge", "sampling.temperature=1.0", "judge.samples=2")
    assert "org/m: the answers that are there were made with sampling.temperature=None" in err
