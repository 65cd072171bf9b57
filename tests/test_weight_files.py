"""Which files of a folder an engine loads, and that its identity covers all of them."""

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from mtbench_ray.engines.checkpoint import folder_hash, weight_files
from mtbench_ray.engines.swap import load_layout
from mtbench_ray.errors import UserError

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


def test_identity_covers_files_that_are_not_loaded(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, "consolidated.safetensors", "model.safetensors")
    before = folder_hash(folder)
    save_file({"w0": np.ones((256, 1024), np.float16)}, folder / "consolidated.safetensors")
    assert folder_hash(folder) != before
