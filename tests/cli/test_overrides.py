"""What users type: names, paths, mistakes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mtbench_ray.cli.overrides import read
from mtbench_ray.cli.suggestions import known_keys, refused_value
from mtbench_ray.errors import UserError

PRESETS = {"model": ["smollm2-135m", "qwen2.5-7b"], "judge": ["gpt-4o", "local", "none"]}


def typed_models(*argv):
    """The texts that reach model.path, in order, presets by their name."""
    result = read(argv, PRESETS)
    value = next(arg for arg in result.args if arg.startswith("model=")).partition("=")[2]
    return [result.choices.get(("model", name), name) for name in value.split(",")]


def test_presets_and_free_names_mix_in_a_sweep():
    assert typed_models("-m", "model=smollm2-135m,org/Model-7B,/ckpts/step_100") == [
        "smollm2-135m",
        "org/Model-7B",
        "/ckpts/step_100",
    ]


@pytest.mark.parametrize(
    "path",
    [
        "/ckpt/epoch=6-step=100.ckpt",
        "/runs/a b/step 1",
        "/läufe/größe",
        "/d/${x}/m",
        "/d/(1){2};&#!~'",
    ],
)
def test_a_single_run_takes_any_path_as_it_is_typed(path):
    assert typed_models(f"model={path}") == [path]
    assert typed_models(f"model='{path},with-comma'") == [f"{path},with-comma"] or "'" in path


@pytest.mark.parametrize("quoted", ["'/d/a,b'", '"/d/a,b"', "/d/a\\,b"])
def test_a_quoted_comma_does_not_split_a_sweep(quoted):
    assert typed_models("-m", f"model={quoted},/d/c") == ["/d/a,b", "/d/c"]


def test_a_backslash_stays_in_a_path():
    assert typed_models("model=C:\\models\\a=b") == ["C:\\models\\a=b"]


@given(st.lists(st.text(min_size=1).map(lambda text: "/" + text), min_size=1, max_size=4))
def test_every_text_survives_quoting(paths):
    escaped = ["'" + path.replace("\\", "\\\\").replace("'", "\\'") + "'" for path in paths]
    assert typed_models("-m", "model=" + ",".join(escaped)) == paths


def test_two_paths_with_the_same_last_folder_are_two_choices():
    result = read(["-m", "model=/a/step_1,/b/step_1"], PRESETS)
    assert len(result.choices) == 2


def test_a_list_of_judges_is_a_sweep():
    result = read(["model=org/m", "judge=[gpt-4o,local]"], PRESETS)
    assert result.args[0] == "-m"
    assert "judge=gpt-4o,local" in result.args


@pytest.mark.parametrize(
    ("argv", "message", "hint"),
    [
        (["--limit", "4"], "--limit", "write limit=4"),
        (["--limit=4"], "--limit=4", "write limit=4"),
        (["--max-tokens", "9"], "--max-tokens", "max_tokens=9"),
        (["limt=4"], "'limt'", "did you mean limit?"),
        (["engine.tensor_paralel=2"], "engine.tensor_paralel", "engine.tensor_parallel"),
        (["max_tokens=5"], "'max_tokens'", "max_tokens?"),
        (["limit"], "'limit'", "limit=value"),
        (["model=smollm-135m"], "smollm-135m", "model=smollm2-135m"),
        (["judge=gpt4o"], "gpt4o", "judge=gpt-4o"),
        (["model=a/b,c/d"], "names several", "-m model=a/b,c/d"),
        (["model="], "model=", "list models"),
        (["--model=abc"], "--model=abc", "write model=abc"),
        (["--judge", "abc"], "--judge", "write judge=abc"),
        (["--temperature=0"], "--temperature", "write sampling.temperature=0 or judge."),
        (["--xyzzy"], "--xyzzy", "--cfg job"),
        (["modle=abc"], "'modle'", "did you mean model?"),
        (["modle.path=abc"], "'modle.path'", "did you mean model.path?"),
        (["jugde=abc"], "'jugde'", "did you mean judge?"),
        (["engin=vllm"], "'engin'", "did you mean engine?"),
        (["clutser=auto"], "'clutser'", "did you mean cluster?"),
        (["experimnt=quick"], "'experimnt'", "did you mean experiment?"),
        (["temperature=0"], "'temperature'", "did you mean sampling.temperature or judge.temp"),
        (["temprature=0"], "'temprature'", "did you mean sampling.temperature or judge.temp"),
        (["samples=2"], "'samples'", "did you mean sampling.samples or judge.samples?"),
        (["model"], "'model'", "model=value"),
        (["+foo=1"], "'foo'", "--cfg job"),
        (["+foo/bar=1"], "'foo/bar'", "--cfg job"),
        (["+limt=1"], "'limt'", "did you mean limit?"),
        (["model=a/b", "model=c/d"], "model= is given 2 times", "-m model=a/b,c/d"),
        (["judge=none", "judge=local"], "judge= is given 2 times", "-m judge=none,local"),
        (["workspace="], "workspace= is empty", "workspace=DIR"),
        (["workspace=''"], "workspace= is empty", "workspace=DIR"),
        (["workspace=s3://bucket/x"], "not a local folder", "file system"),
    ],
)
def test_mistakes_name_the_right_form(argv, message, hint):
    with pytest.raises(UserError) as error:
        read(argv, PRESETS)
    assert message in error.value.message
    assert hint in error.value.hint


def test_hydra_keys_and_open_dictionaries_pass():
    argv = ["hydra.run.dir=x", "+judge.extra_body.a=1", "~hydra.x"]
    assert read(argv, PRESETS).args == argv
    assert read(["engine.args.max_lora_rank=64"], PRESETS).args == [
        "++engine.args.max_lora_rank=64"
    ]


@pytest.mark.parametrize("key", ["workspace", "hydra.run.dir", "hydra.sweep.dir"])
@pytest.mark.parametrize(
    ("typed", "meant"),
    [("~/x", "/home/u/x"), ("'~/x y'", "'/home/u/x y'"), ("~", "/home/u"), ("a/~", "a/~")],
)
def test_a_tilde_that_the_shell_left_is_the_home_folder(key, typed, meant, monkeypatch):
    monkeypatch.setenv("HOME", "/home/u")
    assert read([f"{key}={typed}"], PRESETS).args == [f"{key}={meant}"]


def test_a_wrong_value_of_every_setting_is_answered_in_words():
    for key in known_keys():
        error = refused_value(key, "'oops'")
        assert error.message.startswith(f"{key} takes ")
        assert error.message.endswith(", not 'oops'")
        assert not {"class", "typing", "dict["} & set(error.message.split())
