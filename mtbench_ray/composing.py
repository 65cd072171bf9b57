"""The settings of each job, composed by Hydra from what was typed and the shipped configs."""

from __future__ import annotations

import os
import re
import shutil
import sys
import tempfile
import traceback
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from mtbench_ray.config import RunConfig
from mtbench_ray.errors import EXIT_OK, EXIT_USAGE, UserError
from mtbench_ray.mistakes import is_text, refused_choice, refused_value
from mtbench_ray.overrides import Typed, read


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


def compose_and_run(args: Sequence[str], *, plan_only: bool) -> int:
    """Compose the settings of each job and run (or only plan) them.

    Returns:
        The exit code.

    Raises:
        UserError: A mistake in what was typed; nothing has run.
    """
    typed = read(args, presets())
    if {"-c", "--cfg", "-i", "--info", "--hydra-help", "-sc", "--shell-completion"} & set(
        typed.args
    ):
        return _hydra(typed, args, None)
    if plan_only:
        # A plan leaves nothing behind, and the workspace need not be there.
        with tempfile.TemporaryDirectory() as empty:
            return _hydra(typed, args, empty)
    made = _make_workspace(typed.args)
    code = EXIT_USAGE
    try:
        code = _hydra(typed, args, None)
    finally:
        # A workspace that was opened, perhaps by another run, holds more than Hydra's folder.
        if made and code == EXIT_USAGE and {path.name for path in made[0].iterdir()} <= {"hydra"}:
            shutil.rmtree(made[0])
            with suppress(OSError):
                for folder in made[1:]:
                    folder.rmdir()
    return code


def _hydra(typed: Typed, command: Sequence[str], plan_in: str | None) -> int:
    """Give the command line to Hydra; ``plan_in`` is an empty folder for a plan."""
    import hydra
    from hydra.errors import HydraException
    from omegaconf import DictConfig, OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    from mtbench_ray import hydra_launcher

    codes: list[int] = []

    def run_many(configs: list[DictConfig]) -> list[Any]:
        from mtbench_ray.run import run_jobs

        try:
            objects = [_settings(config) for config in configs]
            result = run_jobs(objects, command=command, plan_only=plan_in is not None)
        except UserError as error:
            print(f"error: {error}", file=sys.stderr)
            codes.append(EXIT_USAGE)
            return [None for _ in configs]
        except Exception:
            # A fault of this program, which is no mistake of the user's.
            traceback.print_exc()
            codes.append(1)
            return [None for _ in configs]
        codes.append(result.exit_code)
        return list(result.values)

    def _settings(config: DictConfig) -> RunConfig:
        try:
            settings = OmegaConf.to_object(config)
        except OmegaConfBaseException as error:
            raise _refusal(error) from None
        assert isinstance(settings, RunConfig)
        if plan_in is not None and not Path(settings.workspace).expanduser().exists():
            settings = replace(settings, workspace=plan_in)
        return settings

    _register(typed)
    hydra_launcher.register(run_many)
    if plan_in is not None:
        typed.args += [f"hydra.{kind}.dir='{plan_in}/hydra'" for kind in ("run", "sweep")]
    os.environ.setdefault("HYDRA_MAIN_MODULE", "mtbench_ray")
    os.environ["HYDRA_FULL_ERROR"] = "1"  # Hydra raises its errors then, and prints none
    before = sys.argv
    sys.argv = ["mtbench_ray", *_quoted(typed.args)]
    try:
        hydra.main(version_base="1.3", config_path=str(conf_dir()), config_name="config")(
            lambda config: run_many([config])[0]
        )()
    except SystemExit as stop:
        # Hydra has printed its own message: a usage error.
        return EXIT_USAGE if stop.code else EXIT_OK
    except (HydraException, OmegaConfBaseException, OSError, ValueError) as error:
        raise _refusal(error) from None
    finally:
        sys.argv = before
        del os.environ["HYDRA_FULL_ERROR"]
    return max(codes, default=EXIT_OK)


def _refusal(error: Exception) -> UserError:
    """What Hydra or OmegaConf says about a setting, in this program's words."""
    from hydra.errors import MissingConfigException, OverrideParseException

    said = str(error).partition("\n")[0]
    if isinstance(error, MissingConfigException) and error.missing_cfg_file and error.options:
        group, _, name = error.missing_cfg_file.rpartition("/")
        return refused_choice(group, name, error.options)
    if isinstance(error, OverrideParseException):
        override = error.override
    else:
        named = re.match(r"Error merging override (.*)|Ambiguous value for argument '(.*)'", said)
        override = (named[1] or named[2]) if named else ""
    key, equals, value = override.partition("=")
    if equals:
        return refused_value(key.lstrip("+~"), value)
    cause = str(error.__cause__ or "").partition("\n")[0]
    return UserError(f"the settings cannot be read: {said}", cause)


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


def _make_workspace(args: Sequence[str]) -> list[Path]:
    """Make the folder of the workspace before Hydra does, to find one that cannot be written.

    Returns:
        The folders that were not there before, the workspace first.
    """
    typed = [arg.partition("=")[2] for arg in args if arg.startswith("workspace=")]
    folder = Path(typed[-1].strip("'\"") if typed else RunConfig.workspace)
    if "${" in str(folder):
        return []  # Hydra knows what it stands for
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
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
    return missing
