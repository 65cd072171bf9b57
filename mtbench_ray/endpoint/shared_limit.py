"""Which limiter a service gets, and the one that all runs on a Ray cluster share.

That one is a named actor, which holds a :class:`Limiter`. It is detached, so that runs may come and
go, and ends itself when none has called for a while. Only hashes of the key reach it.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import time
import weakref
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from mtbench_ray.config import EndpointConfig, JudgeConfig
from mtbench_ray.endpoint.file_limit import FileLimiter
from mtbench_ray.endpoint.keys import fingerprint, is_loopback
from mtbench_ray.endpoint.learned_rate import LearnedRate
from mtbench_ray.endpoint.rate_limit import Limiter, RateLimiter, Slots
from mtbench_ray.errors import UserError
from mtbench_ray.schema import content_id

NAMESPACE = "mtbench_ray"
_IDLE_S = 600.0

_Limits = tuple[float | None, float | None, bool | None]
"""Requests and tokens a minute, adaptive."""


_shared: weakref.WeakValueDictionary[tuple[str, str, str], RateLimiter]
_shared = weakref.WeakValueDictionary()
"""Limiters in use by this process, by address, key and model."""
_sharing = threading.Lock()
_known: dict[str, float] = {}
"""Requests a minute that earlier runs have learned, by address, hash of the key, and model."""


def remember_rates(rates: Mapping[str, float]) -> None:
    """Begin at what earlier runs have learned of services; see :func:`learned_rates`."""
    _known.update({n: r for n, r in rates.items() if isinstance(r, float | int) and r > 0})


def learned_rates() -> dict[str, float]:
    """Requests a minute learned of the services in use, by address, hash of the key, and model."""
    return {
        " ".join(name): round(60 * limiter.learned.per_second, 1)
        for name, limiter in list(_shared.items())
        if isinstance(limiter, Limiter)
        and limiter.learned is not None
        and limiter.learned.per_second is not None
    }


def shared_limiter(
    config: EndpointConfig, model: str, key: str | None, label: str, address: str = ""
) -> RateLimiter:
    """The one limiter of a service and key in this process, for the endpoints' event loop.

    Args:
        model: Where the limits are a model's; empty where all models of the service share them.
        address: Instead of ``config.base_url``.

    Raises:
        UserError: As :func:`make_limiter`.
    """
    _check(config, label)
    name = (address or config.base_url or "", fingerprint(key), model)
    with _sharing:
        limiter = _shared.get(name)
        if limiter is None:
            known = _known.get(" ".join(name))
            limiter = _shared[name] = make_limiter(config, model, key, label, known)
        return limiter


def make_limiter(
    config: EndpointConfig,
    model: str,
    key: str | None,
    label: str = "endpoint",
    known: float | None = None,
) -> RateLimiter:
    """The limiter that the settings ask for, for the running event loop.

    Args:
        known: Requests a minute that an earlier run has learned, for where none is stated.

    ``limit_scope=cluster`` is the cluster that was joined; without one, this machine. Actors of
    one run share a limiter in any case.

    Raises:
        UserError: A limit permits no call, or a wait between tries is none.
    """
    _check(config, label)
    if _in_actor():
        share = max(1, config.concurrency // max(1, getattr(config, "replicas", None) or 1))
        return ClusterLimiter(replace(config, concurrency=share), model, key)
    if config.limit_scope == "cluster":
        if _on_joined_cluster():
            return ClusterLimiter(config, model, key)
        return FileLimiter(config, limiter_name(config, model, key), label)
    return Limiter(
        config.requests_per_minute,
        config.tokens_per_minute,
        config.concurrency,
        bool(config.adaptive),
        label,
        _learned(config, known),
    )


def _learned(config: EndpointConfig, known: float | None) -> LearnedRate | None:
    """What learns the limit of a service: not of a server of the run's own, which has none.

    A judge of somebody else's begins gently. Answers take long, and begin at once: most servers of
    them have no limit.
    """
    if config.adaptive is False or getattr(config, "kind", "openai") != "openai":
        return None
    gentle = isinstance(config, JudgeConfig) and not is_loopback(config.base_url)
    return LearnedRate(gentle=gentle, known=known / 60 if known else None)


def _check(config: EndpointConfig, label: str) -> None:
    for name in ("requests_per_minute", "tokens_per_minute", "concurrency"):
        value = getattr(config, name)
        if value is not None and value <= 0:
            raise UserError(f"{label}: {name}={value} permits no call", "set it above 0")
    waits = (config.retry_wait_s, config.retry_max_wait_s)
    if min(waits) < 0 or config.retry_factor < 1:
        raise UserError(
            f"{label}: waits between tries grow from retry_wait_s by retry_factor",
            "set retry_wait_s and retry_max_wait_s to 0 or more, retry_factor to 1 or more",
        )


def limiter_name(config: EndpointConfig, model: str, key: str | None) -> str:
    """A name for the limiter of a service, key and model, from which no key can be read."""
    endpoint = {"base_url": config.base_url, "key": fingerprint(key), "model": model}
    return f"limiter-{content_id('limiter', endpoint)}"


def _ray() -> Any:
    """Ray where this process uses it: no run imports it for a question alone."""
    ray = sys.modules.get("ray")
    return ray if ray is not None and ray.is_initialized() else None


def _in_actor() -> bool:
    ray = _ray()
    return ray is not None and ray.get_runtime_context().get_actor_id() is not None


def _on_joined_cluster() -> bool:
    """Whether Ray runs here and was not started by this process for itself."""
    ray = _ray()
    node = getattr(ray._private.worker, "_global_node", None) if ray is not None else None
    return ray is not None and not (node is not None and node.is_head())


class ClusterLimiter:
    """A :class:`RateLimiter` whose rates are shared by all runs on the cluster.

    ``concurrency`` stays a matter of each run: a slot of a run that died would never come back.
    The limits of the run that joined last are those of all.

    Args:
        idle_s: Seconds without a call until the actor ends itself.
    """

    def __init__(
        self, config: EndpointConfig, model: str, key: str | None, idle_s: float = _IDLE_S
    ) -> None:
        self._name = limiter_name(config, model, key)
        self._limits = (config.requests_per_minute, config.tokens_per_minute, config.adaptive)
        self._idle_s = idle_s
        self.slots = Slots(config.concurrency)
        self._join()

    def _join(self) -> None:
        import ray

        options = {
            "name": self._name,
            "namespace": NAMESPACE,
            "get_if_exists": True,
            "lifetime": "detached",
            "num_cpus": 0,
            "max_concurrency": 10_000,
            "max_restarts": -1,
        }
        actor = ray.remote(_LimiterActor).options(**options)
        self._actor: Any = actor.remote(self._name, self._idle_s, self._limits)
        ray.get(self._actor.configure.remote(self._limits))

    async def acquire(self, tokens: int) -> None:
        """Wait until one call of about so many tokens may leave, over all runs."""
        from ray.exceptions import RayActorError

        try:
            await self._actor.acquire.remote(tokens)
        except RayActorError:
            # It ended itself between two calls, or its node is gone.
            self._join()
            await self._actor.acquire.remote(tokens)

    def correct(self, estimated: int, actual: int) -> None:
        """Say what a call really took."""
        self._actor.correct.remote(estimated, actual)

    def pause(self, seconds: float, reason: str) -> None:
        """Let no call of any run leave for so long."""
        self._actor.pause.remote(seconds, reason)

    def refused(self, age_s: float) -> None:
        """Say that a call met 429."""
        self._actor.refused.remote(age_s)

    def stated(self, per_minute: float) -> None:
        """Say how many requests a minute the service says it permits."""
        self._actor.stated.remote(per_minute)


class _LimiterActor:
    """Runs in the actor's event loop; the methods are :class:`RateLimiter`'s."""

    def __init__(self, name: str, idle_s: float, limits: _Limits) -> None:
        self._name = name
        self._idle_s = idle_s
        self._limits = limits
        self._limiter = _limiter(limits, name)
        self._waiting = 0
        self._used = time.monotonic()
        self._watch: asyncio.Task[None] | None = None

    async def configure(self, limits: _Limits) -> None:
        if self._watch is None:
            self._watch = asyncio.create_task(self._end_when_idle())
        if self._limits != limits:
            self._limits = limits
            self._limiter = _limiter(limits, self._name)

    async def acquire(self, tokens: int) -> None:
        self._waiting += 1
        try:
            await self._limiter.acquire(tokens)
        finally:
            self._waiting -= 1
            self._used = time.monotonic()

    async def correct(self, estimated: int, actual: int) -> None:
        self._limiter.correct(estimated, actual)

    async def pause(self, seconds: float, reason: str) -> None:
        self._limiter.pause(seconds, reason)

    async def refused(self, age_s: float) -> None:
        self._limiter.refused(age_s)

    async def stated(self, per_minute: float) -> None:
        self._limiter.stated(per_minute)

    async def end(self) -> None:
        import ray

        ray.actor.exit_actor()

    async def _end_when_idle(self) -> None:
        import ray

        while self._waiting or time.monotonic() - self._used < self._idle_s:
            await asyncio.sleep(self._idle_s / 10)
        # exit_actor works in a method call only, so the actor calls itself.
        ray.get_actor(self._name, namespace=NAMESPACE).end.remote()


def _limiter(limits: _Limits, label: str) -> Limiter:
    requests, tokens, adaptive = limits
    learned = LearnedRate(gentle=True) if adaptive is not False else None
    return Limiter(requests, tokens, 1, bool(adaptive), label, learned)
