"""What ``python -m build`` makes: an sdist, from it a wheel, and the wheel runs by itself."""

import os
import shutil
import subprocess
import sys
import zipfile
from email import message_from_string

import pytest
import yaml
from paths import ROOT

pytestmark = pytest.mark.runs


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """Built from the sdist alone, with the build tools that are installed."""
    pytest.importorskip("build")
    pytest.importorskip("setuptools", minversion="77")
    source = tmp_path_factory.mktemp("source")
    for name in ("mtbench_ray", "conf"):
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    out = tmp_path_factory.mktemp("dist")
    done = subprocess.run(
        [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out), str(source)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    assert len(list(out.glob("*.tar.gz"))) == 1
    (made,) = out.glob("*.whl")
    return made


def test_the_wheel_holds_all_code_settings_and_data_and_nothing_else(wheel):
    here = {
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "mtbench_ray").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    here |= {f"mtbench_ray/{p.relative_to(ROOT).as_posix()}" for p in ROOT.glob("conf/**/*.yaml")}
    names = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    assert names == here
    assert "mtbench_ray/py.typed" in names


def test_its_metadata_is_what_an_index_shows(wheel):
    archive = zipfile.ZipFile(wheel)
    (name,) = [name for name in archive.namelist() if name.endswith("/METADATA")]
    data = message_from_string(archive.read(name).decode())
    assert data["License-Expression"] == "Apache-2.0"
    assert "Typing :: Typed" in data.get_all("Classifier")
    assert {"cpu", "gpu", "demo", "cluster", "plots"} <= set(data.get_all("Provides-Extra"))
    assert "## Try it" in data.get_payload()
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["version"] == data["Version"]
    assert citation["license"] == "Apache-2.0"


def test_the_installed_wheel_runs(wheel, stub, questions, tmp_path):
    """Without the checkout; what it depends on is that of the tests."""
    target = tmp_path / "site"
    subprocess.run(
        [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-compile", "--no-index",
         "--target", str(target), str(wheel)],
        check=True, capture_output=True,
    )  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-m", "mtbench_ray", "model=m", "engine=fake", "judge=openai",
         "judge.model=stub", f"judge.base_url={stub.url}", f"question_path={questions}",
         f"workspace={tmp_path / 'results'}"],
        capture_output=True, text=True, check=False, cwd=target,
        env={**os.environ, "PYTHONPATH": str(target)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "8/8" in done.stdout
    where = subprocess.run(
        [sys.executable, "-c", "import mtbench_ray.cli.hydra_app as h; print(h.conf_dir())"],
        capture_output=True, text=True, check=True, cwd=target,
        env={**os.environ, "PYTHONPATH": str(target)},
    )  # fmt: skip
    assert where.stdout.strip() == str(target / "mtbench_ray" / "conf")
