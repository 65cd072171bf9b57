"""Single HTTP requests to one endpoint or to several replicas of it."""

from __future__ import annotations

import asyncio
import math
import os
import ssl
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from mtbench_ray.config import EndpointConfig, EngineConfig
from mtbench_ray.endpoint.api_errors import Fault, http_fault
from mtbench_ray.endpoint.keys import display_host, is_loopback
from mtbench_ray.endpoint.learned_rate import stated_limit
from mtbench_ray.endpoint.patience import Patience
from mtbench_ray.endpoint.reply import Reply, read_reply
from mtbench_ray.errors import UserError

if TYPE_CHECKING:
    from openai import AsyncOpenAI

_REPLICA_REST_S = 5.0
"""A replica that refuses connections would always be the least busy one."""
_NO_KEY = "none"
_POOL = 32
"""Calls in flight for each pool of connections: a pool looks at all of its connections for each
call, which at 256 takes longer than the call itself."""


@dataclass
class _Replica:
    """One pool of connections to one address."""

    client: AsyncOpenAI
    in_flight: int = 0
    resting_until: float = 0.0


@lru_cache(maxsize=4)
def _certificates(trust_env: bool, *_files: str | None) -> ssl.SSLContext:
    """What servers are checked with, as httpx makes it: 50 ms, which each pool would take again.

    Args:
        trust_env: Whether the environment may name the certificates.
        _files: What it names.
    """
    import httpx

    return httpx.create_ssl_context(trust_env=trust_env)


class _Watch:
    """Ends a timeout of asyncio at a moment that is asked for again each time it is reached."""

    def __init__(self, limit: asyncio.Timeout, first_s: float, ends: Callable[[], float]) -> None:
        self._limit = limit
        self._ends = ends
        self._timer = asyncio.get_running_loop().call_later(first_s, self._look)

    def _look(self) -> None:
        loop, left = asyncio.get_running_loop(), self._ends() - time.monotonic()
        if left <= 0:
            self._limit.reschedule(loop.time())
        else:
            self._timer = loop.call_later(left, self._look)

    def cancel(self) -> None:
        """The call has ended."""
        self._timer.cancel()


class Transport:
    """Sends requests, each to the least busy replica. One try each, no policy.

    Args:
        key: None sends a placeholder.
        base_urls: Replicas of the same model that the run itself started, instead of
            ``config.base_url``.

    Raises:
        UserError: An address, or a proxy that the environment names, cannot be used.
    """

    def __init__(
        self, config: EndpointConfig, key: str | None, base_urls: Sequence[str] | None
    ) -> None:
        self._config = config
        self._key = key
        self._own = bool(base_urls)
        self._patience = Patience(config.timeout_s)
        addresses = list(base_urls) if base_urls else [config.base_url]
        pools = math.ceil(config.concurrency / _POOL)
        self._replicas = [_Replica(self._connect(a)) for _ in range(pools) for a in addresses]
        self.where = ", ".join(display_host(address) for address in addresses)

    def _connect(self, base_url: str | None) -> AsyncOpenAI:
        group = "engine" if isinstance(self._config, EngineConfig) else "judge"
        try:
            client = self._make_client(base_url)
            usable = client.base_url.scheme in ("http", "https") and bool(client.base_url.host)
        except ImportError as error:
            raise UserError(
                f"the environment names a proxy that Python cannot use here: {error}",
                "run `pip install socksio`, or unset ALL_PROXY, HTTP_PROXY and HTTPS_PROXY",
            ) from None
        except Exception:
            # Each library has its own class for a bad URL, and its text may hold a password.
            usable = False
        if not usable:
            raise UserError(
                f"{group}.base_url, or a proxy of the environment, is no address that can be "
                f"called ({display_host(base_url)})",
                f"write {group}.base_url with http:// or https://, as in "
                "http://127.0.0.1:8000/v1, and look at ALL_PROXY, HTTP_PROXY and HTTPS_PROXY",
            )
        return client

    def _make_client(self, base_url: str | None) -> AsyncOpenAI:
        import openai
        import openai.resources.chat.completions  # else the first call does it

        # A proxy of the environment reaches neither this machine's own servers nor those that the
        # run started on another node.
        trust_env = not (self._own or is_loopback(base_url))
        # With one address no pool gets more than its share of the calls; with several, one may.
        most = self._config.concurrency
        limits = type(openai.DEFAULT_CONNECTION_LIMITS)(
            max_connections=most, max_keepalive_connections=most
        )
        return openai.AsyncOpenAI(
            # Never None: the library would then look for a key meant for another service.
            api_key=self._key or _NO_KEY,
            base_url=base_url,
            max_retries=0,
            timeout=openai.Timeout(None, connect=self._config.timeout_s),
            http_client=openai.DefaultAsyncHttpxClient(
                limits=limits,
                verify=_certificates(
                    trust_env, os.environ.get("SSL_CERT_FILE"), os.environ.get("SSL_CERT_DIR")
                ),
                trust_env=trust_env,
            ),
        )

    @property
    def in_flight(self) -> int:
        """Requests sent and not yet answered."""
        return sum(replica.in_flight for replica in self._replicas)

    async def send(self, fields: Mapping[str, Any], name: str = "") -> Reply:
        """One request.

        Args:
            fields: The body; ``model`` and ``messages`` among them.
            name: Of what is asked, for a transport that has to find its reply again.

        Raises:
            Fault: There is no reply. Not chained: the library's exceptions hold the headers sent.
        """
        import openai

        replica = self._pick()
        replica.in_flight += 1
        began, ahead = time.monotonic(), self.in_flight
        try:
            # The library's timeout is for each read; a service that drips would never meet it.
            async with asyncio.timeout(None) as limit:
                watch = _Watch(
                    limit,
                    self._config.timeout_s,
                    # Those that left a moment later may have overtaken it.
                    lambda: (
                        began + self._patience.allowed(time.monotonic(), max(ahead, self.in_flight))
                    ),
                )
                # As extra_body the fields go out as they are; messages given by name are copied
                # and checked part by part, at a sixth of the time that a whole call takes.
                try:
                    raw = await replica.client.chat.completions.with_raw_response.create(
                        model=fields["model"], messages=[], extra_body=fields
                    )
                finally:
                    watch.cancel()
            self._patience.replied(time.monotonic())
            reply = read_reply(_text(raw.http_response))
            return replace(reply, limit=stated_limit(raw.http_response.headers))
        except (TimeoutError, openai.APITimeoutError):
            waited = max(self._config.timeout_s, round(time.monotonic() - began, 1))
            detail = f"no reply in {waited:g} s"
            raise Fault("timeout", detail, retry=True, billed=True) from None
        except openai.APIStatusError as error:
            headers, text = error.response.headers, error.response.text
            fault = http_fault(error.status_code, headers, text, time.time())
            fault.limit = stated_limit(headers)
            raise fault from None
        except openai.APIConnectionError as error:
            replica.resting_until = time.monotonic() + _REPLICA_REST_S
            cause = error.__cause__
            detail = f"{type(cause).__name__} {cause}" if cause else str(error)
            # One that never stood carried no request.
            sent = "Connect" not in type(cause).__name__
            raise Fault("connection", detail, retry=True, billed=sent) from None
        finally:
            replica.in_flight -= 1

    async def models(self, timeout_s: float) -> tuple[str, float]:
        """The body of the service's list of models, empty where it gives none in time, and the
        seconds that the service took for it."""
        try:
            async with asyncio.timeout(timeout_s):
                raw = await self._replicas[0].client.models.with_raw_response.list()
            return _text(raw.http_response), raw.http_response.elapsed.total_seconds()
        except Exception:  # a service may have no such list, and answer whatever it likes
            return "", timeout_s

    def _pick(self) -> _Replica:
        """The least busy replica, those that refused a connection lately last."""
        now = time.monotonic()
        best = min(self._replicas, key=lambda r: (r.resting_until > now, r.in_flight))
        # Equals take turns.
        self._replicas.remove(best)
        self._replicas.append(best)
        return best

    async def close(self) -> None:
        """Close all connections."""
        for replica in self._replicas:
            await replica.client.close()


def _text(response: Any) -> str:
    """The body as UTF-8, as JSON is, whatever the header says of it."""
    try:
        return str(response.content, "utf-8")
    except UnicodeDecodeError:
        return str(response.text)
