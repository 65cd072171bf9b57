import asyncio
import json
import logging
import sys
import time
from dataclasses import replace
from email.utils import formatdate

import pytest
from client_calls import BACKOFF_S, KEY, PAGE, ask, complete, complete_all
from hypothesis import given
from hypothesis import strategies as st
from stub_server import StubServer

from mtbench_ray.config import EndpointConfig, JudgeConfig
from mtbench_ray.endpoint.api_errors import Fault, http_fault, requested_wait
from mtbench_ray.endpoint.client import EndpointClient
from mtbench_ray.endpoint.keys import display_host, fingerprint, resolve_key, scrub
from mtbench_ray.endpoint.rate_limit import Limiter
from mtbench_ray.endpoint.reply import read_reply
from mtbench_ray.endpoint.request_adapter import Dialect
from mtbench_ray.endpoint.tokens import cost, estimate_tokens
from mtbench_ray.errors import EndpointStopped, UserError
from mtbench_ray.judges.budget import Budget, check_budget
from mtbench_ray.schema import Message
from mtbench_ray.workspace.journal import well_formed

pytestmark = pytest.mark.clock

GONE = "not sent at temperature 0: refused"


class SlowLimiter(Limiter):
    """Writes down what is asked of it. The first call waits longer than the others wait for it."""

    def __init__(self):
        super().__init__(None, None, 64)
        self.asked = []

    async def acquire(self, tokens):
        self.asked.append(tokens)
        await asyncio.sleep(0.02 if len(self.asked) > 1 else 1.3)


def test_a_call_that_waits_for_tokens_learns_from_the_replies_before_it():
    limiter = SlowLimiter()
    config = EndpointConfig(tokens_per_minute=10**6, concurrency=64, timeout_s=5.0)

    async def run(url):
        client = EndpointClient(replace(config, base_url=url), "m", key=KEY, limiter=limiter)
        calls = (client.complete(ask(f"{n}?"), max_tokens=2048) for n in range(30))
        await asyncio.gather(*calls)
        await client.close()

    with StubServer() as stub:
        asyncio.run(run(stub.url))
    assert max(limiter.asked) > 2048
    assert sum(tokens > 2048 for tokens in limiter.asked) < 10


def test_a_reply_and_what_is_recorded_of_it():
    with StubServer() as stub:
        done, _ = complete(stub, extra_body={"top_k": 1})
    assert (done.status, done.error, done.attempts, done.finish_reason) == ("ok", None, 1, "stop")
    assert "Rating: [[" in done.text
    assert done.output_tokens == len(done.text.split(" "))
    assert abs(done.started - time.time()) < 10
    sent = {"model": "some/model", "max_tokens": 50, "temperature": 0.0, "top_k": 1}
    assert json.loads(done.params) == sent
    assert stub.seen.bodies[0] == sent | {
        "stream": False,
        "messages": [
            {"role": "system", "content": "Be fair."},
            {"role": "user", "content": "How good is it?"},
        ],
    }


@pytest.mark.parametrize(
    "fault",
    ["408", "409", "429", "500", "503", "529", "reset", "cut_body", "garbage", "no_choices",
     "no_message", "error_200"],
)  # fmt: skip
def test_what_may_pass_is_tried_again(fault):
    with StubServer(first=(fault, fault)) as stub:
        done, _ = complete(stub)
    assert (done.status, done.attempts) == ("ok", 3)


@pytest.mark.parametrize(
    ("fault", "status", "reason"),
    [
        ("context", "context_overflow", "context_overflow"),
        ("413", "context_overflow", "context_overflow"),
        ("filter", "refused", "content_filter"),
        ("400_filter", "refused", "content_filter"),
        ("403;body=your input was flagged", "refused", "content_filter"),
        ("empty", "empty", "empty_reply"),
        ("cut", "truncated", "max_tokens"),
        ("400;param=messages", "error", "http_400"),
        ("422;param=messages", "error", "http_422"),
    ],
)
def test_what_cannot_change_is_tried_once(fault, status, reason):
    with StubServer(always=fault) as stub:
        done, _ = complete(stub)
        assert stub.stats()["calls"] == 1
    assert done.status == status
    assert done.error.startswith(reason)


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("401", "the key is not accepted"),
        ("400;body=API key not valid", "the key is not accepted"),
        ("403", "no access"),
        ("404", "no such model"),
        ("quota", "no quota left"),
        ("402", "no quota left"),
    ],
)
def test_what_can_never_succeed_stops_all_calls_with_one_message(fault, words, caplog):
    with StubServer(always=fault) as stub:
        done, _, seconds = complete_all(stub, [ask(f"Question {i}") for i in range(50)])
        assert stub.stats()["calls"] <= 3
    assert all(isinstance(d, EndpointStopped) for d in done)
    (message,) = {str(d) for d in done}
    assert words in message
    assert "OPENAI_API_KEY" in message
    assert seconds < 3
    assert KEY not in message + caplog.text


def test_a_firewall_that_blocks_one_prompt_costs_its_row_only():
    with StubServer(always=f"403;body={PAGE}", only="<script>") as stub:
        prompts = [ask(f"Question {i} {'<script>' if i == 5 else ''}") for i in range(20)]
        done, _, _ = complete_all(stub, prompts)
        assert stub.stats()["calls"] == 20
    assert [d.status for d in done] == ["ok"] * 5 + ["error"] + ["ok"] * 14
    assert done[5].error.startswith("forbidden: <html>")


def test_a_firewall_that_blocks_all_is_told():
    with StubServer(always=f"403;body={PAGE}") as stub, pytest.raises(EndpointStopped) as stopped:
        complete(stub)
    assert "a firewall gives no access" in str(stopped.value)


@pytest.mark.parametrize(
    ("fault", "least", "most"),
    [
        ("429;retry-after=1", 1.0, 1.8),
        ("429;retry-after-ms=128", 0.128, 0.8),
        ("429;date=2", 0.9, 2.8),  # a date has whole seconds
        ("429;body=Please try again in 250ms.", 0.25, 0.9),
        ("503;retry-after=0.3", 0.3, 0.9),
        ("429;retry-after=abc", 0.0, 0.6),
        ("429;date=-100", 0.0, 0.6),
        ("429", 0.0, 0.6),
    ],
)
def test_a_wait_asked_for_is_kept(fault, least, most):
    with StubServer(first=(fault,)) as stub:
        done, _ = complete(stub)
        first, second = stub.seen.arrivals
    assert done.status == "ok"
    assert least <= second - first <= most


def test_while_one_call_is_told_to_wait_no_other_starts():
    with StubServer(first=("ok", "429;retry-after=0.5"), latency=0.02) as stub:
        done, _, _ = complete_all(stub, [ask(f"Question {i}") for i in range(30)], concurrency=3)
        refused_at = stub.seen.arrivals[1]
        gap = [t for t in stub.seen.arrivals if refused_at + 0.1 < t < refused_at + 0.5]
    assert [d.status for d in done] == ["ok"] * 30
    assert gap == []


def test_a_wait_that_is_too_long_fails_the_call_and_holds_nobody():
    with StubServer(first=("429;retry-after=180",)) as stub:
        done, seconds = complete(stub, max_retry_after_s=60)
    assert (done.status, done.attempts) == ("error", 1)
    assert done.error == "rate_limited: asked to wait 180 s, max_retry_after_s is 60"
    assert seconds < 2


def test_a_breakdown_that_lasts_too_long_is_told_as_what_it_is():
    with StubServer(always="503;retry-after=3600;body=no machines") as stub:
        done, seconds = complete(stub)
    assert done.attempts == 1
    assert done.error.startswith("http_503: asked to wait 3600 s, max_retry_after_s is 600")
    assert seconds < 2


def test_a_slow_service_serves_all_in_the_end():
    # Five calls in each half second: the last ones are refused for longer than a call may be.
    with StubServer(rpm=5, window=0.5) as stub:
        prompts = [ask(f"Question {i}") for i in range(30)]
        done, _, seconds = complete_all(stub, prompts, max_retry_after_s=1.2)
    assert [d.status for d in done] == ["ok"] * 30
    assert seconds > 2.4


TOO_LARGE = "Request too large on tokens per min: Limit 3,000, Requested 3500."


def test_a_call_above_the_limit_by_itself_holds_up_nobody():
    with StubServer(always=f"429;body={TOO_LARGE}", only="number 3 ") as stub:
        prompts = [ask(f"This is number {i} of them") for i in range(20)]
        done, _, seconds = complete_all(stub, prompts, concurrency=2, max_retry_after_s=60)
    assert [d.status for d in done] == ["ok"] * 3 + ["context_overflow"] + ["ok"] * 16
    assert done[3].attempts == 1
    assert seconds < 3


@pytest.mark.parametrize(
    ("words", "status"),
    [
        (TOO_LARGE, "context_overflow"),
        ("The input or output tokens must be reduced", "context_overflow"),
        ("tokens per min (TPM): Limit 100, Requested 101", "context_overflow"),
        ("Rate limit reached: Limit 30000, Used 29900, Requested 1500.", "error"),
        ("Too many requests", "error"),
    ],
)
def test_a_limit_that_one_call_is_above_is_told_from_one_that_passes(words, status):
    fault = http_fault(429, {}, words, NOW)
    assert (fault.status, fault.limited) == (status, status == "error")


def test_refusals_do_not_use_up_the_tries_of_a_call():
    with StubServer(first=("429",) * 5) as stub:
        done, _ = complete(stub, max_retries=1)
    assert (done.status, done.attempts) == ("ok", 6)


def test_endless_refusals_end():
    # One clock for the service: forty calls, two at a time, wait no longer than one.
    with StubServer(always="429;retry-after-ms=50") as stub:
        prompts = [ask(f"Question {i}") for i in range(40)]
        done, _, seconds = complete_all(stub, prompts, max_retry_after_s=0.3, concurrency=2)
    (message,) = {str(d) for d in done if isinstance(d, EndpointStopped)}
    assert len(done) == 40
    assert "no call got through for 0.3 s (max_retry_after_s)" in message
    assert seconds < 3


@pytest.mark.parametrize("fault", ["hang", "drip"])
def test_a_call_that_hangs_is_given_up_and_the_others_finish(fault):
    with StubServer(always=fault, only="number 7 ") as stub:
        prompts = [ask(f"This is number {i} of them") for i in range(12)]
        done, _, seconds = complete_all(stub, prompts, timeout_s=0.3, max_retries=1)
    assert [d.status for d in done] == ["ok"] * 7 + ["error"] + ["ok"] * 4
    assert done[7].error == "timeout: no reply in 0.3 s"
    assert done[7].attempts == 2
    assert seconds < 3


def test_nobody_at_the_address(caplog):
    with StubServer() as stub:
        url = stub.url
    stub.port = int(url.split(":")[2].split("/")[0])
    done, _ = complete(stub, max_retries=2)
    assert (done.status, done.attempts) == ("error", 3)
    assert done.error.startswith("connection")
    assert "trying again" in caplog.text


@pytest.mark.parametrize(
    ("reject", "learned", "most_calls"),
    [
        (("max_tokens",), {"token_param": "max_completion_tokens"}, 81),
        (("max_completion_tokens",), {"token_param": "max_tokens"}, 81),
        (("temperature",), {"temperature": GONE}, 81),
        (("seed",), {"seed": GONE}, 81),
        (("seed", "top_p"), {"seed": GONE, "top_p": GONE}, 82),
        (("system",), {"system": "merged into the first user message"}, 81),
        (
            ("max_tokens", "temperature", "system"),
            {
                "token_param": "max_completion_tokens",
                "temperature": GONE,
                "system": "merged into the first user message",
            },
            83,
        ),
    ],
)
def test_parameters_are_learned_once(reject, learned, most_calls):
    wrong = "max_completion_tokens" if reject == ("max_completion_tokens",) else None
    with StubServer(reject=reject, latency=0.02) as stub:
        prompts = [ask(f"Question {i}") for i in range(80)]
        extra = {name: 1 for name in reject if name in ("seed", "top_p")}
        done, client, _ = complete_all(stub, prompts, token_param=wrong, extra=extra)
        assert stub.stats()["calls"] <= most_calls
        last = stub.seen.bodies[-1]
    assert [d.status for d in done] == ["ok"] * 80
    assert client.learned == learned
    if "system" in reject:
        assert [m["role"] for m in last["messages"]] == ["user"]
        assert last["messages"][0]["content"].startswith("Be fair.\n\nQuestion ")


def test_reasoning_families_start_right():
    with StubServer(reject=("max_tokens", "temperature")) as stub:
        for model in ("o3-mini", "gpt-5", "openai/gpt-5-mini"):
            done, _ = complete(stub, model=model)
            assert (done.status, done.attempts) == ("ok", 1)


@pytest.mark.parametrize("model", ["gpt-4o", "org/o3d-model", "gpt-5-chat-latest", "my/gpt-4.1"])
def test_other_models_get_a_temperature(model):
    fields = Dialect(model, None).write(ask("Q"), 9, 0.0, {})
    assert fields["temperature"] == 0.0


@pytest.mark.parametrize(
    "words",
    [
        "max_tokens is too large: 8192. This model supports at most 4096 completion tokens.",
        "Invalid max_tokens value, the valid range of max_tokens is [1, 4096]",
        "max_tokens must be less than or equal to 4096",
        "Max_tokens: 8192 > 4096, which is the maximum allowed number of output tokens",
    ],
)
def test_a_cap_above_the_models_own_is_lowered(words):
    dialect = Dialect("m", None)
    sent = dialect.write(ask("Q"), 8192, 0.0, {})
    assert dialect.learn(http_fault(400, {}, words, 0.0), sent)
    assert dialect.write(ask("Q"), 8192, 0.0, {})["max_tokens"] == 4096
    assert dialect.write(ask("Q"), 100, 0.0, {})["max_tokens"] == 100
    assert not dialect.learn(http_fault(400, {}, "something else is wrong", 0.0), sent)


@pytest.mark.parametrize(
    ("words", "name"),
    [
        ("`temperature` may only be set to 1 when thinking is enabled.", "temperature"),
        ("Temperature must be 1 while it reasons", "temperature"),
        ("Unsupported parameter: 'top_p' is not supported with this model.", "top_p"),
        ("`temperature` and `top_p` cannot both be given. Please use only one.", "top_p"),
        ("Use temperature or top_p, not both", "top_p"),
        ("`top_p` must be > 0.0 and < 1.0", "top_p"),
        ("[{'type': 'extra_forbidden', 'loc': ['body', 'seed'], 'msg': 'not permitted'}]", "seed"),
        ('[{"error": {"message": "Unknown name \\"seed\\": Cannot find field."}}]', "seed"),
    ],
)
def test_a_sampling_field_that_is_refused_is_left_out(words, name):
    extra = {"top_p": 1.0, "seed": 3}
    dialect = Dialect("m", None)
    sent = dialect.write(ask("Q"), 9, 0.0, extra)
    assert dialect.learn(http_fault(400, {}, words, 0.0), sent)
    assert dialect.learned == {name: GONE}
    assert sent.keys() - dialect.write(ask("Q"), 9, 0.0, extra).keys() == {name}
    # What the user gave in so many words is sent, or the refusal is told.
    dialect = Dialect("m", None, {name: 0.5})
    sent = dialect.write(ask("Q"), 9, 0.0, extra)
    assert sent[name] == 0.5
    dialect.learn(http_fault(400, {}, words, 0.0), sent)
    assert dialect.write(ask("Q"), 9, 0.0, extra)[name] == 0.5


@pytest.mark.parametrize(
    "words",
    ["temperature 0 is invalid, should be > 0", "`Temperature` has to be a strictly positive float",
     "Value error, temperature must be greater than 0"],
)  # fmt: skip
def test_where_no_temperature_of_0_is_taken_a_small_one_is_sent(words):
    dialect, fault = Dialect("m", None), http_fault(422, {}, words, 0.0)
    assert dialect.learn(fault, dialect.write(ask("Q"), 9, 0.0, {}))
    assert dialect.learned == {"temperature": "at least 0.01"}
    sent = dialect.write(ask("Q"), 9, 0.0, {})
    assert sent["temperature"] == 0.01
    assert dialect.write(ask("Q"), 9, 0.7, {})["temperature"] == 0.7
    assert dialect.learn(fault, sent)
    assert "temperature" not in dialect.write(ask("Q"), 9, 0.0, {})


def test_a_field_that_is_null_in_extra_body_is_not_sent():
    with StubServer() as stub:
        extra = {"seed": 3, "top_p": 1.0}
        settings = {"seed": None, "temperature": None, "top_p": 0.5}
        complete_all(stub, [ask("Q")], extra=extra, extra_body=settings)
        (sent,) = stub.seen.bodies
    assert sent.keys() == {"model", "messages", "max_tokens", "top_p", "stream"}
    assert sent["top_p"] == 0.5


@pytest.mark.parametrize(
    "fault",
    ["503;body=The system is busy. Your message was not processed.",
     "500;body=The system lost your message",
     "429;body=System overloaded, prompt rejected"],
)  # fmt: skip
def test_a_breakdown_that_speaks_of_a_system_teaches_nothing(fault):
    with StubServer(first=(fault,)) as stub:
        done, client, _ = complete_all(stub, [ask("Q")])
    assert (done[0].status, done[0].attempts, client.learned) == ("ok", 2, {})
    assert [m["role"] for m in stub.seen.bodies[-1]["messages"]] == ["system", "user"]


@pytest.mark.parametrize(
    "fault",
    ["500;body=Jinja Exception: System role not supported",
     "500;body=Conversation roles must alternate user/assistant",
     "422;body=messages[0].role does not support 'system' with this model"],
)  # fmt: skip
def test_a_template_without_a_system_role_is_told_by_its_words(fault):
    with StubServer(first=(fault,)) as stub:
        done, client, _ = complete_all(stub, [ask("Q")])
    assert (done[0].status, done[0].attempts) == ("ok", 2)
    assert client.learned == {"system": "merged into the first user message"}


def test_a_refusal_of_a_value_renames_nothing():
    dialect = Dialect("m", None)
    sent = dialect.write(ask("Q"), -5, 0.0, {})
    words = '{"error": {"message": "max_tokens is negative", "type": "invalid_request_error"}}'
    assert not dialect.learn(http_fault(400, {}, words, 0.0), sent)


def test_calls_go_to_the_least_busy_replica_and_not_to_a_dead_one():
    with StubServer() as gone:
        dead = gone.url
    with StubServer(latency=0.05) as one, StubServer(latency=0.05) as two:
        config = EndpointConfig(concurrency=8, max_retries=6, retry_wait_s=BACKOFF_S)

        async def run():
            client = EndpointClient(
                config, "m", key=KEY, limiter=Limiter(None, None, 8),
                base_urls=[dead, one.url, two.url],
            )  # fmt: skip
            try:
                calls = (client.complete(ask(f"Q {i}"), max_tokens=50) for i in range(40))
                return await asyncio.gather(*calls)
            finally:
                await client.close()

        done = asyncio.run(run())
        counts = one.stats()["calls"], two.stats()["calls"]
    assert [d.status for d in done] == ["ok"] * 40
    assert sum(d.attempts for d in done) < 60
    assert min(counts) >= 12


def test_half_a_surrogate_pair_is_sent_as_a_replacement_character():
    with StubServer(kind="echo") as stub:
        (done,), _, _ = complete_all(stub, [[Message("user", "x\ud835y \ud83d\ude00")]])
    assert done.text == "x\ufffdy \U0001f600"
    assert well_formed("plain") == "plain"


def test_thinking_in_a_field_is_kept_apart():
    with StubServer(thinking="field") as stub:
        done, _ = complete(stub)
    assert done.reasoning == "let me see"
    assert "let me see" not in done.text


def body(message, finish="stop", **more):
    return json.dumps({"choices": [{"message": message, "finish_reason": finish}], **more})


@pytest.mark.parametrize(
    ("finish", "status", "recorded"),
    [
        ("stop", "ok", "stop"), ("STOP", "ok", "stop"), ("eos_token", "ok", "eos_token"),
        (None, "ok", None), ({"type": "stop"}, "ok", None),
        ("length", "truncated", "length"), ("MAX_TOKENS", "truncated", "length"),
        ("max_tokens", "truncated", "length"), ("model_length", "truncated", "length"),
        ("content_filter: PROHIBITED_CONTENT", "refused", "content_filter"),
        ("SAFETY", "refused", "content_filter"), ("recitation", "refused", "content_filter"),
        ("BLOCKLIST", "refused", "content_filter"), ("sensitive", "refused", "content_filter"),
    ],
)  # fmt: skip
def test_why_a_reply_ended_in_the_words_of_many_services(finish, status, recorded):
    reply = read_reply(body({"content": "Water is a mol"}, finish))
    assert (reply.status, reply.finish_reason) == (status, recorded)


@pytest.mark.parametrize(
    "finish", ["abort", "error", "network_error", "insufficient_system_resource", "CANCELLED"]
)
def test_a_reply_that_broke_off_is_asked_again(finish):
    with pytest.raises(Fault) as caught:
        read_reply(body({"content": "Water is a mol"}, finish))
    assert (caught.value.retry, caught.value.billed) == (True, True)
    assert finish.lower() in caught.value.detail


def test_thinking_that_is_only_in_the_total_counts():
    usage = {"prompt_tokens": 1000, "completion_tokens": 50, "total_tokens": 2950}
    assert read_reply(body({"content": "x"}, usage=usage)).output_tokens == 1950
    usage = {"prompt_tokens": 10, "completion_tokens": 50, "total_tokens": 60}
    assert read_reply(body({"content": "x"}, usage=usage)).output_tokens == 50


def test_a_rate_limit_in_a_good_status_is_one():
    for code in (429, "429"):
        with pytest.raises(Fault) as caught:
            read_reply(json.dumps({"error": {"code": code, "message": "slow down"}}))
        assert caught.value.limited
    for code in (None, "busy", "99", True):
        with pytest.raises(Fault) as caught:
            read_reply(json.dumps({"error": {"code": code}}))
        assert (caught.value.code, caught.value.retry) == (502, True)


@pytest.mark.parametrize("url", ["http://[::1/v1", "localhost:8000/v1", "ftp://host/v1", "http://"])
def test_an_address_that_cannot_be_called_is_told_at_once(url):
    with pytest.raises(UserError, match=r"judge\.base_url"):
        EndpointClient(JudgeConfig(base_url=url), "m", key=None, limiter=Limiter(None, None, 1))


def test_a_proxy_that_cannot_be_used_is_told_at_once(monkeypatch):
    monkeypatch.setenv("ALL_PROXY", "socks5://127.0.0.1:1080")
    monkeypatch.setitem(sys.modules, "socksio", None)
    config = EndpointConfig(base_url="http://10.0.0.1/v1")
    with pytest.raises(UserError, match="ALL_PROXY"):
        EndpointClient(config, "m", key=None, limiter=Limiter(None, None, 1))


def test_shapes_of_replies():
    parts = [
        {"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]},
        {"type": "text", "text": "Good."},
    ]
    reply = read_reply(body({"content": parts}))
    assert (reply.text, reply.reasoning, reply.prompt_tokens) == ("Good.", "hm", None)
    reply = read_reply(body({"content": None, "reasoning": "long"}, "length"))
    assert (reply.status, reply.reason) == ("truncated", "thinking_took_all_tokens")
    reply = read_reply(body({"content": None, "refusal": "I will not."}))
    assert (reply.status, reply.text) == ("refused", "I will not.")
    usage = {"prompt_tokens": "7", "completion_tokens": -1}
    assert read_reply(body({"content": "x"}, usage=usage)).output_tokens is None
    for bad in ("", "[]", "null", '{"choices": {}}', '{"choices": [1]}', "[" * 100_000):
        with pytest.raises(Fault):
            read_reply(bad)


NOW = 1_800_000_000.0


@pytest.mark.parametrize(
    ("headers", "text", "wait"),
    [
        ({"retry-after": "2"}, "", 2.0),
        ({"retry-after": "1.5"}, "", 1.5),
        ({"retry-after-ms": "128", "retry-after": "1"}, "", 0.128),
        ({"retry-after": formatdate(NOW + 3, usegmt=True)}, "", 3.0),
        ({"retry-after": formatdate(NOW - 3, usegmt=True)}, "", None),
        ({"retry-after": "abc"}, "", None),
        ({"retry-after": "-5"}, "", None),
        ({"retry-after": "0"}, "", None),
        ({"retry-after": "nan"}, "", None),
        ({"retry-after": "inf"}, "", None),
        ({}, "Rate limit reached. Please try again in 1.5s. See our page.", 1.5),
        ({}, "Please try again in 6m0s.", 360.0),
        ({}, "try again in 1h2m3s", 3723.0),
        ({}, "Please retry after 30 seconds", 30.0),
        ({}, '{"retryDelay": "34s"}', 34.0),
        ({"retry-after": "abc"}, "try again in 20ms", 0.02),
        ({}, "We tried 7 times and failed", None),
        ({}, "", None),
    ],
)
def test_waits_in_all_their_forms(headers, text, wait):
    assert requested_wait(headers, text, NOW) == (None if wait is None else pytest.approx(wait))


@given(st.text(), st.text(), st.text())
def test_any_header_and_any_text_is_read_without_raising(seconds, milliseconds, text):
    headers = {"retry-after": seconds, "retry-after-ms": milliseconds}
    wait = requested_wait(headers, text, NOW)
    assert wait is None or 0 < wait < float("inf")


@given(st.floats(0.001, 1e6))
def test_any_number_of_seconds_is_read_back(seconds):
    assert requested_wait({"retry-after": repr(seconds)}, "", NOW) == seconds
    text = f"try again in {seconds:.3f}s"
    assert requested_wait({}, text, NOW) == pytest.approx(seconds, abs=1e-3) or seconds < 0.001


@given(st.integers(400, 599), st.text(max_size=200))
def test_every_refusal_has_a_meaning(code, text):
    fault = http_fault(code, {}, text, NOW)
    assert fault.code == code
    assert not (fault.retry and fault.stop)


def test_a_quota_is_told_from_a_rate():
    rate = "You exceeded your current quota, please check billing. Please retry in 34.07s"
    assert http_fault(429, {}, rate, NOW).retry
    assert http_fault(429, {}, '{"error": {"code": "insufficient_quota"}}', NOW).stop


def test_keys(monkeypatch):
    config = EndpointConfig(api_key_env="SOME_JUDGE_KEY")
    for missing in (None, "", "  \n"):
        if missing is None:
            monkeypatch.delenv("SOME_JUDGE_KEY", raising=False)
        else:
            monkeypatch.setenv("SOME_JUDGE_KEY", missing)
        with pytest.raises(UserError, match="SOME_JUDGE_KEY"):
            resolve_key(config)
        local = EndpointConfig(base_url="http://127.0.0.1:8000/v1", api_key_env="SOME_JUDGE_KEY")
        assert resolve_key(local) is None
    monkeypatch.setenv("SOME_JUDGE_KEY", f" {KEY}\n")
    assert resolve_key(config) == KEY
    monkeypatch.setenv("SOME_JUDGE_KEY", f"{KEY}\nsecond")
    with pytest.raises(UserError) as caught:
        resolve_key(config)
    assert KEY not in str(caught.value)
    assert resolve_key(EndpointConfig(api_key_env=None)) is None


def test_a_missing_key_sends_no_other_key(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    seen = []
    with StubServer(always="401") as stub:
        config = EndpointConfig(base_url=stub.url, api_key_env=None)

        async def run():
            client = EndpointClient(config, "m", key=None, limiter=Limiter(None, None, 1))
            try:
                await client.complete(ask("Q"), max_tokens=5)
            except EndpointStopped as stopped:
                seen.append(str(stopped))
            await client.close()

        asyncio.run(run())
    assert "No key was sent" in seen[0]
    assert "Bearer none" in seen[0]


def test_nothing_tells_the_key(caplog):
    caplog.set_level(logging.DEBUG)
    with StubServer(kind="echo", first=(f"500;body=was {KEY}", f"429;body=was {KEY}")) as stub:
        (done,), _, _ = complete_all(stub, [[Message("user", f"say {KEY}")]])
    assert done.text == "say ***"
    lines = [r.getMessage() for r in caplog.records if r.name.startswith("mtbench_ray")]
    assert any("***" in line for line in lines)
    assert KEY not in "".join(lines)
    assert KEY not in repr(done)
    assert scrub("Incorrect: sk-abc***xyz and Bearer abcdefghij", None) == "Incorrect: *** and ***"
    assert scrub("EMPTY string", "EMPTY") == "EMPTY string"
    assert display_host("https://user:password@host.example:81/v1?key=x") == "host.example:81"
    assert KEY not in fingerprint(KEY)


def test_tokens_and_cost():
    assert estimate_tokens("") == 0
    assert estimate_tokens("word" * 100) == 100
    assert estimate_tokens("字" * 100) == 100
    judge = JudgeConfig(price_prompt=2.5, price_completion=10.0)
    assert cost(judge, 1_000_000, 100_000) == pytest.approx(3.5)
    assert cost(JudgeConfig(price_prompt=2.5), 10, 10) is None


def test_a_budget_reserves_waits_and_ends():
    budget = Budget(1.0)
    assert budget.reserve(0.6) is True
    assert budget.reserve(0.6) is None
    budget.validate(0.6, 0.1)
    assert budget.reserve(0.6) is True
    budget.validate(0.6, 0.6)
    assert not budget.exhausted
    assert budget.reserve(0.6) is False
    assert budget.exhausted
    assert budget.reserve(0.1) is False
    assert budget.spent_usd == pytest.approx(0.7)
    assert Budget(None).reserve(1e9) is True


def test_a_budget_needs_prices():
    with pytest.raises(UserError, match=r"some-judge"):
        check_budget(JudgeConfig(model="some-judge"), 5.0)
    with pytest.raises(UserError, match="nothing to spend"):
        check_budget(JudgeConfig(price_prompt=1, price_completion=1), 0.0)
    check_budget(JudgeConfig(price_prompt=1, price_completion=1), 5.0)
    check_budget(JudgeConfig(kind="local"), 5.0)
    check_budget(JudgeConfig(), None)
