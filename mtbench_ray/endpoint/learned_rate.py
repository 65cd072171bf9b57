"""What a service permits that nobody stated: learned from its headers and from its refusals. Pure.

A service that refuses has just run out of what it permits. Between two such moments it let through
as many calls as it permits in that time: that is the rate, and it is the better known the longer
the time. Calls are paced evenly at it, and a little faster each while no call is refused, since
limits may rise. A limit that fell shows in a rate since the last refusal that is far below the one
since the first: then what came before is forgotten.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

FIRST_RATE = 8.0
"""Calls a second until a service has refused one; four times as many each second."""
_GROWTH = 4.0
_UNPACED = 512.0
"""From this rate on calls leave at once."""
_SHARE = 0.5
"""Of a call: what was let through beyond the last whole one, on average."""
_STEP, _EVERY_S, _EVERY_CALLS = 0.01, 8.0, 8
"""So much faster after so many seconds, and calls, without a refusal."""
_CALM_S = 20.0
"""After so long without one, each further step is twice as large."""
_LARGEST_STEP = 0.25
_FELL = 0.7
_SEARCH = 1.15
"""After a fall each call raises the rate by this, until the next refusal: the fall may be over."""
_MEMORY_S = 120.0
_OLD_CALLS_PER_S = 0.8
_SAFE = 0.99
"""Share of a stated limit that is used: clocks differ."""


@dataclass
class _Refusal:
    """A moment at which nothing more was permitted, and the calls let through until then."""

    at: float
    passed: int


class LearnedRate:
    """When the next call may leave. All times are of one clock, in seconds.

    Args:
        gentle: Begin slowly, so that a limit is met by few calls at once.
        known: Calls a second that an earlier run has learned; where they are wrong by now, the
            first refusal or some calm seconds say so.

    Attributes:
        per_second: None while nothing is known.
        refusals: Calls that were refused.
    """

    def __init__(self, *, gentle: bool, known: float | None = None) -> None:
        self.per_second = known and known * _SAFE
        self.refusals = 0
        self._gentle = gentle
        self._stated = False
        self._passed = 0
        self._begun: float | None = None
        self._next_at = 0.0
        self._first: _Refusal | None = None
        self._last: _Refusal | None = None
        self._raised_at, self._raised_with = 0.0, 0
        self._step = _STEP
        self._searching = False

    def delay(self, now: float) -> float:
        """Seconds until the next call may leave."""
        return max(0.0, self._next_at - now)

    def sent(self, now: float) -> None:
        """A call leaves."""
        self._passed += 1
        if self._begun is None:
            self._begun = now
        rate = self.per_second
        if rate is None:
            rate = FIRST_RATE * _GROWTH ** min(now - self._begun, 10.0)
            if self._gentle and rate < _UNPACED:
                self._next_at = max(self._next_at, now) + 1 / rate
            return
        self._next_at = now + 1 / rate
        if self._searching:
            self.per_second = rate * _SEARCH
        elif now - self._raised_at > _EVERY_S and self._passed - self._raised_with >= _EVERY_CALLS:
            self._raised_at, self._raised_with = now, self._passed
            calm = self._last or _Refusal(self._begun, 0)
            if self._is_old(calm, now, _CALM_S):
                self._step = min(2 * self._step, _LARGEST_STEP)
            self.per_second = rate * (1 + self._step)

    def refused(self, now: float, left: float) -> bool:
        """A call was refused.

        Args:
            left: When it left. One that left before the last refusal was known belongs to that.

        Returns:
            Whether it is the first of its bunch.
        """
        self._passed -= 1
        self.refusals += 1
        if self._last is not None and left <= self._last.at:
            for known in {id(one): one for one in (self._first, self._last) if one}.values():
                known.passed -= left <= known.at
            if self._first is self._last and not self._stated:
                self.per_second = self._first_guess(self._last)
            return False
        if self._last is not None and self._passed == self._last.passed:
            self._last.at = self._next_at = now  # nothing was let through: it is the same moment
            return True
        here = _Refusal(now, self._passed)
        if self._first is None or self._last is None:
            self._first = here
            if self._stated and self.per_second is not None:
                self.per_second *= 1 - 5 * _STEP  # a stated limit is not quite what is permitted
            else:
                self.per_second = self._first_guess(here)
        else:
            local = self._rate_since(self._last, now)
            whole = self._rate_since(self._first, now)
            old = self._is_old(self._last, now, _CALM_S)
            old = old or self._is_old(self._first, now, _MEMORY_S)
            self._searching = local < _FELL * whole
            if old or self._searching:
                self._first, whole = self._last, local
            self.per_second = whole
        self._last, self._step = here, _STEP
        self._raised_at, self._raised_with = now, self._passed
        self._next_at = now  # how long to wait the service has said
        return True

    def _is_old(self, refusal: _Refusal, now: float, age_s: float) -> bool:
        """Whether a refusal is long ago, in calls too: a slow service needs as many to be known."""
        calls = age_s * _OLD_CALLS_PER_S
        return now - refusal.at > age_s and self._passed - refusal.passed >= calls

    def _first_guess(self, refusal: _Refusal) -> float:
        """What was let through before the first refusal, as if in a second at least."""
        begun = refusal.at if self._begun is None else self._begun
        return max(refusal.passed, 1) / max(refusal.at - begun, 1.0)

    def stated(self, per_minute: float) -> bool:
        """The service says what it permits; returns whether that is news."""
        if self._stated or self.per_second is not None:
            return False
        self._stated = True
        self.per_second = per_minute / 60 * _SAFE
        return True

    def _rate_since(self, refusal: _Refusal, now: float) -> float:
        return (self._passed - refusal.passed + _SHARE) / max(now - refusal.at, 1e-3)


_LIMITS = (
    "x-ratelimit-limit-requests",
    "x-ratelimit-limit-requests-minute",
    "x-ratelimit-limit-req-minute",
    "x-ratelimit-requests-limit",
    "anthropic-ratelimit-requests-limit",
    "x-ms-ratelimit-limit-requests",
    "ratelimit-limit",
    "ratelimit",
    "x-ratelimit-limit",
)
"""Headers of services that say how many requests they permit, the plainest first."""
_LIMIT = re.compile(r"(?:^|limit=|q=)\s*\"?(\d{1,9})\b")
_WINDOW = re.compile(r"\bw=(\d{1,9})")
_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)")
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def stated_limit(headers: Mapping[str, str]) -> float | None:
    """Requests a minute that the headers of a reply say are permitted; None where they do not.

    A limit is taken as that of a minute, unless a window is named (``w=3600``) or the time until
    all of it is there again shows another one (of a day, with some services), which is no pace.

    Args:
        headers: With lower-case names, or a mapping that ignores case.
    """
    name = next((name for name in _LIMITS if headers.get(name)), None)
    if name is None:
        return None
    text = str(headers.get(name))
    found = _LIMIT.search(text)
    limit = int(found[1]) if found else 0
    if limit < 1:
        return None
    policy = _WINDOW.search(f"{text} {headers.get('ratelimit-policy') or ''}")
    if policy is not None:
        window = int(policy[1])
        return limit * 60 / window if 1 <= window <= 60 else None
    reset = _DURATION.findall(str(headers.get("x-ratelimit-reset-requests") or ""))
    left = str(headers.get("x-ratelimit-remaining-requests") or "")
    if reset and left.isdigit() and int(left) < limit:
        whole = sum(float(n) * _SECONDS[u] for n, u in reset) * limit / (limit - int(left))
        if whole > 90.0:
            return None
    return float(limit)
