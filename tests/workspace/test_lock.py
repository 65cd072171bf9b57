import errno
import fcntl
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from paths import ROOT

from mtbench_ray.errors import UserError
from mtbench_ray.workspace.lock import WorkspaceLock

HOLD = (
    "import sys, time; from pathlib import Path\n"
    "from mtbench_ray.workspace.lock import WorkspaceLock\n"
    "lock = WorkspaceLock(Path(sys.argv[1])); print('held', flush=True); time.sleep(120)"
)


def holder(root: Path) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(root)],
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    return process


def test_a_live_owner_is_named_and_a_dead_one_is_taken_over(tmp_path: Path) -> None:
    process = holder(tmp_path)
    try:
        with pytest.raises(UserError, match=f"in use by a run on .*, pid {process.pid}, since"):
            WorkspaceLock(tmp_path)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    lock = WorkspaceLock(tmp_path)
    assert json.loads((tmp_path / ".owner.json").read_text())["pid"] == os.getpid()
    lock.release()
    assert not (tmp_path / ".owner.json").exists()


def test_a_torn_note_of_the_owner_is_no_harm(tmp_path: Path) -> None:
    owner = WorkspaceLock(tmp_path)
    (tmp_path / ".owner.json").write_text("torn")
    with pytest.raises(UserError, match="in use by another run"):
        WorkspaceLock(tmp_path)
    owner.release()


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.EOPNOTSUPP])
def test_a_file_system_without_locks_is_told_as_such(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def flock(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", flock)
    with pytest.raises(UserError, match="cannot lock files") as caught:
        WorkspaceLock(tmp_path)
    assert "local disk" in caught.value.hint


def test_a_file_in_the_way_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    for root in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(UserError, match="file") as caught:
            WorkspaceLock(root)
        assert "in the way" in caught.value.hint
