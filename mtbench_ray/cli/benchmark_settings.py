"""Settings of single benchmarks in a file: ``benchmark: {ifeval: {limit: 100}}``."""

from __future__ import annotations

import copy
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import fields
from typing import Any

from mtbench_ray.benchmarks import get_benchmark
from mtbench_ray.cli.overrides import Typed, of_benchmark, takes_any_name
from mtbench_ray.config import BenchmarkConfig, RunConfig
from mtbench_ray.errors import UserError

_OF_ALL = frozenset(item.name for item in fields(BenchmarkConfig))
"""What ``benchmark`` holds for each benchmark; whatever else is there is the name of one."""


def schema() -> Any:
    """All settings with their types, open for those of single benchmarks."""
    from omegaconf import OmegaConf

    settings = OmegaConf.structured(RunConfig)
    OmegaConf.set_struct(settings.benchmark, False)
    return settings


def without_own(config: Any) -> Any:
    """Settings without those of single benchmarks."""
    from omegaconf import open_dict

    if set(config.benchmark) <= _OF_ALL:
        return config
    config = copy.deepcopy(config)
    with open_dict(config):
        for name in set(config.benchmark) - _OF_ALL:
            del config.benchmark[name]
    return config


def of_file(
    config: Any, known: Mapping[str, Collection[str]], overrides: Sequence[str]
) -> tuple[dict[str, list[str]], Typed]:
    """The settings of single benchmarks that a file (an experiment's) holds below ``benchmark``.

    Returns:
        Overrides by benchmark, as if ``benchmark.<name>.<setting>=`` had been typed, and the judges
        that they choose.

    Raises:
        UserError: An unknown benchmark or setting, or one that cannot differ between benchmarks.
    """
    from omegaconf import OmegaConf

    own, found = Typed(), dict[str, list[str]]()
    held = OmegaConf.to_container(config.benchmark, resolve=False)
    assert isinstance(held, dict)
    for name in map(str, held):
        if name in _OF_ALL:
            continue
        get_benchmark(name)
        if not isinstance(held[name], dict):
            raise UserError(
                f"benchmark.{name} in a settings file holds no settings",
                f"write them below it, as in benchmark: {{{name}: {{limit: 100}}}}",
            )
        found[name] = [
            of_benchmark(f"benchmark.{name}.{key}", key, text, known, own,
                         takes_any_name(overrides))
            for key, text in _flat(held[name])
        ]  # fmt: skip
    return found, own


def _flat(settings: Mapping[Any, Any], above: str = "") -> Iterator[tuple[str, str]]:
    """Keys with dots, and each value as Hydra reads it on a command line."""
    for name, value in settings.items():
        key = f"{above}{name}"
        if isinstance(value, Mapping) and value:
            yield from _flat(value, f"{key}.")
        elif key == "judge":
            yield key, str(value)  # a name
        else:
            yield key, _as_typed(value)


def _as_typed(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{}"
    if isinstance(value, list):
        return f"[{','.join(map(_as_typed, value))}]"
    if value is None or isinstance(value, bool):
        return str(value).lower().replace("none", "null")
    return in_quotes(value) if isinstance(value, str) else str(value)


def in_quotes(text: str) -> str:
    """A text in the quotes in which Hydra reads it as it is."""
    from hydra.core.override_parser.types import Quote, QuotedString

    return str(QuotedString(text, Quote.single).with_quotes())
