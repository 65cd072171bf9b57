"""The command line: verbs ``run`` (the default), ``plan``, ``report``, ``list``, ``import``,
``export``. Only this module and the launcher import Hydra."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from mtbench_ray.config import RunConfig
from mtbench_ray.errors import EXIT_INTERRUPTED, EXIT_OK, EXIT_USAGE, UserError
from mtbench_ray.overrides import Typed, is_text, read

USAGE = """\
usage: python -m mtbench_ray [run] model=MODEL judge=JUDGE [key=value ...]
       python -m mtbench_ray -m model=A,B,C judge=JUDGE [key=value ...]     a sweep
       python -m mtbench_ray plan model=MODEL judge=JUDGE [show=1]          what it would cost
       python -m mtbench_ray report [workspace=DIR] [format=table|json|markdown]
       python -m mtbench_ray report agreement A B [workspace=DIR]
       python -m mtbench_ray report compare MODEL MODEL [workspace=DIR]
       python -m mtbench_ray report curve [workspace=DIR ...] [error=ci95] [out=DIR]
       python -m mtbench_ray list models|judges
       python -m mtbench_ray import|export fastchat DIR [workspace=DIR]

`python -m mtbench_ray run --cfg job` prints all settings; README.md explains them.
"""


def conf_dir() -> Path:
    """The folder of the shipped configs: beside the package in a checkout, inside it in a wheel."""
    package = Path(__file__).resolve().parent
    for folder in (package / "conf", package.parent / "conf"):
        if (folder / "config.yaml").is_file():
            return folder
    raise UserError("the shipped configs are missing", "install mtbench_ray again")


def presets() -> dict[str, dict[str, str]]:
    """Shipped choices by group, each with its one-line description (the file's first comment)."""
    found: dict[str, dict[str, str]] = {}
    for path in sorted(conf_dir().glob("*/*.yaml")):
        lines = [
            line.lstrip("# ").rstrip()
            for line in path.read_text("utf-8").splitlines()
            if line.startswith("#") and "@package" not in line
        ]
        found.setdefault(path.parent.name, {})[path.stem] = lines[0] if lines else ""
    return found


def main(argv: Sequence[str]) -> int:
    """Run one command line.

    Returns:
        Exit code: 0 all scored, 2 usage or set-up error, 3 finished with failures, 130 interrupted.
    """
    args = list(argv)
    verbs: dict[str, Callable[[list[str]], int]] = {
        "run": lambda rest: _hydra(rest, plan_only=False),
        "plan": lambda rest: _hydra(rest, plan_only=True),
        "report": _report,
        "list": _list,
        "import": _import,
        "export": _export,
    }
    try:
        if not args or args[0] in ("help", "--help", "-h"):
            print(USAGE)
            return EXIT_OK if args else EXIT_USAGE
        if args[0] in verbs:
            return verbs[args[0]](args[1:])
        if "=" not in args[0] and not args[0].startswith(("-", "~", "+")):
            raise UserError(
                f"'{args[0]}' is neither a verb nor a setting",
                f"verbs are {', '.join(verbs)}; settings are written key=value",
            )
        return verbs["run"](args)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return EXIT_USAGE
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        # The reader of a pipe went away (`... | head`): nothing is wrong here.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_OK


def _hydra(args: list[str], *, plan_only: bool) -> int:
    """Compose the config of each job with Hydra and run them."""
    typed = read(args, presets())
    if not {"-c", "--cfg", "-i", "--info", "--hydra-help", "--help", "-h"} & set(typed.args):
        _check_workspace(typed.args)

    import hydra
    from omegaconf import DictConfig, OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    from mtbench_ray import hydra_launcher

    codes: list[int] = []

    def run_many(configs: list[DictConfig]) -> list[Any]:
        from mtbench_ray.run import run_jobs

        try:
            objects = [_settings(config) for config in configs]
            result = run_jobs(objects, command=args, plan_only=plan_only)
        except UserError as error:
            print(f"error: {error}", file=sys.stderr)
            codes.append(EXIT_USAGE)
            return [None for _ in configs]
        except Exception:
            # A fault of this program. Hydra would show a shortened traceback and exit as for a
            # mistake of the user's.
            traceback.print_exc()
            codes.append(1)
            return [None for _ in configs]
        codes.append(result.exit_code)
        return list(result.values)

    def _settings(config: DictConfig) -> RunConfig:
        try:
            settings = OmegaConf.to_object(config)
        except OmegaConfBaseException as error:
            raise UserError(f"a setting cannot be read: {error}") from None
        assert isinstance(settings, RunConfig)
        return settings

    _register(typed)
    hydra_launcher.register(run_many)
    typed.args = _quoted(typed.args)
    os.environ.setdefault("HYDRA_MAIN_MODULE", "mtbench_ray")
    before = sys.argv
    sys.argv = ["mtbench_ray", *typed.args]
    try:
        hydra.main(version_base="1.3", config_path=str(conf_dir()), config_name="config")(
            lambda config: run_many([config])[0]
        )()
    except SystemExit as stop:
        # Hydra has printed its own message: a usage error.
        return EXIT_USAGE if stop.code else EXIT_OK
    finally:
        sys.argv = before
    return max(codes, default=EXIT_OK)


def _register(typed: Typed) -> None:
    """Make the schema and the free-form choices known to Hydra."""
    from hydra.core.config_store import ConfigStore

    store = ConfigStore.instance()
    store.store(name="base_config", node=RunConfig)
    for (group, name), text in typed.choices.items():
        # What is typed is a name: an interpolation in it would be an accident.
        text = text.replace("${", "\\${")
        node = {"path": text} if group == "model" else {"kind": "openai", "model": text}
        store.store(group=group, name=name, node=node)


def _quoted(args: list[str]) -> list[str]:
    """Quote values that Hydra's grammar refuses where the setting is a text: paths with = in it."""
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    parser = OverridesParser.create()
    result = []
    for arg in args:
        key, equals, value = arg.partition("=")
        if equals and not arg.startswith("-") and is_text(key):
            try:
                parser.parse_override(arg)
            except HydraException:
                escaped = value.replace("\\", "\\\\").replace("'", "\\'")
                arg = f"{key}='{escaped}'"
        result.append(arg)
    return result


def _check_workspace(args: Sequence[str]) -> None:
    """A workspace that cannot be written is found before Hydra makes its output folder in it."""
    typed = [arg.partition("=")[2] for arg in args if arg.startswith("workspace=")]
    folder = Path(typed[-1].strip("'\"") if typed else RunConfig.workspace)
    if "://" in str(typed[-1] if typed else ""):
        raise UserError(
            f"workspace={typed[-1]} is not a local folder",
            "workspaces live on a file system that can lock; copy the results afterwards",
        )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / ".write_probe"
        probe.write_text("")
        probe.unlink()
    except OSError as error:
        raise UserError(
            f"the workspace {folder} cannot be written: {error.strerror}",
            "choose another one with workspace=DIR",
        ) from None


def _list(args: list[str]) -> int:
    groups = {
        "models": "model",
        "judges": "judge",
        "engines": "engine",
        "experiments": "experiment",
    }
    if len(args) != 1 or args[0] not in groups:
        raise UserError("list what?", f"list {' | '.join(groups)}")
    rows = presets()[groups[args[0]]]
    width = max(map(len, rows))
    for name, text in rows.items():
        print(f"{name:<{width}}  {text}")
    return EXIT_OK


def _options(args: Sequence[str], allowed: dict[str, str]) -> tuple[list[str], dict[str, str]]:
    """Split ``key=value`` words from the others, for the verbs that need no model or judge."""
    import difflib

    words, values = [], dict(allowed)
    for arg in args:
        key, equals, value = arg.partition("=")
        if not equals:
            if arg.startswith("-"):
                raise UserError(f"'{arg}' is not an option", "settings are written key=value")
            words.append(arg)
        elif key.removeprefix("report.") in allowed:
            values[key.removeprefix("report.")] = value
        else:
            near = difflib.get_close_matches(key, allowed, n=1, cutoff=0.4)
            raise UserError(
                f"no setting is called '{key}' here",
                f"did you mean {near[0]}=?" if near else f"known: {', '.join(allowed)}",
            )
    return words, values


def _report(args: list[str]) -> int:
    from mtbench_ray.reports.main import report

    words, values = _options(
        args,
        {
            "workspace": RunConfig.workspace,
            "format": "table",
            "parity": "safe",
            "mode": "",
            "resamples": "2000",
            "seed": "0",
            "error": "ci95",
            "by": "both",
            "out": "",
        },
    )
    # Curves of several runs may come from several workspaces.
    typed = [arg.removeprefix("report.").partition("=") for arg in args]
    workspaces = [value for key, _, value in typed if key == "workspace"]
    last = values.pop("workspace")
    return report(words, workspaces=workspaces or [last], **values)


def _import(args: list[str]) -> int:
    from mtbench_ray.reports.main import import_files

    words, values = _options(
        args, {"workspace": RunConfig.workspace, "question_path": "", "baseline": ""}
    )
    if len(words) != 2 or words[0] != "fastchat":
        raise UserError("import what?", "import fastchat DIR workspace=W")
    return import_files(words[1], **values)


def _export(args: list[str]) -> int:
    from mtbench_ray.reports.main import export_files

    words, values = _options(args, {"workspace": RunConfig.workspace})
    if len(words) != 2 or words[0] != "fastchat":
        raise UserError("export what?", "export fastchat DIR workspace=W")
    return export_files(words[1], **values)
