"""Answers from a server that speaks the OpenAI API: F05 and what is sent."""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from typing import Any

import pytest
from shards import events_of, make_shard, rows_of, run_shard
from stub_server import StubServer, completion

from mtbench_ray.config import ModelConfig, SamplingConfig
from mtbench_ray.engines.base import Shard
from mtbench_ray.generate.ray_stream import _stream_here
from mtbench_ray.schema import Turn


def shard_of(stub: StubServer, numbers: Any = (1, 2, 3), **more: Any) -> Shard:
    settings = {
        "kind": "openai",
        "base_url": stub.url,
        "api_key_env": None,
        "max_retries": 1,
        "retry_wait_s": 0.01,
        "sampling": SamplingConfig(max_tokens=10_000),
    }
    return make_shard(numbers, **(settings | more))


def test_same_rows_as_any_engine() -> None:
    with StubServer(kind="answer") as stub:
        shard = shard_of(stub)
        outputs = run_shard(shard)
    rows = rows_of(outputs)
    assert rows.keys() == {(unit.answer_id, turn) for unit in shard.units for turn in (1, 2)}
    for (answer, turn), row in rows.items():
        assert (row.engine_origin, row.template_hash) == ("endpoint", "")
        assert row.history == (() if turn == 1 else (rows[answer, 1].content,))
        assert row.output_tokens > 0
    assert events_of(outputs) == ["start"]


def test_sends_all_sampling_explicitly_and_nothing_else() -> None:
    with StubServer(kind="answer") as stub:
        rows = rows_of(run_shard(shard_of(stub, [1])))
        plain = stub.seen.bodies[0]
        run_shard(
            shard_of(
                stub,
                [1],
                sampling=SamplingConfig(top_k=5, repetition_penalty=1.1, max_tokens=50),
                model=ModelConfig(path="served", thinking="off", stop=["###"], stop_token_ids=[7]),
                extra_body={"user": "tests"},
            )
        )
        full = stub.seen.bodies[-2]
    first = rows["answer-1-0", 1]
    assert (plain["model"], plain["seed"], plain["top_p"]) == ("fake/model", first.seed, 1.0)
    assert plain["temperature"] == 0.7
    # Sent although they do nothing: the server would take those of its model's folder.
    assert (plain["top_k"], plain["repetition_penalty"]) == (-1, 1.0)
    absent = {"chat_template_kwargs", "stop", "stop_token_ids"}
    assert not absent & plain.keys()
    assert (full["top_k"], full["repetition_penalty"], full["max_tokens"]) == (5, 1.1, 50)
    assert full["chat_template_kwargs"] == {"enable_thinking": False}
    assert (full["stop"], full["stop_token_ids"], full["user"]) == (["###"], [7], "tests")
    assert '"seed"' in first.sampling


@pytest.mark.parametrize("settings", [{}, {"extra_body": {"seed": None, "top_p": None}}])
def test_a_service_that_takes_no_seed_and_no_top_p_answers_all_the_same(settings: Any) -> None:
    with StubServer(kind="answer", reject=("seed", "top_p")) as stub:
        rows = rows_of(run_shard(shard_of(stub, [1, 2], **settings)))
        assert stub.stats()["calls"] <= (4 if settings else 6 + 2)
    assert {row.status for row in rows.values()} == {"ok"}
    for row in rows.values():
        sent = json.loads(row.sampling)
        assert not {"seed", "top_p"} & sent.keys()
        assert settings or sent["adjusted"].keys() == {"seed", "top_p"}


def test_stop_strings_stay_here_where_thinking_may_come() -> None:
    model = ModelConfig(path="m", thinking="on", stop=["lacks"])
    with StubServer(kind="answer") as stub:
        rows = rows_of(run_shard(shard_of(stub, [1, 2, 3, 4], model=model)))
        assert all("stop" not in body for body in stub.seen.bodies)
    assert all("lacks" not in row.content for row in rows.values())
    assert any("lacks" in row.raw for row in rows.values())


@pytest.mark.parametrize("thinking", ["field", "tags"])
def test_thinking_is_split_however_it_comes(thinking: str) -> None:
    with StubServer(kind="answer", thinking=thinking) as stub:
        rows = rows_of(run_shard(shard_of(stub, [1])))
        assert "<think>" not in stub.seen.bodies[-1]["messages"][1]["content"]
    assert all(row.reasoning and "<think>" not in row.content for row in rows.values())


@pytest.mark.parametrize("fault", ["500", "garbage", "no_choices", "error_200", "reset"])
def test_what_goes_wrong_is_never_an_answer(fault: str) -> None:
    with StubServer(kind="answer", always=fault, only="on 2.") as stub:
        rows = rows_of(run_shard(shard_of(stub, max_retries=0)))
    bad = [row for row in rows.values() if row.question_id == 2]
    assert {row.status for row in bad} == {"error"}
    assert {row.content for row in bad} == {""}
    assert all(row.error for row in bad)
    assert all(row.status == "ok" for row in rows.values() if row.question_id != 2)


def test_faults_that_pass_cost_no_row() -> None:
    with StubServer(kind="answer", first=("500", "503", "ok", "500")) as stub:
        rows = rows_of(run_shard(shard_of(stub, max_retries=5)))
    assert Counter(row.status for row in rows.values()) == {"ok": 6}


def test_wrong_key_fails_all_rows_once_with_the_words() -> None:
    with StubServer(kind="answer", always="401") as stub:
        rows = rows_of(run_shard(shard_of(stub, range(20))))
        assert len(stub.seen.arrivals) <= 20
    assert len(rows) == 40
    assert {row.status for row in rows.values()} == {"error"}
    assert all("401" in (row.error or "") for row in rows.values())


def test_prompt_too_long_for_the_server_is_that_row_alone() -> None:
    with StubServer(kind="answer", always="context", only="on 2.") as stub:
        rows = rows_of(run_shard(shard_of(stub)))
    assert rows["answer-2-0", 1].status == "context_overflow"
    assert rows["answer-1-0", 2].status == "ok"


def test_short_answers_are_asked_again_then_stored_as_empty() -> None:
    with StubServer(kind="answer") as stub:
        rows = rows_of(run_shard(shard_of(stub, [1], min_response_length=100_000)))
        seeds = [body["seed"] for body in stub.seen.bodies]
    assert {(row.status, row.content) for row in rows.values()} == {("empty", "")}
    assert len(seeds) == 6
    assert len(set(seeds)) == 6


def test_missing_key_is_told_and_no_call_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SOME_KEY", raising=False)
    shard = make_shard([1], kind="openai", base_url="http://10.0.0.1/v1", api_key_env="SOME_KEY")
    outputs = run_shard(shard)
    assert all("SOME_KEY" in (r.error or "") for r in outputs if isinstance(r, Turn))


def test_calls_run_at_once_up_to_the_limit() -> None:
    with StubServer(kind="answer", latency=0.05) as stub:
        run_shard(shard_of(stub, range(12), concurrency=4))
        assert 2 <= stub.seen.most_in_flight <= 4


@pytest.mark.parametrize("replicas", [1, 4])
def test_all_replicas_call_under_one_limit(replicas: int) -> None:
    with StubServer(kind="answer") as stub:
        shards = [
            shard_of(stub, [2 * n, 2 * n + 1], requests_per_minute=600) for n in range(replicas)
        ]
        begin = time.monotonic()
        outputs = list(_stream_here(shards, replicas, threading.Event()))
        seconds = time.monotonic() - begin
        calls = stub.stats()["calls"]
    assert len(rows_of(outputs)) == calls == 4 * replicas
    # Ten a second, of which two may leave at once.
    assert seconds > (calls - 2) / 10 * 0.95


def test_all_replicas_share_the_calls_in_flight() -> None:
    with StubServer(kind="answer", latency=0.05) as stub:
        shards = [shard_of(stub, [3 * n, 3 * n + 1, 3 * n + 2], concurrency=2) for n in range(4)]
        list(_stream_here(shards, 4, threading.Event()))
        assert stub.seen.most_in_flight == 2


@pytest.mark.parametrize(
    "body",
    [completion("", "stop", 9, 0), completion("", "length", 9, 0), completion("", None, 9, 0),
     completion("Half", "error", 9, 3), completion("Half", "abort", 9, 3),
     completion("Half", None, 9, 3) | {"error": {"code": 502, "message": "gone"}}],
    ids=["no_output", "no_output_cut", "no_reason", "error", "abort", "error_beside"],
)  # fmt: skip
def test_no_output_is_no_answer(body: dict[str, Any]) -> None:
    with StubServer(kind="answer", always=f"raw;body={json.dumps(body)}", only="on 2.") as stub:
        rows = rows_of(run_shard(shard_of(stub, max_retries=1)))
        assert max(stub.seen.tries.values()) >= 2
    bad = [row for row in rows.values() if row.question_id == 2]
    assert {(row.status, row.content) for row in bad} == {("error", "")}
    assert all(row.error for row in bad)


def test_output_that_came_at_the_second_try_is_the_answer() -> None:
    empty = json.dumps(completion("", "stop", 9, 0))
    with StubServer(kind="answer", first=(f"raw;body={empty}",)) as stub:
        rows = rows_of(run_shard(shard_of(stub, [1])))
    assert {row.status for row in rows.values()} == {"ok"}


def test_an_end_token_alone_is_the_models_own_empty_answer() -> None:
    with StubServer(kind="answer", always=f"raw;body={json.dumps(completion('', 'stop', 9, 1))}",
                    only="on 2.") as stub:  # fmt: skip
        rows = rows_of(run_shard(shard_of(stub)))
    assert rows["answer-2-0", 1].status == "empty"


def test_sampling_that_a_service_does_not_take_is_left_out_and_recorded(
    caplog: pytest.LogCaptureFixture,
) -> None:
    refused = ("top_k", "repetition_penalty")
    sampling = SamplingConfig(top_k=5, max_tokens=50)
    with StubServer(kind="answer", reject=refused) as stub:
        rows = rows_of(run_shard(shard_of(stub, [1], sampling=sampling)))
        last = stub.seen.bodies[-1]
    assert not set(refused) & last.keys()
    assert {row.status for row in rows.values()} <= {"ok", "truncated"}
    for row in rows.values():
        sent = json.loads(row.sampling)
        assert sent["adjusted"] == dict.fromkeys(refused, "not sent above temperature 0: refused")
    assert "top_k: not sent" in caplog.text


def test_what_answered_is_in_the_rows() -> None:
    with StubServer(kind="answer", served=("m-2025",), root="/ckpts/step_7") as stub:
        rows = rows_of(run_shard(shard_of(stub, [1])))
    assert {row.served_model for row in rows.values()} == {"m-2025 (/ckpts/step_7)"}


def test_a_window_smaller_than_prompt_and_cap_costs_no_turn() -> None:
    says = "max_tokens is too large: {cap}. The context length is {window}, {prompt} input tokens"
    with StubServer(kind="answer", context=1000, window_says=says) as stub:
        sampling = SamplingConfig(max_tokens=690)
        rows = rows_of(run_shard(shard_of(stub, range(10), sampling=sampling, concurrency=1)))
        assert stub.stats()["faults"].get("400", 0) <= 4
    assert {row.status for row in rows.values()} <= {"ok", "truncated"}
    assert any(
        "room" in json.loads(row.sampling)["adjusted"] for row in rows.values() if row.turn == 2
    )


def test_no_cap_leaves_the_length_to_the_service() -> None:
    with StubServer(kind="answer") as stub:
        rows = rows_of(run_shard(shard_of(stub, [1], sampling=SamplingConfig(max_tokens=0))))
        assert not {"max_tokens", "max_completion_tokens"} & stub.seen.bodies[0].keys()
    assert {row.status for row in rows.values()} == {"ok"}
