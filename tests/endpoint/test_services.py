"""Services that end, are slow, have small windows or refuse without a reason; limits for all."""

import asyncio
import itertools
import json
import socket
import subprocess
import sys
import time

import pytest
from client_calls import PAGE, ask, complete, complete_all
from stage_calls import judge_all, judge_one, request, stage
from stub_server import StubServer

from mtbench_ray.cli.main import main
from mtbench_ray.config import EngineConfig, JudgeConfig, RunConfig, SamplingConfig
from mtbench_ray.endpoint.client import EndpointClient
from mtbench_ray.endpoint.rate_limit import Limiter
from mtbench_ray.errors import UserError
from mtbench_ray.schema import Message
from mtbench_ray.validate import validate

pytestmark = pytest.mark.clock

TIER_1 = {"tokens_per_minute": 30_000, "requests_per_minute": 500}


@pytest.mark.parametrize(
    ("fault", "limits"),
    [("401", TIER_1), ("401", {"requests_per_minute": 3}), ("401", {}), ("402", TIER_1),
     ("404", TIER_1), ("quota", TIER_1), (f"403;body={PAGE}", TIER_1)],
)  # fmt: skip
def test_every_fatal_end_comes_at_once_whatever_is_queued(fault, limits):
    with StubServer(always=fault) as stub:
        begin = time.monotonic()
        requests = [request(n, "word " * 2000) for n in range(160)]
        rows, judge = judge_all(stub, requests, timeout=60, concurrency=128, **limits)
    assert time.monotonic() - begin < 5.0
    assert judge.fatal
    assert rows == {}


def test_a_fatal_end_waits_for_no_pause_and_no_hanging_call():
    # One call hangs, others wait out a pause of a minute, one more is told that the key is bad.
    first = ("ok", "hang", "429;retry-after=60", "401")
    with StubServer(first=first, latency=0.1) as stub:
        rows = []
        judge = stage(stub, rows, timeout_s=60.0, concurrency=16)
        judge.begin()
        judge.submit(request(0))
        time.sleep(0.5)
        begin = time.monotonic()
        for number in range(1, 60):
            judge.submit(request(number))
        judge.drain(30)
        judge.stop(0.0)
    assert "the key is not accepted" in judge.fatal
    assert time.monotonic() - begin < 5.0


def test_an_empty_account_in_other_words_stops_within_seconds():
    with StubServer(always="429;body=Your account balance is used up, please recharge") as stub:
        begin = time.monotonic()
        _, judge = judge_all(stub, [request(n) for n in range(40)], concurrency=2)
        assert stub.stats()["calls"] <= 3
    assert "no quota left" in judge.fatal
    assert time.monotonic() - begin < 2.0


def test_a_refusal_without_a_reason_is_tried_without_one_field_after_the_other():
    extra = {"seed": 3, "top_p": 1.0}
    with StubServer(first=("400", "400")) as stub:
        prompts = [ask(f"Question {i}") for i in range(4)]
        done, client, _ = complete_all(stub, prompts, extra=extra, concurrency=1)
        sent = [sorted(body.keys() & {"seed", "top_p", "temperature"}) for body in stub.seen.bodies]
    assert [d.status for d in done] == ["ok"] * 4
    assert sent[:3] == [["seed", "temperature", "top_p"], ["temperature", "top_p"], ["temperature"]]
    # The last one left out was the reason; the others are sent again.
    assert client.learned == {"top_p": "not sent at temperature 0: refused"}
    assert json.loads(done[3].params)["adjusted"] == client.learned
    assert sent[-1] == ["seed", "temperature"]


@pytest.mark.parametrize("code", ["400", "422"])
def test_a_refusal_that_stays_costs_a_few_calls_and_keeps_its_reason(code):
    with StubServer(always=f"{code};body=no") as stub:
        prompts = [ask(f"Question {i}") for i in range(20)]
        done, client, _ = complete_all(stub, prompts, extra={"seed": 1})
        assert stub.stats()["calls"] <= 20 + 2 * 3
    assert {d.error for d in done} == {f"http_{code}: no"}
    assert client.learned == {}


VLLM = "max_tokens is too large: {cap}. The context length is {window}, you have {prompt} input"


def test_a_request_that_fits_with_fewer_new_tokens_is_asked_with_fewer():
    with StubServer(kind="echo", context=600, window_says=VLLM) as stub:
        prompts = [[Message("user", f"{i} " + "word " * 200)] for i in range(30)]
        done, _, _ = complete_all(stub, prompts, max_tokens=500, concurrency=4)
        # Learned once: of thirty requests only the first ones are refused.
        assert stub.stats()["calls"] <= 34
    assert {d.status for d in done} <= {"ok", "truncated"}
    for reply in done:
        sent = json.loads(reply.params)
        assert 250 <= sent["max_tokens"] <= 350
        assert sent["adjusted"]["room"].endswith("of 500 new tokens fit into the window")
        assert reply.lowered


def test_a_prompt_that_leaves_no_room_stays_an_overflow():
    with StubServer(kind="echo", context=200, window_says=VLLM) as stub:
        (done,), _, _ = complete_all(stub, [ask("word " * 200)], max_tokens=500)
        assert stub.stats()["calls"] == 1
    assert done.status == "context_overflow"


def test_a_judges_reply_cut_by_the_window_is_paid_once():
    with StubServer(kind="echo", context=600, window_says=VLLM) as stub:
        rows, _ = judge_all(stub, [request(1, "word " * 380)], max_tokens=400)
        assert stub.stats()["good"] == 1
    assert rows["j1"].status == "truncated"


@pytest.mark.parametrize("group", ["judge", "engine"])
def test_no_cap_is_sent_where_max_tokens_is_0(group):
    with StubServer() as stub:
        if group == "judge":
            row = judge_one(stub, max_tokens=0)
            assert row.status == "ok"
        else:
            assert complete_all(stub, [ask("Q")], max_tokens=0)[0][0].status == "ok"
        assert not {"max_tokens", "max_completion_tokens"} & stub.seen.bodies[0].keys()


def test_a_reply_cut_by_the_services_own_default_is_asked_again_with_ours():
    with StubServer(always="cut") as stub:
        judge_one(stub, max_tokens=0)
        assert [body.get("max_tokens") for body in stub.seen.bodies][:2] == [None, 8192]


@pytest.mark.parametrize(
    ("settings", "key"),
    [
        ({"sampling": SamplingConfig(max_tokens=0)}, r"sampling\.max_tokens=0"),
        ({"sampling": SamplingConfig(max_tokens=-1)}, r"sampling\.max_tokens=-1"),
        ({"judge": JudgeConfig(model="m", max_tokens=-5)}, r"judge\.max_tokens=-5"),
    ],
)
def test_a_cap_that_makes_no_sense_is_named_by_its_key(settings, key):
    judge = JudgeConfig(model="m", max_tokens=0)
    with pytest.raises(UserError, match=key):
        validate(RunConfig(**{"judge": judge} | settings))
    engine = EngineConfig(kind="openai", base_url="http://127.0.0.1:1/v1")
    sampling = SamplingConfig(max_tokens=0)
    assert validate(RunConfig(judge=judge, engine=engine, sampling=sampling)).judge.max_tokens == 0


def test_waits_between_tries_are_settings():
    settings = {"retry_wait_s": 0.05, "retry_factor": 3.0, "retry_max_wait_s": 0.2}
    with StubServer(first=("500",) * 4) as stub:
        done, _ = complete(stub, **settings)
        times = stub.seen.arrivals
        gaps = [later - earlier for earlier, later in itertools.pairwise(times)]
    assert (done.status, done.attempts) == ("ok", 5)
    for gap, least in zip(gaps, (0.05, 0.15, 0.2, 0.2), strict=True):
        assert least <= gap < least + 0.3
    with pytest.raises(UserError, match="retry_factor"):
        stage(stub, [], retry_factor=0.5).begin()


def test_a_few_calls_that_hang_among_many_good_ones_lower_nothing():
    with StubServer(always="hang", only="number 7") as stub:
        prompts = [ask(f"number {i}") for i in range(40)]
        done, client, _ = complete_all(stub, prompts, timeout_s=1.0, max_retries=9)
        assert max(stub.seen.tries.values()) == 3
    assert sum(d.status == "ok" for d in done) == 39
    assert client._limiter.slots.limit == 64


def own_address():
    """An address of this machine that is not its loopback one; no packet is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("10.255.255.255", 1))
        except OSError:
            return "127.0.0.1"
        return probe.getsockname()[0]


def test_a_server_of_the_runs_own_is_never_called_through_a_proxy(monkeypatch):
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")  # nobody is there
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    address = own_address()
    if address.startswith("127."):
        pytest.skip("this machine has no address but its loopback one")
    settings = {"max_retries": 0, "timeout_s": 5.0, "api_key_env": None}

    async def call(url, base_urls):
        config = JudgeConfig(base_url=url, **settings)
        limiter = Limiter(None, None, 1)
        client = EndpointClient(config, "m", key=None, limiter=limiter, base_urls=base_urls)
        done = await client.complete(ask("Q"), max_tokens=50)
        await client.close()
        return done.status

    with StubServer(host="0.0.0.0") as stub:
        url = stub.url.replace("127.0.0.1", address)
        assert asyncio.run(call(None, [url])) == "ok"
        assert asyncio.run(call(url, None)) == "error"  # a user's service is: the proxy counts


SHARING = """
import asyncio, sys, time
from mtbench_ray.config import JudgeConfig
from mtbench_ray.endpoint.shared_limit import make_limiter
config = JudgeConfig(base_url=sys.argv[1], requests_per_minute=600, limit_scope="cluster")

async def run():
    limiter = make_limiter(config, "m", "some-key")
    for _ in range(10):
        await limiter.acquire(100)
        print(time.time(), flush=True)

asyncio.run(run())
"""


def test_plain_processes_on_one_machine_share_a_limit(tmp_path):
    command = [sys.executable, "-c", SHARING, f"http://{tmp_path.name}.test/v1"]
    runs = [
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={"TMPDIR": str(tmp_path)})
        for _ in range(2)
    ]
    times = sorted(float(line) for run in runs for line in run.communicate(timeout=60)[0].split())
    assert len(times) == 20
    # 19 waits of a tenth of a second, from the first call to the last.
    assert times[-1] - times[0] > 18 * 0.1
    (state,) = (tmp_path / next(p.name for p in tmp_path.iterdir() if p.is_dir())).glob("*.json")
    assert "some-key" not in state.read_text() + state.name


class Line:
    """The command line on the stub, in one workspace."""

    def __init__(self, stub, questions, references, workspace, capsys):
        self.workspace, self.capsys = workspace, capsys
        self.usual = [
            "model=org/m", f"question_path={questions}", f"reference_path={references}", "limit=2",
            f"workspace={workspace}", "engine.api_key_env=null",
        ]  # fmt: skip
        self.judge = [
            "judge=openai", "judge.model=stub", f"judge.base_url={stub.url}",
            "judge.api_key_env=null", "engine=fake", "judge.concurrency=1",
        ]  # fmt: skip

    def __call__(self, *args):
        code = main([*self.usual, *args])
        self.out, self.err = self.capsys.readouterr()
        return code

    def record(self):
        newest = max(self.workspace.glob("runs/*/record.json"), key=lambda p: p.stat().st_mtime)
        return json.loads(newest.read_text())


def test_another_judge_under_the_same_name_is_told_in_a_run_and_between_runs(
    questions, references, tmp_path, capsys
):
    with StubServer(served=("claude", "claude", "mini")) as stub:
        line = Line(stub, questions, references, tmp_path / "work", capsys)
        assert line(*line.judge) == 0
        told = "judge stub: mini answered, before it was claude; their verdicts may not"
        assert told in line.out + line.err
        assert any(told in note for note in line.record()["notes"])
        rows = (tmp_path / "work" / "judgments.jsonl").read_text().splitlines()
        assert {json.loads(row)["served_model"] for row in rows} == {"claude", "mini"}
    with StubServer(port=stub.port, served=("other",)) as stub:
        assert line(*line.judge, "judge.samples=2") == 0
        assert "judge stub: other answered, before it was claude, mini" in line.out + line.err


def test_what_an_answering_service_does_not_take_is_in_the_record(
    questions, references, tmp_path, capsys
):
    with StubServer(kind="answer", reject=("top_k",), served=("a", "b")) as stub:
        line = Line(stub, questions, references, tmp_path / "work", capsys)
        served = [f"engine.base_url={stub.url}", "judge=none", "engine.concurrency=1"]
        assert line("engine=openai", *served) == 0
        record = line.record()
    (note,) = (v for k, v in record["learned"].items() if k.endswith(".top_k"))
    assert "not sent" in note
    assert any("b answered, before it was a" in note for note in record["notes"])


@pytest.mark.rays
def test_replicas_in_actors_share_a_limit(questions, references, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    with StubServer(kind="answer") as stub:
        line = Line(stub, questions, references, tmp_path / "work", capsys)
        assert line(
            "engine=openai", f"engine.base_url={stub.url}", "judge=none", "cluster.ray=always",
            "engine.replicas=2", "engine.requests_per_minute=120",
        ) == 0, line.err  # fmt: skip
        times = stub.seen.arrivals
    assert len(times) == 4
    assert times[-1] - times[0] > 2 * 0.5 * 0.95  # two may leave at once, then two a second


def test_others_wait_for_the_first_call_as_long_as_its_refusal_would_take(monkeypatch):
    # Not as long as its reply takes: the list of models says how soon the service answers.
    monkeypatch.setattr("mtbench_ray.endpoint.client._PROBE_S", 20.0)
    with StubServer(latency=4.0) as stub:
        complete_all(stub, [ask(f"{n}?") for n in range(4)])
        first, second, *_ = stub.seen.arrivals
    assert 0.08 < second - first < 3.9
