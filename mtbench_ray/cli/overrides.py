"""What the user typed, checked and made digestible for Hydra. Pure functions on strings.

Hydra reads ``model=X`` as the name of a file in ``conf/model``. Here any model id or path may be
typed there: such a text becomes a config group choice of its own, under a safe name, that
:mod:`mtbench_ray.cli.hydra_app` registers before Hydra starts. Nothing is ever built as an override
string, so a path may hold ``=``, spaces or non-ASCII letters.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from mtbench_ray.benchmarks import benchmarks, get_benchmark
from mtbench_ray.cli.suggestions import GROUPS, check_key, known_keys, open_keys, unknown_flag
from mtbench_ray.errors import UserError
from mtbench_ray.schema import text_hash
from mtbench_ray.system.redact import is_secret_name
from mtbench_ray.validate import refuse_login

# fmt: off
_FLAGS_WITH_VALUE = frozenset(
    ("-c", "--cfg", "-p", "--package", "-sc", "--shell-completion", "-cp", "--config-path",
     "-cn", "--config-name", "-cd", "--config-dir", "--experimental-rerun")
)
_HYDRA_FLAGS = _FLAGS_WITH_VALUE | frozenset(
    ("--hydra-help", "--resolve", "-r", "--run", "-m", "--multirun", "-i", "--info")
)
# fmt: on
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+", re.ASCII)
_REVISION = re.compile(r"\w[\w./-]*", re.ASCII)
_SETS_REVISION = re.compile(r"\+*model\.revision=")
_DATED = re.compile(r"(.+)-(?:20\d\d-\d\d-\d\d|(?:0[1-9]|1[0-2])\d\d)")
_FOLDERS = ("workspace", "hydra.run.dir", "hydra.sweep.dir")
"""Settings whose value Hydra makes a folder of, exactly as it is typed."""


@dataclass
class Typed:
    """Command line for Hydra, with the group choices that it needs beside the shipped ones.

    Attributes:
        args: Arguments for Hydra.
        choices: By group and safe choice name: the text typed.
        revisions: By safe choice name of a model: its hub id and its revision.
        multirun: Whether several jobs are asked for.
        of_benchmark: By benchmark: settings of its jobs alone.
    """

    args: list[str] = field(default_factory=list)
    choices: dict[tuple[str, str], str] = field(default_factory=dict)
    revisions: dict[str, tuple[str, str]] = field(default_factory=dict)
    multirun: bool = False
    of_benchmark: dict[str, list[str]] = field(default_factory=dict)


def read(argv: Sequence[str], presets: Mapping[str, Collection[str]]) -> Typed:
    """Check a command line and rewrite free-form ``model=`` and ``judge=`` values.

    Args:
        argv: Arguments after the verb.
        presets: Names of the shipped choices by group.

    Raises:
        UserError: A flag where a setting belongs, a word without ``=``, an unknown key, or a name
            that is nearly a preset; the hint has the nearest right form.
    """
    typed = Typed(multirun=any(arg in ("-m", "--multirun") for arg in argv))
    free_names = takes_any_name(argv)
    rest = iter(argv)
    flags: list[str] = []
    pairs: list[tuple[str, str]] = []
    for arg in rest:
        if arg in _HYDRA_FLAGS:
            flags.append(arg)
            if arg in _FLAGS_WITH_VALUE:
                flags.append(next(rest, ""))
        elif arg.startswith("-"):
            if arg.partition("=")[0] not in _HYDRA_FLAGS:
                raise unknown_flag(arg, next(rest, ""))
            flags.append(arg)
        elif "=" not in arg and not arg.startswith("~"):
            key = arg if arg in (*GROUPS, *known_keys()) else "key"
            raise UserError(
                f"'{arg}' is not a setting",
                f"settings are written {key}=value, for example limit=4",
            )
        else:
            key, _, value = arg.partition("=")
            if key == "watch":  # the others of its settings have names of their own
                key, arg = "watch.enabled", f"watch.enabled={value}"
            if key.lstrip("+~").partition("@")[0] in ("model", "judge"):
                pairs.append((key, value))
            elif key == "benchmark" and (names := _several_benchmarks(value, typed.multirun)):
                typed.args.append(f"benchmarks=[{','.join(names)}]")
            elif (
                (parts := key.split(".", 2))[0] == "benchmark"
                and parts[1:2]
                and (parts[1] in benchmarks())
            ):
                own = of_benchmark(key, ".".join(parts[2:]), value, presets, typed, free_names)
                typed.of_benchmark.setdefault(parts[1], []).append(own)
            else:
                check_key(key)
                if key.endswith(("base_url", "tracker.uri")):
                    refuse_login(key.lstrip("+"), value)  # before Hydra writes it down
                if key in _FOLDERS:
                    arg = f"{key}={_folder(key, value)}"
                # Hydra closes dictionaries too: a new key in one of these is no mistake.
                is_open = any(f"{key}.".startswith(f"{name}.") for name in open_keys())
                typed.args.append(f"++{arg}" if is_open else arg)
    # Lists make several jobs: judge=[a,b] is judge=a,b in a multirun.
    if any(value.startswith("[") and value.endswith("]") for _, value in pairs):
        typed.multirun = True
        if "-m" not in flags and "--multirun" not in flags:
            flags.append("-m")
    for group in ("model", "judge"):
        several = [value for key, value in pairs if key == group]
        if len(several) > 1:
            raise UserError(
                f"{group}= is given {len(several)} times, and only the last would count",
                f"for a sweep: -m {group}={','.join(several)}",
            )
    for key, value in pairs:
        group = key.lstrip("+~")
        quoted = value[:1] in ("'", '"')
        if "," in value and not (
            typed.multirun or quoted or "\\," in value or os.path.exists(value)
        ):
            raise UserError(
                f"{key}={value} names several, and this is a single run",
                f"for a sweep: -m {key}={value}; for one name with a comma: {key}=\"'{value}'\"",
            )
        names = [
            choice(group, text, presets, typed, free_names)
            for text in _split(value, typed.multirun)
        ]
        if names:
            typed.args.append(f"{key}={','.join(names)}")
    other = next((arg for arg in typed.args if _SETS_REVISION.match(arg)), "")
    if typed.revisions and other:
        said = "@".join(next(iter(typed.revisions.values())))
        raise UserError(
            f"model={said} has its revision, and {other} names another one", f"leave out {other}"
        )
    # Hydra reads its flags only before the settings.
    typed.args = [*flags, *typed.args]
    return typed


def _several_benchmarks(value: str, multirun: bool) -> list[str]:
    """The names in ``[a,b]``, or in ``a,b`` where that is no sweep; none where there is one name.

    Raises:
        UserError: One is not known, or comes twice.
    """
    text = value.strip()
    listed = text.startswith("[") and text.endswith("]")
    if not listed and (multirun or "," not in text or text.startswith("choice(")):
        return []
    names = [name.strip() for name in text.strip("[]").split(",") if name.strip()]
    for name in names:
        get_benchmark(name)
    if not names or len(set(names)) < len(names):
        raise UserError(
            f"benchmark={value} " + ("names one twice" if names else "names none"),
            "write benchmark=[mt_bench,ifeval]",
        )
    return names


def of_benchmark(
    where: str,
    key: str,
    value: str,
    presets: Mapping[str, Collection[str]],
    typed: Typed,
    free_names: bool,
) -> str:
    """A setting of one benchmark's jobs as an override of these.

    Args:
        where: The whole key, as the user wrote it.
        key: The setting alone.
        typed: Gets the choice of a judge.

    Raises:
        UserError: There is no such setting, or it cannot differ between benchmarks.
    """
    check_key(key)
    if key.partition(".")[0] in ("model", "models", "benchmark", "benchmarks", "experiment"):
        raise UserError(
            f"{where} cannot be set: {key} is the same for all benchmarks of a line",
            f"write {key}={value}",
        )
    if is_secret_name(key.rpartition(".")[2]):
        raise UserError(
            f"{where} looks like a secret, which is kept out of files only under its own name",
            f"write {key}=..., or name a variable of the environment: judge.api_key_env=NAME",
        )
    if key.endswith("base_url"):
        refuse_login(key, value)
    if key == "judge":
        value = choice("judge", value, presets, typed, free_names)
    is_open = any(f"{key}.".startswith(f"{name}.") for name in open_keys())
    return f"{'++' * is_open}{key}={value}"


def family_of(judge: str, known: Collection[str]) -> str | None:
    """The preset of a dated judge: gpt-4o of gpt-4o-2024-05-13, gpt-4 of gpt-4-0613."""
    found = _DATED.fullmatch(judge)
    return found[1] if found and found[1] in known else None


def choice(
    group: str, text: str, presets: Mapping[str, Collection[str]], typed: Typed, free_names: bool
) -> str:
    """The config group choice for one typed model or judge.

    Raises:
        UserError: It is empty, or nearly a preset.
    """
    known = presets.get(group, ())
    if text in known:
        return text
    looks_like_path = "/" in text or "\\" in text or text.startswith((".", "~"))
    if not text:
        raise UserError(f"{group}= is empty", f"write {group}=NAME; `list {group}s` shows presets")
    if not looks_like_path and not os.path.exists(text):
        near = difflib.get_close_matches(text, known, n=1, cutoff=0.75)
        if group == "judge" and not family_of(text, known):
            meant = f"did you mean judge={near[0]}? " if near else ""
            raise UserError(
                f"no judge preset is called '{text}'",
                f"{meant}Any model of an OpenAI-compatible API: judge=openai judge.model={text}"
                " [judge.base_url=...]; `python -m mtbench_ray list judges` shows the presets",
            )
        if group == "model" and near and not free_names:
            raise UserError(
                f"no model preset is called '{text}'",
                f"did you mean model={near[0]}? `python -m mtbench_ray list models` shows the"
                f" presets; a hub id without a slash is written +model.path={text}",
            )
    slug = re.sub(r"[^A-Za-z0-9_-]+", "_", text.rstrip("/").rpartition("/")[2])[:40].strip("_")
    name = f"{slug or group}-{text_hash(text)[:8]}"
    typed.choices[(group, name)] = text
    if group == "model" and not free_names and not os.path.exists(text):
        path, at, revision = text.partition("@")
        if at and _HUB_ID.fullmatch(path) and _REVISION.fullmatch(revision):
            typed.revisions[name] = (path, revision)
    return name


def takes_any_name(args: Sequence[str]) -> bool:
    """Whether the engine of a command line knows models of its own, so that none is misspelt."""
    return any(arg in ("engine=openai", "engine=fake") for arg in args)


def config_folders(args: Sequence[str]) -> list[Path]:
    """The user's own folders of settings: ``--config-dir=DIR``.

    Raises:
        UserError: One is no folder.
    """
    folders = []
    for arg, following in zip(args, [*args[1:], ""], strict=False):
        flag, equals, value = arg.partition("=")
        if flag in ("--config-dir", "-cd"):
            folder = Path(value if equals else following).expanduser()
            if not folder.is_dir():
                raise UserError(
                    f"{flag}: {folder} is not a folder",
                    "it holds presets of your own: DIR/model/NAME.yaml, DIR/judge/NAME.yaml",
                )
            folders.append(folder)
    return folders


def _split(value: str, multirun: bool) -> list[str]:
    """The names in a typed value: a comma separates jobs in a multirun, unless quoted."""
    if value.startswith("[") and value.endswith("]"):
        value, multirun = value[1:-1], True
    parts: list[str] = []
    current, quote, escaped, quoted = "", "", False, False
    for char in value:
        if escaped:
            current += char if char in "\\=,'\" " else "\\" + char
            escaped = False
        elif char == "\\":
            escaped = True
        elif quote:
            if char == quote:
                quote = ""
            else:
                current += char
        elif char in "'\"" and not current.strip():
            current, quote, quoted = "", char, True
        elif char == "," and multirun:
            parts.append(current if quoted else current.strip())
            current, quoted = "", False
        else:
            current += char
    parts.append((current + ("\\" if escaped else "")) if quoted else current.strip())
    return parts


def _folder(key: str, value: str) -> str:
    """The typed value of a folder, with ``~`` replaced by the home folder."""
    quote = value[:1] if value[:1] in ("'", '"') else ""
    path = value[len(quote) :]
    if not path.strip(f"{quote} "):
        raise UserError(f"{key}= is empty", f"write {key}=DIR; the folder you are in is {key}=.")
    if "://" in path:
        raise UserError(
            f"{key}={value} is not a local folder",
            "workspaces live on a file system that can lock; copy the results afterwards",
        )
    return quote + os.path.expanduser(path)
