"""What a service's refusal means, in the words of many services: tables of status and body."""

import json

import pytest
from refusals import TOO_LONG

from mtbench_ray.endpoint.api_errors import http_fault
from mtbench_ray.endpoint.request_adapter import Dialect
from mtbench_ray.endpoint.sizes import Window, largest_cap, read_window, size_kind
from mtbench_ray.schema import Message

NOW = 1_800_000_000.0
ASK = [Message("system", "Be fair."), Message("user", "How good is it?")]


def refusal(status, message, **fields):
    return http_fault(status, {}, json.dumps({"error": {"message": message} | fields}), NOW)


EMPTY_ACCOUNTS = [
    (429, "余额不足或无可用资源包,请充值。", {"code": "1113"}),
    (429, "You have reached your API usage limits. You regain access on 2027-01-01.", {}),
    (429, "You exceeded your current token quota, please check your account balance",
     {"type": "exceeded_current_quota_error"}),
    (429, "Rate limit exceeded: free-models-per-day. Add 10 credits to unlock more", {}),
    (429, "Your team used all available credits or reached its monthly spending limit.", {}),
    (429, "Your account is suspended, please recharge", {}),
    (429, "The daily limit is reached", {}),
    (429, "Requests", {"code": "insufficient_quota"}),
    (400, "Access denied, is your account in good standing?", {"code": "Arrearage"}),
    (400, "Budget has been exceeded! Current cost: 12.1, Max budget: 12.0",
     {"type": "budget_exceeded"}),
    (400, "Your credit balance is too low to access the API.", {}),
    (403, "Account overdue balance", {"code": "AccountOverdueError"}),
    (403, "Insufficient account balance", {}),
    (400, "账户已欠费", {}),
    (402, "whatever", {}),
]  # fmt: skip


@pytest.mark.parametrize(("code", "message", "fields"), EMPTY_ACCOUNTS)
def test_an_empty_account_is_one_in_any_words(code, message, fields):
    fault = refusal(code, message, **fields)
    assert (fault.reason, fault.retry) == ("no_quota", False)
    assert fault.stop


def test_an_empty_account_whose_message_is_the_error_itself():
    body = {"code": "resource exhausted", "error": "Your team used all available credits."}
    assert http_fault(429, {}, json.dumps(body), NOW).stop


@pytest.mark.parametrize(
    "message",
    ["Rate limit reached: 3 / min. Try again in 20s. Add a payment method at /account/billing.",
     "Quota exceeded for requests per minute", "Too many requests", "当前API请求过多，请稍后再试",
     "You exceeded your current quota, check your plan and billing. Please retry in 34.07s",
     "Reached max organization concurrency: 3", "Reached max RPM: 3"],
)  # fmt: skip
def test_a_rate_that_passes_is_no_empty_account(message):
    fault = refusal(429, message)
    assert (fault.limited, fault.retry, fault.stop) == (True, True, "")


@pytest.mark.parametrize(("code", "message"), TOO_LONG)
def test_a_prompt_that_is_too_long_is_one_in_any_words(code, message):
    assert refusal(code, message).status == "context_overflow"


@pytest.mark.parametrize(
    "message",
    ["max_tokens: Input should be less than or equal to 1024",
     "max_tokens (2048) is above the context window's output share of 1024",
     "max_tokens must be at most 1024 for this context window",
     "Requested max_tokens 2048 exceeds the maximum output of 1024 (context_length 8192)",
     "The max_tokens is larger than the context length allows for output: at most 1024",
     "`max_tokens` must be less than or equal to `1024`, the maximum value for `max_tokens` is "
     "less than the `context_window` for this model",
     "max_tokens for `llama-3.1-8b` must be less than or equal to 1024",
     "The maximum tokens you requested exceeds the model limit of 1024. Try a value that is lower.",
     "max_tokens too large. Max is 1024", "max_completion_tokens should be in [1, 1024]",
     "max_tokens must be between 1 and 1,024"],
)  # fmt: skip
def test_a_cap_that_is_too_large_is_lowered_even_where_the_window_is_mentioned(message):
    dialect, fault = Dialect("m", None), refusal(400, message)
    assert (fault.status, fault.size) == ("error", "cap")
    assert dialect.learn(fault, dialect.write(ASK, 2048, 0.0, {}))
    assert dialect.learned == {"max_tokens": "at most 1024"}
    assert dialect.write(ASK, 2048, 0.0, {})["max_tokens"] == 1024


@pytest.mark.parametrize(
    ("message", "window", "prompt"),
    [
        ("maximum context length is 8192 tokens. However, you requested 10192 tokens (8000 in the "
         "messages, 2192 in the completion).", 8192, 8000),
        ("maximum context length is 4097 tokens, you requested 4205 tokens (205 in your prompt; "
         "4000 for the completion).", 4097, 205),
        ("'max_tokens' is too large: 1024. The maximum context length is 1024 tokens and your "
         "request has 36 input tokens (1024 > 1024 - 36).", 1024, 36),
        ("You passed 100 input tokens and requested 1024 output tokens. The model's context length "
         "is only 1024 tokens, resulting in a maximum input length of 0 tokens.", 1024, 100),
        ("input length and `max_tokens` exceed context limit: 7900 + 2048 > 8192", 8192, 7900),
        ("`inputs` tokens + `max_new_tokens` must be <= 8192. Given: 7900 `inputs` tokens and 2048 "
         "`max_new_tokens`", 8192, 7900),
        ("the prompt and max_tokens are too long together", None, None),
    ],
)  # fmt: skip
def test_window_and_prompt_are_read_from_a_refusal_of_both(message, window, prompt):
    assert size_kind(message) == "window"
    assert read_window(message) == Window(window, prompt)


def test_a_cap_is_read_only_below_the_one_that_was_sent():
    assert largest_cap("max_tokens must be lower than 1024", 1024) == 1023
    assert largest_cap("max_tokens: at most 4096", 2048) is None
    assert largest_cap("max_tokens is bad, see page 12 of 300 or 400", 2048) is None


TEMPERATURE = [
    ("`temperature` is deprecated for this model.", None),
    ("temperature: Extra inputs are not permitted", None),
    ("temperature is not a valid parameter for this model", None),
    ("This model does not allow setting temperature", None),
    ("temperature cannot be set for this model", None),
    ("temperature: this field has been removed", None),
    ("temperature must be 1.0", None),
    ("invalid temperature: only 0.6 is allowed for this model", None),
    ("The parameter `temperature` specified in the request is not valid", None),
    ("temperature: hm", None),
    ("Temperature must be between 0.01 and 1", 0.01),
    ("temperature must be in (0, 2]", 0.01),
    ("Invalid 'temperature': 0. Must be > 0 and <= 1", 0.01),
    ("Invalid params: temperature must be in range (0, +inf)", 0.01),
    ("The value of `temperature` must be greater than zero", 0.01),
]


@pytest.mark.parametrize(("message", "sent"), TEMPERATURE)
def test_a_refused_temperature_is_left_out_or_made_as_small_as_may_be(message, sent):
    for code in (400, 422):
        dialect = Dialect("m", None)
        asked = dialect.write(ASK, 9, 0.0, {"seed": 1, "top_p": 1.0})
        assert dialect.learn(refusal(code, message), asked)
        again = dialect.write(ASK, 9, 0.0, {"seed": 1, "top_p": 1.0})
        assert again.get("temperature") == sent
        assert {"seed", "top_p"} <= again.keys()


def test_what_is_refused_at_temperature_0_stays_for_other_rows():
    dialect = Dialect("m", None)
    extra = {"top_p": 0.9}
    asked = dialect.write(ASK, 9, 0.0, extra)
    assert dialect.learn(refusal(400, "top_p must be 1 with greedy decoding"), asked)
    assert "top_p" not in dialect.write(ASK, 9, 0.0, extra)
    assert dialect.write(ASK, 9, 0.7, extra)["top_p"] == 0.9
    assert dialect.learned == {"top_p": "not sent at temperature 0: refused"}
    assert dialect.learn(refusal(400, "top_p is not supported"), dialect.write(ASK, 9, 0.7, extra))
    assert dialect.learned == {"top_p": "not sent: refused"}
    assert "top_p" not in dialect.write(ASK, 9, 0.7, extra)


@pytest.mark.parametrize(
    "body",
    [{"error": {"message": "bad request", "param": "seed"}},
     {"detail": [{"type": "extra", "loc": ["body", "seed"], "msg": "hm"}]}],
)  # fmt: skip
def test_the_field_that_a_service_names_as_such_is_believed(body):
    dialect = Dialect("m", None)
    asked = dialect.write(ASK, 9, 0.0, {"seed": 1, "top_p": 1.0})
    dialect.accepted(asked)
    assert dialect.learn(http_fault(400, {}, json.dumps(body), NOW), asked)
    assert "seed" not in dialect.write(ASK, 9, 0.0, {"seed": 1, "top_p": 1.0})


def test_a_field_that_was_taken_before_is_not_left_out_for_a_text_that_only_speaks_of_it():
    dialect = Dialect("m", None)
    asked = dialect.write(ASK, 9, 0.0, {})
    dialect.accepted(asked)
    assert not dialect.learn(refusal(400, "your text on temperature broke me"), asked)
    assert dialect.learned == {}


@pytest.mark.parametrize(
    "message",
    ["This model only supports streaming output", "stream must be set to true",
     "enable_thinking must be false for non-streaming calls",
     "This model only support stream mode, please enable the stream parameter"],
)  # fmt: skip
def test_a_service_that_only_streams_is_asked_for_a_stream(message):
    dialect = Dialect("m", None)
    asked = dialect.write(ASK, 9, 0.0, {})
    assert asked["stream"] is False
    assert dialect.learn(refusal(400, message), asked)
    again = dialect.write(ASK, 9, 0.0, {})
    assert (again["stream"], again["stream_options"]) == (True, {"include_usage": True})
