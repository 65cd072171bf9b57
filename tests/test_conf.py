"""Every shipped config composes, the commands of the README parse, and a wheel carries it all."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from mtbench_ray.cli import conf_dir, main, presets
from mtbench_ray.overrides import read

ROOT = Path(__file__).resolve().parents[1]
CHOICES = [
    (group, name)
    for group in ("model", "judge", "engine", "benchmark", "cluster", "report", "experiment")
    for name in presets()[group]
]


@pytest.mark.parametrize(("group", "name"), CHOICES, ids="=".join)
def test_every_config_composes(group, name, tmp_path, capsys):
    assert main(["run", "--cfg", "job", f"{group}={name}", f"workspace={tmp_path}"]) == 0
    assert f"workspace: {tmp_path}" in capsys.readouterr().out


def test_presets_are_listed_with_one_line_each(capsys):
    for what, group in (("models", "model"), ("judges", "judge")):
        assert main(["list", what]) == 0
        lines = capsys.readouterr().out.splitlines()
        assert [line.split()[0] for line in lines] == list(presets()[group])
        assert all(len(line.split()) > 2 for line in lines)


def commands():
    """The command lines of the README, without comments."""
    text = (ROOT / "README.md").read_text("utf-8")
    for line in re.findall(r"^    (python -m mtbench_ray .*)$", text, re.MULTILINE):
        yield line.split(" #")[0].strip()
    for cell in re.findall(r"^\| [^|]+ \| (`[^|]+) \|$", text, re.MULTILINE):
        for setting in re.findall(r"`([^`]*=[^`]*)`", cell):
            yield f"python -m mtbench_ray {setting}"


@pytest.mark.parametrize("command", sorted(set(commands())))
def test_the_commands_of_the_readme_are_understood(command):
    words = shlex.split(command)[3:]
    verbs = ("plan", "report", "list", "import", "export", "run")
    if words[0] in verbs[1:5]:
        return  # no settings of Hydra's; run by tests of their own
    words = words[1:] if words[0] in verbs else words
    words = [word for word in words if "=" in word or word.startswith("-")]
    read([word for word in words if "..." not in word], presets())


def test_a_wheel_runs_from_anywhere(tmp_path):
    built = subprocess.run(
        [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", tmp_path, ROOT],
        capture_output=True,
        text=True,
    )
    assert built.returncode == 0, built.stdout[-2000:] + built.stderr[-2000:]
    (wheel,) = tmp_path.glob("*.whl")
    site = tmp_path / "site"
    subprocess.run(
        [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", site, wheel],
        check=True,
    )
    done = subprocess.run(
        [sys.executable, "-P", "-c",
         "import sys; sys.path.insert(0, sys.argv.pop(1))\n"
         "import mtbench_ray.cli as cli; print(cli.__file__)\n"
         "sys.exit(cli.main(sys.argv[1:]))",
         str(site), "model=any/name", "judge=none", "engine=fake", "limit=2", "workspace=w"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(str(site))
    assert "4/4" in done.stdout
    shipped = {path.relative_to(conf_dir()) for path in conf_dir().rglob("*.yaml")}
    installed = site / "mtbench_ray" / "conf"
    assert {path.relative_to(installed) for path in installed.rglob("*.yaml")} == shipped
    templates = {path.name for path in (ROOT / "mtbench_ray/engines/templates").iterdir()}
    assert {p.name for p in (site / "mtbench_ray/engines/templates").iterdir()} == templates
