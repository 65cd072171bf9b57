"""Judge calls through a batch API: every row once, each paid once, whatever happens between."""

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest
from batch_stub import BatchStub
from paths import TESTS
from stage_calls import KEY, PRICES, judge_all, read, request

from mtbench_ray.config import JudgeConfig
from mtbench_ray.endpoint import batch as batch_module
from mtbench_ray.endpoint.tokens import cost
from mtbench_ray.judges.stage import JudgeStage
from mtbench_ray.workspace.batch_ledger import BatchLedger, open_batches
from mtbench_ray.workspace.workspace import Workspace


@pytest.fixture(autouse=True)
def soon(monkeypatch):
    """Pauses made for hours, in milliseconds."""
    for name in ("_QUIET_S", "_FIRST_LOOK_S", "_LIST_S", "_LONGEST_LOOK_S", "_TICK_S"):
        monkeypatch.setattr(batch_module, name, 0.02)


def collect(stub, folder, count=6, timeout=20.0, key=KEY, interrupt_after=0.0, **settings):
    """One run's judging: rows that it wrote, by id, and its stage."""
    given = {"model": "some/judge", "batch": True, "retry_wait_s": 0.01, "batch_wait_s": 20.0}
    judge = JudgeConfig(base_url=stub.url, **given | settings)
    rows = []
    with Workspace.open(folder, write=True) as workspace:
        ledger = BatchLedger(workspace.root, workspace.verdicts, workspace.write_text)

        def write(row):
            rows.append(row)
            workspace.append(row)

        stage = JudgeStage(judge, key=key, read=read, emit=write, batches=ledger)
        stage.begin()
        for number in range(count):
            if (row := workspace.verdicts.get(f"j{number}")) is None or row.status != "ok":
                assert stage.submit(request(number))
        stage.close_when_idle()
        if interrupt_after:
            time.sleep(interrupt_after)
            stage.stop(4.0)
            time.sleep(0.3)
        else:
            stage.drain(timeout)
        stage.stop(0.0)
        ledger.close()
    assert len({row.judgment_id for row in rows}) == len(rows)
    return {row.judgment_id: row for row in rows}, stage


def all_once(stub, count=6):
    """Each of the prompts was paid once."""
    assert len(stub.paid) == count
    assert set(stub.paid.values()) == {1}


def test_the_rows_of_a_batch_are_those_of_single_calls_at_half_the_price(tmp_path):
    with BatchStub(looks=2) as stub:
        rows, stage = collect(stub, tmp_path, **PRICES | {"timeout_s": 20.0})
        single, _ = judge_all(stub, [request(n) for n in range(6)], **PRICES | {"timeout_s": 20.0})
    assert stage.fatal is None
    all_once(stub)
    same = ("judgment_id", "value", "label", "status", "text", "prompt_tokens", "output_tokens",
            "user_prompt", "attempts", "finish_reason")  # fmt: skip
    for name, row in rows.items():
        other = single[name]
        assert [getattr(row, f) for f in same] == [getattr(other, f) for f in same]
        assert row.cost_usd == pytest.approx(other.cost_usd / 2)
        assert row.cost_usd > 0
        sent, called = json.loads(row.params), json.loads(other.params)
        assert sent["model"] == called["model"]
        assert sent["temperature"] == called["temperature"]
    assert sorted(stub.lines) == [f"j{n}" for n in range(6)]
    assert open_batches(tmp_path) == []
    assert KEY not in "".join(p.read_text() for p in tmp_path.rglob("*.jsonl"))


def test_a_run_ends_while_the_batch_runs_and_the_next_one_collects_it(tmp_path):
    with BatchStub(looks=10_000) as stub:
        rows, stage = collect(stub, tmp_path, batch_wait_s=0.0)
        assert rows == {}
        assert stage.fatal is None
        assert not stage.busy
        said = open_batches(tmp_path)
        assert said == [
            "6 calls of judge some/judge are in 1 batch (batch_0: 0 of 6 done). "
            "Re-run the same command to collect the replies."
        ]
        stub.looks = 1
        rows, _ = collect(stub, tmp_path, count=8)
    assert [row.status for row in rows.values()] == ["ok"] * 8
    all_once(stub, 8)
    assert len(stub.batches) == 2


def test_lines_that_failed_go_into_the_next_batch_and_others_get_their_row(tmp_path):
    faults = ("500", "429", "418", "unreadable")
    with BatchStub(line_faults=faults) as stub:
        rows, stage = collect(stub, tmp_path)
    assert stage.fatal is None
    assert [rows[f"j{n}"].status for n in range(6)] == ["ok", "ok", "error", "ok", "ok", "ok"]
    assert [rows[f"j{n}"].attempts for n in range(6)] == [2, 2, 1, 2, 1, 1]
    assert rows["j2"].error.startswith("http_418")
    assert set(stub.lines) == {*(f"j{n}" for n in range(6)), "j0-2", "j1-2", "j3-2"}


@pytest.mark.parametrize("outcome", ["expired:0.5", "completed"])
def test_what_an_expired_batch_has_not_answered_is_sent_again(tmp_path, outcome):
    with BatchStub(outcomes=(outcome,)) as stub:
        rows, _ = collect(stub, tmp_path)
    assert [row.status for row in rows.values()] == ["ok"] * 6
    all_once(stub)
    assert len(stub.batches) == (2 if "expired" in outcome else 1)


def test_a_batch_that_somebody_cancelled_ends_the_run_and_the_next_one_sends_the_rest(tmp_path):
    with BatchStub(outcomes=("cancelled:0.5",)) as stub:
        rows, stage = collect(stub, tmp_path)
        assert len(rows) == 3
        assert "was cancelled" in stage.fatal
        assert "Re-run the same command" in stage.fatal
        more, stage = collect(stub, tmp_path)
    assert stage.fatal is None
    assert {*rows, *more} == {f"j{n}" for n in range(6)}
    all_once(stub)


def test_a_batch_that_the_service_does_not_take_says_why(tmp_path):
    with BatchStub(outcomes=("failed:invalid_model",)) as stub:
        rows, stage = collect(stub, tmp_path)
        assert rows == {}
        assert "invalid_model" in stage.fatal
        assert "judge.batch=false" in stage.fatal
        rows, stage = collect(stub, tmp_path)
    assert len(rows) == 6
    all_once(stub)


def test_an_account_that_may_queue_little_gets_smaller_batches_one_after_the_other(tmp_path):
    with BatchStub(queue=3) as stub:
        rows, stage = collect(stub, tmp_path, count=10, retry_wait_s=0.01)
    assert stage.fatal is None
    assert len(rows) == 10
    all_once(stub, 10)


def test_files_are_split_at_the_limits_of_the_service(tmp_path, monkeypatch):
    monkeypatch.setattr(batch_module, "MOST_REQUESTS", 4)
    with BatchStub() as stub:
        rows, _ = collect(stub, tmp_path, count=10)
        assert [b["request_counts"]["total"] for b in stub.batches.values()] == [4, 4, 2]
        assert len(rows) == 10
    monkeypatch.setattr(batch_module, "MOST_REQUESTS", 100)
    monkeypatch.setattr(batch_module, "MOST_BYTES", 800)
    with BatchStub() as stub:
        rows, _ = collect(stub, tmp_path / "b", count=10)
        assert len(stub.batches) > 2
        assert all(len(stub.files[b["input_file_id"]]) <= 800 for b in stub.batches.values())
    all_once(stub, 10)


@pytest.mark.parametrize("code", ["404", "405", "501"])
@pytest.mark.parametrize("phase", ["list", "upload", "create"])
def test_a_service_without_batches_says_so_before_anything_is_paid(tmp_path, phase, code):
    with BatchStub(http={phase: [code] * 9}) as stub:
        rows, stage = collect(stub, tmp_path)
    assert rows == {}
    assert not stub.paid
    assert "has no batch API" in stage.fatal
    assert "judge.batch=false" in stage.fatal


@pytest.mark.parametrize("code", ["500", "503", "429", "500-done"])
@pytest.mark.parametrize("phase", ["list", "upload", "create", "look", "content"])
def test_a_fault_of_the_service_pays_nothing_twice(tmp_path, phase, code):
    with BatchStub(http={phase: [code, code]}) as stub:
        rows, stage = collect(stub, tmp_path)
    assert stage.fatal is None
    assert len(rows) == 6
    all_once(stub)
    assert len(stub.batches) == 1


def test_ctrl_c_leaves_batches_running_unless_it_shall_cancel_them(tmp_path):
    with BatchStub(looks=10_000) as stub:
        collect(stub, tmp_path, interrupt_after=0.5)
        assert stub.met["cancel"] == 0
        assert len(open_batches(tmp_path)) == 1
        collect(stub, tmp_path, interrupt_after=0.5, batch_cancel=True)
        assert stub.met["cancel"] == 1
        stub.looks = 1
        collect(stub, tmp_path)  # says that it was cancelled
        _rows, _ = collect(stub, tmp_path)
    with Workspace.open(tmp_path, write=False) as workspace:
        assert sum(row.status == "ok" for row in workspace.verdicts.values()) == 6
    all_once(stub)


def test_another_key_does_not_send_again_what_is_in_a_batch(tmp_path):
    with BatchStub(looks=10_000) as stub:
        collect(stub, tmp_path, batch_wait_s=0.0)
        batches = dict(stub.batches)
        stub.batches.clear()  # those of another account
        rows, stage = collect(stub, tmp_path, key="sk-other-0123456789abcdef")
        assert rows == {}
        assert "another key" in stage.fatal
        assert not stub.batches
        stub.batches.update(batches)
        stub.looks = 1
        rows, _ = collect(stub, tmp_path)
    assert len(rows) == 6
    all_once(stub)


def test_an_unreadable_reply_is_not_forgotten_by_a_run_that_ends_before_the_next_one(tmp_path):
    with BatchStub(line_faults=("unreadable",)) as stub:
        stub.http["create"] = ["", "401"]
        rows, stage = collect(stub, tmp_path)
        assert "j0" not in rows
        assert stage.fatal
        rows, stage = collect(stub, tmp_path)
    assert rows["j0"].status == "ok"
    assert rows["j0"].attempts == 2  # both are paid, and both are counted
    assert sum(stub.paid.values()) == 7


CHILD = """
import sys
sys.path[:0] = [{support!r}]
from pathlib import Path
sys.path.insert(0, {here!r})
import test_batch
from mtbench_ray.endpoint import batch
for name in ("_QUIET_S", "_FIRST_LOOK_S", "_LIST_S", "_LONGEST_LOOK_S", "_TICK_S"):
    setattr(batch, name, 0.02)
class Stub: url = {url!r}
input()
rows, stage = test_batch.collect(Stub, Path({folder!r}))
print(stage.fatal)
"""


@pytest.mark.runs
@pytest.mark.parametrize(
    "moment",
    [f"{phase}{done}" for phase in ("list", "upload", "create", "look", "content")
     for done in ("", "-done")],
)  # fmt: skip
def test_kill_9_at_any_phase_pays_every_row_once(tmp_path, moment):
    with BatchStub(kill=moment, line_faults=("500", "ok", "429")) as stub:
        child = CHILD.format(
            support=str(TESTS / "support"), here=str(Path(__file__).parent), url=stub.url,
            folder=str(tmp_path),
        )  # fmt: skip
        process = subprocess.Popen(
            [sys.executable, "-c", child], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        stub.pid = process.pid
        process.communicate("go\n", timeout=60)
        assert process.returncode == -9
        _rows, stage = collect(stub, tmp_path)
    assert stage.fatal is None
    with Workspace.open(tmp_path, write=False) as workspace:
        statuses = [row.status for row in workspace.verdicts.values()]
    assert statuses == ["ok"] * 6
    all_once(stub)


def test_the_price_of_a_batch_is_a_setting():
    judge = JudgeConfig(price_prompt=2.0, price_completion=8.0)
    assert cost(judge, 1_000_000, 500_000) == 6.0
    judge.batch = True
    assert cost(judge, 1_000_000, 500_000) == 3.0
    judge.batch_price = 0.75
    assert cost(judge, 1_000_000, 500_000) == 4.5
