"""Settings that are completed or refused before a run starts."""

import dataclasses

import pytest

from mtbench_ray.cli.overrides import read
from mtbench_ray.config import EngineConfig, JudgeConfig, ModelConfig, RunConfig
from mtbench_ray.errors import UserError
from mtbench_ray.validate import validate


@pytest.fixture(autouse=True)
def no_address(monkeypatch):
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)


def config(key="", value=None):
    """A good run, with one setting changed."""
    made = RunConfig(ModelConfig("org/m"), JudgeConfig(model="j"), EngineConfig(kind="fake"))
    if not key:
        return made
    group, _, name = key.rpartition(".")
    changed = dataclasses.replace(getattr(made, group), **{name: value})
    return dataclasses.replace(made, **{group: changed})


@pytest.mark.parametrize(
    ("key", "value", "meant"),
    [
        ("model.thinking", "onn", "did you mean model.thinking=on?"),
        ("model.split_thinking", "allways", "always"),
        ("judge.kind", "open_ai", "openai"),
        ("judge.truncate", "answer", "did you mean judge.truncate=answer_tail?"),
        ("judge.limit_scope", "clusterr", "cluster"),
        ("judge.token_param", "max_token", "max_tokens"),
        ("judge.schedule", "afterwards", "after"),
        ("engine.kind", "vlm", "vllm"),
        ("engine.limit_scope", "On", "it is run or cluster"),
        ("engine.token_param", "completion_tokens", "max_completion_tokens"),
        ("cluster.ray", "off", "it is auto or always"),
        ("report.format", "md", "it is table or json or markdown"),
    ],
)
def test_a_word_that_is_not_known_is_refused_with_the_nearest(key, value, meant):
    with pytest.raises(UserError, match=f"{key}={value} is not known") as caught:
        validate(config(key, value))
    assert meant in caught.value.hint


@pytest.mark.parametrize("key", ["judge.concurrency", "engine.concurrency"])
def test_no_call_at_a_time_is_refused(key):
    with pytest.raises(UserError, match=f"{key}=0 permits no call"):
        validate(config(key, 0))


@pytest.mark.parametrize("value", ["on", "On", "True", "yes", "off", "OFF", "False", "no", "unset"])
def test_a_switch_may_come_as_yaml_writes_it(value):
    meant = {"unset": "unset"}.get(value, "on" if value.lower() in ("on", "true", "yes") else "off")
    assert validate(config("model.thinking", value)).model.thinking == meant


def test_the_address_of_the_environment_is_a_setting(monkeypatch):
    assert validate(config()).judge.base_url == "https://api.openai.com/v1"
    monkeypatch.setenv("OPENAI_BASE_URL", " http://one:8000/v1 ")
    assert validate(config()).judge.base_url == "http://one:8000/v1"
    typed = validate(config("judge.base_url", "http://two/v1")).judge
    assert typed.base_url == "http://two/v1"
    monkeypatch.setenv("OPENAI_BASE_URL", "one:8000")
    with pytest.raises(UserError, match="not the address"):
        validate(config())
    assert validate(config("judge.kind", "local")).judge.base_url is None
    monkeypatch.setenv("OPENAI_BASE_URL", " ")
    assert validate(config()).judge.base_url == "https://api.openai.com/v1"


def at(group, address):
    if group == "judge":
        return config("judge.base_url", address)
    return dataclasses.replace(config(), engine=EngineConfig(address, kind="openai"))


@pytest.mark.parametrize("group", ["judge", "engine"])
@pytest.mark.parametrize(
    "address",
    ["localhost:8000/v1", "http:///v1", "http://[::1/v1", "ftp://host/v1", "host", "http://h:x/v1",
     "http://a b/v1", "http://host/v1?key=hunter2", "https://"],
)  # fmt: skip
def test_what_is_no_address_is_refused(group, address):
    with pytest.raises(UserError, match=f"{group}.base_url=.*not the address") as caught:
        validate(at(group, address))
    assert "http://127.0.0.1:8000/v1" in caught.value.hint
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize("group", ["judge", "engine"])
@pytest.mark.parametrize(
    "address", ["http://bob:hunter2@host/v1", "https://hunter2@[::1/v1", "bob:hunter2@host"]
)
def test_an_address_with_a_password_is_refused_before_it_is_written(group, address):
    def typed():
        read([f"{group}.base_url={address}"], {})

    for attempt in (lambda: validate(at(group, address)), typed):
        with pytest.raises(UserError, match=f"{group}.base_url holds a user") as caught:
            attempt()
        assert "hunter2" not in str(caught.value)
        assert f"{group}.api_key_env=" in caught.value.hint


@pytest.mark.parametrize("group", ["judge", "engine"])
@pytest.mark.parametrize(
    ("address", "one_spelling"),
    [
        ("http://host/v1", "http://host/v1"),
        ("HTTPS://Host:8000/a/@b/v1/", "https://host:8000/a/@b/v1"),
        ("http://[::1]:80/v1", "http://[::1]/v1"),
        ("https://host:443", "https://host"),
        ("https://host:80/", "https://host:80"),
        ("https://api.openai.com/v1/", "https://api.openai.com/v1"),
    ],
)
def test_an_address_has_one_spelling_in_ids(group, address, one_spelling):
    settled = validate(at(group, address))
    assert getattr(settled, group).base_url == one_spelling
    assert validate(settled) == settled


def test_judging_again_does_not_throw_the_answers_away():
    made = dataclasses.replace(config(), stage="judge", fresh=True)
    with pytest.raises(UserError, match="fresh=true leaves no answers"):
        validate(made)
