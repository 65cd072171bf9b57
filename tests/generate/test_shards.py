"""What is pending by a model is one visit of an engine, whatever benchmarks it is of."""

import json
from dataclasses import replace

from shards import question

from mtbench_ray.config import EngineConfig, ModelConfig, SamplingConfig
from mtbench_ray.engines.base import ShardUnit
from mtbench_ray.generate.shards import Work, join, make_shards, with_shares
from mtbench_ray.schema import Question

SHORT, LONG = SamplingConfig(max_tokens=100), SamplingConfig(max_tokens=4000)


def work(model, sampling, *questions, **engine):
    units = tuple(
        ShardUnit(one, 0, f"{model}-{one.benchmark}-{one.question_id}") for one in questions
    )
    return Work(ModelConfig(model), sampling, EngineConfig(kind="fake", **engine), units)


def single(number, text="Say it."):
    return Question("checked", number, "x", (text,))


def test_benchmarks_of_a_model_are_one_visit_and_keep_their_sampling():
    items = [work(model, sampling, one)
             for sampling, one in ((SHORT, question(1)), (LONG, single(1)))
             for model in ("a", "b", "c")]  # fmt: skip
    joined = join(items)
    assert [item.model.path for item in joined] == ["a", "b", "c"]
    shards = make_shards(joined, 1, "run")
    assert len(shards) == 3
    for shard in shards:
        used = {unit.question.benchmark: unit.sampling or shard.sampling for unit in shard.units}
        assert used == {"mt_bench": SHORT, "checked": LONG}


def test_engines_with_other_settings_are_visits_of_their_own():
    joined = join([work("a", SHORT, single(1)), work("a", SHORT, single(2), dtype="float32")])
    assert [item.engine.dtype for item in joined] == ["auto", "float32"]


def test_the_longest_conversations_come_first():
    """By turns that are left, then by the cap of each, then by the length of the prompts."""
    (joined,) = join([
        work("a", SHORT, single(1), question(2), single(3, "Say it at length.")),
        work("a", LONG, single(4)),
    ])  # fmt: skip
    assert [unit.question.question_id for unit in joined.units] == [2, 4, 3, 1]


def test_adapters_of_a_base_are_one_visit_and_come_one_after_the_other(tmp_path):
    """An engine has room for a few adapters at once; what is of others would hold its places."""
    items = []
    for name, rank in (("x", 8), ("y", 16), ("", 0)):
        item = work("base", SHORT, single(1), question(2))
        units = tuple(replace(unit, answer_id=f"{name} {unit.answer_id}") for unit in item.units)
        adapter = None
        if name:
            (tmp_path / name).mkdir()
            settings = {"peft_type": "LORA", "r": rank}
            (tmp_path / name / "adapter_config.json").write_text(json.dumps(settings))
            adapter = str(tmp_path / name)
        items.append(replace(item, model=replace(item.model, adapter=adapter), units=units))
    (joined,) = join(items)
    assert joined.model.adapter == str(tmp_path / "y"), "the engine has room for the largest"
    asked = [((unit.model or joined.model).adapter, unit.question.question_id)
             for unit in joined.units]  # fmt: skip
    names = [str(tmp_path / "x"), str(tmp_path / "y"), None]
    assert asked == [(name, number) for name in names for number in (2, 1)]


def test_engines_know_how_many_conversations_they_are_given_with_a_model():
    """The largest number counts for all engines of the same settings: they are not started anew."""
    items = [work("a", SHORT, *map(single, range(3))), work("b", SHORT, *map(single, range(200)))]
    assert {item.engine.piece for item in with_shares(items, 1, 1)} == {200}
    assert {item.engine.piece for item in with_shares(items, 4, 1)} == {100}, "two engines for each"


def test_each_part_of_a_model_that_is_split_has_some_of_each_benchmark():
    items = [work("a", SHORT, *map(question, range(6))), work("a", LONG, *map(single, range(6)))]
    shards = make_shards(join(items), 2, "run")
    assert len(shards) == 2
    for shard in shards:
        assert [unit.question.benchmark for unit in shard.units].count("checked") == 3


def test_the_longest_shards_come_first_and_of_equally_many_turns_those_of_larger_weights(tmp_path):
    def model(name, size):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "model.safetensors").write_bytes(b"x" * size)
        return str(folder)

    small, large = model("small", 10), model("large", 30)
    items = [work(small, SHORT, question(1)), work(large, SHORT, question(1)),
             work(small, LONG, *map(question, range(4)))]  # fmt: skip

    def order(items):
        return [(s.model.path, len(s.units)) for s in make_shards(items, 1, "run")]

    assert order(items) == [(small, 4), (large, 1), (small, 1)]
    assert order([*items, work("org/elsewhere", SHORT, question(1), question(2))]) == [
        (small, 4), ("org/elsewhere", 2), (small, 1), (large, 1),
    ]  # fmt: skip
