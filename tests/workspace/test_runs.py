import json
import platform
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from mtbench_ray import __version__
from mtbench_ray.errors import UserError
from mtbench_ray.workspace import run_record as runs
from mtbench_ray.workspace.journal import read


def test_run_ids_sort_by_time_and_are_file_names() -> None:
    ids = [runs.start_record(1, "", False).run_id for _ in range(50)]
    assert len(set(ids)) == 50
    assert [run_id[:16] for run_id in ids] == sorted(run_id[:16] for run_id in ids)
    assert all(runs.check_run_id(run_id) == run_id for run_id in ids)


def test_versions_name_what_a_result_depends_on() -> None:
    found = runs.versions()
    assert found["python"] == platform.python_version()
    assert found["mtbench_ray"] == __version__
    assert "ray" in found


def test_the_commit_is_of_this_package_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    git = ["git", "-C", str(tmp_path), "-c", "user.name=x", "-c", "user.email=x@example.org"]
    subprocess.run([*git, "init", "-q"], check=True)
    subprocess.run([*git, "commit", "-q", "--allow-empty", "-m", "x"], check=True)
    copy = tmp_path / "site-packages" / "runs.py"
    copy.parent.mkdir()
    shutil.copy(runs.__file__, copy)
    monkeypatch.setattr(runs, "__file__", str(copy))
    assert runs.git_commit.__wrapped__() == ""
    subprocess.run([*git, "add", str(copy)], check=True)
    assert re.fullmatch(r"[0-9a-f]{40}-dirty", runs.git_commit.__wrapped__())
    subprocess.run([*git, "commit", "-q", "-m", "x"], check=True)
    assert re.fullmatch(r"[0-9a-f]{40}", runs.git_commit.__wrapped__())


def test_timeline_rows_carry_time_and_event(tmp_path: Path) -> None:
    timeline = runs.Timeline(tmp_path / "timeline.jsonl")
    timeline.add("start", model="m", seconds=1.5)
    timeline.add("note", text="a\nb", path=Path("x"))
    timeline.close()
    rows = [row for _, row in read(tmp_path / "timeline.jsonl")]
    assert [row.pop("t") > 1.7e9 for row in rows] == [True, True]
    assert rows == [
        {"event": "start", "model": "m", "seconds": 1.5},
        {"event": "note", "text": "a\nb", "path": "x"},
    ]


@pytest.mark.parametrize("text", ["[]", "{}", '{"run_id": "../x"}', "{", json.dumps("x")])
def test_what_is_no_record_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        runs.parse_record(text)


def test_a_record_of_a_newer_version_is_refused() -> None:
    record = runs.start_record(1, "", False)
    record.schema = 99
    with pytest.raises(ValueError, match="upgrade"):
        runs.parse_record(runs.format_record(record))


def test_paths_are_no_run_ids() -> None:
    for text in ("..", "a/b", "", "20260101T000000Z-abcdef\n"):
        with pytest.raises(UserError):
            runs.check_run_id(text)
