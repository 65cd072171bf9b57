"""One conversation: its turns in order on one engine, each emitted as soon as it is there."""

from __future__ import annotations

import time
from collections.abc import Callable

from mtbench_ray.engines.base import Engine, Generation, NoOutput, Shard, ShardUnit
from mtbench_ray.errors import EngineFault
from mtbench_ray.models.messages import Split, build_messages, split_thinking
from mtbench_ray.models.sampling import TurnSampling, turn_sampling
from mtbench_ray.schema import ANSWERED, Message, Turn


async def converse(
    engine: Engine,
    unit: ShardUnit,
    shard: Shard,
    emit: Callable[[Turn], None],
    priority: Callable[[int], int] = lambda _: 0,
) -> None:
    """Answer the turns of ``unit`` that are not there yet.

    Turns already in ``unit.done`` are built on and not emitted again. A failed turn fails the
    later ones, which are emitted too: every turn that is pending comes out exactly once.

    Args:
        priority: Of the request for a turn, by the turn's number.

    Raises:
        EngineFault: The engine is lost; turns not emitted yet are still pending.
    """
    done = {turn.turn: turn for turn in unit.done if turn.status in ANSWERED}
    answers: list[str] = []
    for number in range(1, len(unit.question.turns) + 1):
        row = done.get(number)
        if row is None:
            row = await _turn(engine, unit, shard, tuple(answers), priority(number))
            emit(row)
        if row.status not in ANSWERED:
            for later in range(number + 1, len(unit.question.turns) + 1):
                reason = f"turn {number} failed: {row.error or row.status}"
                emit(failed_turn(unit, shard, later, reason, engine.origin))
            return
        answers.append(row.content)


async def _turn(
    engine: Engine, unit: ShardUnit, shard: Shard, answers: tuple[str, ...], priority: int
) -> Turn:
    number = len(answers) + 1
    began = time.monotonic()
    model = unit.model or shard.model
    settings = unit.sampling or shard.sampling
    sampling = turn_sampling(unit.question, number, unit.sample, settings, model)
    request_id = f"{unit.question.question_id}|{unit.sample}|{number}|{unit.answer_id[:12]}"
    try:
        messages = build_messages(model, unit.question, answers)
        generation = await _generate(engine, messages, sampling, request_id, priority)
        split = _read(generation, engine)
    except EngineFault:
        raise
    except Exception as error:
        # A template that refuses this conversation, a text that no tokenizer takes: one bad row
        # never touches the others.
        return failed_turn(
            unit, shard, number, f"{type(error).__name__}: {error}", engine.origin, answers
        )
    return Turn(
        answer_id=unit.answer_id,
        turn=number,
        benchmark=unit.question.benchmark,
        question_id=unit.question.question_id,
        model=model.label,
        sample=unit.sample,
        content=split.content,
        status=split.status,
        raw=generation.text,
        reasoning=split.reasoning,
        history=answers,
        finish_reason=generation.finish_reason,
        prompt_tokens=generation.prompt_tokens,
        output_tokens=generation.output_tokens,
        seed=sampling.seed,
        sampling=generation.sampling,
        template_hash=engine.template_hash,
        latency_s=round(time.monotonic() - began, 4),
        engine_origin=engine.origin,
        compliant=split.compliant,
        served_model=generation.served_model,
        system_fingerprint=generation.system_fingerprint,
        error=generation.error,
        created=time.time(),
        run_id=shard.run_id,
    )


async def _generate(
    engine: Engine,
    messages: tuple[Message, ...],
    sampling: TurnSampling,
    request_id: str,
    priority: int,
) -> Generation:
    """A request that ends without an answer is asked once more."""
    try:
        return await engine.generate(messages, sampling, request_id, priority)
    except NoOutput:
        return await engine.generate(messages, sampling, request_id, priority)


def _read(generation: Generation, engine: Engine) -> Split:
    if generation.status != "ok":
        return Split("", generation.reasoning, generation.status, None)
    split = split_thinking(generation.text, generation.finish_reason, engine.thinking)
    if generation.reasoning is None:
        return split
    # The endpoint split it: what is left is the answer, unless it wrote a second block.
    reasoning = "\n\n".join(part for part in (generation.reasoning, split.reasoning) if part)
    # Thinking that took all the tokens was not ended.
    ended = bool(split.content) or generation.finish_reason != "length"
    return Split(split.content, reasoning, split.status, ended)


def failed_turn(
    unit: ShardUnit,
    shard: Shard,
    turn: int,
    error: str,
    origin: str,
    history: tuple[str, ...] = (),
) -> Turn:
    """The row of a turn that could not be answered; it carries no text and is pending again."""
    return Turn(
        answer_id=unit.answer_id,
        turn=turn,
        benchmark=unit.question.benchmark,
        question_id=unit.question.question_id,
        model=(unit.model or shard.model).label,
        sample=unit.sample,
        content="",
        status="error",
        history=history,
        engine_origin=origin,
        error=error,
        created=time.time(),
        run_id=shard.run_id,
    )
