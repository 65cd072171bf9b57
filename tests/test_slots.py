"""One path for all checkpoints of a layout."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np

from mtbench_ray.engines.slots import take_slot


def write_model(folder: Path, width: int = 4, value: float = 1.0) -> Path:
    from safetensors.numpy import save_file

    folder.mkdir()
    save_file({"w": np.full((2, width), value, np.float32)}, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps({"model_type": "llama", "width": width}))
    return folder


def test_checkpoints_of_one_layout_get_one_path_one_after_the_other(tmp_path: Path) -> None:
    one, two = write_model(tmp_path / "one"), write_model(tmp_path / "two", value=2.0)
    first = take_slot(one, tmp_path / "slots")
    assert first is not None
    assert first.leads_to(one)
    first.release()
    second = take_slot(two, tmp_path / "slots")
    assert second is not None
    assert second.path == first.path
    assert second.leads_to(two)
    assert not second.leads_to(one)
    wide = take_slot(write_model(tmp_path / "wide", width=8), tmp_path / "slots")
    assert wide is not None
    assert wide.path != second.path


def test_engines_at_once_get_paths_of_their_own(tmp_path: Path) -> None:
    one, two = write_model(tmp_path / "one"), write_model(tmp_path / "two")
    held = take_slot(one, tmp_path / "slots")
    other = take_slot(two, tmp_path / "slots")
    assert held is not None
    assert other is not None
    assert held.path != other.path
    assert held.leads_to(one)
    assert other.leads_to(two)
    held.release()
    held.release()


def test_a_killed_process_holds_no_slot(tmp_path: Path) -> None:
    model, slots = write_model(tmp_path / "one"), tmp_path / "slots"
    code = (
        "import os, sys; from pathlib import Path\n"
        "from mtbench_ray.engines.slots import take_slot\n"
        "slot = take_slot(Path(sys.argv[1]), Path(sys.argv[2]))\n"
        "print(slot.path, flush=True); os.kill(os.getpid(), 9)"
    )
    killed = subprocess.run(
        [sys.executable, "-c", code, str(model), str(slots)],
        capture_output=True, text=True, check=False, cwd=Path(__file__).parents[1],
    )  # fmt: skip
    assert killed.returncode == -9
    slot = take_slot(model, slots)
    assert slot is not None
    assert str(slot.path) == killed.stdout.strip()


def test_where_no_link_can_be_made_the_checkpoints_own_path_must_do(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert take_slot(write_model(tmp_path / "one"), tmp_path / "file") is None


def test_a_umask_that_lets_the_group_write_does_no_harm(tmp_path: Path) -> None:
    before = os.umask(0o002)
    try:
        assert take_slot(write_model(tmp_path / "one"), tmp_path / "own" / "slots") is not None
    finally:
        os.umask(before)


def test_a_folder_that_others_may_write_is_not_trusted(tmp_path: Path) -> None:
    (tmp_path / "slots").mkdir()
    (tmp_path / "slots").chmod(0o777)
    assert take_slot(write_model(tmp_path / "one"), tmp_path / "slots") is None
