"""Every shipped config composes, the commands of the README parse, and a wheel carries it all."""

import re
import shlex
import subprocess
import sys
from importlib import metadata

import pytest
from paths import ROOT

from mtbench_ray import __version__
from mtbench_ray.cli.help import HELP, USAGE
from mtbench_ray.cli.hydra_app import conf_dir, presets
from mtbench_ray.cli.main import main
from mtbench_ray.cli.overrides import read
from mtbench_ray.cli.suggestions import GROUPS

CHOICES = [(group, name) for group in GROUPS for name in presets()[group]]


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


LINE = ["model=any/name", "judge=none", "engine=fake"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["limit=two"], "limit takes a whole number, not 'two'"),
        (["limit=[1"], "limit takes a whole number, not '[1'"),
        (["-m", "limit=1,two"], "limit takes a whole number, not 'two'"),
        (["limit=1,2"], "-m limit=1,2"),
        (["fresh=ture"], "fresh takes true or false, not 'ture'"),
        (["sampling.top_p=high"], "sampling.top_p takes a number, not 'high'"),
        (["categories=writing"], "categories takes a list, not 'writing'"),
        (["categories=writing"], "write categories=[writing]"),
        (["categories=writing,math"], "write categories=[writing,math]"),
        (["model.stop=END"], "write model.stop=[END]"),
        (["model.steps=[a]"], "model.steps takes a list of whole numbers, not '[a]'"),
        (["engine.args=3"], "write engine.args.NAME=VALUE"),
        (["engine.args.x={a"], "engine.args.x={a cannot be read"),
        (["model.name=null"], "model.name takes a text, not 'null'"),
        (["cluster=atuo"], "there is no cluster 'atuo'\n  did you mean cluster=auto?"),
        (["experiment=quik"], "there is no experiment 'quik'\n  did you mean experiment=quick?"),
        (
            ["benchmark=other"],
            "there is no benchmark 'other'\n  there are: alpaca_eval, arena_hard, ",
        ),
        (["hydra/launcher=x"], "there is no hydra/launcher 'x'\n  there are: "),
        (["hydra.run.foo=1"], "Could not override 'hydra.run.foo'."),
        (["limit=${nothing}"], "'nothing' not found"),
        (["--cfg", "job", "-m"], "Only one of"),
    ],
)
def test_what_hydra_refuses_is_said_in_our_words(words, said, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main([*words[:2], *LINE, *words[2:]] if "-" in words[0][0] else [*LINE, *words]) == 2
    err = capsys.readouterr().err
    assert said in err
    assert err.startswith("error: ")
    assert len(err.splitlines()) <= 2
    assert list(tmp_path.iterdir()) == [], "nothing ran, so nothing is left behind"


def test_an_engine_that_is_not_there(capsys):
    for words in (["engine=vlm"], ["-m", "engine=vlm,fake"]):
        assert main(["model=any/name", "judge=none", *words]) == 2
        assert (
            capsys.readouterr().err
            == "error: there is no engine 'vlm'\n  did you mean engine=vllm?\n"
        )


def test_a_run_that_did_not_begin_leaves_no_folder_of_its_making(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    kept = tmp_path / "kept"
    kept.mkdir()
    assert main([*LINE, "limit=0", "workspace=kept/a/b"]) == 2
    assert "limit=0" in capsys.readouterr().err
    assert list(tmp_path.rglob("*")) == [kept]
    assert main([*LINE, "workspace="]) == 2
    assert list(tmp_path.rglob("*")) == [kept]


def test_a_plan_needs_no_workspace_and_leaves_none(tmp_path, monkeypatch, capsys, questions):
    monkeypatch.chdir(tmp_path)
    for words in ([], ["-m", "sampling.seed=1,2"], ["workspace=/proc/no"]):
        before = sorted(tmp_path.iterdir())
        assert main(["plan", *LINE, f"question_path={questions}", *words]) == 0
        assert "any/name" in capsys.readouterr().out
        assert sorted(tmp_path.iterdir()) == before


@pytest.mark.parametrize("typed", ["~/made", "'~/made'", "${oc.env:HOME}/made"])
@pytest.mark.runs
def test_a_workspace_at_home_is_made_there_only(typed, tmp_path, monkeypatch, questions):
    home, here = tmp_path / "home", tmp_path / "here"
    for path in (home, here):
        path.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.chdir(here)
    assert main([*LINE, f"question_path={questions}", f"workspace={typed}"]) == 0
    assert (home / "made" / "answers.jsonl").is_file()
    assert (home / "made" / "hydra").is_dir()
    assert list(here.iterdir()) == []


@pytest.mark.parametrize("words", [["a/epoch=1", "b/epoch=2"], ["s1 (sampling.seed=0)", "x=y"]])
@pytest.mark.parametrize("kind", ["compare", "agreement"])
def test_names_in_reports_may_hold_an_equals_sign(kind, words, monkeypatch):
    given = {}
    monkeypatch.setattr(
        "mtbench_ray.reports.main.report",
        lambda names, **rest: given.update(rest, names=names) or 0,
    )
    assert main(["report", kind, *words, "format=json", "workspace=w"]) == 0
    assert given["names"] == [kind, *words]
    assert (given["format"], given["workspaces"]) == ("json", ["w"])
    assert main(["report", kind, *words, "--format=json"]) == 2


@pytest.mark.parametrize("verb", ["report", "import", "export"])
def test_the_other_verbs_refuse_an_empty_workspace(verb, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main([verb, "fastchat", ".", "workspace="]) == 2
    assert "workspace=DIR" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("verb", HELP)
def test_each_verb_has_a_help_of_its_own(verb, capsys):
    for words in ([verb, "--help"], [verb, "x=1", "-h"], ["help", verb]):
        assert main(words) == 0
        out = capsys.readouterr().out
        assert out.startswith("usage: python -m mtbench_ray ")
        assert len(out.splitlines()) < 30
        examples = out.partition("examples:")[2].split("  python -m mtbench_ray ")[1:]
        assert 2 <= len(examples) <= 3
        for example in examples:
            words = shlex.split(example)
            assert verb == "run" or verb in words[:2]
            if verb in ("run", "plan"):
                read([word for word in words if word not in HELP], presets())


def test_the_usage_and_the_help_name_every_list(capsys):
    assert main(["list"]) == 2
    names = capsys.readouterr().err.split("list ")[-1].split(" | ")
    assert f"list {'|'.join(names).strip()}" in USAGE
    assert f"list {'|'.join(names).strip()}" in HELP["list"]


def test_the_version_is_ours(capsys):
    for words in (["--version"], ["run", "--version"]):
        assert main(words) == 0
        said = capsys.readouterr().out
        assert said.startswith(f"mtbench_ray {__version__}")
        assert f"ray {metadata.version('ray')}" in said


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


@pytest.mark.parametrize(
    "message",
    [
        "nothing was pending: no engine was started, no judge was called",
        "Incomplete. Re-run the same command to finish the remaining items.",
        "cannot be swept",
        "Answers are missing.",
    ],
)
def test_messages_that_the_readme_quotes_are_the_programs(message):
    sources = "".join(path.read_text("utf-8") for path in (ROOT / "mtbench_ray").rglob("*.py"))
    assert message in " ".join((ROOT / "README.md").read_text("utf-8").split())
    assert message in sources


@pytest.mark.runs
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
         "import mtbench_ray.cli.main as cli; print(cli.__file__)\n"
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
    templates = {path.name for path in (ROOT / "mtbench_ray/models/templates").iterdir()}
    assert {p.name for p in (site / "mtbench_ray/models/templates").iterdir()} == templates


@pytest.mark.parametrize(
    ("words", "times"),
    [([], 1), (["-m", "sampling.temperature=0.1,0.2"], 3)],
    ids=["a run", "a sweep of two"],
)
def test_the_settings_of_each_job_are_composed_once(cli, monkeypatch, words, times):
    from hydra._internal.config_loader_impl import ConfigLoaderImpl

    composed = []
    whole = ConfigLoaderImpl.load_configuration

    def load(self, *args, **named):
        composed.append(args or named)
        return whole(self, *args, **named)

    monkeypatch.setattr(ConfigLoaderImpl, "load_configuration", load)
    assert cli(*words, "model=org/m", "limit=1") == 0
    assert len(composed) == times  # a sweep is composed itself, too


@pytest.mark.parametrize("where", ["line", "file"])
def test_a_sweep_may_be_asked_for_by_hydras_own_setting(cli, tmp_path, where):
    words = ["hydra.mode=MULTIRUN"]
    if where == "file":
        (tmp_path / "experiment").mkdir()
        (tmp_path / "experiment" / "own.yaml").write_text(
            "# @package _global_\nhydra:\n  mode: MULTIRUN\n"
        )
        words = [f"--config-dir={tmp_path}", "experiment=own"]
    assert cli(*words, "model=org/m", "sampling.temperature=0.1,0.2", "limit=1") == 0
    assert len({job.parent for job in cli.workspace.glob("hydra/*/*/*/.hydra")}) == 2
