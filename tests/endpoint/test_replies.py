"""Bodies of good status in every shape, and what is done where none can be read."""

import contextlib
import json

import pytest
from client_calls import ask, complete, complete_all
from hypothesis import given
from hypothesis import strategies as st
from stage_calls import PRICES, judge_all, request
from stub_server import StubServer, completion

from mtbench_ray.endpoint.api_errors import Fault
from mtbench_ray.endpoint.reply import read_reply
from mtbench_ray.endpoint.served import ServedModel, ServedModels, read_models
from mtbench_ray.judges.budget import Budget

GOOD = json.dumps(completion("Fine. Rating: [[7]]", "stop", 90, 9))


def stream(*pieces, finish="stop", end="data: [DONE]\n\n", **more):
    """The body of a stream: one event for each piece of text."""
    deltas = [({"content": piece}, None) for piece in pieces]
    if finish:
        deltas.append(({"content": ""}, finish))
    chunks = [
        {"choices": [{"index": 0, "delta": delta, "finish_reason": word}]} for delta, word in deltas
    ]
    if more:
        chunks.append({"choices": []} | more)
    return "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks) + end


STREAM = stream("Fine. ", "Rating: [[7]]")


@pytest.mark.parametrize(
    "body",
    [GOOD, f"\ufeff{GOOD}", f"\n\n\n{GOOD}\n", f": PROCESSING\n\n: PROCESSING\n\n{GOOD}",
     f"{GOOD}\ndata: [DONE]\n\n", STREAM, f": ping\n\n{STREAM}", f"event: message\n{STREAM}",
     stream("Fine. Rating: [[7]]", finish="", end="data: [DONE]"),
     stream("Fine. Rating: [[7]]", end=""), f"data: {GOOD}\n\ndata: [DONE]\n\n"],
    ids=["json", "bom", "blank", "comments", "tail", "stream", "ping", "event", "no_finish",
         "no_end", "one_event"],
)  # fmt: skip
def test_a_reply_is_read_whatever_stands_around_it(body):
    assert read_reply(body).text == "Fine. Rating: [[7]]"
    with StubServer(always=f"raw;body={body}") as stub:
        done, _ = complete(stub)
        assert stub.stats()["calls"] == 1
    assert (done.status, done.text) == ("ok", "Fine. Rating: [[7]]")


def test_a_stream_has_usage_reasoning_and_model():
    usage = {"prompt_tokens": 70, "completion_tokens": 5}
    body = stream("Good.", usage=usage, model="m-2", system_fingerprint="fp_1")
    thought = json.dumps({"choices": [{"delta": {"reasoning_content": "hm", "content": None}}]})
    reply = read_reply(f"data: {thought}\n\n{body}")
    assert (reply.text, reply.reasoning, reply.finish_reason) == ("Good.", "hm", "stop")
    assert (reply.prompt_tokens, reply.output_tokens) == (70, 5)
    assert (reply.served_model, reply.system_fingerprint) == ("m-2", "fp_1")


@pytest.mark.parametrize(
    "body",
    [stream("Half a", finish="", end=""), STREAM[:-60], stream("Half", finish="error"),
     'data: {"error": {"code": 502, "message": "gone"}}\n\n', "data: hello\n\n", ": ping\n\n",
     stream("Half", finish="") + 'data: {"choices": [{"delta": {}, "error": {"code": 502}}]}\n\n'],
)  # fmt: skip
def test_a_stream_that_stops_early_or_fails_is_no_reply(body):
    with pytest.raises(Fault) as caught:
        read_reply(body)
    assert caught.value.retry


@pytest.mark.parametrize(
    "more", [{"error": {"code": 502, "message": "provider gone"}}, {"error": "gone"}]
)
def test_half_a_text_beside_an_error_is_no_reply(more):
    data = completion("Half a thou", None, 9, 3)
    for broken in (data | more, data | {"choices": [data["choices"][0] | more]}):
        with pytest.raises(Fault) as caught:
            read_reply(json.dumps(broken))
        assert caught.value.retry
    assert read_reply(json.dumps(data | {"error": None})).text == "Half a thou"


@given(st.text())
def test_any_body_is_read_or_a_fault(body):
    for text in (body, f"data: {body}\n", f": {body}\n{GOOD}"):
        with contextlib.suppress(Fault):
            read_reply(text)


def test_a_web_page_is_told_as_one():
    with pytest.raises(Fault) as caught:
        read_reply("<!DOCTYPE html><title>Sign in</title>")
    assert "is base_url right?" in caught.value.detail


def test_json_is_utf_8_whatever_the_header_says():
    reply = completion("Très bien", "stop", 9, 3)
    body = json.dumps(reply, ensure_ascii=False)
    with StubServer(always=f"raw;content-type=application/json; charset=us-ascii;body={body}"
                    .replace("; charset", ", charset")) as stub:  # fmt: skip
        assert complete(stub)[0].text == "Très bien"


@pytest.mark.parametrize(
    ("finish", "status"),
    [("model_context_window_exceeded", "truncated"), ("ERROR_LIMIT", "truncated"),
     ("max_new_tokens", "truncated"), ("max_length", "truncated"), ("repetition", "truncated"),
     ("ERROR_TOXIC", "refused"), ("guardrail_intervened", "refused"), ("LANGUAGE", "refused"),
     ("end_turn", "ok"), ("stop_sequence", "ok"), ("COMPLETE", "ok"), ("eos", "ok"),
     ("FINISH_REASON_STOP", "ok"), ("", "ok")],
)  # fmt: skip
def test_cut_is_cut_in_the_words_of_more_services(finish, status):
    reply = read_reply(json.dumps(completion("Half an answer", finish, 9, 4)))
    assert (reply.status, reply.odd_finish) == (status, False)


@pytest.mark.parametrize("finish", ["USER_CANCEL", "incomplete", "preempted", "TIMEOUT", "abort"])
def test_what_broke_off_is_a_fault_in_the_words_of_more_services(finish):
    with pytest.raises(Fault) as caught:
        read_reply(json.dumps(completion("Half an answer", finish, 9, 4)))
    assert caught.value.retry


def test_an_unknown_finish_reason_is_noted(caplog):
    with StubServer(always=f"raw;body={json.dumps(completion('Hm', 'zeal', 9, 4))}") as stub:
        (done,), client, _ = complete_all(stub, [ask("Q")])
    assert (done.status, done.finish_reason) == ("ok", "zeal")
    note = "zeal is unknown, its replies are taken for whole"
    assert client.learned == {"finish_reason": note}
    assert note in caplog.text


@pytest.mark.parametrize(
    ("usage", "prompt", "output"),
    [
        ({"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}, None, None),
        ({"prompt_tokens": 0, "completion_tokens": 5, "total_tokens": 5}, None, 5),
        ({"prompt_tokens": 700, "completion_tokens": 0, "total_tokens": 700}, 700, None),
        ({"input_tokens": 700, "output_tokens": 5}, 700, 5),
        ({"prompt_tokens": 700.0, "completion_tokens": 5.0}, 700, 5),
        ({"prompt_tokens": "700", "completion_tokens": True}, None, None),
        ({}, None, None), (None, None, None),
    ],
)  # fmt: skip
def test_a_count_of_nothing_is_no_count(usage, prompt, output):
    reply = read_reply(json.dumps(completion("Fine.", "stop", 9, 4) | {"usage": usage}))
    assert (reply.prompt_tokens, reply.output_tokens) == (prompt, output)


@pytest.mark.parametrize("counted", [0, 1])
def test_a_budget_holds_where_the_service_counts_nothing(counted):
    long = "Good and clear and short. " * 30 + "Rating: [[7]]"
    body = json.dumps(completion(long, "stop", counted, counted))
    budget = Budget(0.02)
    with StubServer(always=f"raw;body={body}") as stub:
        requests = [request(n, "word " * 400) for n in range(9)]
        prices = PRICES | {"max_tokens": 250, "concurrency": 1}
        rows, _ = judge_all(stub, requests, budget, **prices)
        assert stub.stats()["calls"] == len(rows) < 9
    assert rows["j0"].prompt_tokens > 400
    assert rows["j0"].output_tokens > 150
    assert budget.exhausted


def test_replies_that_can_never_be_read_stop_after_a_few():
    with StubServer(always="garbage", latency=0.05) as stub:
        requests = [request(n) for n in range(160)]
        rows, judge = judge_all(stub, requests, max_retries=6, concurrency=128)
        assert stub.stats()["calls"] <= 20
    assert len(rows) <= 2
    assert "replies came and none can be read" in judge.fatal
    assert "a web page instead of an API's reply, is base_url right?" in judge.fatal


def test_a_few_unreadable_replies_among_good_ones_stop_nothing():
    with StubServer(first=("ok",), always="garbage", only="answer 3 ") as stub:
        requests = [request(n) for n in range(20)]
        rows, judge = judge_all(stub, requests, max_retries=12, retry_factor=1.0)
        assert stub.stats()["calls"] == 19 + 13
    assert judge.fatal is None
    assert rows["j3"].status == "error"
    assert len(rows) == 20


def test_a_service_that_only_streams_works():
    first = "400;body=This model only supports streaming"
    with StubServer(first=(first,), always=f"raw;body={STREAM}") as stub:
        rows, judge = judge_all(stub, [request(n) for n in range(5)])
        assert [body["stream"] for body in stub.seen.bodies] == [False] + [True] * 5
    assert {row.value for row in rows.values()} == {7.0}
    assert judge.learned == {"stream": "true: the service answers in streams only"}
    assert "stream" not in json.loads(rows["j1"].params)


def test_what_answered_is_in_the_row():
    with StubServer(served=("claude", "mini"), root="/ckpts/step_200") as stub:
        rows, _ = judge_all(stub, [request(n) for n in range(3)], concurrency=1)
    names = [rows[f"j{n}"].served_model for n in range(3)]
    assert names == ["claude", "mini (/ckpts/step_200)", "mini (/ckpts/step_200)"]


def test_models_are_read_from_any_list():
    body = '{"data": [{"id": "m", "root": "/ckpts/2"}, {"id": "n", "root": null}, 3, {"id": 4}]}'
    assert read_models(body) == {"m": ServedModel("m", "/ckpts/2"), "n": ServedModel("n")}
    assert [m.name for m in read_models(body).values()] == ["m (/ckpts/2)", "n"]
    for odd in ("", "[]", "{}", '{"data": 3}', "null", "<html>"):
        assert read_models(odd) == {}


def test_another_model_under_the_same_name_is_noticed_within_and_between_runs():
    models = ServedModels()
    models.known([("judge j", "a", "fp_1"), ("judge k", "", "")])
    assert models.note("judge j", "a", "fp_1") == ""
    assert models.note("judge j", "b", "fp_1") == "judge j: b answered, before it was a"
    assert models.note("judge j", "b", "fp_1") == ""
    line = "judge j: the service's version is fp_2, before it was fp_1"
    assert models.note("judge j", "a", "fp_2") == line
    assert models.note("judge j", "a", "fp_3") == ""  # some answer with several at a time
    assert models.note("judge k", "x", "fp_9") == ""
    assert models.note("judge k", "", "") == ""
