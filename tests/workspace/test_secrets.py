"""Secrets in free-form settings: in no file, in no id, not on the screen; the service gets them."""

import json

import pytest
from stub_server import StubServer
from verdicts import prompt_file

from mtbench_ray.cli.main import main
from mtbench_ray.config import EngineConfig, JudgeConfig, science
from mtbench_ray.system.redact import hidden, is_secret_name, secrets_in

SECRET = "planted-secret-0815"


@pytest.mark.parametrize(
    "name",
    ["hf_token", "token", "api_key", "apiKey", "apikey", "X-API-Key", "key", "client_secret",
     "password", "ssl_keyfile_password", "Authorization", "Proxy-Authorization", "auth_token",
     "aws_secret_access_key", "api_tokens", "HF_TOKEN", "wandb_key", "authToken", "cookie",
     "credentials", "basic_auth", "accessToken", "passwd", "session_token"],
)  # fmt: skip
def test_names_of_secrets(name):
    assert is_secret_name(name)


@pytest.mark.parametrize(
    "name",
    ["max_tokens", "max_completion_tokens", "token_param", "stop_token_ids", "eos_token",
     "eos_token_id", "tokenizer", "tokenizer_mode", "api_key_env", "prompt_cache_key",
     "skip_special_tokens", "bos_token", "pad_token", "min_tokens", "tokens_per_minute",
     "max_num_batched_tokens", "kv_cache_dtype", "keyword", "monkey", "author", "tokens",
     "include_stop_str", "thinking_token_budget", "logprobs", "secret_file", "sort_key",
     "image_token", "think_start_token", "ssl_keyfile"],
)  # fmt: skip
def test_names_of_no_secrets(name):
    assert not is_secret_name(name)


def test_what_is_hidden_is_found_at_any_depth():
    settings = {"a": [{"headers": {"Authorization": "Bearer x"}}], "max_tokens": 5,
                "token": 123, "credentials": {"user": "u", "pw": ["p"]}, "api_key": None,
                "auth": True}  # fmt: skip
    assert hidden(settings) == {
        "a": [{"headers": {"Authorization": "***"}}], "max_tokens": 5, "token": "***",
        "credentials": "***", "api_key": None, "auth": True,
    }  # fmt: skip
    assert list(secrets_in(settings)) == ["Bearer x", "123", "u", "p"]


def test_a_secret_changes_no_id():
    for kind in (EngineConfig, JudgeConfig):
        plain = science(kind(extra_body={"a": 1}))
        for value in ("one", "two"):
            assert science(kind(extra_body={"a": 1, "x": {}, "api_key": value})) == plain | {
                "extra_body": {"a": 1, "x": {}}
            }
        assert science(kind(extra_body={"token": "one"})) == science(kind())
    assert science(EngineConfig(args={"hf_token": "x"})) == science(EngineConfig())
    local = JudgeConfig(kind="local", args={"seed": 1, "hf_token": "x"})
    assert local.server_science == {"args": {"seed": 1}}


@pytest.fixture
def stub():
    with StubServer() as server:
        yield server


@pytest.fixture
def line(stub, questions, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "prompts.jsonl").write_text(prompt_file())
    return [
        "model=a/b", "engine=fake", "judge=openai", "judge.model=j", "judge.prompts=prompts.jsonl",
        f"judge.base_url={stub.url}", f"question_path={questions}", "limit=1", "workspace=w",
        "categories=[writing]",
    ]  # fmt: skip


def nowhere(tmp_path, *texts):
    """Files below a folder that hold one of the texts."""
    return [
        path
        for path in tmp_path.rglob("*")
        if path.is_file() and any(text.encode() in path.read_bytes() for text in texts)
    ]


SPELLINGS = [
    [f"judge.extra_body.api_key={SECRET}"],
    [f"+judge.extra_body.api_key='{SECRET}'"],
    [f"judge.extra_body={{api_key: {SECRET}, seed: 3}}"],
    [f"judge.extra_body.headers={{Authorization: '{SECRET}'}}"],
    [f"judge.extra_body.list=[{{token: {SECRET}}}]"],
    ["-m", "judge.samples=1", f"judge.extra_body.token={SECRET}"],
    ["judge.extra_body.token=${oc.env:MY_SECRET}"],
    ["-m", "judge.samples=1", "judge.extra_body.token=${oc.env:MY_SECRET}"],
]


@pytest.mark.parametrize("typed", SPELLINGS, ids=lambda words: words[-1][:40])
@pytest.mark.runs
def test_a_secret_reaches_the_service_and_no_file(typed, line, stub, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("MY_SECRET", SECRET)
    assert main([*typed, *line]) == 0
    said = "".join(capsys.readouterr())
    assert SECRET not in said
    assert ("looks like a secret" in said) == (SECRET in typed[-1])
    assert [SECRET in json.dumps(body) for body in stub.seen.bodies] == [True, True]
    assert nowhere(tmp_path, SECRET) == []
    assert json.loads((tmp_path / "w" / "judgments.jsonl").read_text().splitlines()[0])


def test_another_secret_is_no_other_evaluation(line, stub, capsys):
    assert main([*line, "judge.extra_body.api_key=planted-one-1", "engine.args.hf_token=a1"]) == 0
    before = stub.stats()["calls"]
    assert main([*line, "judge.extra_body.api_key=planted-two-2", "engine.args.hf_token=b2"]) == 0
    assert stub.stats()["calls"] == before
    assert "changed" not in capsys.readouterr().err


def test_settings_that_hold_no_secret_pass_as_they_are(line, stub, tmp_path):
    assert main([*line, "judge.extra_body={stop_token_ids: [1, 2], eos_token: x}"]) == 0
    assert '\\"stop_token_ids\\":[1,2]' in (tmp_path / "w" / "judgments.jsonl").read_text()
    assert main(["run", "--cfg", "job", *line, f"engine.args.hf_token={SECRET}"]) == 0


def test_a_run_says_first_what_it_is(line, stub, tmp_path, capsys):
    assert main([*line, "model.thinking=off", "judge.samples=2"]) == 0
    said = capsys.readouterr().err.splitlines()
    expected = {
        "benchmark": f"mt_bench ({tmp_path}/own_questions.jsonl), 1 questions: writing 1",
        "model": "a/b",
        "engine": "fake",
        "judge": f"j at 127.0.0.1:{stub.port}, single, prompts prompts.jsonl, 2 samples",
        "thinking": "off",
        "workspace": str(tmp_path / "w"),
        "pending": "2 turns to answer, 4 judge calls",
    }
    assert [text.split(None, 1) for text in said[:7]] == [list(pair) for pair in expected.items()]
    assert main([*line, "model.thinking=off", "judge.samples=2", "quiet=true", "limit=2"]) == 0
    assert "benchmark  " not in capsys.readouterr().err
    assert main([*line, "model.thinking=off", "judge.samples=2", "limit=2"]) == 0
    assert "benchmark  " not in capsys.readouterr().err, "nothing is pending: nothing is said"


@pytest.mark.runs
def test_debug_tells_every_request_and_retry_without_the_key(line, stub, capsys, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", SECRET)
    stub.script.first = ("500",)
    assert main([*line, "debug=true", f"judge.extra_body.token={SECRET}x"]) in (0, 3)
    said = capsys.readouterr().err
    calls = [text for text in said.splitlines() if "endpoint.client: " in text]
    assert sum(" ok " in text for text in calls) == 2
    assert any("attempt 1 again" in text for text in calls)
    assert any("engine" in text and "start" in text for text in said.splitlines())
    assert SECRET not in said
    assert main([*line, "limit=2"]) == 0
    assert "endpoint.client" not in capsys.readouterr().err
