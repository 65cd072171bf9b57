"""Presets: shipped ones, a user's own, and where they may be named."""

import operator

import pytest
from command import composed

from mtbench_ray.cli.main import main

DATED = [
    ("gpt-4o-2024-05-13", "gpt-4o"),
    ("gpt-4o-mini-2024-07-18", "gpt-4o-mini"),
    ("gpt-4-turbo-2024-04-09", "gpt-4-turbo"),
    ("gpt-4-0613", "gpt-4"),
    ("gpt-4.1-nano-2025-04-14", "gpt-4.1-nano"),
    ("gpt-5-mini-2025-08-07", "gpt-5-mini"),
]


@pytest.fixture
def own(tmp_path):
    """A folder of a team's own presets."""
    for name, text in {
        "model/my-model.yaml": "# Our tuned model\npath: org/ours\nsystem_prompt: Be kind.\n",
        "model/small.yaml": "# @package _global_\n# Short window\nmodel:\n  path: org/small\n"
        "sampling:\n  max_tokens: 100\nengine:\n  max_model_len: 512\n",
        "judge/my-judge.yaml": "# Ours\nkind: openai\nmodel: m\nbase_url: http://127.0.0.1:9/v1\n",
    }.items():
        path = tmp_path / "own" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path / "own"


@pytest.mark.parametrize(("name", "family"), DATED)
def test_a_dated_judge_has_the_settings_of_its_family(name, family, monkeypatch, tmp_path):
    dated, plain = composed(monkeypatch, tmp_path, "-m", f"judge={name},{family}", judge=False)
    assert dated.judge.model == name
    for part in ("context_window", "requests_per_minute", "tokens_per_minute", "price_prompt",
                 "price_completion", "temperature", "max_tokens", "token_param"):  # fmt: skip
        assert getattr(dated.judge, part) == getattr(plain.judge, part)
    assert dated.judge.context_window


@pytest.mark.parametrize("name", ["gpt-4o-2024", "gpt-4o-latest", "llama-2024-05-13"])
def test_no_date_no_family(name, monkeypatch, tmp_path, capsys):
    assert main(["model=a/b", f"judge={name}"]) == 2
    assert f"no judge preset is called '{name}'" in capsys.readouterr().err


def test_models_are_presets_paths_and_ids(own, monkeypatch, tmp_path):
    configs = composed(
        monkeypatch, tmp_path, "models=[smollm2-135m,org/other,my-model,small]",
        f"--config-dir={own}", "sampling.top_p=0.5", model=False,
    )  # fmt: skip
    assert [config.model.path for config in configs] == [
        "smollm2-135m", "org/other", "org/ours", "org/small",
    ]  # fmt: skip
    assert [config.model.embedded for config in configs] == [True, False, False, False]
    assert configs[2].model.system_prompt == "Be kind."
    assert [config.sampling.max_tokens for config in configs] == [None, None, None, 100]
    assert {config.sampling.top_p for config in configs} == {0.5}
    assert all(not config.models for config in configs)


@pytest.mark.parametrize(
    "more",
    [
        [],
        ["model.system_prompt=Be kind.", "sampling.top_p=0.5", "limit=3"],
        ["benchmarks=[mt_bench,vicuna]"],
        ["model.name='of ${model.path}'"],
    ],
)
def test_many_models_have_the_settings_that_each_has_alone(more, own, monkeypatch, tmp_path):
    names = ["org/a", "smollm2-135m", "org/b@0a1b2c3", "small", "/ckpts/c", "org/d"]
    more = [*more, f"--config-dir={own}"]
    together = composed(monkeypatch, tmp_path, f"models=[{','.join(names)}]", *more, model=False)
    alone = [
        config
        for name in names
        for config in composed(monkeypatch, tmp_path, f"models=[{name}]", *more, model=False)
    ]
    key = operator.attrgetter("benchmark.name")
    assert sorted(together, key=key) == sorted(alone, key=key)  # sorting keeps the models' order


def test_models_of_an_experiment_are_presets_too(own, monkeypatch, tmp_path):
    (own / "experiment").mkdir()
    (own / "experiment" / "two.yaml").write_text(
        "# @package _global_\nmodels: [smollm2-135m, org/x]\nlimit: 3\n"
    )
    line = [f"--config-dir={own}", "experiment=two", "-m", "sampling.seed=1,2"]
    configs = composed(monkeypatch, tmp_path, *line, model=False)
    assert [(c.model.path, c.sampling.seed, c.limit) for c in configs] == [
        ("smollm2-135m", 1, 3), ("org/x", 1, 3), ("smollm2-135m", 2, 3), ("org/x", 2, 3),
    ]  # fmt: skip


def test_a_misspelt_preset_among_models_is_told(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["models=[smollm-135m]", "judge=none"]) == 2
    assert "did you mean model=smollm2-135m?" in capsys.readouterr().err


@pytest.mark.parametrize("spelled", ["--config-dir={}", "--config-dir {}", "-cd {}"])
def test_presets_of_ones_own_work_as_the_shipped_ones(spelled, own, monkeypatch, tmp_path):
    words = spelled.format(own).split(" ")
    (config,) = composed(
        monkeypatch, tmp_path, *words, "model=my-model", "judge=my-judge", model=False, judge=False
    )
    assert (config.model.path, config.model.system_prompt) == ("org/ours", "Be kind.")
    assert (config.judge.model, config.judge.base_url) == ("m", "http://127.0.0.1:9/v1")


def test_presets_of_ones_own_are_listed(own, capsys):
    assert main(["list", "models", f"--config-dir={own}"]) == 0
    out = capsys.readouterr().out
    assert "my-model" in out
    assert "Our tuned model" in out
    assert "gpt2-large" in out
    assert main(["list", "--config-dir", str(own), "judges"]) == 0
    assert "my-judge" in capsys.readouterr().out


def test_a_folder_of_presets_that_is_not_there(capsys):
    assert main(["--config-dir=/no/where", "model=a/b", "judge=none"]) == 2
    assert "/no/where is not a folder" in capsys.readouterr().err


def test_a_preset_carries_settings_of_its_model_and_the_user_goes_before(monkeypatch, tmp_path):
    (config,) = composed(monkeypatch, tmp_path, "model=gpt2-large", model=False)
    assert (config.model.chat_template, config.sampling.max_tokens) == ("plain", 256)
    for typed in (["sampling.max_tokens=700", "model=gpt2-large"],
                  ["model=gpt2-large", "sampling.max_tokens=700"]):  # fmt: skip
        (config,) = composed(monkeypatch, tmp_path, *typed, model=False)
        assert config.sampling.max_tokens == 700
