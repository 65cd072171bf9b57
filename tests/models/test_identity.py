"""Fingerprints, answer ids and the checks before any engine starts."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checkpoints import write_checkpoint
from safetensors.numpy import save_file

from mtbench_ray.config import EngineConfig, JudgeConfig, ModelConfig, SamplingConfig
from mtbench_ray.errors import UserError
from mtbench_ray.models import checkpoint
from mtbench_ray.models.fingerprint import answer_id, check_local_judge, check_prompts, fingerprint
from mtbench_ray.schema import Message, Question

TEMPLATE = "{% for m in messages %}{{ m['content'] }}{% endfor %}"
MODEL = ModelConfig(path="org/model")
ENGINE = EngineConfig()
SAMPLING = SamplingConfig()
QUESTION = Question("mt_bench", 120, "math", ("One?", "Two?"), temperature=0.0)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return with_weights(write_checkpoint(tmp_path / "step_1", TEMPLATE))


def with_weights(folder: Path, change: float = 0.0, at: int = 0) -> Path:
    tensors = {f"layer.{i}": np.full((64, 64), i, dtype=np.float32) for i in range(4)}
    tensors["layer.2"][at, at] += change
    save_file(tensors, folder / "model.safetensors")
    return folder


def of(folder: Path, **settings: Any) -> str:
    return fingerprint(ModelConfig(path=str(folder), **settings))


def test_copy_move_and_touch_keep_the_fingerprint(folder: Path, tmp_path: Path) -> None:
    before = of(folder)
    copy = tmp_path / "elsewhere" / "step_1_copy"
    shutil.copytree(folder, copy)
    os.utime(copy / "model.safetensors", (1, 1))
    assert of(copy) == before
    assert of(folder.rename(tmp_path / "moved")) == before


def test_new_weights_at_the_same_path_change_the_fingerprint(folder: Path) -> None:
    before = of(folder)
    assert of(with_weights(folder, change=0.001, at=31)) != before
    assert of(with_weights(folder)) == before


@pytest.mark.parametrize(
    "name", ["config.json", "tokenizer.json", "chat_template.jinja", "generation_config.json"]
)
def test_configs_and_tokenizer_count(folder: Path, name: str) -> None:
    before = of(folder)
    with (folder / name).open("a") as file:
        file.write(" ")
    assert of(folder) != before


@pytest.mark.parametrize(
    "name",
    [
        "spiece.model", "sentencepiece.bpe.model", "tokenizer.model", "tokenizer.json",
        "tokenizer_config.json", "tokenizer.model.v3", "vocab.txt", "vocab.json", "merges.txt",
        "special_tokens_map.json", "added_tokens.json", "tekken.json", "qwen.tiktoken",
        "chat_template.jinja", "chat_template.json", "additional_chat_templates/x.jinja",
        "modeling_my.py", "configuration_my.py", "tokenization_my.py", "generation_config.json",
    ],
)  # fmt: skip
def test_a_new_file_of_tokenizer_or_code_and_its_change_are_another_model(
    folder: Path, name: str
) -> None:
    (folder / name).unlink(missing_ok=True)
    prints = [of(folder)]
    (folder / name).parent.mkdir(exist_ok=True)
    for text in ("{}", '{"a": 1}'):
        (folder / name).write_text(text)
        prints.append(of(folder))
    assert len(set(prints)) == 3
    (folder / name).write_text("{}")
    assert of(folder) == prints[1]


@pytest.mark.parametrize(
    "name", ["README.md", "trainer_state.json", "training_args.bin", "optimizer.pt", "scheduler.pt",
             "rng_state.pth", "events.out.tfevents.1", "LICENSE", "all_results.json"]
)  # fmt: skip
def test_what_a_trainer_leaves_beside_a_model_does_not_count(folder: Path, name: str) -> None:
    before = of(folder)
    (folder / name).write_text("x")
    assert of(folder) == before


@pytest.mark.parametrize("tensor", range(4))
def test_large_checkpoints_are_sampled_in_every_tensor(
    folder: Path, tensor: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoint, "_HASH_WHOLE_BELOW", 0)
    before = of(folder)
    tensors = {f"layer.{i}": np.full((64, 64), i, dtype=np.float32) for i in range(4)}
    tensors[f"layer.{tensor}"] += 1
    save_file(tensors, folder / "model.safetensors")
    assert of(folder) != before


def test_pickled_weights_are_sampled_too(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint, "_HASH_WHOLE_BELOW", 0)
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(b"a" * 1_000_000)
    before = of(folder)
    (folder / "pytorch_model.bin").write_bytes(b"b" * 1_000_000)
    assert of(folder) != before


def test_fingerprint_of_a_large_checkpoint_is_quick(tmp_path: Path) -> None:
    """A hole of 15 GB with the tensors of a 7B model; no disk is written."""
    folder = write_checkpoint(tmp_path / "large", TEMPLATE)
    size, count = 44_000_000, 340
    header = json.dumps(
        {
            f"t{i}": {"dtype": "U8", "shape": [size], "data_offsets": [i * size, (i + 1) * size]}
            for i in range(count)
        }
    ).encode()
    with (folder / "model.safetensors").open("wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        file.truncate(8 + len(header) + size * count)
    times = []
    for _ in range(3):
        began = time.perf_counter()
        of(folder)
        times.append(time.perf_counter() - began)
    assert min(times) < 0.5


def test_torn_weights_are_named(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint, "_HASH_WHOLE_BELOW", 0)
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    with pytest.raises(UserError, match=r"model\.safetensors"):
        of(folder)


def test_adapter_adds_its_own_content(folder: Path, tmp_path: Path) -> None:
    adapter = tmp_path / "adapter"
    adapter.mkdir()
    with pytest.raises(UserError, match=r"adapter_config\.json"):
        of(folder, adapter=str(adapter))
    (adapter / "adapter_config.json").write_text('{"r": 8}')
    save_file({"a": np.ones(8, dtype=np.float32)}, adapter / "adapter_model.safetensors")
    one = of(folder, adapter=str(adapter))
    save_file({"a": np.zeros(8, dtype=np.float32)}, adapter / "adapter_model.safetensors")
    assert len({of(folder), one, of(folder, adapter=str(adapter))}) == 3


def id_of(
    model: ModelConfig = MODEL,
    engine: EngineConfig = ENGINE,
    sampling: SamplingConfig = SAMPLING,
    question: Question = QUESTION,
    sample: int = 0,
    print_of: str = "f",
) -> str:
    return answer_id(model, engine, sampling, question, sample, print_of)


def changed(settings: Any, **values: Any) -> Any:
    return dataclasses.replace(settings, **values)


@pytest.mark.parametrize(
    "other",
    [
        {"print_of": "g"},
        {"sample": 1},
        {"model": changed(MODEL, system_prompt="Be kind.")},
        {"model": changed(MODEL, thinking="on")},
        {"model": changed(MODEL, stop=["x"])},
        {"model": changed(MODEL, chat_template="plain")},
        {"engine": changed(ENGINE, dtype="float32")},
        {"engine": changed(ENGINE, max_model_len=512)},
        {"engine": changed(ENGINE, args={"seed": 1})},
        {"engine": changed(ENGINE, kind="openai")},
        {"sampling": changed(SAMPLING, temperature=0.5)},
        {"sampling": changed(SAMPLING, max_tokens=10)},
        {"sampling": changed(SAMPLING, seed=1)},
        {"question": changed(QUESTION, turns=("One?", "Three?"))},
        {"question": changed(QUESTION, question_id=121)},
        {"question": changed(QUESTION, temperature=0.3)},
        {"question": changed(QUESTION, context=(Message("user", "Hi"),))},
    ],
)
def test_what_changes_an_answer_changes_its_id(other: dict[str, Any]) -> None:
    assert id_of(**other) != id_of()


@pytest.mark.parametrize(
    "other",
    [
        {"model": changed(MODEL, name="a label")},
        {"model": changed(MODEL, path="/another/place")},
        {"model": changed(MODEL, steps=[1])},
        {"engine": changed(ENGINE, replicas=4, max_num_seqs=2, tensor_parallel=2)},
        {"engine": changed(ENGINE, fake_seconds_per_token=1.0, stall_s=1.0, concurrency=1)},
        {"sampling": changed(SAMPLING, samples=5)},
        {"sampling": changed(SAMPLING, temperature=0.0)},  # the question is greedy anyway
        {"question": changed(QUESTION, references=("r",), tags=("t",), revision="x")},
    ],
)
def test_what_does_not_change_an_answer_keeps_its_id(other: dict[str, Any]) -> None:
    assert id_of(**other) == id_of()


def test_template_file_counts_by_content(tmp_path: Path) -> None:
    first, second = tmp_path / "a.jinja", tmp_path / "b.jinja"
    first.write_text("one")
    second.write_text("one")
    ids = [id_of(changed(MODEL, chat_template=str(path))) for path in (first, second)]
    second.write_text("two")
    assert ids[0] == ids[1] != id_of(changed(MODEL, chat_template=str(second)))


def test_endpoint_ids_depend_on_address_and_model_name() -> None:
    engine = EngineConfig(kind="openai", base_url="http://a/v1")
    assert id_of(engine=engine) != id_of(engine=changed(engine, base_url="http://b/v1"))
    assert id_of(engine=engine) != id_of(changed(MODEL, path="other"), engine)
    assert id_of(engine=engine) == id_of(engine=changed(engine, dtype="float32", timeout_s=1.0))


def test_the_least_length_of_a_reply_counts_where_it_is_asked_for() -> None:
    engine = EngineConfig(kind="openai", base_url="http://a/v1")
    ids = [id_of(engine=changed(engine, min_response_length=least)) for least in (0, 5, 6)]
    assert ids[0] == id_of(engine=engine)
    assert len(set(ids)) == 3
    assert id_of(engine=changed(ENGINE, min_response_length=5)) == id_of()


def test_check_has_nothing_to_say_of_an_ordinary_model(folder: Path) -> None:
    assert check_prompts(ModelConfig(path=str(folder), system_prompt="S"), ENGINE) == []


def test_check_notes_what_may_surprise(tmp_path: Path) -> None:
    source = "{{ strftime_now('%d') }}{{ messages[0]['content'] if messages|length == 1 }}"
    folder = with_weights(write_checkpoint(tmp_path / "m", source))
    engine = EngineConfig(max_model_len=4096)
    notes = check_prompts(ModelConfig(path=str(folder), system_prompt="S"), engine)
    assert [word for note in notes for word in ("system role", "date", "4096") if word in note] == [
        "system role",
        "date",
        "4096",
    ]


def test_a_torn_weight_file_is_told_before_an_engine_is_started(folder: Path) -> None:
    check_local_judge(JudgeConfig(kind="local", model=str(folder)))
    whole = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(whole[:-10])
    with pytest.raises(UserError, match="shorter than its header says"):
        check_prompts(ModelConfig(path=str(folder)), ENGINE)
    with pytest.raises(UserError, match="shorter than its header says"):
        check_local_judge(JudgeConfig(kind="local", model=str(folder)))


def test_a_local_judge_that_is_not_there_is_told_at_once(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no such folder"):
        check_local_judge(JudgeConfig(kind="local", model=str(tmp_path / "none")))
    check_local_judge(JudgeConfig(kind="local", model="org/of-the-hub"))
    check_local_judge(JudgeConfig(model="gpt-4o"))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda p: p / "missing", "no such folder"),
        (lambda p: p, "not a model folder"),
        (lambda p: p / "model.gguf", "GGUF"),
    ],
)
def test_what_is_no_model_is_refused(tmp_path: Path, make: Any, message: str) -> None:
    (tmp_path / "notes.txt").write_text("x")
    with pytest.raises(UserError, match=message):
        of(make(tmp_path))


def test_folder_of_gguf_files_is_refused(tmp_path: Path) -> None:
    (tmp_path / "q4.gguf").write_bytes(b"GGUF")
    with pytest.raises(UserError, match="GGUF"):
        of(tmp_path)


def test_hub_id_that_cannot_be_reached(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(UserError, match="org/no-such-model"):
        fingerprint(ModelConfig(path="org/no-such-model"))


def test_hub_id_counts_by_its_commit(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    commit = "c0ffee" * 6 + "beef"
    snapshot = folder.rename(folder.parent / commit)
    monkeypatch.setattr(
        "huggingface_hub.hf_hub_download", lambda *_, **__: str(snapshot / "config.json")
    )
    assert fingerprint(ModelConfig(path="org/model", revision="main")) == f"org/model@{commit}"


def test_endpoint_and_fake_need_no_files() -> None:
    assert fingerprint(MODEL, "openai") == ""
    assert fingerprint(ModelConfig(path="a"), "fake") != fingerprint(ModelConfig(path="b"), "fake")
    with pytest.raises(UserError, match="no model is named"):
        fingerprint(ModelConfig(path=""), "openai")


def test_a_hub_that_is_out_of_reach_is_told_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import constants

    def no_name(*_: object) -> None:
        raise OSError("no such name")

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr("urllib.request.getproxies", dict)
    monkeypatch.setattr("socket.getaddrinfo", no_name)
    began = time.monotonic()
    with pytest.raises(UserError) as error:
        checkpoint.locate(ModelConfig(path="org/nowhere"))
    assert "this machine does not find" in error.value.message
    assert time.monotonic() - began < 5
