"""How long a call is waited for. Pure.

A server that works on few calls at once lets the others wait. One that is given up while it waits
there is sent again, to the end of the same queue, and may be paid twice. So a call is given up
after its time only where that cannot be our own queue: while other calls come back, it may take as
long as all that were sent before it, at the pace at which they come back.
"""

from __future__ import annotations

from collections import deque

_MARGIN = 2.0
"""Times the wait that the pace dictates: long replies are longer than the mean."""
_LONGEST = 20.0
"""Times ``timeout_s``: whatever the pace, no call is waited for longer."""
_REMEMBERED = 4096


class Patience:
    """The pace of one service. All times are of one clock, in seconds.

    Args:
        timeout_s: A call may take so long in any case.
    """

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._replies: deque[float] = deque(maxlen=_REMEMBERED)

    def replied(self, now: float) -> None:
        """Another call came back."""
        self._replies.append(now)

    def allowed(self, now: float, ahead: int) -> float:
        """Seconds that a call may take, from when it left.

        Args:
            ahead: Calls that may be worked on before it ends, itself among them.
        """
        recent = sum(1 for at in self._replies if at > now - self._timeout_s)
        if not recent:
            return self._timeout_s  # nothing comes back: it is no queue
        queued = ahead * self._timeout_s / recent
        return min(max(self._timeout_s, _MARGIN * queued), _LONGEST * self._timeout_s)
