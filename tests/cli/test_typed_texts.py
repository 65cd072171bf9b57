"""Settings that are texts keep what is typed."""

import json

import pytest
from command import composed
from hypothesis import given
from hypothesis import strategies as st

from mtbench_ray.cli import hydra_app as composing
from mtbench_ray.cli.main import main
from mtbench_ray.cli.suggestions import known_keys, text_kind

pytestmark = pytest.mark.runs

NUMBERS = ["007", "1e5", "1.10", "2026_11_28", "3.10", "0x1F", "true", "NaN", "inf", "-1", "1_0",
           "12:30", "1e-5", "+7", ".5", "True", "on", "2026-11-28"]  # fmt: skip
ODD = ["a=b", "~/x", "a#b", "größe", "</s>", "it's", 'say "x"', "back\\slash\\", "{a: 1}",
       "[x]", "Be brief, please.", "a: b", "%d", "(x)", "hf://o/n@r?split=train",
       "x y", "*", "@"]  # fmt: skip


@pytest.mark.parametrize("text", NUMBERS + ODD)
def test_a_text_is_what_was_typed(text, monkeypatch, tmp_path):
    keys = ["model.name", "model.revision", "judge.model", "baseline", "model.system_prompt"]
    (config,) = composed(monkeypatch, tmp_path, *(f"{key}={text}" for key in keys))
    assert [config.model.name, config.model.revision, config.judge.model, config.baseline,
            config.model.system_prompt] == [text] * 5  # fmt: skip


TAGS = ["[T]", "[/T]", "[THINK]", "[/THINK]", "[a,b]", "[1]", "[]", "{T}", "<|think|>", "(t)",
        "{a: 1}", "[[T]]", "[ T ]", "[INST] <<SYS>>", "◁think▷"]  # fmt: skip


@pytest.mark.parametrize("tag", TAGS)
def test_tags_in_brackets_need_no_quotes(tag, monkeypatch, tmp_path):
    keys = ["judge.thinking_open", "judge.thinking_close", "model.thinking_open",
            "model.thinking_close"]  # fmt: skip
    typed = [tag] * 4
    for line in ([f"{key}={tag}" for key in keys], [f"{key}='{tag}'" for key in keys]):
        (config,) = composed(monkeypatch, tmp_path, *line)
        assert [config.judge.thinking_open, config.judge.thinking_close,
                config.model.thinking_open, config.model.thinking_close] == typed  # fmt: skip


def test_a_sweep_over_tags_in_brackets_keeps_each(monkeypatch, tmp_path):
    configs = composed(monkeypatch, tmp_path, "-m", "judge.thinking_open=[T],[a,b],<t>")
    assert [config.judge.thinking_open for config in configs] == ["[T]", "[a,b]", "<t>"]


@pytest.mark.parametrize("text", [*NUMBERS, "</s>", "Q:", "größe", "a=b", "[INST]", "it's"])
def test_a_text_in_a_list_is_what_was_typed(text, monkeypatch, tmp_path):
    (config,) = composed(monkeypatch, tmp_path, f"model.stop=[{text},End]", "categories=['1.10']")
    assert (config.model.stop, config.categories) == ([text, "End"], ["1.10"])


def test_a_sweep_over_texts_keeps_each(monkeypatch, tmp_path):
    configs = composed(monkeypatch, tmp_path, "-m", "model.name=007,1.10,'a,b',x=y")
    assert [config.model.name for config in configs] == ["007", "1.10", "a,b", "x=y"]
    configs = composed(monkeypatch, tmp_path, "-m", "model.stop=[1_0,x],[2]")
    assert [config.model.stop for config in configs] == [["1_0", "x"], ["2"]]


def test_null_quotes_and_interpolations_keep_their_meaning(monkeypatch, tmp_path):
    monkeypatch.setenv("MY_NAME", "007")
    (config,) = composed(
        monkeypatch, tmp_path, "model.revision=null", "baseline='null'", "model.stop=[]",
        "model.name=${oc.env:MY_NAME}", "judge.model='1e5'",
    )  # fmt: skip
    assert (config.model.revision, config.baseline, config.model.stop) == (None, "null", [])
    assert (config.model.name, config.judge.model) == ("007", "1e5")


def test_numbers_stay_numbers(monkeypatch, tmp_path):
    (config,) = composed(monkeypatch, tmp_path, "limit=1_0", "engine.args.x=1e5", "fresh=true")
    assert (config.limit, config.engine.args, config.fresh) == (10, {"x": 1e5}, True)


def test_every_text_setting_is_under_the_rule():
    kinds = {key: text_kind(key) for key in known_keys()}
    assert kinds["workspace"] == kinds["model.revision"] == kinds["judge.base_url"] == "str"
    assert kinds["categories"] == kinds["models"] == kinds["model.stop"] == "list[str]"
    assert kinds["limit"] == kinds["engine.args"] == kinds["model.steps"] == ""


@given(st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1).map(str.strip))
def test_any_text_reaches_hydra_whole(text):
    from hydra.core.override_parser.overrides_parser import OverridesParser

    if not text or "${" in text or text[0] in "'\"" or text.lower() == "null" or "," in text:
        return
    (arg,) = composing._quoted([f"model.name={text}"])
    read = OverridesParser.create().parse_override(arg).value()
    unescaped = "\\" in text and isinstance(read, str)  # Hydra's own escapes stay its own
    assert getattr(read, "text", read) == text or unescaped


def test_a_workspace_is_found_under_the_name_that_was_typed(
    tmp_path, monkeypatch, questions, capsys
):
    monkeypatch.chdir(tmp_path)
    line = ["judge=none", "engine=fake", "workspace=2026_11_28", f"question_path={questions}"]
    assert main(["model=org/m", "model.name=3.10", *line]) == 0
    assert (tmp_path / "2026_11_28" / "answers.jsonl").is_file()
    assert not (tmp_path / "20261128").exists()
    capsys.readouterr()
    assert main(["report", "workspace=2026_11_28", "format=json"]) == 0
    assert json.loads(capsys.readouterr().out)["results"][0]["model"] == "3.10"


def test_a_hub_id_may_have_its_revision_behind_it():
    settings = composing.compose(
        ["-m", "model=org/a@main,org/a@step-100,org/b@refs/pr/3,org/c", "judge=none"]
    )
    found = [(one.model.path, one.model.revision, one.model.label) for one in settings]
    assert found == [
        ("org/a", "main", "org/a@main"),
        ("org/a", "step-100", "org/a@step-100"),
        ("org/b", "refs/pr/3", "org/b@refs/pr/3"),
        ("org/c", None, "org/c"),
    ]


def test_a_folder_or_a_services_model_may_have_an_at_in_its_name(monkeypatch, tmp_path):
    (tmp_path / "run" / "a@b").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    for model, more in (("run/a@b", []), ("/ckpts/a@b", []), ("./x/a@b", []),
                        ("org/a@v1", ["engine=openai", "engine.base_url=http://h"])):  # fmt: skip
        (one,) = composing.compose([f"model={model}", "judge=none", *more])
        assert (one.model.path, one.model.revision, one.model.label) == (model, None, model)


def test_two_revisions_for_one_model_are_an_error(capsys):
    assert main(["plan", "model=org/a@main", "model.revision=v2", "judge=none"]) == 2
    assert "model=org/a@main has its revision, and model.revision=v2" in capsys.readouterr().err
