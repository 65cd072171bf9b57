"""Which files of a folder an engine loads, and that its identity covers all of them."""

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from mtbench_ray.errors import UserError
from mtbench_ray.models.checkpoint import check_weights, folder_hash, weight_files
from mtbench_ray.models.layout import load_layout

FIRST, SECOND = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"


def folder_of(tmp_path: Path, *names: str, indexed: tuple[str, ...] = ()) -> Path:
    (tmp_path / "config.json").write_text("{}")
    for number, name in enumerate(names):
        save_file({f"w{number}": np.zeros((256, 1024), np.float16)}, tmp_path / name)
    if indexed:
        index = {"weight_map": {f"w{names.index(name)}": name for name in indexed}}
        (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    return tmp_path


@pytest.mark.parametrize(
    ("names", "indexed", "loaded"),
    [
        ((FIRST, SECOND), (FIRST, SECOND), (FIRST, SECOND)),
        ((FIRST, SECOND, "consolidated.safetensors"), (FIRST, SECOND), (FIRST, SECOND)),
        ((FIRST, "old.safetensors"), (FIRST,), (FIRST,)),
        (("consolidated.safetensors", "model.safetensors"), (), ("model.safetensors",)),
        (("adapter_model.safetensors", "model.safetensors"), (), ("model.safetensors",)),
        (("consolidated.safetensors",), (), ("consolidated.safetensors",)),
        (("adapter_model.safetensors",), (), ("adapter_model.safetensors",)),
        (("a.safetensors", "b.safetensors"), (), ("a.safetensors", "b.safetensors")),
    ],
)
def test_weights_that_lie_there_twice_count_once(
    names: tuple[str, ...], indexed: tuple[str, ...], loaded: tuple[str, ...], tmp_path: Path
) -> None:
    folder = folder_of(tmp_path, *names, indexed=indexed)
    assert tuple(file.name for file in weight_files(folder)) == loaded
    assert load_layout(folder).least_gb * 2**10 == 0.5 * len(loaded)


def test_an_index_that_names_nothing_of_the_folder_is_passed_over(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, "model.safetensors")
    (folder / "model.safetensors.index.json").write_text('{"weight_map": {"w": "gone"}}')
    assert [file.name for file in weight_files(folder)] == ["model.safetensors"]


@pytest.mark.parametrize("text", ["{", "[]", '{"weight_map": 3}'])
def test_a_torn_index_is_told(text: str, tmp_path: Path) -> None:
    folder = folder_of(tmp_path, "model.safetensors")
    (folder / "model.safetensors.index.json").write_text(text)
    with pytest.raises(UserError, match=r"model\.safetensors\.index\.json"):
        weight_files(folder)


@pytest.mark.parametrize(
    ("names", "indexed", "missing"),
    [
        ((FIRST,), (FIRST, SECOND), SECOND),
        ((FIRST,), (), SECOND),
        ((SECOND,), (), FIRST),
        (("a.safetensors",), ("a.safetensors", "b.safetensors"), "b.safetensors"),
    ],
)
def test_a_missing_shard_is_named(
    names: tuple[str, ...], indexed: tuple[str, ...], missing: str, tmp_path: Path
) -> None:
    folder = folder_of(tmp_path, *names)
    if indexed:
        text = json.dumps({"weight_map": {f"w{n}": name for n, name in enumerate(indexed)}})
        (folder / "model.safetensors.index.json").write_text(text)
    with pytest.raises(UserError, match=f"lacks weights: {missing}"):
        check_weights(folder)


@pytest.mark.parametrize("names", [(FIRST, SECOND), ("model.safetensors",), ("a.safetensors",)])
def test_whole_folders_pass(names: tuple[str, ...], tmp_path: Path) -> None:
    folder = folder_of(tmp_path, *names)
    check_weights(folder)
    (folder / "pytorch_model.bin.index.json").write_text('{"weight_map": {"w": "gone.bin"}}')
    check_weights(folder)


@pytest.mark.parametrize(
    ("beside", "said", "hint"),
    [
        ((), "holds no weights", "still being written"),
        (("training_args.bin", "rng_state_0.pth"), "holds no weights", "still being written"),
        (("zero_to_fp32.py", "training_args.bin"), "sharded state", "zero_to_fp32"),
        (("global_step40/",), "sharded state", "zero_to_fp32"),
        (("__0_0.distcp",), "sharded state", "merge-weights"),
        (("pytorch_model_fsdp_0/", "optimizer.bin"), "sharded state", "merge-weights"),
    ],
)
def test_a_folder_without_weights_is_told(
    beside: tuple[str, ...], said: str, hint: str, tmp_path: Path
) -> None:
    folder = folder_of(tmp_path)
    for name in beside:
        (folder / name).mkdir() if name.endswith("/") else (folder / name).write_text("")
    with pytest.raises(UserError, match=said) as caught:
        check_weights(folder)
    assert hint in caught.value.hint


def test_identity_covers_files_that_are_not_loaded(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, "consolidated.safetensors", "model.safetensors")
    before = folder_hash(folder)
    save_file({"w0": np.ones((256, 1024), np.float16)}, folder / "consolidated.safetensors")
    assert folder_hash(folder) != before
