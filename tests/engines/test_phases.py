"""Where the seconds of an engine's start go."""

import asyncio
import contextlib
import logging
import time

import pytest
from shards import make_shard

from mtbench_ray.config import EngineConfig, ModelConfig
from mtbench_ray.engines.hot_swap.start_marks import StartMarks
from mtbench_ray.engines.phases import Phase, keep, phase, phases
from mtbench_ray.engines.vllm import engine as vllm_engine
from mtbench_ray.errors import UserError
from mtbench_ray.generate.worker import ShardWorker
from mtbench_ray.schema import EngineEvent


def test_stretches_are_kept_by_who_asks_also_from_threads_and_failures():
    async def work():
        with phase("outer"):
            await asyncio.to_thread(inner)
        keep(Phase("elsewhere", 5.0, 2.0))

    def inner():
        with contextlib.suppress(ValueError), phase("inner"):
            time.sleep(0.02)
            raise ValueError

    with phases() as found:
        asyncio.run(work())
    assert [one.name for one in found] == ["inner", "outer", "elsewhere"]
    assert found[1].seconds >= found[0].seconds >= 0.02
    assert abs(found[1].ended - time.time()) < 5
    asyncio.run(work())  # nobody asks
    assert len(found) == 3


def test_a_start_that_fails_says_what_it_spent_its_time_on():
    worker = ShardWorker()
    shard = make_shard([1], fake_faults={"slow_start": 0.05, "fail_start_fatal": "no"})
    events = [o for rows in worker.run_together(shard) for o in rows if isinstance(o, EngineEvent)]
    worker.close()
    assert [(e.kind, e.detail) for e in events] == [("phase", "a scripted wait"), ("failed", "no")]
    assert 0.05 <= events[0].seconds <= events[1].seconds + 0.001
    assert events[0].created <= events[1].created


@pytest.fixture
def loggers():
    top = logging.getLogger("some_engine")
    written = []
    printer = logging.StreamHandler()
    printer.emit = lambda record: written.append(record.getMessage())
    top.addHandler(printer)
    top.setLevel(logging.WARNING)
    top.propagate = False
    yield top.getChild("worker"), written
    top.removeHandler(printer)


def test_messages_of_a_start_become_its_parts_and_nothing_more_is_printed(loggers):
    log, written = loggers
    marks = StartMarks("some_engine")
    for words in ("Starting to load model %s...", "Loading weights took %.2f seconds",
                  "Model loading took %s GiB memory and %.6f seconds",
                  "Graph capturing finished in %.0f secs, took %.2f GiB"):  # fmt: skip
        time.sleep(0.01)
        log.info(words, *("1" if "%s" in part else 1.0 for part in words.split("%")[1:]))
    log.warning("one to be seen")
    found = marks.phases()
    assert [name for name, _, _ in found] == ["worker and device", "weights", "graphs"]
    assert all(seconds >= 0.009 for _, _, seconds in found)
    assert found[1][1] - found[1][2] == pytest.approx(found[0][1])
    log.info("Available KV cache memory: 1 GiB")
    assert len(marks.phases()) == 3
    assert written == ["one to be seen"]
    assert not log.isEnabledFor(logging.INFO)


@pytest.mark.parametrize(("load_format", "read"), [("auto", 1), ("dummy", 0)])
def test_weights_are_read_ahead_while_python_imports_and_no_further_after(
    load_format, read, monkeypatch, tmp_path
):
    seen = []

    class Reading:
        def __init__(self, model):
            seen.append(["begun", model.path])

        def stop(self):
            seen[-1].append("stopped")

    monkeypatch.setattr(vllm_engine, "ReadAhead", Reading)
    monkeypatch.setattr(vllm_engine.forks, "end", lambda: None)
    monkeypatch.setattr(vllm_engine, "set_environment", lambda config: None)
    config = EngineConfig(fork_server=False, args={"load_format": load_format})
    with pytest.raises(UserError):
        asyncio.run(vllm_engine.VllmEngine.start(ModelConfig(str(tmp_path / "gone")), config))
    assert seen == [["begun", str(tmp_path / "gone"), "stopped"]] * read
