"""Secrets that are typed on the command line: Hydra writes down all that it gets, so not these."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from mtbench_ray.cli.suggestions import open_keys
from mtbench_ray.config import RunConfig
from mtbench_ray.system.redact import HIDDEN, hidden, is_secret_name

Place = tuple[str, ...]
_SETTINGS = frozenset(("watch.alert",))
"""Settings that are a text and a secret: the address of a webhook is all that it takes."""


@dataclass
class Secrets:
    """What was taken out of a command line.

    Attributes:
        values: By place in the settings: ``("engine", "args", "hf_token")``.
        shown: By argument that held one: how it is written down.
    """

    values: dict[Place, Any] = field(default_factory=dict)
    shown: dict[str, str] = field(default_factory=dict)


def take_secrets(args: list[str]) -> Secrets:
    """Replace secrets in free-form settings by ``***``, in place.

    A setting is one by its name (:func:`mtbench_ray.system.redact.is_secret_name`), also inside
    braces. An interpolation (``${oc.env:NAME}``) is the name of a secret and stays.
    """
    found = Secrets()
    groups = open_keys()
    for index, arg in enumerate(args):
        key, equals, raw = arg.partition("=")
        bare = key.lstrip("+")
        if bare in _SETTINGS and raw.strip() and "${" not in raw:
            found.values[tuple(bare.split("."))] = _value(raw)
            args[index] = found.shown[arg] = f"{key}={HIDDEN}"
            continue
        group = next((name for name in groups if f"{bare}.".startswith(f"{name}.")), None)
        if not equals or group is None or "${" in raw:
            continue
        inner = bare[len(group) :].strip(".")
        value = _value(raw)
        if any(is_secret_name(part) for part in inner.split(".") if part):
            if value in (None, "", True, False):
                continue
            found.values[tuple(bare.split("."))] = value
            shown: Any = HIDDEN
        else:
            shown = hidden(value)
            if shown == value:
                continue
            found.values |= {
                (*bare.split("."), *place): secret for place, secret in _differing(value, shown)
            }
        args[index] = found.shown[arg] = f"{key}={_written(shown)}"
    return found


def put_back(settings: RunConfig, secrets: Mapping[Place, Any]) -> None:
    """Give composed settings the secrets that were taken out of the command line."""
    for (group, name, *rest), value in secrets.items():
        if not rest:
            setattr(getattr(settings, group), name, str(value))
            continue
        target = getattr(getattr(settings, group), name)
        for part in rest[:-1]:
            target = target[int(part)] if isinstance(target, list) else target[part]
        target[int(rest[-1]) if isinstance(target, list) else rest[-1]] = value


def _value(raw: str) -> Any:
    """What Hydra makes of a value; the text itself where it makes nothing of it."""
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.core.override_parser.types import Override, Sweep
    from hydra.errors import HydraException

    try:
        value = OverridesParser.create().parse_override(f"x={raw}").value()
    except HydraException:
        return raw
    return raw if isinstance(value, Sweep) else Override._convert_value(value)


def _differing(value: Any, shown: Any) -> list[tuple[Place, Any]]:
    if shown == value:
        return []
    if isinstance(value, dict) and isinstance(shown, dict):
        pairs = [(str(key), value[key], shown[key]) for key in value]
    elif isinstance(value, list) and isinstance(shown, list):
        pairs = [(str(n), *both) for n, both in enumerate(zip(value, shown, strict=True))]
    else:
        return [((), value)]
    return [
        ((key, *place), secret)
        for key, one, other in pairs
        for place, secret in _differing(one, other)
    ]


def _written(value: Any) -> str:
    """A value in Hydra's grammar."""
    from hydra.core.override_parser.types import Quote, QuotedString

    if isinstance(value, dict):
        return "{" + ",".join(f"{key}:{_written(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(_written, value)) + "]"
    if value is None or isinstance(value, bool):
        return "null" if value is None else str(value).lower()
    if isinstance(value, str) and value != HIDDEN:
        return str(QuotedString(value, Quote.single).with_quotes())
    return str(value)
