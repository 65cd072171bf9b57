"""One conversation at a time: F02 F05 F06 F07 F42 F64 F77 as rows."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from shards import make_shard, question, rows_of, run_shard

from mtbench_ray.config import EngineConfig, ModelConfig, SamplingConfig
from mtbench_ray.engines.base import Engine, Generation
from mtbench_ray.engines.fake import FakeEngine
from mtbench_ray.errors import EngineFault
from mtbench_ray.generate.conversation import converse
from mtbench_ray.models.messages import thinking_spec
from mtbench_ray.models.sampling import TurnSampling, turn_sampling
from mtbench_ray.models.thinking import ThinkingSpec
from mtbench_ray.schema import Message, Turn


class Scripted:
    """Gives the generations of a list, in order, and remembers what it was asked."""

    origin = "cold"
    template_hash = "t"
    gpu_memory_gb = None

    def __init__(self, *replies: Generation | Exception, thinking: ThinkingSpec | None = None):
        self.thinking = thinking or ThinkingSpec()
        self.asked: list[Sequence[Message]] = []
        self._replies = list(replies)

    async def generate(
        self,
        messages: Sequence[Message],
        sampling: TurnSampling,
        request_id: str,
        priority: int = 0,
    ) -> Generation:
        self.asked.append(messages)
        reply = self._replies.pop(0)
        if isinstance(reply, Exception):
            raise reply
        return reply

    async def prepare(self, model: ModelConfig) -> None:
        """See :class:`~mtbench_ray.engines.base.Engine`."""

    async def adopt(self, model: ModelConfig) -> Engine | None:
        return None

    async def stop(self) -> None:
        pass


def said(text: str, finish: str = "stop", **more: Any) -> Generation:
    return Generation(text, finish, 5, 7, **more)


def talk(engine: Scripted, **model: Any) -> list[Turn]:
    shard = make_shard([1], model=ModelConfig(path="m", **model))
    rows: list[Turn] = []
    asyncio.run(converse(engine, shard.units[0], shard, rows.append))
    return rows


THINKS = thinking_spec(ModelConfig(path="m", thinking="on"), "")


def test_only_the_answer_goes_into_turn_two() -> None:
    """F07."""
    engine = Scripted(said("<think>two and two is 4</think>4"), said("7"), thinking=THINKS)
    first, second = talk(engine)
    assert [m.content for m in engine.asked[1]] == ["Say something on 1.", "4", "Say more on 1."]
    assert (first.content, first.reasoning) == ("4", "two and two is 4")
    assert first.raw == "<think>two and two is 4</think>4"
    assert second.history == ("4",)
    assert (first.compliant, second.compliant) == (True, False)


def test_unfinished_thinking_is_an_empty_truncated_turn_and_the_talk_goes_on() -> None:
    """F02."""
    engine = Scripted(said("<think>first let y", "length"), said("ok"), thinking=THINKS)
    first, second = talk(engine)
    assert (first.content, first.status, first.compliant) == ("", "truncated", False)
    assert first.raw == "<think>first let y"
    assert second.history == ("",)


def test_reasoning_that_the_endpoint_split_is_kept_apart() -> None:
    first, _ = talk(Scripted(said("4", reasoning="two and two"), said("x"), thinking=THINKS))
    assert (first.content, first.reasoning, first.compliant) == ("4", "two and two", True)


@pytest.mark.parametrize("status", ["error", "refused", "context_overflow"])
def test_a_failure_is_never_an_answer(status: str) -> None:
    """F05: no text, and turn two is not asked."""
    engine = Scripted(said("CUDA out of memory", status=status, error="what went wrong"))
    first, second = talk(engine)
    assert (first.status, first.content, first.error) == (status, "", "what went wrong")
    assert (second.status, second.content) == ("error", "")
    assert second.error == "turn 1 failed: what went wrong"
    assert len(engine.asked) == 1


def test_an_answer_that_only_looks_like_an_error_is_an_answer() -> None:
    first, second = talk(Scripted(said("ERROR"), said("$ERROR$ is a marker")))
    assert (first.status, first.content) == ("ok", "ERROR")
    assert second.status == "ok"


def test_a_conversation_that_breaks_is_one_failed_row() -> None:
    first, second = talk(Scripted(ValueError("roles must alternate")))
    assert (first.status, first.error) == ("error", "ValueError: roles must alternate")
    assert second.status == "error"


def test_a_lost_engine_is_no_row() -> None:
    with pytest.raises(EngineFault):
        talk(Scripted(EngineFault("gone")))


def test_rows_carry_what_was_used() -> None:
    row, _ = talk(Scripted(said("a b", sampling='{"seed":3}'), said("c")), name="label")
    assert (row.model, row.prompt_tokens, row.output_tokens) == ("label", 5, 7)
    assert (row.sampling, row.template_hash, row.finish_reason) == ('{"seed":3}', "t", "stop")
    assert row.created > 0
    assert row.latency_s >= 0


@pytest.mark.parametrize(
    ("own", "setting", "expected"),
    [(None, None, 0.7), (0.0, None, 0.0), (0.1, None, 0.1), (0.1, 0.00001, 0.0), (0.7, 0.3, 0.3)],
)
def test_temperature_of_the_question_unless_set(
    own: float | None, setting: float | None, expected: float
) -> None:
    asked = replace(question(1), temperature=own)
    used = turn_sampling(asked, 1, 0, SamplingConfig(temperature=setting), ModelConfig())
    assert used.temperature == expected
    assert (used.top_p, used.top_k, used.repetition_penalty) == (1.0, -1, 1.0)


def test_fake_shard_with_thinking_stops_and_tags() -> None:
    """F06 F64 F77 through a whole worker."""
    replies = {
        1: ["They greet.\n</think>\n\nHello!", "<think>p</think>Use `<think>x</think>`."],
        2: ["<think>plan\n\n### step</think>Done ### and more", "<think>never ends"],
    }
    model = ModelConfig(path="m", split_thinking="always", stop=["###"])
    rows = rows_of(run_shard(make_shard([1, 2], model=model, fake_faults={"replies": replies})))
    assert {key: row.content for key, row in rows.items()} == {
        ("answer-1-0", 1): "Hello!",
        ("answer-1-0", 2): "Use `<think>x</think>`.",
        ("answer-2-0", 1): "Done",
        ("answer-2-0", 2): "",
    }


def test_cap_is_counted_as_truncated_and_adds_no_marker() -> None:
    """F42."""
    shard = make_shard([1, 2, 3], sampling=SamplingConfig(max_tokens=9))
    rows = rows_of(run_shard(shard))
    cut = [row for row in rows.values() if row.status == "truncated"]
    assert cut
    for row in cut:
        assert row.finish_reason == "length"
        assert row.output_tokens == 9
        assert len(row.content.split()) == 9


def test_turn_two_gets_the_room_that_is_left() -> None:
    def last(window: int) -> Turn:
        replies = {1: ["w" * 400, "a b c d e f g h"]}
        shard = make_shard([1], max_model_len=window, fake_faults={"replies": replies})
        return rows_of(run_shard(shard))["answer-1-0", 2]

    prompt = last(4000).prompt_tokens
    one, none = last(prompt + 1), last(prompt)
    assert (one.status, one.content, one.output_tokens) == ("truncated", "a", 1)
    assert none.status == "context_overflow"
    assert f"{prompt} tokens" in (none.error or "")


def test_fake_engine_is_what_the_protocol_says() -> None:
    async def make() -> None:
        engine: Engine = await FakeEngine.start(ModelConfig(path="a"), EngineConfig(kind="fake"))
        await engine.stop()
        with pytest.raises(EngineFault, match="stopped"):
            await engine.generate(
                [Message("user", "hi")], TurnSampling(0.0, 1.0, -1, 1.0, 9, 1), "1|0|1"
            )

    asyncio.run(make())
