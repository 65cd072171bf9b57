"""The settings of a run, completed and checked before anything is started."""

from __future__ import annotations

import dataclasses
import difflib
import math
import operator
import os
import re
from typing import TypeVar
from urllib.parse import urlsplit

from mtbench_ray.benchmarks import get_benchmark, grader_of
from mtbench_ray.config import EndpointConfig, JudgeConfig, RunConfig
from mtbench_ray.endpoint.prices import listed_prices
from mtbench_ray.errors import UserError

_WORDS = {
    "stage": ("all", "answers", "judge"),
    "protocol": ("default", "official"),
    "parity": ("safe", "fastchat"),
    "limit_by": ("order", "category"),
    "select": ("best", "gate"),
    "model.thinking": ("unset", "on", "off", "prompt"),
    "model.split_thinking": ("auto", "always", "never"),
    "judge.kind": ("openai", "local", "none"),
    "judge.truncate": ("never", "answer_tail"),
    "judge.limit_scope": ("run", "cluster"),
    "judge.token_param": ("max_tokens", "max_completion_tokens"),
    "judge.schedule": ("auto", "together", "after"),
    "engine.kind": ("vllm", "openai", "fake"),
    "engine.limit_scope": ("run", "cluster"),
    "engine.token_param": ("max_tokens", "max_completion_tokens"),
    "engine.hot_swap": ("auto", "off", "verify"),
    "engine.next_weights": ("auto", "device", "host", "files"),
    "cluster.ray": ("auto", "always"),
    "tracker.kind": ("none", "wandb", "mlflow", "tensorboard", "trackio"),
    "report.format": ("table", "json", "markdown", "csv", "latex"),
}
"""Settings that take one of a few words."""
_SWITCH = {"on": "on", "true": "on", "yes": "on", "off": "off", "false": "off", "no": "off"}
"""YAML makes a boolean of an unquoted on or off, which comes as ``True`` or ``False``."""
_OPENAI = "https://api.openai.com/v1"
"""What the openai client calls where no address is given."""
_LOGIN = re.compile(r"(?:^|//)[^/?#]*@")


def validate(config: RunConfig) -> RunConfig:
    """Fill in automatic values and refuse settings that contradict one another.

    Raises:
        UserError: With the setting to change.
    """
    config = _check_words(config)
    if config.limit is not None and config.limit < 1:
        raise UserError(f"limit={config.limit} leaves no question", "write limit=1 or more")
    if config.sampling.samples < 1 or config.judge.samples < 1:
        raise UserError("samples must be at least 1", "write sampling.samples=1 judge.samples=1")
    if config.sampling.max_tokens is None:
        benchmark = get_benchmark(config.benchmark.name)
        cap = benchmark.max_tokens(config.model)
        config = dataclasses.replace(
            config, sampling=dataclasses.replace(config.sampling, max_tokens=cap)
        )
    for key, cap in (("sampling", config.sampling.cap), ("judge", config.judge.max_tokens)):
        if cap < 0:
            raise UserError(
                f"{key}.max_tokens={cap} permits no token",
                f"write {key}.max_tokens=1024, or {key}.max_tokens=0 for a service's own default",
            )
    if config.sampling.max_tokens == 0 and config.engine.kind != "openai":
        raise UserError(
            "sampling.max_tokens=0 is a service's own default, and "
            f"engine={config.engine.kind} is no service",
            "write sampling.max_tokens=1024",
        )
    if config.fresh and config.stage == "judge":
        raise UserError(
            "fresh=true leaves no answers, and stage=judge makes none",
            "leave out fresh=true; for new verdicts on the answers that are there: judge.samples=2",
        )
    if config.report.seed < 0 or config.report.resamples < 0:
        raise UserError(
            "report.seed and report.resamples are 0 or more",
            "write report.seed=0 report.resamples=2000",
        )
    grader = grader_of(config.benchmark.name, config.mode or "")
    benchmark = get_benchmark(config.benchmark.name)
    if config.protocol == "official" and not benchmark.official:
        raise UserError(
            f"{benchmark.name} has one protocol only",
            f"leave out protocol=; {benchmark.official_is}"
            if benchmark.official_is
            else "leave out protocol=",
        )
    if grader.against == "baseline" and not config.baseline:
        if not benchmark.baseline:
            raise UserError(f"mode={grader.name} needs a model to compare with", "baseline=<model>")
        config = dataclasses.replace(config, baseline=benchmark.baseline)
    _check_select(config, grader.against)
    _check_watch(config, grader.against)
    refuse_login("tracker.uri", config.tracker.uri or "")
    judge, engine = config.judge, config.engine
    if grader.checker:
        judge = JudgeConfig(kind="none")
    if judge.kind == "openai" and not judge.model:
        raise UserError(
            "no judge was chosen",
            "write judge=gpt-4o (`list judges` shows the presets), judge=local,"
            " judge=none for answers only, or judge=openai judge.model=NAME judge.base_url=URL",
        )
    if judge.kind == "openai" and judge.base_url is None:
        # The openai client reads it too; here it gets into the ids and the record.
        address = os.environ.get("OPENAI_BASE_URL", "").strip() or _OPENAI
        judge = dataclasses.replace(judge, base_url=address)
    if judge.kind == "openai" and judge.base_url and judge.price_prompt is None:
        found = (
            listed_prices(judge.base_url, judge.model) if judge.price_completion is None else None
        )
        if found is not None:
            prompt, completion, cached = found
            cached = cached if judge.price_cached is None else judge.price_cached
            judge = dataclasses.replace(
                judge, price_prompt=prompt, price_completion=completion, price_cached=cached
            )
    if engine.kind == "openai" and not engine.base_url:
        raise UserError(
            "engine=openai needs to know its server", "engine.base_url=http://127.0.0.1:8000/v1"
        )
    for group, service in (("judge", judge), ("engine", engine)):
        if service.concurrency < 1:
            raise UserError(
                f"{group}.concurrency={service.concurrency} permits no call", "write 1 or more"
            )
        if service.kind == "openai" and service.base_url is not None:
            _check_address(f"{group}.base_url", service.base_url)
    if judge.kind == "openai":
        judge = _one_spelling(judge)
    if engine.kind == "openai":
        engine = _one_spelling(engine)
    if judge.batch and judge.kind == "local":
        raise UserError(
            "judge.batch=true is for a service with a batch API, and judge=local is none",
            "leave out judge.batch",
        )
    if judge.batch_price < 0 or (judge.batch_wait_s is not None and judge.batch_wait_s < 0):
        raise UserError(
            "judge.batch_price and judge.batch_wait_s are 0 or more",
            "write judge.batch_price=0.5 judge.batch_wait_s=600",
        )
    if judge.constrain is None:
        judge = dataclasses.replace(judge, constrain=judge.demo)
    return dataclasses.replace(config, mode=grader.name, judge=judge, engine=engine)


_Service = TypeVar("_Service", bound=EndpointConfig)


def _one_spelling(service: _Service) -> _Service:
    """The same address always in the same spelling, since it is part of ids."""
    if not service.base_url:
        return service
    parts = urlsplit(service.base_url.strip())
    place = (parts.hostname or "").lower()
    place = f"[{place}]" if ":" in place else place
    if parts.port is not None and parts.port != {"http": 80, "https": 443}.get(parts.scheme):
        place += f":{parts.port}"
    return dataclasses.replace(
        service, base_url=f"{parts.scheme.lower()}://{place}{parts.path.rstrip('/')}"
    )


def refuse_login(key: str, value: str) -> None:
    """Refuse an address with a user or password in it: settings are written to files as they are.

    Raises:
        UserError: It has one; the message does not show it.
    """
    if _LOGIN.search(value):
        group = key.partition(".")[0]
        raise UserError(
            f"{key} holds a user or a password, which would be written to the run's files",
            "take it out of the address; "
            + (
                "set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD"
                if group == "tracker"
                else "put a key into an environment variable and name that: "
                f"{group}.api_key_env=NAME"
            ),
        )
    if key == "tracker.uri" and "://" in value and "?" in value:
        raise UserError(
            "tracker.uri has something behind a question mark, perhaps a token, which would be"
            " written to the run's files",
            "take it out of the address; trackio reads TRACKIO_WRITE_TOKEN",
        )


def _check_words(config: RunConfig) -> RunConfig:
    for key, allowed in _WORDS.items():
        value = operator.attrgetter(key)(config)
        if value is None or value in allowed:
            continue
        word = _SWITCH.get(value.lower())
        if word not in allowed:
            near = difflib.get_close_matches(value, allowed, n=1, cutoff=0.5)
            meant = f"did you mean {key}={near[0]}?" if near else f"it is {' or '.join(allowed)}"
            raise UserError(f"{key}={value} is not known", meant)
        group, _, name = key.rpartition(".")
        changed = dataclasses.replace(getattr(config, group), **{name: word})
        config = dataclasses.replace(config, **{group: changed})
    return config


def _check_select(config: RunConfig, against: str) -> None:
    """Raises UserError where a race could not be run."""
    if config.select is None:
        if config.gate:
            raise UserError(
                f"gate={config.gate:g} is of a race",
                "add select=gate or select=best; what is judged: report compare NEW OLD gate=0.1",
            )
        return
    if not (math.isfinite(config.gate) and config.gate >= 0):
        raise UserError(f"gate={config.gate:g} is no number of points from 0", "gate=0.1")
    if against:
        raise UserError(
            f"select={config.select} is of answers that are judged one by one, and mode="
            f"{config.mode} compares them already",
            "leave out select= or mode=",
        )
    if config.judge.batch:
        raise UserError(
            f"select={config.select} waits for the verdicts of a few questions before it sends the"
            " next, and judge.batch=true has them within a day",
            "leave out select= or judge.batch",
        )


_TIMES = {"s": 1.0, "sec": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}


def watch_until(text: str) -> tuple[float | None, float | None]:
    """The last step and the seconds without news that ``watch.until`` names; None where not named.

    Raises:
        UserError: It names neither.
    """
    step = idle = None
    for part in text.replace(",", " ").split():
        found = re.fullmatch(r"(\d+(?:\.\d+)?)(s|sec|m|min|h)?", part)
        if found is None:
            raise UserError(
                f"watch.until={text} names neither a step nor a time without news",
                "watch.until=5000, watch.until=90min or watch.until='5000 90min'",
            )
        if found[2]:
            idle = float(found[1]) * _TIMES[found[2]]
        else:
            step = float(found[1])
    return step, idle


def _check_watch(config: RunConfig, against: str) -> None:
    """Raises UserError where a watch could not be kept up."""
    watch = config.watch
    if not watch.enabled:
        given = [name for name in ("until", "release", "alert") if getattr(watch, name)]
        if given:
            raise UserError(f"watch.{given[0]} is of a watch", "add watch=true")
        return
    watch_until(watch.until)
    if watch.look_s <= 0 or watch.settle_s < 0:
        raise UserError(
            "watch.look_s is above 0, and watch.settle_s 0 or more",
            "write watch.look_s=15 watch.settle_s=30",
        )
    why = {
        "fresh=true": config.fresh and "would start over whenever the watch is started again",
        "stage=judge": config.stage == "judge" and "needs no checkpoint",
        f"select={config.select}": config.select and "compares models that are all there",
        f"mode={config.mode}": against == "all" and "compares models that are all there",
        "judge.batch=true": config.judge.batch and "has replies within a day",
    }
    for setting, reason in why.items():
        if reason:
            raise UserError(f"watch=true takes no {setting}: it {reason}", f"leave out {setting}")
    if re.match(r"[a-z]+://", watch.alert):
        parts = urlsplit(watch.alert)
        here = parts.hostname in ("localhost", "127.0.0.1", "::1")
        if parts.scheme != "https" and not (parts.scheme == "http" and here):
            raise UserError(
                "watch.alert is the address of a webhook, and not an https one",
                "watch.alert='${oc.env:ALERT_URL}' with https://... in that variable, or a command",
            )


def _check_address(key: str, address: str) -> None:
    """Raises UserError where no service can be at an address."""
    refuse_login(key, address)
    try:
        parts = urlsplit(address)
        good = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        good = False
    # What follows a question mark would stand before /chat/completions; it may be a key.
    shown = address.partition("?")[0]
    if not good or shown != address or re.search(r"\s", address):
        raise UserError(
            f"{key}={shown} is not the address of a service",
            f"it is http:// or https://, a host and a path: {key}=http://127.0.0.1:8000/v1",
        )
