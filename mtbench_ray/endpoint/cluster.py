"""One limiter for all runs on a Ray cluster: a named actor that holds a :class:`Limiter`.

The actor is detached, so that runs may come and go, and ends itself when none has called for a
while. Only hashes of the key reach it.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import AbstractAsyncContextManager
from typing import Any

from mtbench_ray.config import EndpointConfig
from mtbench_ray.endpoint.keys import fingerprint
from mtbench_ray.endpoint.limiter import Limiter, RateLimiter
from mtbench_ray.errors import UserError
from mtbench_ray.schema import content_id

NAMESPACE = "mtbench_ray"
_IDLE_S = 600.0

_Limits = tuple[float | None, float | None, bool]
"""Requests and tokens a minute, adaptive."""


def make_limiter(
    config: EndpointConfig, model: str, key: str | None, label: str = "endpoint"
) -> RateLimiter:
    """The limiter that the settings ask for, for the running event loop.

    Raises:
        UserError: A limit is not above 0, or ``limit_scope`` is ``cluster`` and Ray is not running.
    """
    for name in ("requests_per_minute", "tokens_per_minute", "concurrency"):
        value = getattr(config, name)
        if value is not None and value <= 0:
            raise UserError(f"{label}: {name}={value} permits no call", "set it above 0")
    if config.limit_scope == "cluster":
        return ClusterLimiter(config, model, key)
    return Limiter(
        config.requests_per_minute,
        config.tokens_per_minute,
        config.concurrency,
        config.adaptive,
        label,
    )


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
        import ray

        if not ray.is_initialized():
            raise UserError(
                "limit_scope=cluster needs Ray, and this run does not use it",
                "set cluster.ray=always and cluster.address=auto, or limit_scope=run",
            )
        endpoint = {"base_url": config.base_url, "key": fingerprint(key), "model": model}
        self._name = f"limiter-{content_id('limiter', endpoint)}"
        self._limits = (config.requests_per_minute, config.tokens_per_minute, config.adaptive)
        self._idle_s = idle_s
        self._slots = asyncio.Semaphore(config.concurrency)
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

    def slot(self) -> AbstractAsyncContextManager[Any]:
        """Hold one of this run's calls in flight."""
        return self._slots

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

    def refused(self) -> None:
        """Say that a call met 429."""
        self._actor.refused.remote()


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

    async def refused(self) -> None:
        self._limiter.refused()

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
    return Limiter(requests, tokens, 1, adaptive, label)
