"""The settings of each job, composed by Hydra from what was typed and the shipped configs."""

from __future__ import annotations

import os
import re
import shutil
import sys
import tempfile
import traceback
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mtbench_ray.benchmarks import benchmarks, get_benchmark
from mtbench_ray.cli.benchmark_settings import in_quotes, of_file, schema, without_own
from mtbench_ray.cli.overrides import (
    Typed,
    choice,
    config_folders,
    family_of,
    read,
    takes_any_name,
)
from mtbench_ray.cli.suggestions import refused_choice, refused_value, text_kind
from mtbench_ray.cli.typed_secrets import put_back, take_secrets
from mtbench_ray.config import RunConfig
from mtbench_ray.errors import EXIT_OK, EXIT_USAGE, UserError
from mtbench_ray.system.redact import hidden

if TYPE_CHECKING:
    from mtbench_ray.run.main import RunResult


def conf_dir() -> Path:
    """The folder of the shipped configs: beside the package in a checkout, inside it in a wheel."""
    package = Path(__file__).resolve().parents[1]
    for folder in (package / "conf", package.parent / "conf"):
        if (folder / "config.yaml").is_file():
            return folder
    raise UserError("the shipped configs are missing", "install mtbench_ray again")


def presets(more: Sequence[Path] = ()) -> dict[str, dict[str, str]]:
    """Choices by group, each with its one-line description (the file's first comment).

    Args:
        more: Folders of the user's own, beside the shipped one, which goes first.
    """
    found: dict[str, dict[str, str]] = {}
    paths = sorted(path for folder in more for path in folder.glob("*/*.yaml"))
    for path in [*paths, *sorted(conf_dir().glob("*/*.yaml"))]:
        lines = [
            line.lstrip("# ").rstrip()
            for line in path.read_text("utf-8").splitlines()
            if line.startswith("#") and "@package" not in line
        ]
        found.setdefault(path.parent.name, {})[path.stem] = lines[0] if lines else ""
    return found


def compose(args: Sequence[str]) -> list[RunConfig]:
    """The settings of each job of a command line; nothing is run and nothing is left behind.

    Raises:
        UserError: A mistake in what was typed.
    """
    from mtbench_ray.run.main import RunResult

    found: list[RunConfig] = []

    def keep(configs: Sequence[RunConfig], **_: Any) -> RunResult:
        found.extend(configs)
        return RunResult(EXIT_OK, [None for _ in configs])

    compose_and_run(args, plan_only=True, run=keep)
    return found


def compose_and_run(
    args: Sequence[str], *, plan_only: bool, run: Callable[..., RunResult] | None = None
) -> int:
    """Compose the settings of each job and run (or only plan) them.

    Args:
        args: What was typed.
        run: Called with the settings instead of :func:`mtbench_ray.run.main.run_jobs`.

    Returns:
        The exit code.

    Raises:
        UserError: A mistake in what was typed; nothing has run.
    """
    known = presets(config_folders(args))
    typed = read(args, known)
    secrets = take_secrets(typed.args)
    args = [secrets.shown.get(arg, secrets.shown.get(f"++{arg}", arg)) for arg in args]
    for key, value in secrets.values.items():
        if key == ("watch", "alert") and "://" not in str(value):
            continue  # a command
        print(f"{'.'.join(key)} looks like a secret: it is kept out of files and ids. Better name "
              f"a variable of the environment: '{'.'.join(key)}=${{oc.env:NAME}}'",
              file=sys.stderr)  # fmt: skip
    if {"-c", "--cfg", "-i", "--info", "--hydra-help", "-sc", "--shell-completion"} & set(
        typed.args
    ):
        return _hydra(typed, args, None, secrets.values, run)
    if plan_only:
        # A plan leaves nothing behind, and the workspace need not be there.
        with tempfile.TemporaryDirectory() as empty:
            return _hydra(typed, args, empty, secrets.values, run)
    made = _make_workspace(typed.args)
    code = EXIT_USAGE
    try:
        code = _hydra(typed, args, None, secrets.values, run)
    finally:
        # A workspace that was opened, perhaps by another run, holds more than Hydra's folder.
        if made and code == EXIT_USAGE and {path.name for path in made[0].iterdir()} <= {"hydra"}:
            shutil.rmtree(made[0])
            with suppress(OSError):
                for folder in made[1:]:
                    folder.rmdir()
    return code


def _hydra(
    typed: Typed,
    command: Sequence[str],
    plan_in: str | None,
    secrets: Mapping[tuple[str, ...], Any],
    run: Callable[..., RunResult] | None = None,
) -> int:
    """Give the command line to Hydra.

    Args:
        plan_in: An empty folder, for a plan.
        secrets: What was taken out of the command line, by place in the settings.
        run: Instead of :func:`mtbench_ray.run.main.run_jobs`.

    Raises:
        UserError: A mistake in the settings, or the run could not do its work.
    """
    import hydra
    from hydra.errors import HydraException
    from omegaconf import DictConfig, OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    from mtbench_ray.cli import hydra_launcher

    codes: list[int] = []
    errors: list[UserError] = []

    def run_many(configs: list[DictConfig], overrides: list[list[str]]) -> list[Any]:
        from mtbench_ray.run.main import run_jobs

        try:
            jobs = [_jobs(*job) for job in zip(configs, overrides, strict=True)]
            objects = [settings for several in jobs for settings in several]
            result = (run or run_jobs)(objects, command=command, plan_only=plan_in is not None)
        except UserError as error:
            errors.append(error)  # raised when Hydra has ended its own part
            return [None for _ in configs]
        except BrokenPipeError:
            raise  # the reader of a pipe went away
        except (HydraException, OmegaConfBaseException) as error:
            errors.append(_refusal(error))
            return [None for _ in configs]
        except Exception:
            # A fault of this program, which is no mistake of the user's.
            traceback.print_exc()
            codes.append(1)
            return [None for _ in configs]
        codes.append(result.exit_code)
        values = iter(result.values)
        # A job of several models has no one value.
        by_job = [[next(values) for _ in several] for several in jobs]
        return [some[0] if len(some) == 1 else None for some in by_job]

    def _jobs(config: DictConfig, overrides: list[str]) -> list[RunConfig]:
        """The settings of a job: one for each of ``benchmarks`` and ``models``.

        Each is composed as ``benchmark=<it> model=<it>`` is, with the settings of its benchmark
        that a file has, and then those that were typed.
        """
        from hydra import compose

        settings = _settings(config)
        in_file, own = of_file(config, known, overrides)
        _register(own, known, folders)
        made = []
        for benchmark in settings.benchmarks or [settings.benchmark.name]:
            get_benchmark(benchmark)
            words, more = list(overrides), list[str]()
            if settings.benchmarks:
                words = [one for one in words if not one.startswith(("benchmark=", "benchmarks="))]
                more = [f"benchmark={benchmark}", "benchmarks=[]"]
            more += [*in_file.get(benchmark, []), *_quoted(typed.of_benchmark.get(benchmark, []))]
            like: RunConfig | None = None
            for text in settings.models:
                own = Typed()
                name = choice("model", text, known, own, takes_any_name(overrides))
                a_path = ("model", name) in own.choices and not own.revisions
                if a_path and like is not None:
                    made.append(replace(like, model=replace(like.model, path=text)))
                    continue
                _register(own, known, folders)
                kept = [one for one in words if not one.startswith(("model=", "models="))]
                line = [*kept, *more, f"model={name}", "models=[]"]
                composed = compose("config", line)
                made.append(_settings(composed))
                if (
                    a_path
                    and made[-1].model.path == text
                    and "${" not in OmegaConf.to_yaml(composed)
                ):
                    like = made[-1]  # those of the next path differ in it alone
            if not settings.models:
                made.append(_settings(compose("config", [*words, *more])) if more else settings)
        return made

    def run_one(config: DictConfig) -> Any:
        from hydra.core.hydra_config import HydraConfig

        # Hydra has written the settings down already, with what a preset's file holds.
        saved = Path(HydraConfig.get().runtime.output_dir) / ".hydra" / "config.yaml"
        plain = OmegaConf.to_container(config)
        if saved.is_file() and hidden(plain) != plain:
            OmegaConf.save(hidden(plain), saved)
        # Not resolved: what is typed may hold an interpolation.
        typed_here = OmegaConf.to_container(HydraConfig.get().overrides.task, resolve=False)
        assert isinstance(typed_here, list)
        return run_many([config], [typed_here])[0]

    def _settings(config: DictConfig) -> RunConfig:
        try:
            settings = OmegaConf.to_object(without_own(config))
        except OmegaConfBaseException as error:
            raise _refusal(error) from None
        assert isinstance(settings, RunConfig)
        put_back(settings, secrets)
        if plan_in is not None and not Path(settings.workspace).expanduser().exists():
            settings = replace(settings, workspace=plan_in)
        return settings

    folders = config_folders(typed.args)
    known = presets(folders)
    _register_schema(known)
    _register(typed, known, folders)
    hydra_launcher.register(run_many)
    if plan_in is not None:
        typed.args += [f"hydra.{kind}.dir='{plan_in}/hydra'" for kind in ("run", "sweep")]
    os.environ.setdefault("HYDRA_MAIN_MODULE", "mtbench_ray")
    os.environ["HYDRA_FULL_ERROR"] = "1"  # Hydra raises its errors then, and prints none
    before = sys.argv
    sys.argv = ["mtbench_ray", *_quoted(typed.args)]
    try:
        with _composing_once(typed.args):
            hydra.main(version_base="1.3", config_path=str(conf_dir()), config_name="config")(
                run_one
            )()
    except SystemExit as stop:
        # Hydra has printed its own message: a usage error.
        return EXIT_USAGE if stop.code else EXIT_OK
    except BrokenPipeError:
        raise
    except (HydraException, OmegaConfBaseException, OSError, ValueError) as error:
        raise _refusal(error) from None
    finally:
        sys.argv = before
        del os.environ["HYDRA_FULL_ERROR"]
    if errors:
        raise errors[0]
    return max(codes, default=EXIT_OK)


@contextmanager
def _composing_once(args: Sequence[str]) -> Iterator[None]:
    """Spare Hydra the composing of all settings only to look for ``hydra.mode``: half of its time.

    Where a line or a file may set it (own folders, or an experiment that speaks of hydra), Hydra
    looks.
    """
    from hydra._internal.hydra import Hydra

    shipped = conf_dir()
    says = any("hydra.mode" in arg for arg in args) or any(
        arg.partition("=")[0] in _OTHER_FILES for arg in args
    )
    if says or any(
        ("MULTIRUN" if path.parent == shipped else "hydra") in path.read_text("utf-8")
        for path in shipped.rglob("*.yaml")
    ):
        yield
        return
    look = Hydra.get_mode
    Hydra.get_mode = lambda *_, **__: None
    try:
        yield
    finally:
        Hydra.get_mode = look


_OTHER_FILES = frozenset(
    ("-cp", "--config-path", "-cn", "--config-name", "-cd", "--config-dir", "--experimental-rerun")
)


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


def _register_schema(known: Mapping[str, Collection[str]]) -> None:
    """Make the schema and the benchmarks known to Hydra."""
    from hydra.core.config_store import ConfigStore

    store = ConfigStore.instance()
    store.store(name="base_config", node=schema())
    for name in benchmarks():
        if name not in known.get("benchmark", ()):  # no file of its own
            store.store(group="benchmark", name=name, node={"name": name})


def _register(typed: Typed, known: Mapping[str, Collection[str]], folders: Sequence[Path]) -> None:
    """Make the free-form choices known to Hydra."""
    from hydra.core.config_store import ConfigStore

    store = ConfigStore.instance()
    for (group, name), text in typed.choices.items():
        # What is typed is a name: an interpolation in it would be an accident.
        plain = text.replace("${", "\\${")
        node: dict[str, Any] = {"path": plain}
        if group == "model" and name in typed.revisions:
            path, revision = typed.revisions[name]
            node = {"path": path, "revision": revision, "name": plain}
        if group == "judge":
            node = {"kind": "openai", "model": plain}
            if family := family_of(text, known.get("judge", ())):
                node = _preset("judge", family, folders) | {"model": plain}
        store.store(group=group, name=name, node=node)


def _preset(group: str, name: str, folders: Sequence[Path]) -> dict[str, Any]:
    """The settings in a preset's file."""
    from omegaconf import OmegaConf

    for folder in (conf_dir(), *folders):
        if (path := folder / group / f"{name}.yaml").is_file():
            return dict(OmegaConf.to_container(OmegaConf.load(path)))  # type: ignore[arg-type]
    return {}


def _quoted(args: list[str]) -> list[str]:
    """Keep what was typed for a setting that is a text, whatever it looks like.

    Hydra reads 1e5, 007.50 and 2026_11_28 as numbers and has no way to take a path with = in it:
    such a text goes to it in quotes. What Hydra itself reads as a text (or as null, a sweep, an
    interpolation) is left to it.
    """
    sweep = bool({"-m", "--multirun"} & set(args))
    result = []
    for arg in args:
        key, equals, value = arg.partition("=")
        kind = text_kind(key) if equals and not arg.startswith("-") else ""
        if kind and value.strip():
            parts = _parts(value) if sweep else [value]
            keep = _kept_list if kind == "list[str]" else _kept
            if not (sweep and _SWEEP.match(value)):
                value = ",".join(map(keep, parts))
        result.append(f"{key}={value}" if kind else arg)
    return result


_SWEEP = re.compile(r"(choice|range|interval|glob|shuffle|sort|tag)\(")


def _kept(text: str) -> str:
    """A text as Hydra takes it: in quotes where it would read something else."""
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.core.override_parser.types import ChoiceSweep, QuotedString
    from hydra.errors import HydraException

    if "${" in text:
        return text
    try:
        read = OverridesParser.create().parse_override(f"x={text}").value()
    except HydraException:
        read = 0
    if read is None or isinstance(read, str | QuotedString):
        return text
    if isinstance(read, ChoiceSweep) and read.simple_form and not re.search(r",\s", text):
        return text  # several values without -m: Hydra's error says how
    return in_quotes(text.strip())


def _kept_list(text: str) -> str:
    text = text.strip()
    if not (text.startswith("[") and text.endswith("]")):
        return text
    return f"[{','.join(_kept(part) for part in _parts(text[1:-1]) if part.strip())}]"


def _parts(text: str) -> list[str]:
    """The parts between the commas that stand in no quotes and no brackets."""
    parts, depth, quote, before = [""], 0, "", ""
    for char in text:
        if quote:
            quote = "" if char == quote and before != "\\" else quote
        elif char in "'\"" and not parts[-1].strip():
            quote = char
        elif before != "\\":
            depth += (char in "[{(") - (char in ")}]")
        if char == "," and not quote and depth == 0 and before != "\\":
            parts.append("")
        else:
            parts[-1] += char
        before = "" if before == "\\" else char
    return parts


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
