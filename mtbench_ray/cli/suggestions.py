"""The names and types of all settings, and the right form of what was typed wrongly."""

from __future__ import annotations

import dataclasses
import difflib
import functools
import typing
from collections.abc import Collection
from typing import Any

from mtbench_ray.config import RunConfig
from mtbench_ray.errors import UserError

GROUPS = ("model", "judge", "engine", "benchmark", "cluster", "report", "tracker",
          "experiment")  # fmt: skip
_ALL_SETTINGS = "`python -m mtbench_ray run --cfg job` prints all settings"
_LISTS = ("models", "judges", "engines", "experiments")
_TAKES = {
    "bool": "true or false",
    "int": "a whole number",
    "float": "a number",
    "str": "a text",
    "list[int]": "a list of whole numbers",
    "list[str]": "a list",
    "dict[str, typing.Any]": "names with values",
}
"""What the types of :mod:`mtbench_ray.config` are called for users."""


def check_key(key: str) -> None:
    """Refuse a key that no setting has.

    Raises:
        UserError: With the settings that may be meant.
    """
    bare = key.lstrip("+~").partition("@")[0]
    if bare in GROUPS or bare in known_keys() or bare.startswith(("hydra.", "hydra/")):
        return
    if any(bare.startswith(f"{name}.") for name in open_keys()):
        return
    near = meant(bare)
    raise UserError(
        f"no setting is called '{bare}'",
        f"did you mean {' or '.join(near)}?" if near else _ALL_SETTINGS,
    )


def unknown_flag(arg: str, following: str) -> UserError:
    """The error for a flag where a setting belongs; ``following`` is the word after it."""
    name, _, value = arg.lstrip("-").partition("=")
    value = value or (following if not following.startswith("-") and "=" not in following else "")
    if name.startswith("list"):
        kinds = difflib.get_close_matches(name.removeprefix("list-"), _LISTS, n=1) or [
            "|".join(_LISTS)
        ]
        return UserError(f"'{arg}' is not an option", f"write `list {kinds[0]}`")
    near = [f"{key}={value or '...'}" for key in meant(name.replace("-", "_"))]
    return UserError(
        f"'{arg}' is not an option", f"write {' or '.join(near)}" if near else _ALL_SETTINGS
    )


def meant(name: str) -> list[str]:
    """The setting or group that a name nearly is; several where only their last part was typed."""
    known = [*GROUPS, *known_keys()]
    if name in known:
        return [name]
    # Most people mean the model's setting, and not the judge's of the same name.
    by_last: dict[str, list[str]] = {}
    for key in sorted(known, key=lambda key: key.startswith("judge.")):
        by_last.setdefault(key.rpartition(".")[2], []).append(key)
    last = name.rpartition(".")[2]
    if last in by_last:
        return by_last[last]
    near = _nearest(name, [*known, *by_last])
    return [near] if near in known else by_last.get(near, [])


def refused_value(key: str, value: str) -> UserError:
    """The error for a value that does not fit the type of its setting."""
    if len(value) > 1 and value[0] in "'\"" and value[0] == value[-1]:
        value = value[1:-1]
    kind = str(known_keys().get(key, "")).removesuffix(" | None")
    kind = kind.removeprefix("<class '").removesuffix("'>")
    if kind.startswith("list"):
        hint = f"write {key}=[{value.strip('[]') if kind == 'list[str]' else '1,2'}]"
    elif kind.startswith("dict"):
        hint = f"write {key}.NAME=VALUE"
    elif "," in value:
        hint = f"for a sweep over several values: -m {key}={value}"
    elif kind in _TAKES:
        hint = f"leave {key} out for its default" if value == "null" else ""
    else:
        return UserError(f"{key}={value} cannot be read", f"quote a text: \"{key}='{value}'\"")
    return UserError(f"{key} takes {_TAKES.get(kind, 'one value')}, not '{value}'", hint)


def refused_choice(group: str, name: str, known: Collection[str]) -> UserError:
    """The error for a name that a config group does not have."""
    near = _nearest(name, known)
    return UserError(
        f"there is no {group} '{name}'",
        f"did you mean {group}={near}?" if near else f"there are: {', '.join(sorted(known))}",
    )


def _nearest(name: str, known: Collection[str]) -> str:
    # Two letters in the wrong order are the commonest slip, and difflib rates it below a lost one.
    swapped = [word for word in known if sorted(word) == sorted(name)]
    near = swapped or difflib.get_close_matches(name, known, n=1)
    return near[0] if near else ""


@functools.cache
def known_keys() -> dict[str, Any]:
    """All dotted setting names with their types."""
    return _walk(RunConfig, "")


@functools.cache
def open_keys() -> list[str]:
    """Settings that take any sub-key, such as engine.args."""
    return [name for name, kind in known_keys().items() if "dict" in str(kind)]


def _walk(cls: type[Any], prefix: str) -> dict[str, Any]:
    hints = typing.get_type_hints(cls)
    keys: dict[str, Any] = {}
    for item in dataclasses.fields(cls):
        kind = hints[item.name]
        if dataclasses.is_dataclass(kind) and isinstance(kind, type):
            keys.update(_walk(kind, f"{prefix}{item.name}."))
        else:
            keys[f"{prefix}{item.name}"] = kind
    return keys


def text_kind(key: str) -> str:
    """``str`` where a setting takes a text, ``list[str]`` for a list of them, else empty."""
    kind = str(known_keys().get(key.lstrip("+"), ""))
    kind = kind.removesuffix(" | None").removeprefix("<class '").removesuffix("'>")
    return kind if kind in ("str", "list[str]") else ""
