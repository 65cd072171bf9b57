"""Weights swapped in a running engine: what may be swapped, the proof, and the real engine."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from shards import events_of, make_shard, rows_of, run_shard
from variants import write_variant

from mtbench_ray.config import EngineConfig, ModelConfig, SamplingConfig
from mtbench_ray.engines.hot_swap import swap as swapping
from mtbench_ray.engines.hot_swap.swap import eligible, load_folder
from mtbench_ray.engines.hot_swap.verify import Canary, NoProof, check_canary, compare
from mtbench_ray.engines.hot_swap.worker_extension import Comparison
from mtbench_ray.generate.claims import Following
from mtbench_ray.generate.worker import ShardWorker
from mtbench_ray.models.layout import Layout, load_layout
from mtbench_ray.schema import EngineEvent

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 16,
    "hidden_size": 4,
    "eos_token_id": 2,
    "torch_dtype": "float32",
}
TENSORS = {
    "model.embed_tokens.weight": (16, 4),
    "lm_head.weight": (16, 4),
    "model.norm.weight": (4,),
}


def write_layout(
    folder: Path,
    tensors: dict[str, tuple[int, ...]] | None = None,
    numbers: Any = np.float32,
    **config: Any,
) -> Layout:
    from safetensors.numpy import save_file

    folder.mkdir()
    shapes = TENSORS if tensors is None else tensors
    save_file({n: np.ones(s, numbers) for n, s in shapes.items()}, folder / "model.safetensors")
    merged = {k: v for k, v in (CONFIG | config).items() if v is not None}
    (folder / "config.json").write_text(json.dumps(merged))
    return load_layout(folder)


@pytest.fixture
def old(tmp_path: Path) -> Layout:
    return write_layout(tmp_path / "old")


@pytest.mark.parametrize(
    "config",
    [
        {},
        {"_name_or_path": "elsewhere", "transformers_version": "1.2"},
        {"torch_dtype": None, "dtype": "float32"},
        {"eos_token_id": [2, 3], "pad_token_id": 0},
    ],
)
def test_names_and_end_tokens_do_not_matter(
    old: Layout, tmp_path: Path, config: dict[str, Any]
) -> None:
    new = write_layout(tmp_path / "new", **config)
    assert eligible(old, new, EngineConfig()) == ""
    assert new.key == old.key


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ({"rope_theta": 500.0}, "rope_theta"),
        ({"vocab_size": 17}, "vocab_size"),
        ({"torch_dtype": "bfloat16"}, "dtype"),
        ({"quantization_config": {"bits": 4}}, "quantised"),
        ({"num_experts": 8}, "mixture of experts"),
        ({"vision_config": {}}, "text model"),
        ({"auto_map": {"AutoModel": "own.Model"}}, "code of its own"),
        ({"tie_word_embeddings": True}, "tie_word_embeddings"),
    ],
)
def test_another_config_is_refused(
    old: Layout, tmp_path: Path, config: dict[str, Any], reason: str
) -> None:
    new = write_layout(tmp_path / "new", **config)
    assert reason in eligible(old, new, EngineConfig())


def test_a_missing_tensor_is_refused(old: Layout, tmp_path: Path) -> None:
    fewer = {name: shape for name, shape in TENSORS.items() if "head" not in name}
    new = write_layout(tmp_path / "new", fewer)
    assert eligible(old, new, EngineConfig()) == "1 tensors are missing: lm_head.weight"
    assert eligible(new, old, EngineConfig()) == "1 tensors more: lm_head.weight"


def test_other_shapes_and_types_are_refused(old: Layout, tmp_path: Path) -> None:
    wide = write_layout(tmp_path / "wide", TENSORS | {"lm_head.weight": (17, 4)})
    half = write_layout(tmp_path / "half", numbers=np.float16)
    assert "another shape or type: lm_head.weight" in eligible(old, wide, EngineConfig())
    assert "3 tensors of another shape" in eligible(old, half, EngineConfig())


def test_weights_that_are_not_safetensors_are_refused(old: Layout, tmp_path: Path) -> None:
    new = write_layout(tmp_path / "new")
    (tmp_path / "new" / "model.safetensors").rename(tmp_path / "new" / "pytorch_model.bin")
    new = load_layout(tmp_path / "new")
    assert eligible(old, new, EngineConfig()) == "no safetensors files here"


def test_settings_that_rule_a_swap_out(old: Layout) -> None:
    assert eligible(old, old, EngineConfig(hot_swap="off")) == "engine.hot_swap=off"
    assert eligible(old, old, EngineConfig(quantization="fp8")) == "quantised weights"


def test_an_architecture_whose_swap_went_wrong_is_not_tried_again(
    old: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(swapping, "_excluded", {})
    swapping.exclude(old, "the head stayed")
    assert "the head stayed" in eligible(old, old, EngineConfig())


class Rpc:
    """Stands in for an engine whose workers report ``found``."""

    def __init__(self, *found: dict[str, list[str]]) -> None:
        self.found = found

    async def collective_rpc(self, method: str, args: tuple[str]) -> list[dict[str, list[str]]]:
        return [
            {field: [] for field in Comparison.__dataclass_fields__} | worker
            for worker in self.found
        ]


def test_workers_together_must_have_compared_every_tensor() -> None:
    names = frozenset("ab")
    both = Rpc({"compared": ["a"], "changed": ["a"]}, {"compared": ["a", "b"]})
    assert asyncio.run(compare(both, Path(), names)) == 1
    with pytest.raises(NoProof, match="1 tensors were not compared: b"):
        asyncio.run(compare(Rpc({"compared": ["a"]}), Path(), names))


@pytest.mark.parametrize("fault", ["wrong", "moved", "unplaced", "uncovered"])
def test_one_worker_with_one_bad_tensor_is_enough(fault: str) -> None:
    good, bad = {"compared": ["a"]}, {"compared": ["a"], fault: ["a"]}
    with pytest.raises(NoProof, match=r"1 of 1 tensors .*: a"):
        asyncio.run(compare(Rpc(good, bad), Path(), frozenset("a")))


def test_canary_must_change_when_weights_do() -> None:
    one, other = Canary((1, 2), (-0.5,)), Canary((1, 2), (-0.25,))
    check_canary(one, other, changed=3)
    check_canary(one, one, changed=0)
    with pytest.raises(NoProof, match="answers as before"):
        check_canary(one, one, changed=1)


SETTINGS: dict[str, Any] = {
    "kind": "vllm",
    "max_model_len": 192,
    "cpu_kv_cache_gb": 1.0,
    "max_num_seqs": 4,
    "next_weights": "host",
}


@pytest.fixture(scope="module")
def base() -> Path:
    pytest.importorskip("vllm")
    from mtbench_ray.models.demo_model import demo_model

    return demo_model()


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("variants")


@pytest.fixture(scope="module")
def other(base: Path, root: Path) -> Path:
    return write_variant(base, root / "other", seed=1)


@pytest.fixture(scope="module")
def worker() -> Iterator[ShardWorker]:
    worker = ShardWorker()
    yield worker
    worker.close()


def ask(
    worker: ShardWorker, folder: Path, following: Path | None = None, **settings: Any
) -> tuple[EngineEvent, str, list[str]]:
    """The one event of a small shard, where its answers came from, and their texts."""
    shard = make_shard(
        [1, 2],
        model=ModelConfig(path=str(folder)),
        sampling=SamplingConfig(temperature=0.0, max_tokens=12),
        **(SETTINGS | settings),
    )
    coming = None if following is None else ModelConfig(path=str(following))
    outputs = run_shard(shard, worker, Following(coming is not None, lambda: coming))
    rows = rows_of(outputs)
    assert {row.status for row in rows.values()} <= {"ok", "truncated"}, rows
    (origin,) = {row.engine_origin for row in rows.values()}
    assert len(events_of(outputs)) == 1, outputs
    (event,) = [output for output in outputs if isinstance(output, EngineEvent)]
    return event, origin, [rows[key].raw for key in sorted(rows)]


@pytest.fixture(scope="module")
def there_and_back(worker: ShardWorker, base: Path, other: Path) -> list[Any]:
    """The first swap is made ready while the base answers, the second is not."""
    return [ask(worker, base, other), ask(worker, other), ask(worker, base)]


@pytest.mark.engine
@pytest.mark.timeout(600)
def test_swap_there_and_back(there_and_back: list[Any]) -> None:
    (first, *_), (second, *_), (third, *_) = there_and_back
    assert [event.kind for event in (first, second, third)] == ["start", "swap", "swap"]
    assert [origin for _, origin, _ in there_and_back] == ["cold", "swap", "swap"]
    texts = [answers for _, _, answers in there_and_back]
    assert texts[0] == texts[2] != texts[1]
    assert "273 tensors compared, 273 changed" in second.detail
    assert "nats from a reference" in second.detail
    assert "reference" not in third.detail
    assert "from host memory" in second.detail
    assert "from files" in third.detail


@pytest.mark.engine
@pytest.mark.timeout(600)
@pytest.mark.parametrize("held", ["in the engine", "made ready"])
def test_new_weights_at_the_same_path_are_loaded(
    held: str, there_and_back: list[Any], worker: ShardWorker, base: Path, other: Path, root: Path
) -> None:
    """Whether the old ones are in the engine or wait for it; the engine goes on."""
    folder = write_variant(base, root / held, seed=2)
    _, _, before = ask(worker, folder) if held == "in the engine" else ask(worker, base, folder)
    write_variant(base, folder, seed=1)
    event, origin, after = ask(worker, folder)
    assert (event.kind, origin) == ("swap", "swap")
    assert "from files" in event.detail
    assert after == there_and_back[1][2] != before


@pytest.mark.engine
@pytest.mark.timeout(600)
def test_a_next_checkpoint_that_goes_away_does_not_harm_this_one(
    there_and_back: list[Any], worker: ShardWorker, base: Path, other: Path, root: Path
) -> None:
    """Training removes old checkpoints while a sweep runs."""
    torn = write_variant(base, root / "torn", seed=7)
    file = torn / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    for number, (folder, following) in enumerate(((base, torn), (other, root / "gone"))):
        event, _, answers = ask(worker, folder, following)
        assert event.kind == "swap"
        assert answers == there_and_back[number][2]


@pytest.mark.engine
@pytest.mark.timeout(600)
def test_proof_sees_what_a_reload_does_not_tell(
    there_and_back: list[Any], worker: ShardWorker, base: Path, root: Path
) -> None:
    """A call that did nothing, a missing tensor, wrong shapes: each let through on purpose.

    On the running engine itself, behind the worker's back; the last test of this engine.
    """
    from safetensors.torch import load_file, save_file

    llm = worker._engine._core.llm  # type: ignore[union-attr]
    held = worker._engine._core.loaded  # type: ignore[union-attr]
    new = write_variant(base, root / "unloaded", seed=3)
    names = frozenset(held.layout.tensors)

    def on_loop(work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, worker._loop).result()

    assert on_loop(compare(llm, held.folder, names)) == 0
    with pytest.raises(NoProof, match="273 of 273 tensors differ from the files"):
        on_loop(compare(llm, new, names))
    tensors = load_file(new / "model.safetensors")
    del tensors["model.layers.7.mlp.down_proj.weight"]
    save_file(tensors, new / "model.safetensors", metadata={"format": "pt"})
    on_loop(swapping._load(llm, new))
    with pytest.raises(NoProof, match=r"in no file: model.layers.7.mlp.down_proj.weight"):
        on_loop(compare(llm, new, names))
    narrow = load_folder(write_variant(base, root / "narrow", seed=6, intermediate_size=768))
    with pytest.raises(NoProof, match="the swap failed"):
        on_loop(swapping.swap(llm, held, narrow))


@pytest.mark.engine
@pytest.mark.timeout(600)
def test_a_tied_head_that_stays_is_caught_and_a_fresh_engine_answers(
    there_and_back: list[Any], worker: ShardWorker, base: Path, root: Path
) -> None:
    """vLLM packs a copy of a tied head for the types that a CPU multiplies fast, and those are
    chosen: float32, or bfloat16 with avx512_bf16 or AMX. Only a packed copy can stay."""
    tied = [
        write_variant(base, root / f"tied-{n}", n, layers=4, tie_word_embeddings=True)
        for n in (4, 5)
    ]
    event, origin, _ = ask(worker, tied[0])
    assert (event.kind, origin) == ("start", "cold")
    assert "no swap: another config.json: num_hidden_layers, tie_word_embeddings" in event.detail
    event, origin, _ = ask(worker, tied[1])
    assert (event.kind, origin) == ("start", "cold")
    assert "swap given up: 1 of 38 tensors differ from the files" in event.detail
    assert "embed_tokens" in event.detail


@pytest.mark.engine
@pytest.mark.timeout(600)
def test_verify_compares_with_a_fresh_engine(
    there_and_back: list[Any], worker: ShardWorker, base: Path, other: Path
) -> None:
    """The fresh engine also says that the answers after the first swap were right."""
    first, _, answers = ask(worker, base, hot_swap="verify")
    event, origin, fresh = ask(worker, other, hot_swap="verify")
    assert [first.kind, event.kind, origin] == ["start", "start", "cold"]
    assert event.detail.startswith("swap verified: the same tokens")
    assert answers == there_and_back[0][2]
    assert fresh == there_and_back[1][2]


def test_torn_new_weights_are_the_new_models_fault(tmp_path: Path) -> None:
    from mtbench_ray.errors import UserError

    write_layout(tmp_path / "new")
    file = tmp_path / "new" / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-8])
    with pytest.raises(UserError, match="shorter than its header"):
        load_folder(tmp_path / "new")
