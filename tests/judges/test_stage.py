import dataclasses
import json
import re
import threading
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from stage_calls import KEY, PRICES, judge_all, judge_one, read, request, stage, verdict_pattern
from stub_server import StubServer

from mtbench_ray.config import JudgeConfig
from mtbench_ray.errors import UserError
from mtbench_ray.judges.parse import parse_rating, parse_winner
from mtbench_ray.judges.stage import Budget, JudgeStage
from mtbench_ray.schema import Judgment, Message, Request

pytestmark = pytest.mark.clock


def test_a_judgment_has_all_of_its_request_and_what_became_of_it():
    asked = request(3, order=2, opponent="other", answer_ids=("a", "b"), sample=1, judge_sample=2,
                    reference_hash="r")  # fmt: skip
    with StubServer() as stub:
        rows, judge = judge_all(stub, [asked], price_prompt=1.0, price_completion=2.0)
    row = rows["j3"]
    for field in dataclasses.fields(Request):
        if field.name not in ("messages", "want", "params"):
            assert getattr(row, field.name) == getattr(asked, field.name)
    assert row.status == "ok"
    assert row.value == float(row.label) == float(re.search(r"\[\[(\d+)", row.text)[1])
    assert row.user_prompt == "Rate answer 3 please."
    assert row.attempts == 1
    assert row.cost_usd == pytest.approx((row.prompt_tokens + 2 * row.output_tokens) / 1e6)
    assert json.loads(row.params) == {
        "model": "some/judge",
        "max_tokens": 100,
        "temperature": 0.0,
    }
    assert row.started <= row.created <= time.time()
    assert judge.pending == judge.in_flight == 0


def test_unknown_prices_are_no_price():
    with StubServer() as stub:
        assert judge_one(stub).cost_usd is None


def test_requests_wait_until_the_address_is_known():
    rows = []
    with StubServer() as stub:
        judge = JudgeStage(
            JudgeConfig(kind="local", model="m"), key=None, read=read, emit=rows.append
        )
        for number in range(5):
            judge.submit(request(number))
        assert not judge.drain(0.2)
        assert (judge.pending, judge.busy, stub.stats()["calls"]) == (5, True, 0)
        judge.begin([stub.url])
        assert judge.drain(10)
        judge.stop(0.0)
    assert sorted(row.judgment_id for row in rows) == [f"j{n}" for n in range(5)]


def test_the_same_judgment_is_not_asked_twice_while_it_is_owed():
    rows = []
    with StubServer(latency=0.05) as stub:
        judge = stage(stub, rows)
        assert judge.submit(request(1))
        assert not judge.submit(request(1))
        judge.begin()
        judge.drain(10)
        assert judge.submit(request(1))
        judge.drain(10)
        judge.stop(0.0)
        assert stub.stats()["calls"] == 2
    assert len(rows) == 2


@pytest.mark.parametrize("fault", ["empty", "cut"])
def test_a_bad_reply_is_asked_again_and_all_its_tokens_count(fault):
    with StubServer(first=(fault,)) as stub:
        row = judge_one(stub)
        caps = [body["max_tokens"] for body in stub.seen.bodies]
    assert (row.status, row.attempts) == ("ok", 2)
    assert row.prompt_tokens > 9
    assert caps == ([100, 100] if fault == "empty" else [100, 8192])


@pytest.mark.parametrize(
    ("fault", "status", "calls"),
    [("empty", "empty", 3), ("cut", "truncated", 3), ("filter", "refused", 1),
     ("context", "context_overflow", 1),
     ("500", "error", 3), ("400;param=messages", "error", 1)],
)  # fmt: skip
def test_a_reply_that_stays_bad_is_a_row_with_a_reason(fault, status, calls):
    with StubServer(always=fault) as stub:
        row = judge_one(stub, max_retries=2)
        assert stub.stats()["calls"] == row.attempts == calls
    assert (row.status, row.value, row.label) == (status, None, None)
    assert row.error


def test_a_reply_without_a_rating_is_asked_again_so_often():
    with StubServer(kind="echo") as stub:
        row = judge_one(stub, parse_retries=1)
    assert (row.status, row.error, row.attempts) == ("unparsed", "no_rating", 2)
    assert "Rate answer 1 please." in row.text


def test_a_reply_that_fills_even_the_larger_cap_is_truncated():
    with StubServer(kind="echo") as stub:
        rows, _ = judge_all(stub, [request(1, "word " * 500)], max_tokens=10, max_tokens_retry=20)
        assert [body["max_tokens"] for body in stub.seen.bodies] == [10, 20]
    assert (rows["j1"].status, rows["j1"].finish_reason) == ("truncated", "length")


LONG = "word " * 500


@pytest.mark.parametrize(
    ("first", "settings"),
    [
        (("400;body=max_tokens is too large: this model supports at most 20.",), {}),
        ((), {"extra_body": {"max_tokens": 20}}),
    ],
)
def test_a_reply_cut_by_a_cap_that_cannot_grow_is_paid_once(first, settings):
    with StubServer(kind="echo", first=first) as stub:
        rows, _ = judge_all(stub, [request(1, LONG)], **settings)
        assert stub.stats()["good"] == 1
        assert stub.seen.bodies[-1]["max_tokens"] == 20
    assert rows["j1"].status == "truncated"


def test_a_cap_learned_from_one_reply_holds_for_the_next():
    refusal = "400;body=max_tokens is too large: this model supports at most 30."
    with StubServer(kind="echo", first=("ok", refusal)) as stub:
        requests = [request(1, LONG), request(2, LONG)]
        judge_all(stub, requests, max_tokens=30, concurrency=1)
        caps = [body["max_tokens"] for body in stub.seen.bodies]
    assert caps == [30, 8192, 30, 30]


def test_thinking_that_takes_all_tokens_is_asked_again_with_the_larger_cap_only():
    with StubServer(always="thought") as stub:
        row = judge_one(stub)
        assert [body["max_tokens"] for body in stub.seen.bodies] == [100, 8192]
    assert (row.status, row.error) == ("truncated", "thinking_took_all_tokens")


def test_a_larger_cap_leaves_room_for_a_prompt_longer_than_estimated():
    with StubServer(kind="echo") as stub:
        judge_all(stub, [request(1, LONG)], context_window=2000, max_tokens=30)
        caps = [body["max_tokens"] for body in stub.seen.bodies]
    assert caps[0] == 30
    assert 30 < caps[1] < 2000 - 1.45 * len(LONG) / 4


def test_a_paid_reply_is_kept_where_the_larger_cap_does_not_fit():
    with StubServer(kind="echo", context=1000) as stub:
        rows, _ = judge_all(stub, [request(1, LONG)], max_tokens=30, truncate="answer_tail",
                            shorten=shorten)  # fmt: skip
        assert stub.stats()["calls"] == 2
    row = rows["j1"]
    assert (row.status, row.attempts, row.output_tokens) == ("truncated", 2, 30)
    assert row.text.split()[-1] == "word"


def test_a_thinking_judge_is_read_outside_its_thinking():
    with StubServer(thinking="tags") as stub:
        row = judge_one(stub)
    assert row.value == float(re.findall(r"\[\[(\d+)\]\]", row.text)[-1])
    assert row.text.startswith("<think>")
    with StubServer(thinking="field") as stub:
        assert judge_one(stub).reasoning == "let me see"


def test_a_prompt_that_cannot_fit_is_not_sent():
    with StubServer() as stub:
        requests = [request(1, "x" * 4000), request(2)]
        rows, _ = judge_all(stub, requests, context_window=600)
        assert stub.stats()["calls"] == 1
    row = rows["j1"]
    assert (row.status, row.attempts, row.value) == ("context_overflow", 0, None)
    assert "600" in row.error
    assert rows["j2"].status == "ok"


def shorten(asked, tokens):
    system, user = asked.messages
    cut = Message("user", user.content[: 4 * (tokens - 20)])
    return dataclasses.replace(asked, messages=(system, cut))


def test_an_answer_is_cut_further_where_the_window_was_not_known():
    with StubServer(context=600) as stub:
        given = {"truncate": "answer_tail", "shorten": shorten}
        row = judge_all(stub, [request(1, "x" * 2800)], **given)[0]["j1"]
        assert (row.status, row.attempts) == ("ok", 3)
        row = judge_all(stub, [request(1, "x" * 8000)], **given)[0]["j1"]
        assert (row.status, row.attempts) == ("context_overflow", 3)


def test_an_answer_is_cut_only_where_asked_for_and_it_is_recorded():
    with StubServer(context=600) as stub:
        requests = [request(1, "x" * 4000), request(2)]
        rows, _ = judge_all(
            stub, requests, context_window=600, truncate="answer_tail", shorten=shorten
        )
    assert rows["j1"].status == "ok"
    assert 1000 < len(rows["j1"].user_prompt) < 2000
    assert json.loads(rows["j1"].params)["truncate"] == "answer_tail"
    assert "truncate" not in json.loads(rows["j2"].params)


@pytest.mark.parametrize(
    ("mode", "verdict", "reader"),
    [("single", r"Rating: [[10]]", parse_rating), ("pairwise-baseline", "[[B]]", parse_winner)],
)
def test_a_constrained_reply_is_readable(mode, verdict, reader):
    pattern = re.compile(verdict_pattern(mode))
    longest = "a" * 300 + f" {verdict}"
    assert pattern.fullmatch(longest)
    assert reader(longest, "stop").value is not None
    assert not pattern.fullmatch("a" * 301 + f" {verdict}")
    assert not pattern.fullmatch(f"index [3] {verdict}")
    with StubServer() as stub:
        judge_all(stub, [request(1, mode=mode)], pattern=verdict_pattern(mode))
        (body,) = stub.seen.bodies
        assert body["structured_outputs"] == {"regex": verdict_pattern(mode)}
        assert body["max_tokens"] >= len(longest)
        judge_all(stub, [request(1)], constrain=True)
        assert "structured_outputs" not in stub.seen.bodies[-1]


@pytest.mark.parametrize(
    ("scale", "inside", "outside"),
    [((1, 10), "1 7 10", "0 11"), ((1, 5), "1 5", "0 6 10"), ((0, 1), "0 1", "2"),
     ((-1.5, 1.5), "-1 0 1", "2 -2"), ((0.2, 0.8), "0.2 0.8", "0 1")],
)  # fmt: skip
def test_a_constrained_rating_is_on_the_scale(scale, inside, outside):
    pattern = re.compile(verdict_pattern("single", scale))
    for numbers, there in ((inside, True), (outside, False)):
        for number in numbers.split():
            assert bool(pattern.fullmatch(f"Fine. Rating: [[{number}]]")) == there


@pytest.mark.parametrize("opener", ["```", "~~~", "`", "<!--", "<code>"])
def test_a_constrained_explanation_opens_no_code_and_no_comment(opener):
    assert not re.fullmatch(verdict_pattern("single"), f"Fine {opener} Rating: [[7]]")


@given(st.from_regex(verdict_pattern("single"), fullmatch=True))
def test_every_constrained_reply_has_a_rating(text):
    assert parse_rating(text, "stop").value is not None


def test_reasoning_effort_is_sent():
    with StubServer() as stub:
        judge_one(stub, reasoning_effort="low")
        assert stub.seen.bodies[0]["reasoning_effort"] == "low"


def test_what_was_learned_is_there_for_the_run_record():
    with StubServer(reject=("system",)) as stub:
        rows, judge = judge_all(stub, [request(n) for n in range(20)])
        assert stub.stats()["calls"] == 21
    assert judge.learned == {"system": "merged into the first user message"}
    assert {row.status for row in rows.values()} == {"ok"}


def test_a_budget_ends_the_stage_before_it_is_exceeded():
    budget = Budget(0.01)
    prices = {"price_prompt": 10.0, "price_completion": 30.0, "max_tokens": 40}
    with StubServer() as stub:
        requests = [request(n) for n in range(160)]
        rows, judge = judge_all(stub, requests, budget, **prices)
    spent = sum(row.cost_usd for row in rows.values())
    assert budget.exhausted
    assert judge.fatal is None
    assert spent == pytest.approx(budget.spent_usd)
    # What is left is less than one call at its worst.
    assert 0.01 - 2 * 40 * 30e-6 < spent <= 0.01
    assert judge.pending == 160 - len(rows) > 0
    assert not judge.busy


@pytest.mark.parametrize(
    ("fault", "billed"), [("hang", 3), ("garbage", 3), ("reset", 3), ("503", 0), ("error_200", 0)]
)
def test_calls_that_may_be_billed_without_a_reply_count_in_the_budget(fault, billed):
    budget = Budget(1.0)
    with StubServer(always=fault) as stub:
        rows, _ = judge_all(stub, [request(1)], budget, **PRICES)
    assert (rows["j1"].status, rows["j1"].attempts) == ("error", 3)
    worst = 100 * 30e-6  # and a little for the prompt
    assert billed * worst <= budget.spent_usd <= billed * worst * 1.2


def test_lost_calls_do_not_exceed_the_budget():
    budget = Budget(0.0145)  # four calls at their worst
    with StubServer(always="hang") as stub:
        rows, judge = judge_all(stub, [request(n) for n in range(9)], budget, **PRICES)
        assert stub.stats()["calls"] == 4
    assert budget.spent_usd <= 0.0145
    assert budget.exhausted
    assert judge.pending == 9 - len(rows) > 0


def test_stopping_lets_calls_in_flight_end_and_starts_no_other():
    rows = []
    with StubServer(latency=1.5) as stub:
        judge = stage(stub, rows, concurrency=4)
        judge.begin()
        for number in range(40):
            judge.submit(request(number))
        while stub.seen.in_flight < 4:
            time.sleep(0.02)
        begin = time.monotonic()
        judge.stop(5.0)
        judge.drain(5.0)
        assert time.monotonic() - begin < 2.5
        judge.stop(0.0)
        assert stub.stats()["calls"] == len(rows) == 4
    assert judge.pending == 36
    assert {row.status for row in rows} == {"ok"}


def test_stopping_at_once_cancels_and_emits_nothing_later():
    rows = []
    with StubServer(always="hang") as stub:
        judge = stage(stub, rows, timeout_s=60)
        judge.begin()
        for number in range(40):
            judge.submit(request(number))
        until = time.monotonic() + 30
        while not stub.seen.arrivals and time.monotonic() < until:
            time.sleep(0.05)
        begin = time.monotonic()
        judge.stop(0.0)
        assert time.monotonic() - begin < 1.0
    assert rows == []
    assert (judge.pending, judge.in_flight, judge.busy) == (40, 0, False)


def test_a_signal_handler_may_stop_a_stage_that_is_being_used():
    judge = JudgeStage(JudgeConfig(model="m"), key=None, read=read, emit=print)
    with judge._changed:
        judge.stop(1.0)
    assert not judge.busy


def test_a_stage_whose_server_never_came_up():
    judge = JudgeStage(JudgeConfig(kind="local"), key=KEY, read=read, emit=print)
    judge.submit(request(1))
    judge.fail(f"no server, key {KEY}")
    assert judge.fatal == "no server, key ***"
    assert not judge.drain(1.0)
    assert judge.pending == 1


def test_closing_when_idle_does_all_that_is_owed_first():
    rows = []
    with StubServer(latency=0.05) as stub:
        judge = stage(stub, rows)
        judge.begin()
        for number in range(40):
            judge.submit(request(number))
        judge.close_when_idle()
        assert judge.drain(10)
    assert len(rows) == 40


def test_two_judges_of_one_model_share_one_limit():
    rows = []
    with StubServer() as stub:
        judges = [stage(stub, rows, requests_per_minute=600, name=name) for name in ("a", "b")]
        for judge in judges:
            judge.begin()
        begin = time.monotonic()
        for judge in judges:
            for number in range(10):
                judge.submit(request(number))
        for judge in judges:
            judge.drain(10)
            judge.stop(0.0)
    assert time.monotonic() - begin > 19 * 0.1 - 0.1
    assert len(rows) == 20


def test_a_reader_that_raises_costs_its_row_only():
    rows = []

    def fragile(asked, reply):
        if asked.judgment_id == "j3":
            raise RuntimeError(f"boom {KEY}")
        return read(asked, reply)

    with StubServer() as stub:
        config = JudgeConfig(base_url=stub.url, model="m")
        judge = JudgeStage(config, key=KEY, read=fragile, emit=rows.append)
        judge.begin()
        for number in range(6):
            judge.submit(request(number))
        assert judge.drain(10)
        judge.stop(0.0)
    statuses = {row.judgment_id: (row.status, row.error) for row in rows}
    assert statuses.pop("j3") == ("error", "internal error: RuntimeError: boom ***")
    assert set(statuses.values()) == {("ok", None)}


def test_rows_may_be_submitted_from_any_thread():
    rows: list[Judgment] = []
    with StubServer() as stub:
        judge = stage(stub, rows)
        judge.begin()

        def submit(first):
            for number in range(first, first + 25):
                judge.submit(request(number))

        threads = [threading.Thread(target=submit, args=(25 * n,)) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert judge.drain(10)
        judge.stop(0.0)
    assert len(rows) == 100


@pytest.mark.parametrize("name", ["requests_per_minute", "tokens_per_minute", "concurrency"])
def test_a_limit_that_permits_nothing_is_refused(name):
    judge = JudgeStage(JudgeConfig(model="m", **{name: 0}), key=None, read=read, emit=print)
    with pytest.raises(UserError, match=f"{name}=0"):
        judge.begin()
