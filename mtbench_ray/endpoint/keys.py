"""The API key: read once, never shown.

A key travels from the environment to the client's header and nowhere else. Whatever a service
writes back goes through :func:`scrub` before it reaches a row, a log or an exception.
"""

from __future__ import annotations

import hashlib
import ipaddress
import os
import re
from urllib.parse import urlsplit

from mtbench_ray.config import EndpointConfig, EngineConfig
from mtbench_ray.errors import UserError
from mtbench_ray.system.redact import redactor

_KEY_LIKE = re.compile(r"\b(?:sk|pk|rk|key)-[\w*.\-]{6,}|\bBearer\s+[\w*.\-+/=]{8,}")


def resolve_key(config: EndpointConfig) -> str | None:
    """The key that the settings name, or None where the service needs none.

    None means that a placeholder is sent: ``api_key_env`` is null, or the address is this
    machine's own and the variable is not set.

    Raises:
        UserError: The variable is missing, blank, or holds what no header can carry.
    """
    if not config.api_key_env:
        return None
    key = os.environ.get(config.api_key_env, "").strip()
    if len(key) > 1 and key[0] == key[-1] and key[0] in "'\"":
        key = key[1:-1].strip()  # of a file of variables that no shell has read
    if not key:
        if is_loopback(config.base_url):
            return None
        group = "engine" if isinstance(config, EngineConfig) else "judge"
        where = f" for {display_host(config.base_url)}" if config.base_url else ""
        raise UserError(
            f"no API key{where}: the environment variable {config.api_key_env} is not set or blank",
            f"set it (export {config.api_key_env}=...), name another one with "
            f"{group}.api_key_env=..., or say {group}.api_key_env=null where none is wanted",
        )
    if not key.isascii() or not key.isprintable() or " " in key:
        raise UserError(
            f"the value of {config.api_key_env} is not a key: it holds spaces, line ends or "
            "characters outside ASCII",
            "copy the key again, without quotes or further lines",
        )
    return key


def is_loopback(base_url: str | None) -> bool:
    """Whether an address is this machine's own."""
    host = _hostname(base_url)
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def display_host(base_url: str | None) -> str:
    """Host and port of an address, without any user, password or query in it."""
    if base_url is None:
        return "the default address"
    try:
        port = urlsplit(base_url).port
    except ValueError:
        port = None
    host = _hostname(base_url) or "an address without a host"
    return f"{host}:{port}" if port else host


def _hostname(base_url: str | None) -> str:
    try:
        return urlsplit(base_url or "").hostname or ""
    except ValueError:
        return ""


def fingerprint(key: str | None) -> str:
    """Twelve hex digits that tell keys apart and give nothing of them away."""
    return hashlib.sha256(f"mtbench_ray:{key or ''}".encode()).hexdigest()[:12]


def scrub(text: str, key: str | None) -> str:
    """A service's words without the key, and without anything that looks like one."""
    return _KEY_LIKE.sub("***", redactor([key or ""])(text))
