"""Shards on the fake engine: F13 F14 F62 F81, engines that die or hang, and what is kept."""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from shards import events_of, make_shard, rows_of, run_shard

from mtbench_ray.config import EngineConfig, ModelConfig, SamplingConfig
from mtbench_ray.engines.base import Engine, Generation, NoOutput, Shard, ended_by_model
from mtbench_ray.engines.fake import FakeEngine, forget_faults
from mtbench_ray.errors import EngineFault
from mtbench_ray.generate.worker import ShardWorker, start_engine
from mtbench_ray.models.fingerprint import as_planned, fingerprint
from mtbench_ray.models.sampling import TurnSampling
from mtbench_ray.models.thinking import ThinkingSpec
from mtbench_ray.schema import EngineEvent, Message, Turn


@pytest.fixture(autouse=True)
def _fresh_faults() -> None:
    forget_faults()


@pytest.fixture
def worker() -> Iterator[ShardWorker]:
    worker = ShardWorker("r1")
    yield worker
    worker.close()


def keys(shard: Shard) -> set[tuple[str, int]]:
    return {(unit.answer_id, turn) for unit in shard.units for turn in (1, 2)}


def test_every_turn_comes_once_and_turn_two_stands_on_its_own_turn_one() -> None:
    shard = make_shard(range(81, 101), samples=2)
    outputs = run_shard(shard)
    rows = rows_of(outputs)
    assert rows.keys() == keys(shard)
    assert events_of(outputs) == ["start"]
    for (answer, turn), row in rows.items():
        assert row.status in ("ok", "truncated")
        assert row.history == (() if turn == 1 else (rows[answer, 1].content,))
        assert f"answer-{row.question_id}-{row.sample}" == answer
        assert (row.run_id, row.model, row.engine_origin) == ("run-1", "fake/model", "fake")


def test_rows_join_by_id_in_whatever_order_they_come() -> None:
    """F13."""
    replies = {n: [f"{n} " + "w " * (90 - n), f"{n} again"] for n in (81, 82, 83)}
    shard = make_shard([81, 82, 83], fake_faults={"replies": replies}, fake_seconds_per_token=0.02)
    outputs = [row for row in run_shard(shard) if isinstance(row, Turn)]
    assert [row.question_id for row in outputs if row.turn == 1] == [83, 82, 81]
    for row in outputs:
        assert row.content.split()[0] == str(row.question_id)


def test_rows_stream_and_turn_two_waits_for_nobody() -> None:
    replies = {1: ["w " * 100, "end"], 2: ["short", "short"]}
    shard = make_shard(
        [1, 2],
        sampling=SamplingConfig(max_tokens=500),
        fake_faults={"replies": replies},
        fake_seconds_per_token=0.01,
    )
    worker = ShardWorker()
    seen = []
    for row in worker.run(shard):
        if isinstance(row, Turn):
            seen.append((row.question_id, row.turn, time.time() - row.created))
    worker.close()
    assert [s[:2] for s in seen] == [(2, 1), (2, 2), (1, 1), (1, 2)]
    assert max(s[2] for s in seen) < 0.6


def test_seeds_depend_on_question_turn_and_sample_only() -> None:
    """F81: another order, another company, a rerun of half of them: the same seeds and texts."""
    sampling = SamplingConfig(max_tokens=2000)
    whole = rows_of(run_shard(make_shard(range(1, 9), samples=2, sampling=sampling)))
    half = rows_of(run_shard(make_shard([8, 3], samples=2, sampling=sampling, max_num_seqs=1)))
    assert {k: (r.seed, r.content) for k, r in half.items()} == {
        k: (whole[k].seed, whole[k].content) for k in half
    }
    assert len({row.seed for row in whole.values()}) == len(whole)
    assert all(0 <= (row.seed or -1) < 2**31 for row in whole.values())
    other = rows_of(run_shard(make_shard([8], sampling=SamplingConfig(seed=1, max_tokens=2000))))
    assert other["answer-8-0", 1].seed != whole["answer-8-0", 1].seed


def test_turn_one_that_is_there_is_built_on_and_not_repeated() -> None:
    shard = make_shard([5])
    rows = rows_of(run_shard(shard))
    first = rows["answer-5-0", 1]
    again = rows_of(run_shard(make_shard([5], done={"answer-5-0": (first,)})))
    assert again.keys() == {("answer-5-0", 2)}
    assert again["answer-5-0", 2].content == rows["answer-5-0", 2].content


def test_failed_turn_one_of_an_earlier_run_is_owed_again() -> None:
    failed = rows_of(run_shard(make_shard([5], fake_faults={"error_on": [5]})))
    assert {row.status for row in failed.values()} == {"error"}
    again = rows_of(run_shard(make_shard([5], done={"answer-5-0": tuple(failed.values())})))
    assert {key: row.status in ("ok", "truncated") for key, row in again.items()} == {
        ("answer-5-0", 1): True,
        ("answer-5-0", 2): True,
    }


def test_one_prompt_too_long_fails_alone() -> None:
    """F14."""
    shard = make_shard(range(1, 81), max_model_len=512)
    units = list(shard.units)
    question = units[39].question
    units[39] = dataclasses.replace(
        units[39], question=dataclasses.replace(question, turns=("w" * 2400, "more"))
    )
    rows = rows_of(run_shard(dataclasses.replace(shard, units=tuple(units))))
    bad = {key: row for key, row in rows.items() if row.status not in ("ok", "truncated")}
    assert {(row.question_id, row.turn, row.status) for row in bad.values()} == {
        (40, 1, "context_overflow"),
        (40, 2, "error"),
    }
    assert "604 tokens" in (rows["answer-40-0", 1].error or "")
    assert "512" in (rows["answer-40-0", 1].error or "")
    assert "turn 1 failed" in (rows["answer-40-0", 2].error or "")
    assert len(rows) == 160


@pytest.mark.parametrize("fault", ["die_on", "hang_on"])
@pytest.mark.runs
def test_row_that_always_takes_its_engine_down_fails_alone(fault: str) -> None:
    shard = make_shard(
        range(1, 31), fake_faults={fault: [17]}, fake_seconds_per_token=0.002, stall_s=1.5
    )
    outputs = run_shard(shard)
    rows = rows_of(outputs)
    assert rows.keys() == keys(shard)
    failed = {row.question_id for row in rows.values() if row.status == "error"}
    assert failed == {17}
    assert "took its engine down" in (rows["answer-17-0", 1].error or "")
    assert events_of(outputs).count("restart") <= shard.engine.max_restarts


def test_two_such_rows_fail_alone_too() -> None:
    shard = make_shard(range(1, 31), fake_faults={"die_on": [3, 20]}, fake_seconds_per_token=0.001)
    rows = rows_of(run_shard(shard))
    assert {row.question_id for row in rows.values() if row.status == "error"} == {3, 20}


def test_death_in_turn_two_keeps_turn_one() -> None:
    shard = make_shard([1], fake_faults={"die_on": [1], "die_at_turn": 2})
    rows = rows_of(run_shard(shard))
    assert rows["answer-1-0", 1].status in ("ok", "truncated")
    second = rows["answer-1-0", 2]
    assert (second.status, second.history) == ("error", (rows["answer-1-0", 1].content,))


@pytest.mark.parametrize("fault", ["die_once_on", "hang_once_on"])
def test_a_fault_that_passes_costs_no_row(fault: str) -> None:
    shard = make_shard(
        range(1, 21), fake_faults={fault: [7]}, fake_seconds_per_token=0.002, stall_s=1.5
    )
    outputs = run_shard(shard)
    assert events_of(outputs) == ["start", "restart"]
    rows = rows_of(outputs)
    calm = rows_of(run_shard(make_shard(range(1, 21))))
    assert {k: r.content for k, r in rows.items()} == {k: r.content for k, r in calm.items()}


def test_engine_that_always_dies_is_given_up_in_bounded_time() -> None:
    shard = make_shard(range(1, 41), fake_faults={"die_on": list(range(1, 41))}, max_restarts=2)
    outputs = run_shard(shard)
    rows = rows_of(outputs)
    assert rows.keys() == keys(shard)
    assert Counter(row.status for row in rows.values()) == {"error": 80}
    assert all("scripted death" in (row.error or "") for row in rows.values())
    assert events_of(outputs) == ["start", "restart", "restart"]


def test_start_failure_fails_the_shard_with_the_engines_words_and_not_the_next() -> None:
    worker = ShardWorker()
    faults = {"fail_start": "no kernel for this card", "models": ["bad"]}
    bad = make_shard([1, 2], model=ModelConfig(path="bad"), fake_faults=faults)
    good = make_shard([1, 2], model=ModelConfig(path="good"), fake_faults=faults)
    outputs = run_shard(bad, worker)
    assert events_of(outputs) == ["failed", "failed"]
    assert {row.status for row in rows_of(outputs).values()} == {"error"}
    assert all("no kernel for this card" in (r.error or "") for r in rows_of(outputs).values())
    assert {r.status for r in rows_of(run_shard(good, worker)).values()} <= {"ok", "truncated"}
    worker.close()


def test_start_is_tried_again_unless_it_cannot_work() -> None:
    once = run_shard(make_shard([1], fake_faults={"fail_start_once": "busy"}))
    assert events_of(once) == ["failed", "start"]
    assert rows_of(once)["answer-1-0", 2].status in ("ok", "truncated")
    fatal = run_shard(make_shard([1], fake_faults={"fail_start_fatal": "unknown architecture"}))
    assert events_of(fatal) == ["failed"]


def test_unknown_engine_and_missing_setting_are_rows_too() -> None:
    rows = rows_of(run_shard(make_shard([1], kind="no_such")))
    assert "no_such" in (rows["answer-1-0", 1].error or "")


def test_a_mistake_that_no_engine_can_answer_is_told_at_once() -> None:
    outputs = run_shard(make_shard([1], kind="no_such"))
    (event,) = [output for output in outputs if isinstance(output, EngineEvent)]
    assert (event.kind, "no_such" in event.detail) == ("failed", True)


def test_a_bug_in_an_engine_is_rows_not_an_exception() -> None:
    async def broken(model: ModelConfig, config: EngineConfig) -> Engine:
        raise KeyError("missing part")

    worker = ShardWorker(start=broken)
    rows = rows_of(run_shard(make_shard([1, 2]), worker))
    worker.close()
    assert len(rows) == 4
    assert all("missing part" in (row.error or "") for row in rows.values())


def test_engine_is_kept_for_the_same_model_and_changed_for_another(worker: ShardWorker) -> None:
    kinds = [
        events_of(run_shard(make_shard([n], model=ModelConfig(path=path)), worker))
        for n, path in ((1, "a"), (2, "a"), (3, "b"), (4, "b"))
    ]
    assert kinds == [["start"], [], ["start"], []]


def test_engine_is_kept_for_another_prompt_of_the_same_model(worker: ShardWorker) -> None:
    one = run_shard(make_shard([1], model=ModelConfig(path="a")), worker)
    kind = ModelConfig(path="a", name="a-kind", system_prompt="Be kind.")
    two = run_shard(make_shard([1], model=kind), worker)
    assert events_of(two) == []
    first, second = rows_of(one)["answer-1-0", 1], rows_of(two)["answer-1-0", 1]
    assert second.model == "a-kind"
    assert first.content != second.content


def test_nothing_owed_starts_no_engine() -> None:
    rows = rows_of(run_shard(make_shard([5])))
    assert run_shard(make_shard([5], done={"answer-5-0": tuple(rows.values())})) == []


def test_twice_as_many_conversations_as_places_are_under_way(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    running, most = 0, 0
    generate = FakeEngine.generate

    async def counted(self: FakeEngine, *args: object) -> object:
        nonlocal running, most
        running += 1
        most = max(most, running)
        try:
            return await generate(self, *args)  # type: ignore[arg-type]
        finally:
            running -= 1

    monkeypatch.setattr(FakeEngine, "generate", counted)
    run_shard(make_shard(range(10), max_num_seqs=3, fake_seconds_per_token=0.001))
    assert most == 6


def test_a_place_is_taken_while_the_next_turn_is_prepared() -> None:
    shard = make_shard([1, 2, 3], max_num_seqs=1, fake_seconds_per_token=0.001)
    turns = [(row.answer_id, row.turn) for row in run_shard(shard) if isinstance(row, Turn)]
    one, two, three = sorted({answer_id for answer_id, _ in turns})
    assert turns[:4] == [(one, 1), (two, 1), (one, 2), (two, 2)]
    assert sorted(turns[4:]) == [(three, 1), (three, 2)]


class Steps:
    """An engine with ``places``, on which every turn takes one step: how many steps all took.

    Of the requests that wait at a step those with the lowest priority are taken, the oldest first.
    """

    origin, template_hash, gpu_memory_gb, remark, under_way = "fake", "fake", None, "", 0
    thinking = ThinkingSpec()

    def __init__(self, places: int) -> None:
        self.places = places
        self.taken: list[list[int]] = []
        self._waiting: list[tuple[int, int, asyncio.Future[None]]] = []
        self._count = itertools.count()
        self._running: asyncio.Task[None] | None = None

    async def generate(
        self,
        messages: Sequence[Message],
        sampling: TurnSampling,
        request_id: str,
        priority: int = 0,
    ) -> Generation:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((priority, next(self._count), future))
        if self._running is None:
            self._running = asyncio.create_task(self._run())
        await future
        return Generation("word", "stop", 1, 1)

    async def _run(self) -> None:
        while self._waiting:
            for _ in range(20):  # all that is on its way arrives
                await asyncio.sleep(0)
            self._waiting.sort(key=lambda waiting: waiting[:2])
            now, self._waiting = self._waiting[: self.places], self._waiting[self.places :]
            self.taken.append([number for _, number, _ in now])
            for *_, future in now:
                future.set_result(None)
            for _ in range(20):
                await asyncio.sleep(0)
        self._running = None

    async def prepare(self, model: ModelConfig) -> None: ...

    async def stop(self) -> None:
        if self._running is not None:
            await self._running


@given(st.integers(1, 4), st.integers(1, 40))
@settings(deadline=None, max_examples=60)
def test_an_engine_is_full_until_the_last_turns(places: int, conversations: int) -> None:
    """As many steps as two turns of all conversations take at least."""
    engine = Steps(places)

    async def start(model: ModelConfig, config: EngineConfig) -> Engine:
        return engine  # type: ignore[return-value]

    worker = ShardWorker(start=start)
    rows = rows_of(run_shard(make_shard(range(conversations), max_num_seqs=places), worker))
    worker.close()
    assert len(rows) == 2 * conversations
    assert len(engine.taken) == max(2, -(-2 * conversations // places))


def test_consumer_that_leaves_early_leaves_a_working_worker(worker: ShardWorker) -> None:
    shard = make_shard(range(10), fake_seconds_per_token=0.01)
    stream = worker.run(shard)
    next(stream)
    stream.close()  # type: ignore[attr-defined]
    assert len(rows_of(run_shard(make_shard([1]), worker))) == 2


def test_close_ends_the_engine_and_may_be_called_twice() -> None:
    stopped = []

    class Watched(FakeEngine):
        async def stop(self) -> None:
            stopped.append(self)
            await super().stop()

    async def start(model: ModelConfig, config: EngineConfig) -> Engine:
        return Watched(model, config)

    worker = ShardWorker(start=start)
    run_shard(make_shard([1]), worker)
    assert not stopped
    worker.close()
    worker.close()
    assert len(stopped) == 1


def test_events_say_who_and_how_long(worker: ShardWorker) -> None:
    outputs = run_shard(make_shard([1], fake_faults={"slow_start": 0.2}), worker)
    (event,) = [event for event in outputs if isinstance(event, EngineEvent)]
    assert (event.kind, event.model, event.replica) == ("start", "fake/model", "r1")
    assert event.seconds >= 0.2


def test_start_engine_knows_its_kinds() -> None:
    async def started() -> str:
        engine = await start_engine(ModelConfig(path="a"), EngineConfig(kind="fake"))
        await engine.stop()
        return engine.origin

    assert asyncio.run(started()) == "fake"


def test_a_worker_gives_signs_of_life_while_nothing_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mtbench_ray.generate.worker.BEAT_S", 0.05)
    worker = ShardWorker()
    shard = make_shard([1], fake_faults={"slow_start": 0.3})
    together = list(worker.run_together(shard))
    worker.close()
    assert together.count([]) >= 3
    assert len(rows_of([row for rows in together for row in rows])) == 2


@pytest.mark.parametrize("finish", ["abort", "error"])
def test_a_request_that_did_not_come_to_its_end_is_a_failed_row(finish: str) -> None:
    faults = {"replies": {"1": ["half an ans", "x"]}, "finish": {"1": finish}}
    rows = rows_of(run_shard(make_shard([1, 2], fake_faults=faults)))
    first = rows["answer-1-0", 1]
    assert (first.status, first.content) == ("error", "")
    assert f"finish_reason: {finish}" in (first.error or "")
    assert rows["answer-2-0", 2].status in ("ok", "truncated")


def test_a_request_without_output_is_asked_once_more_and_is_never_an_empty_answer() -> None:
    once = rows_of(run_shard(make_shard([1], fake_faults={"no_output_once_on": [1]})))
    assert {row.status for row in once.values()} <= {"ok", "truncated"}
    always = rows_of(run_shard(make_shard([1], fake_faults={"no_output_on": [1]})))
    assert {row.status for row in always.values()} == {"error"}
    assert "without output" in (always["answer-1-0", 1].error or "")


@pytest.mark.parametrize(
    ("finish", "tokens", "good"),
    [("stop", 3, True), ("length", 3, True), ("stop", 0, False), (None, 3, False),
     ("abort", 3, False), ("error", 3, False), ("repetition", 3, False), (None, 0, False)],
)  # fmt: skip
def test_only_the_models_own_end_and_the_cap_end_an_answer(
    finish: str | None, tokens: int, good: bool
) -> None:
    if good:
        assert ended_by_model(finish, tokens) == finish
        return
    with pytest.raises(NoOutput):
        ended_by_model(finish, tokens)


def test_files_replaced_since_the_plan_are_an_error_and_not_an_answer(tmp_path: Path) -> None:
    folder = tmp_path / "last"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(b"weights of step 100")
    model = ModelConfig(path=str(folder))
    planned = as_planned(model, fingerprint(model, "fake"))
    good = run_shard(make_shard([1], model=planned))
    assert {row.status for row in rows_of(good).values()} <= {"ok", "truncated"}
    (folder / "model.safetensors").write_bytes(b"weights of step 200")
    bad = run_shard(make_shard([1], model=planned))
    assert {row.status for row in rows_of(bad).values()} == {"error"}
    assert "have changed since this run was planned" in (rows_of(bad)["answer-1-0", 1].error or "")
    assert events_of(bad) == ["failed"]


def test_files_replaced_while_they_are_loaded_are_an_error_too(tmp_path: Path) -> None:
    folder = tmp_path / "last"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    model = ModelConfig(path=str(folder))
    planned = as_planned(model, fingerprint(model, "fake"))
    stopped = []

    class Watched(FakeEngine):
        async def stop(self) -> None:
            stopped.append(self)
            await super().stop()

    async def start(model: ModelConfig, config: EngineConfig) -> Engine:
        (folder / "config.json").write_text('{"new": 1}')
        return Watched(model, config)

    worker = ShardWorker(start=start)
    outputs = run_shard(make_shard([1], model=planned), worker)
    assert {row.status for row in rows_of(outputs).values()} == {"error"}
    assert len(stopped) == 1
    worker.close()


def test_what_is_a_folder_here_travels_as_an_absolute_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("ckpts/step_100", "lora"):
        Path(name).mkdir(parents=True)
    Path("own.jinja").touch()
    model = ModelConfig(path="ckpts/step_100", adapter="lora", chat_template="own.jinja")
    planned = as_planned(model, "print")
    assert planned.label == model.label
    assert planned.path == str(tmp_path / "ckpts/step_100")
    assert planned.adapter == str(tmp_path / "lora")
    assert planned.chat_template == str(tmp_path / "own.jinja")
    assert planned.content == "print"
    hub = as_planned(ModelConfig(path="org/model", chat_template="plain"), "print")
    assert (hub.path, hub.chat_template) == ("org/model", "plain")


def test_a_worker_whose_loop_is_blocked_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    worker = ShardWorker()
    shard = make_shard([1], fake_faults={"block_on": [1]}, stall_s=0.4)
    with pytest.raises(EngineFault, match=r"blocked.*engine\.stall_s"):
        run_shard(shard, worker)
    began = time.monotonic()
    worker.close()
    assert time.monotonic() - began < 5


def test_tokens_under_way_are_told_while_no_turn_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mtbench_ray.generate.worker.BEAT_S", 0.05)
    monkeypatch.setattr(FakeEngine, "under_way", 7)
    worker = ShardWorker()
    shard = make_shard([1], fake_seconds_per_token=0.01)
    together = list(worker.run_together(shard))
    beats = [o for outputs in together for o in outputs if getattr(o, "kind", "") == "beat"]
    assert len(beats) >= 3
    assert {(event.tokens, event.model) for event in beats} == {(7, "fake/model")}  # type: ignore[union-attr]
    assert "beat" not in events_of(run_shard(shard, worker))
    worker.close()


def test_an_engine_that_hung_is_followed_by_one_that_gets_more_patience(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It may only have been slow, and the next one would take as long."""
    patience = []

    async def start(model: ModelConfig, config: EngineConfig) -> Engine:
        patience.append(config.stall_s)
        return FakeEngine(model, config)

    for fault, expected in (("hang_once_on", [0.3, 1.2]), ("die_once_on", [0.3, 0.3])):
        forget_faults()
        worker = ShardWorker(start=start)
        rows = run_shard(make_shard([1], stall_s=0.3, fake_faults={fault: [1]}), worker)
        worker.close()
        assert {row.status for row in rows_of(rows).values()} <= {"ok", "truncated"}
        assert patience == pytest.approx(expected)
        patience.clear()
