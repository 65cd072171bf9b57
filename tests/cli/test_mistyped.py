"""What people type wrongly, pipe away or leave half, and what they are told."""

import builtins
import json
import subprocess
import sys

import pytest
from paths import ROOT
from stub_server import StubServer
from summaries import FULL, summary
from verdicts import prompt_file

from mtbench_ray.cli.main import main
from mtbench_ray.config import EngineConfig, JudgeConfig, ModelConfig
from mtbench_ray.endpoint.keys import resolve_key
from mtbench_ray.errors import UserError
from mtbench_ray.judges.prompts import builtin_prompts, load_prompts
from mtbench_ray.models import fingerprint as identity
from mtbench_ray.planning.evaluations import judge_of
from mtbench_ray.reports.tables import escaped, render
from mtbench_ray.schema import AnswerSet, Evaluation
from mtbench_ray.workspace.journal import read


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--list-models"], "write `list models`"),
        (["--list-judges"], "write `list judges`"),
        (["--list"], "write `list models|judges|engines|experiments`"),
        (["report", "curve", "points=[1,2]"], "there are: workspace, format"),
        (["report", "frmat=json"], "did you mean format=?"),
        (["report", "out=x"], "report format=json > FILE"),
        (["model=a/b", "judge=none", "engine=fake", "sampling.max_tokens=0"],
         "engine=fake is no service\n  write sampling.max_tokens=1024"),
        (["model=a/b", "judge=local", "engine=fake", "judge.max_tokens=-1"],
         "write judge.max_tokens=1024, or judge.max_tokens=0 for a service's own default"),
    ],
)  # fmt: skip
def test_hints_lead_to_the_right_line(words, said, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(words) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("text", ["a/" * 3000 + "b", "org/" + "n" * 300])
def test_a_very_long_model_is_a_model(text, tmp_path, monkeypatch, questions, capsys):
    monkeypatch.chdir(tmp_path)
    line = [f"model={text}", "judge=none", "workspace=w", f"question_path={questions}", "limit=1"]
    assert main([*line, "engine=fake"]) == 0
    capsys.readouterr()
    assert main(["plan", *line]) == 2
    assert capsys.readouterr().err.startswith("error: model ")


@pytest.mark.parametrize("lines", ["1"])
def test_a_plan_into_head_is_quiet(lines, tmp_path, questions):
    line = [sys.executable, "-m", "mtbench_ray", "plan", "model=a/b", "judge=none", "engine=fake",
            f"question_path={questions}", "show=4"]  # fmt: skip
    run = " ".join(f"'{word}'" for word in line)
    done = subprocess.run(
        ["bash", "-c", f"set -o pipefail; {run} | head -{lines} > /dev/null"],
        capture_output=True, text=True, cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin", "HOME": str(tmp_path)},
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")


def test_a_closed_pipe_ends_a_plan_without_a_word(monkeypatch, questions, capsys):
    def closed(*_, **__):
        raise BrokenPipeError

    monkeypatch.setattr("mtbench_ray.planning.estimate.print", closed, raising=False)
    line = ["plan", "model=a/b", "judge=none", "engine=fake", f"question_path={questions}"]
    assert main(line) == 0
    assert "BrokenPipe" not in capsys.readouterr().err


@pytest.mark.parametrize("typed", ["'{}'", '"{}"', " '{}' ", "' {} '", "{}"])
def test_a_key_in_quotes_is_the_key(typed, monkeypatch):
    monkeypatch.setenv("MY_KEY", typed.format("sk-planted-1"))
    assert resolve_key(JudgeConfig(api_key_env="MY_KEY")) == "sk-planted-1"


def test_joined_files_may_hold_boms_within(tmp_path):
    path = tmp_path / "joined.jsonl"
    path.write_bytes(b'\xef\xbb\xbf{"a": 1}\n\xef\xbb\xbf{"a": 2}\n')
    problems = []
    assert [row for _, row in read(path, problems.append)] == [{"a": 1}, {"a": 2}]
    assert problems == []
    text = builtin_prompts("rubric5")
    assert len(load_prompts("p", "\ufeff" + text.replace("\n", "\n\ufeff")).prompts) == len(
        load_prompts("p", text).prompts
    )


def test_a_plan_needs_no_transformers(monkeypatch, tmp_path):
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors").write_bytes(b"\x02\0\0\0\0\0\0\0{}")
    real = builtins.__import__

    def without(name, *rest):
        if name.partition(".")[0] == "transformers":
            raise ModuleNotFoundError(name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    monkeypatch.setattr(identity, "find_spec", lambda _: None)
    (note,) = identity.check_prompts(ModelConfig(path=str(tmp_path)), EngineConfig())
    assert "transformers is not installed" in note
    from mtbench_ray.models.chat_template import load_template

    with pytest.raises(UserError, match="need the package transformers"):
        load_template(ModelConfig(path=str(tmp_path)))


MARKUP = ["[x](http://evil)", "![x](http://evil)", "<img src=x>", "**b**", "# h", "a|b", "`c`",
          "http://evil.example", "www.evil.example", "@somebody", "&lt;", "~~s~~",
          "_i_"]  # fmt: skip


@pytest.mark.parametrize("text", MARKUP)
def test_markdown_reports_show_markup_as_text(text):
    made = summary("m")
    made["notes"] = [text]
    made["results"][0]["error"] = text
    shown = render(made, format="markdown")
    assert not {text, f"m failed: {text}"} & set(shown.splitlines()) or text == "# h"
    assert f"\n{text}\n" not in shown
    assert escaped(text) in shown
    assert text in render(made)


def test_plain_names_stay_plain_in_markdown():
    for name in ("org/model-7b", "step_100", "a.b=1", "average: mean (95%)", "…/step_2000"):
        assert escaped(name) == name


def test_reasons_that_differ_in_ids_alone_are_one():
    failed = {f"http_400: request req_{n}ab refused after {n} s": 1 for n in range(10, 60)}
    other = {"http_400: no such field": 2}
    text = render(summary("m", average=FULL | {"failed": failed | other}))
    assert text.count("refused after") == 1
    assert "no such field" in text
    assert "more reasons" not in text


@pytest.fixture
def done(tmp_path, monkeypatch, questions):
    monkeypatch.chdir(tmp_path)
    line = ["model=org/step_1", "judge=none", "engine=fake", "workspace=w", "limit=2"]
    assert main([*line, f"question_path={questions}"]) == 0
    return line, questions


def test_agreement_is_written_where_out_says(done, tmp_path, capsys):
    vote = {"question_id": 81, "model_a": "a", "model_b": "b", "turn": 1, "winner": "model_a"}
    votes = [vote | {"judge": ["x", "p"]}, vote | {"judge": ["y", "p"]}]
    (tmp_path / "votes.json").write_text(json.dumps(votes))
    words = ["votes.json:x", "votes.json:y", "out=x.json", "workspace=w"]
    capsys.readouterr()
    assert main(["report", "agreement", *words, "format=json"]) == 0
    assert json.loads((tmp_path / "x.json").read_text()) == json.loads(capsys.readouterr().out)


def test_a_curve_names_every_checkpoint_that_it_leaves_out(done, tmp_path, capsys):
    _, questions = done
    (tmp_path / "prompts.jsonl").write_text(prompt_file())
    with StubServer() as stub:
        judge = ["judge=openai", "judge.model=j", f"judge.base_url={stub.url}",
                 "judge.prompts=prompts.jsonl", f"question_path={questions}"]  # fmt: skip
        rest = ["engine=fake", "workspace=w", "limit=1"]
        assert main(["model=org/step_2", *judge, *rest]) == 0
        stub.script.text = "no verdict"
        assert main(["model=org/step_3", *judge, *rest, "judge.parse_retries=0"]) == 3
    capsys.readouterr()
    assert main(["report", "curve", "workspace=w"]) == 0
    said = capsys.readouterr().out
    assert "left out, no judge rated it: org/step_1" in said
    assert "left out, none of its 2 verdicts is there: org/step_3" in said
    assert "org/step_2" not in said


def test_a_missing_snapshot_leaves_out_its_own_rows_alone(done, tmp_path, capsys, caplog):
    line, questions = done
    for path in (tmp_path / "w" / "data").iterdir():
        path.unlink()
    other = tmp_path / "other.jsonl"
    other.write_text(questions.read_text().splitlines()[0] + "\n")
    capsys.readouterr()
    assert main(["model=org/new", *line[1:], f"question_path={other}"]) == 0
    assert "org/new" in capsys.readouterr().out
    assert "left out" in caplog.text
    assert main(["report", "workspace=w", "format=json"]) == 0
    (result,) = json.loads(capsys.readouterr().out)["results"]
    assert result["model"] == "org/new"
    assert main(["export", "fastchat", "out", "workspace=w"]) == 0


def test_a_stored_judge_setting_of_another_version_is_passed_over(done, tmp_path, capsys):
    row = Evaluation(AnswerSet("m", "{}", ()), "j", '{"model": "j", "unheard_of": 1}', "single", "")
    assert judge_of(row) == JudgeConfig(model="j")
