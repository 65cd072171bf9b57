"""The scripts of launch/, run for real in a copy whose .venv holds a stub of Python."""

import os
import re
import shutil
import subprocess
import time
from pathlib import Path

import pytest
from paths import ROOT

LAUNCH = ROOT / "launch"

STUB = """\
#!/usr/bin/env bash
# Writes its arguments down and fails where they contain $STUB_FAILS.
printf '%s\\n' "$*" | tr '\\n' ' ' >>"$STUB_CALLS"
echo >>"$STUB_CALLS"
if [ -n "$STUB_FAILS" ] && [[ "$*" == *$STUB_FAILS* ]]; then
  echo "stub: refused" >&2
  exit 7
fi
"""


class Checkout:
    def __init__(self, root: Path) -> None:
        self.root = root
        shutil.copytree(LAUNCH, root / "launch")
        (root / "pyproject.toml").write_text("[project]\n")
        self.python = root / ".venv" / "bin" / "python"
        self.python.parent.mkdir(parents=True)
        self.python.write_text(STUB)
        self.python.chmod(0o755)
        self.bin = root / "path"
        self.bin.mkdir()
        self.log = root / "calls"
        self.log.write_text("")

    def run(self, script: str, *args: str, **env: str) -> subprocess.CompletedProcess[str]:
        """Run one script from another folder."""
        full = {**os.environ, "STUB_CALLS": str(self.log), "STUB_FAILS": "", **env}
        full["PATH"] = f"{self.bin}:{full['PATH']}"
        if "MTBENCH_RAY_EXTRA" not in env:
            full.pop("MTBENCH_RAY_EXTRA", None)
        command = ["bash", str(self.root / "launch" / script), *args]
        return subprocess.run(
            command, capture_output=True, text=True, env=full, cwd="/", check=False
        )

    def calls(self, words: str = "") -> list[str]:
        """Calls of the stub since the last time, those with ``words``."""
        lines = self.log.read_text().splitlines()
        self.log.write_text("")
        return [line.strip() for line in lines if words in line]

    def program(self, name: str, body: str) -> Path:
        path = self.bin / name
        path.write_text(f"#!/usr/bin/env bash\n{body}\n")
        path.chmod(0o755)
        return path


@pytest.fixture
def checkout(tmp_path):
    made = Checkout(tmp_path / "a path with spaces")
    made.program("nvidia-smi", "exit 1")
    return made


def test_set_up_installs_once(checkout):
    done = checkout.run("setup.sh")
    assert done.returncode == 0, done.stderr
    (install,) = checkout.calls("pip --disable-pip-version-check install")
    assert install.endswith(f"-e {checkout.root}[cpu,demo]")
    assert "index" not in install
    begun = time.monotonic()
    again = checkout.run("setup.sh")
    assert time.monotonic() - begun < 1.0
    assert (again.returncode, again.stderr, checkout.calls()) == (0, "", [])


def test_set_up_follows_pyproject_and_extras(checkout):
    checkout.run("setup.sh")
    checkout.calls()
    checkout.run("setup.sh", "dev")
    (install,) = checkout.calls("install --no-input")
    assert install.endswith("[cpu,demo,dev]")
    checkout.run("setup.sh")
    assert checkout.calls() == [], "what the tests need includes what the demo needs"
    (checkout.root / "pyproject.toml").write_text("[project]\nname = 'x'\n")
    checkout.run("setup.sh")
    assert len(checkout.calls("install --no-input")) == 1


def test_a_gpu_takes_the_gpu_extra_and_never_mixes(checkout):
    checkout.program("nvidia-smi", "echo 'GPU 0: a card (UUID: none)'")
    assert checkout.run("setup.sh").returncode == 0
    (install,) = checkout.calls("install --no-input")
    assert install.endswith("[gpu,demo]")
    checkout.program("nvidia-smi", "exit 9")
    refused = checkout.run("setup.sh")
    assert refused.returncode == 2
    assert "was set up for gpu, and this machine wants cpu" in refused.stderr
    assert checkout.calls() == []
    assert checkout.run("setup.sh", MTBENCH_RAY_EXTRA="gpu").returncode == 0


def test_only_what_does_not_import_is_removed(checkout):
    done = checkout.run("setup.sh", STUB_FAILS="import torchvision")
    assert done.returncode == 0, done.stderr
    assert [c.split()[-1] for c in checkout.calls("uninstall")] == ["torchvision"]
    assert "removing torchvision" in done.stderr


@pytest.mark.parametrize("fails", ["install --no-input", "import ray.data, vllm"])
def test_a_failed_step_shows_its_words_and_is_tried_again(checkout, fails):
    failed = checkout.run("setup.sh", STUB_FAILS=fails)
    assert failed.returncode == 2
    assert "stub: refused" in failed.stderr
    assert str(checkout.root / ".venv" / "setup.log") in failed.stderr
    checkout.calls()
    assert checkout.run("setup.sh").returncode == 0
    assert len(checkout.calls("install --no-input")) == 1


def test_a_missing_cpu_build_of_torch_is_explained(checkout):
    checkout.python.write_text(STUB.replace("stub: refused", "x depends on torch==2.13.0+cpu; y"))
    failed = checkout.run("setup.sh", STUB_FAILS="install --no-input")
    assert failed.returncode == 2
    assert "PyTorch's own index" in failed.stderr
    assert "PYTHON=" in failed.stderr


def test_no_fitting_python_is_said_in_words(checkout):
    shutil.rmtree(checkout.root / ".venv")
    old = checkout.program("old", '[ "$1" = -V ] && { echo Python 3.9.1; exit 0; }; exit 1')
    done = checkout.run("setup.sh", PYTHON=str(old))
    assert done.returncode == 2
    assert "no Python from 3.11 to 3.14 found" in done.stderr
    assert "Python 3.9.1" in done.stderr
    assert "PYTHON=" in done.stderr


def test_a_python_without_venv_is_said_in_words(checkout):
    shutil.rmtree(checkout.root / ".venv")
    bare = checkout.program("bare", 'case "$*" in *ensurepip*) exit 1 ;; esac')
    done = checkout.run("setup.sh", PYTHON=str(bare))
    assert done.returncode == 2
    assert "no venv or ensurepip module" in done.stderr
    assert "python3-venv" in done.stderr


def test_a_folder_that_is_no_environment_is_left_alone(checkout):
    checkout.python.unlink()
    (checkout.root / ".venv" / "kept").write_text("")
    done = checkout.run("setup.sh")
    assert done.returncode == 2
    assert "is no virtual environment" in done.stderr
    assert (checkout.root / ".venv" / "kept").exists()


def test_a_missing_environment_is_made(checkout):
    """With a Python that makes an environment out of the stub."""
    stub = checkout.python.read_text()
    shutil.rmtree(checkout.root / ".venv")
    (checkout.root / "stub").write_text(stub)
    maker = checkout.program(
        "maker",
        'if [ "$2" = venv ]; then for last; do :; done; mkdir -p "$last/bin";'
        ' install -m 755 "$(dirname "$0")/../stub" "$last/bin/python"; fi',
    )
    done = checkout.run("setup.sh", PYTHON=str(maker))
    assert done.returncode == 0, done.stderr
    assert len(checkout.calls("install --no-input")) == 1


def test_the_demo_passes_settings_on_and_lets_them_win(checkout):
    done = checkout.run("demo.sh", "limit=8", "workspace=a b")
    assert done.returncode == 0, done.stderr
    call = checkout.calls()[-1]
    assert call == (
        "-P -m mtbench_ray model=smollm2-135m judge=local sampling.max_tokens=128 "
        "limit=8 workspace=a b"
    )
    assert "at most 128 new tokens per turn" in done.stderr
    longer = checkout.run("demo.sh", "sampling.max_tokens=512")
    assert checkout.calls()[-1].endswith("sampling.max_tokens=128 sampling.max_tokens=512")
    assert longer.stderr == ""


def test_the_demo_leaves_its_own_model_and_judge_out_where_others_are_given(checkout):
    checkout.run("demo.sh", "-m", "model=a,b", "judge=none")
    assert checkout.calls()[-1] == (
        "-P -m mtbench_ray sampling.max_tokens=128 -m model=a,b judge=none"
    )


@pytest.mark.parametrize("script", ["demo.sh", "test.sh", "setup.sh"])
@pytest.mark.parametrize("words", [["--help"], ["-h"], ["limit=8", "--help"]])
def test_help_is_the_comment_of_the_script_and_starts_nothing(checkout, script, words):
    done = checkout.run(script, *words)
    assert (done.returncode, done.stderr, checkout.calls()) == (0, "", [])
    assert f"  bash launch/{script} " in done.stdout
    assert "#" not in done.stdout
    assert "root" not in done.stdout


def test_the_demo_gives_its_exit_code_on(checkout):
    checkout.run("setup.sh")
    assert checkout.run("demo.sh", STUB_FAILS="-m mtbench_ray").returncode == 7


def test_the_tests_run_in_order_and_stop_at_the_first_failure(checkout):
    assert checkout.run("test.sh", "-k", "parse").returncode == 0
    steps = [c for c in checkout.calls("-m ") if " pip " not in f" {c} "]
    assert steps == [
        "-m ruff check .",
        "-m ruff format --check .",
        "-m mypy",
        "-m pytest -k parse",
    ]
    failed = checkout.run("test.sh", STUB_FAILS="-m mypy")
    assert failed.returncode == 7
    assert "error: mypy failed (exit code 7)" in failed.stderr
    assert checkout.calls("-m pytest") == []


def test_no_script_names_an_index_or_a_machine():
    for script in LAUNCH.glob("*.sh"):
        text = script.read_text()
        places = set(re.findall(r"://([\w.-]+)", text))
        assert places <= {"HEAD", "127.0.0.1"}, script
        assert "/work/" not in text, script
