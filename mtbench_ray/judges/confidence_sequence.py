"""An interval of a mean that stays valid however often one looks, and whenever one stops.

A *confidence sequence* is a sequence of intervals, one after each observation, that *all* cover the
truth with the stated probability (a usual interval does so only at a number of observations that
was fixed beforehand; stopping when it looks decided makes it wrong far more often than stated).

This is the betting confidence sequence of Waudby-Smith and Ramdas, "Estimating means of bounded
random variables by betting", J. R. Stat. Soc. B 86 (2024) 1-27, for sampling *without replacement*
(their section 5; also Waudby-Smith and Ramdas, NeurIPS 2020): the target is the mean over a finite
set, here of what all questions of the benchmark would give, and their order is random. If the mean
of the ``count`` values were ``m``, the next value would have the mean

    m_i = (count * m - sum of those before) / (count - i + 1),

so that somebody who bets a share ``f`` of the wealth on "higher" at fair odds has, after each value
x (scaled to 0..1), ``1 + f * (x / m_i - 1)`` times the wealth of before: a martingale that starts
at 1. By Ville's inequality it ever reaches ``2 / level`` with a probability of at most half the
``level``; an ``m`` for which it does is left out. The other half is for bets on "lower". The wealth
is divided between two fixed shares ``f``, since which is best is not known beforehand.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

_SHARES, _PURSES = np.array([0.98, 0.4]), np.array([0.75, 0.25])
"""Differences of ratings are small beside the range that they could have, for which nearly all is
the best bet; the rest of the wealth is for values that fill their range (passed or failed)."""
_AT_ONCE, _ROUNDS = 24, 3
"""Of the search for an end of the interval: to 1/13,824 of the range, on the safe side."""


class MeanSequence:
    """Confidence sequence of the mean of ``count`` bounded values that come in random order.

    >>> seen = MeanSequence(4, 0.0, 10.0)
    >>> for value in (9.0, 7.0, 8.0, 8.0):
    ...     seen.add(value)
    >>> (seen.low, seen.high)  # all are known
    (8.0, 8.0)

    Args:
        count: Values that there are.
        low: None of them is below.
        high: None of them is above.
        level: Chance, at most, that any of the intervals is wrong.
    """

    def __init__(self, count: int, low: float, high: float, level: float = 0.05) -> None:
        self.count = count
        self.level = level
        self._start, self._range = low, high - low
        self._enough = math.log(2 / level)
        self._values: list[float] = []
        self._sum = 0.0
        self._low, self._high = 0.0, 1.0

    @property
    def seen(self) -> int:
        """Values so far."""
        return len(self._values)

    @property
    def mean(self) -> float | None:
        """Of the values so far."""
        return round(self._sum / self.seen, 12) if self._values else None

    @property
    def low(self) -> float:
        """Lower end of the interval; the mean itself once all values are there."""
        done = self.seen == self.count
        return (self.mean or 0.0) if done else self._start + self._range * self._low

    @property
    def high(self) -> float:
        """Upper end of the interval."""
        done = self.seen == self.count
        return (self.mean or 0.0) if done else self._start + self._range * self._high

    def add(self, value: float) -> None:
        """The next value.

        Raises:
            ValueError: It is out of the range, or there are no more values.
        """
        scaled = (value - self._start) / self._range
        if not -1e-9 <= scaled <= 1 + 1e-9 or self.seen == self.count:
            raise ValueError(f"value {value} of {self.seen + 1} in {self.count}")
        self._values.append(min(1.0, max(0.0, scaled)))
        self._sum += value
        values = np.array(self._values)
        # What is still to come lies between nothing and all.
        sure, left = math.fsum(self._values), self.count - self.seen
        low = max(self._low, sure / self.count)
        high = min(self._high, (sure + left) / self.count)
        self._low = self._raised(values, low, high)
        self._high = 1 - self._raised(1 - values, 1 - high, 1 - self._low)

    def p_value(self, mean: float = 0.0) -> float:
        """An anytime-valid p-value of "the mean is this", two-sided.

        It is one over the most wealth that bets against it ever had.
        """
        scaled = (mean - self._start) / self._range
        if not self._values:
            return 1.0
        values, at = np.array(self._values), np.array([scaled])
        sides = np.logaddexp(
            _log_wealth(values, at, self.count), _log_wealth(1 - values, 1 - at, self.count)
        )
        return float(min(1.0, 2 * math.exp(-float(sides.max()))))

    def _raised(self, values: Floats, low: float, high: float) -> float:
        """The lower end after the last of some values, at least ``low``.

        A mean that is excluded excludes all lower ones, so the end is searched for between two.
        """
        for _ in range(_ROUNDS):
            tried = np.linspace(low, high, _AT_ONCE, endpoint=False)
            excluded = _log_wealth(values, tried, self.count)[:, -1] >= self._enough
            if high <= low or not excluded[0]:
                return low
            at = int(excluded.sum()) - 1
            low, high = float(tried[at]), float(tried[at + 1]) if at + 1 < _AT_ONCE else high
        return low


def _log_wealth(values: Floats, means: Floats, count: int) -> Floats:
    """Log wealth of bets that values are higher than if the mean were this.

    Args:
        values: In 0..1, shape (values,).
        means: Shape (means,).
        count: Values that there are, those to come too.

    Returns:
        After each value, shape (means, values).
    """
    before = np.concatenate([[0.0], np.cumsum(values)[:-1]])
    expected = (count * means[:, None] - before) / (count - np.arange(len(values)))
    # Nothing could be left to come if this were the mean: any more says that it is not.
    none_left = expected <= 1e-12
    ratio = values / np.where(none_left, 1.0, expected)
    growth = np.log1p(_SHARES[:, None, None] * (np.where(none_left, 1.0, ratio) - 1))
    purses = np.log(_PURSES)[:, None, None]
    wealth: Floats = np.logaddexp.reduce(purses + np.cumsum(growth, axis=2))
    impossible = np.logical_or.accumulate(none_left & (values > 1e-9), axis=1)
    wealth[impossible] = np.inf
    return wealth
