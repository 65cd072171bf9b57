"""A report that is kept in its workspace: the same text, as long as nothing has changed."""

import json
import os
import re
import shutil

import pytest
from questions import hills
from stub_server import StubServer

from mtbench_ray.cli.main import main
from mtbench_ray.judges.base import ScoreOptions
from mtbench_ray.reports import shown
from mtbench_ray.workspace.workspace import Workspace

FORMATS = ("table", "markdown", "latex", "csv", "json")


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Two models, one sampled twice, matches of all, and a model that nobody has judged."""
    folder = tmp_path_factory.mktemp("kept")
    hills(folder)
    with StubServer() as stub:
        usual = ["engine=fake", f"question_path={folder / 'q.jsonl'}", f"workspace={folder / 'w'}",
                 "judge=openai", "judge.model=stub", f"judge.base_url={stub.url}"]  # fmt: skip
        main([*usual, "models=[org/step_1,org/step_2]"])
        main([*usual, "model=other", "sampling.samples=2"])
        main([*usual, "mode=pairwise-all", "models=[org/step_1,org/step_2]"])
        main([*usual, "model=bare", "stage=answers"])
    return folder / "w"


@pytest.fixture
def workspace(made, tmp_path):
    """A copy with the files' times, as ``rsync -a`` makes one."""
    return shutil.copytree(made, tmp_path / "w")


def text_of(workspace, capsys, *words):
    capsys.readouterr()
    code = main(["report", *words, f"workspace={workspace}"])
    found = capsys.readouterr()
    return code, found.out, found.err


def read_whole(workspace, capsys, *words):
    """The report with nothing kept."""
    (workspace / shown.FILE).unlink(missing_ok=True)
    return text_of(workspace, capsys, *words)


def no_rows(monkeypatch):
    def opened(*_, **__):
        raise AssertionError("the rows are read")

    monkeypatch.setattr(Workspace, "open", opened)


@pytest.mark.parametrize("format", FORMATS)
def test_a_kept_report_is_the_same_text_without_reading_rows(
    format, workspace, capsys, monkeypatch
):
    words = (f"format={format}",)
    whole = read_whole(workspace, capsys, *words)
    with monkeypatch.context() as patched:
        no_rows(patched)
        assert text_of(workspace, capsys, *words) == whole
    assert len(whole[1]) > 200


def test_a_run_keeps_its_report(workspace, capsys, monkeypatch):
    no_rows(monkeypatch)  # a copy of what the last run left
    assert "org/step_1" in text_of(workspace, capsys)[1]


def append(workspace):
    rows = (workspace / "judgments.jsonl").read_text().splitlines()
    row = json.loads(rows[0]) | {"text": "Rating: [[1]]"}
    with (workspace / "judgments.jsonl").open("a") as file:
        file.write(json.dumps(row) + "\n")


def edit(workspace):
    """The same size: one score is another."""
    first, *others = (workspace / "judgments.jsonl").read_text().splitlines(keepends=True)
    text = json.loads(first)["text"]
    other = text.replace("[[1]]", "[[9]]") if "[[1]]" in text else re.sub(r"\d\]\]", "1]]", text)
    assert len(other) == len(text)
    (workspace / "judgments.jsonl").write_text("".join([first.replace(text, other), *others]))


def drop_run(workspace):
    shutil.rmtree(max((workspace / "runs").iterdir(), key=lambda path: path.stat().st_mtime_ns))


def drop_answers(workspace):
    lines = (workspace / "answers.jsonl").read_text().splitlines(keepends=True)
    (workspace / "answers.jsonl").write_text("".join(lines[3:]))


@pytest.mark.parametrize("change", [append, edit, drop_run, drop_answers])
def test_what_has_changed_is_read(change, workspace, capsys):
    before = text_of(workspace, capsys, "format=json")
    change(workspace)
    now = text_of(workspace, capsys, "format=json")
    assert now != before
    assert now == read_whole(workspace, capsys, "format=json")


def test_other_options_are_other_reports(workspace, capsys):
    kept = text_of(workspace, capsys, "format=json")
    other = text_of(workspace, capsys, "format=json", "seed=5")
    assert other[1] != kept[1]
    assert text_of(workspace, capsys, "format=json") == kept


def test_another_version_of_the_program_reads_again(workspace, monkeypatch):
    options = ScoreOptions()
    assert shown.load(workspace, options) is not None
    monkeypatch.setattr(shown, "program", lambda: "another")
    assert shown.load(workspace, options) is None


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"state": 1}', "\x00\x01"])
def test_a_broken_file_is_as_none(text, workspace, capsys):
    whole = read_whole(workspace, capsys)
    (workspace / shown.FILE).write_text(text)
    assert text_of(workspace, capsys) == whole


def test_lines_to_warn_of_are_warned_of_each_time(workspace, capsys):
    with (workspace / "judgments.jsonl").open("a") as file:
        file.write("no row\n{}\n")
    first = text_of(workspace, capsys)
    assert text_of(workspace, capsys) == first
    assert not (workspace / shown.FILE).exists() or shown.load(workspace, ScoreOptions()) is None


def test_a_workspace_that_cannot_be_written_to_is_reported(workspace, capsys, monkeypatch):
    whole = read_whole(workspace, capsys)
    (workspace / shown.FILE).unlink()

    def full(*_, **__):
        raise OSError(os.strerror(30))

    monkeypatch.setattr(Workspace, "write_text", full)
    assert text_of(workspace, capsys) == whole
