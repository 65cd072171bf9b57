import asyncio
import json
import logging
import time
from email.utils import formatdate

import pytest
from hypothesis import given
from hypothesis import strategies as st
from stub_server import StubServer

from mtbench_ray.config import EndpointConfig, JudgeConfig
from mtbench_ray.endpoint.budget import Budget, check_budget
from mtbench_ray.endpoint.client import EndpointClient
from mtbench_ray.endpoint.faults import Fault, http_fault, requested_wait
from mtbench_ray.endpoint.keys import display_host, fingerprint, resolve_key, scrub
from mtbench_ray.endpoint.limiter import Limiter
from mtbench_ray.endpoint.params import Dialect
from mtbench_ray.endpoint.reply import read_reply
from mtbench_ray.endpoint.tokens import cost, estimate_tokens
from mtbench_ray.errors import EndpointStopped, UserError
from mtbench_ray.journal import well_formed
from mtbench_ray.schema import Message

KEY = "sk-test-0123456789abcdef"
BACKOFF_S = 0.01


def ask(text, *more):
    return [Message("system", "Be fair."), Message("user", text), *more]


def complete_all(stub, prompts, model="some/model", max_tokens=50, **settings):
    """Completions of all prompts at once, the client, and seconds taken."""
    config = EndpointConfig(base_url=stub.url, **{"concurrency": 64, "timeout_s": 5.0} | settings)

    async def run():
        limiter = Limiter(None, None, config.concurrency, config.adaptive)
        client = EndpointClient(
            config, model, key=KEY, limiter=limiter, label="judge x", backoff_s=BACKOFF_S
        )
        begin = time.monotonic()
        try:
            done = await asyncio.gather(
                *(client.complete(p, max_tokens=max_tokens, temperature=0.0) for p in prompts),
                return_exceptions=True,
            )
        finally:
            await client.close()
        return done, client, time.monotonic() - begin

    return asyncio.run(run())


def complete(stub, **settings):
    (done,), _, seconds = complete_all(stub, [ask("How good is it?")], **settings)
    if isinstance(done, BaseException):
        raise done
    return done, seconds


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
        "messages": [
            {"role": "system", "content": "Be fair."},
            {"role": "user", "content": "How good is it?"},
        ]
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
        ("400", "error", "http_400"),
        ("422", "error", "http_422"),
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


def test_refusals_do_not_use_up_the_tries_of_a_call():
    with StubServer(first=("429",) * 5) as stub:
        done, _ = complete(stub, max_retries=1)
    assert (done.status, done.attempts) == ("ok", 6)


def test_endless_refusals_end():
    with StubServer(always="429;retry-after-ms=50") as stub:
        done, seconds = complete(stub, max_retry_after_s=0.3)
    assert done.status == "error"
    assert done.error.startswith("rate_limited")
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
        (("temperature",), {"temperature": "not sent: refused"}, 81),
        (("system",), {"system": "merged into the first user message"}, 81),
        (
            ("max_tokens", "temperature", "system"),
            {
                "token_param": "max_completion_tokens",
                "temperature": "not sent: refused",
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
        done, client, _ = complete_all(stub, prompts, token_param=wrong)
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
    ],
)
def test_a_cap_above_the_models_own_is_lowered(words):
    dialect = Dialect("m", None)
    sent = dialect.write(ask("Q"), 8192, 0.0, {})
    assert dialect.learn(http_fault(400, {}, words, 0.0), sent)
    assert dialect.write(ask("Q"), 8192, 0.0, {})["max_tokens"] == 4096
    assert dialect.write(ask("Q"), 100, 0.0, {})["max_tokens"] == 100
    assert not dialect.learn(http_fault(400, {}, "something else is wrong", 0.0), sent)


def test_a_refusal_of_a_value_renames_nothing():
    dialect = Dialect("m", None)
    sent = dialect.write(ask("Q"), -5, 0.0, {})
    words = '{"error": {"message": "max_tokens is negative", "type": "invalid_request_error"}}'
    assert not dialect.learn(http_fault(400, {}, words, 0.0), sent)


def test_calls_go_to_the_least_busy_replica_and_not_to_a_dead_one():
    with StubServer() as gone:
        dead = gone.url
    with StubServer(latency=0.05) as one, StubServer(latency=0.05) as two:
        config = EndpointConfig(concurrency=8, max_retries=6)

        async def run():
            client = EndpointClient(
                config, "m", key=KEY, limiter=Limiter(None, None, 8),
                base_urls=[dead, one.url, two.url], backoff_s=BACKOFF_S,
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
    budget.settle(0.6, 0.1)
    assert budget.reserve(0.6) is True
    budget.settle(0.6, 0.6)
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
