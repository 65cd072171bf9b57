"""Cases that people reported of such tools, through the command line; the rules have own tests."""

import json

import numpy as np
import pytest
from refusals import TOO_LONG
from safetensors.numpy import save_file

from mtbench_ray.cli.main import main


@pytest.mark.parametrize("name", ["spiece.model", "modeling_my.py"])
def test_new_code_or_tokenizer_under_old_weights_is_a_new_checkpoint(name, cli, tmp_path):
    model = tmp_path / "ckpt"
    model.mkdir()
    (model / "config.json").write_text("{}")
    save_file({"w": np.zeros(4, np.float32)}, model / "model.safetensors")
    line = [f"model={model}", "stage=answers", "limit=1"]
    (model / name).write_text("old")
    assert cli(*line) == 0
    (model / "README.md").write_text("words")
    assert cli(*line) == 0
    assert len(cli.rows("answers.jsonl")) == 2
    (model / name).write_text("new")
    assert cli(*line) == 0
    assert "the model's files" in cli.err
    ids = [row["answer_id"] for row in cli.rows("answers.jsonl")]
    assert (len(ids), len(set(ids))) == (4, 2)


@pytest.mark.parametrize("place", [0, 6, 7])
def test_a_prompt_that_is_too_long_in_other_words_is_cut_where_that_is_asked_for(place, cli):
    status, message = TOO_LONG[place]
    cli.stub.script.always = f"{status};body={message}"
    cli.stub.script.only = "TAIL"
    text = f"{'much to say ' * 300}TAIL"
    replies = f"engine.fake_faults={{replies: {{1: ['{text}', '{text}']}}}}"
    line = ["model=org/m", "limit=1", "sampling.max_tokens=4000", replies]
    assert cli(*line, "judge.truncate=answer_tail") == 0
    assert cli.summary["results"][0]["average"]["scored"] == 2
    assert all(row["status"] == "ok" for row in cli.rows("judgments.jsonl"))
    assert all(len(body["messages"][-1]["content"]) > 1000 for body in cli.stub.seen.bodies)


def test_without_a_cut_a_prompt_that_is_too_long_fails_as_what_it_is(cli):
    _, message = TOO_LONG[0]
    cli.stub.script.always = f"400;body={message}"
    assert cli("model=org/m", "limit=1") == 3
    average = cli.summary["results"][-1]["average"]
    assert (average["scored"], average["failed"]) == (0, {f"context_overflow: {message}": 2})


def test_a_cap_above_the_services_costs_no_row(cli):
    said = ("`max_tokens` must be less than or equal to `64`, the maximum value for `max_tokens` "
            "is less than the `context_window` for this model")  # fmt: skip
    cli.stub.script.first = (f"400;body={said}",)
    cli.stub.script.kind = "answer"
    served = ["engine=openai", f"engine.base_url={cli.stub.url}", "engine.concurrency=1"]
    line = ["model=m", "stage=answers", "sampling.max_tokens=16384", "limit=2"]
    assert cli(*line, *served) == 0
    assert len(cli.rows("answers.jsonl")) == 4
    caps = [body.get("max_tokens", body.get("max_completion_tokens"))
            for body in cli.stub.seen.bodies]  # fmt: skip
    assert caps == [16384, 64, 64, 64, 64]


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({"model-00001-of-00002.safetensors"}, "lacks weights: model-00002-of-00002.safetensors"),
        (set(), "holds no weights"),
        ({"zero_to_fp32.py"}, "holds only the sharded state of a trainer"),
    ],
)
@pytest.mark.parametrize("verb", [["plan"], []])
def test_missing_weights_are_told_by_plan_and_run_at_once(
    verb, files, said, tmp_path, questions, capsys
):
    folder = tmp_path / "ckpt"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    for name in files:
        save_file({"w": np.zeros(4, np.float32)}, folder / name)
    line = [f"model={folder}", "judge=none", f"question_path={questions}",
            f"workspace={tmp_path / 'w'}"]  # fmt: skip
    assert main([*verb, *line]) in (2, 3)
    assert said in capsys.readouterr().err


def test_numbers_in_quotes_of_an_import_are_numbers(cli, tmp_path):
    folder = tmp_path / "fc" / "model_judgment"
    folder.mkdir(parents=True)
    rows = [
        {"question_id": number, "model": "m", "judge": ["j", "single-v1"], "user_prompt": "p",
         "judgment": f"Rating: [[{score}]]", "score": score, "turn": turn}
        for number, turn, score in (("1", 1, 8), (1, "2", 6), (2.0, 1, "4"), ("2", "2", "2"))
    ]  # fmt: skip
    path = folder / "j_single.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    questions = cli.usual[1]
    assert cli.verb("import", "fastchat", str(tmp_path / "fc"), questions) == 0
    for parity in ("safe", "fastchat"):
        cli.verb("report", "format=json", f"parity={parity}")
        (result,) = json.loads(cli.out)["results"]
        assert (result["average"]["mean"], result["average"]["scored"]) == (5.0, 4)
        assert list(result["categories"]) == ["writing", "math"]


def test_ids_of_pandas_are_whole_numbers(cli, tmp_path):
    own = tmp_path / "float.jsonl"
    row = {"question_id": 81.0, "category": "math", "turns": ["1+1?", "And 2+2?"]}
    own.write_text(json.dumps(row) + "\n")
    assert cli("model=org/m", f"question_path={own}", "reference_path=null") == 0
    assert {row["question_id"] for row in cli.rows("answers.jsonl")} == {81}
