"""A limit in dollars, shared by all judges of a run."""

from __future__ import annotations

import threading

from mtbench_ray.config import JudgeConfig
from mtbench_ray.errors import UserError


class Budget:
    """Dollars that may be spent; every call reserves its worst case before it leaves.

    Attributes:
        limit_usd: Never exceeded by what the services count; None is no limit.
        spent_usd: Settled so far; calls that may be billed without a reply at their worst case.
        exhausted: A call did not fit any more: start no others.
    """

    def __init__(self, limit_usd: float | None) -> None:
        self.limit_usd = limit_usd
        self.spent_usd = 0.0
        self.exhausted = False
        self._reserved: list[float] = []
        self._lock = threading.Lock()

    def reserve(self, amount: float) -> bool | None:
        """Set an amount aside.

        Returns:
            True where it fits; None where it may fit once calls in flight are settled; False
            where it never will, and the budget is exhausted.
        """
        with self._lock:
            if self.exhausted:
                return False
            bound = self.spent_usd + sum(self._reserved) + amount
            if self.limit_usd is None or bound <= self.limit_usd:
                self._reserved.append(amount)
                return True
            if self._reserved:
                return None
            self.exhausted = True
            return False

    def again(self, amount: float) -> bool:
        """Reserve another try of a call whose last one brought no reply and may be billed.

        Where it fits, the last one counts as spent, and its reservation is that of the next.
        """
        with self._lock:
            bound = self.spent_usd + sum(self._reserved) + amount
            fits = self.limit_usd is None or bound <= self.limit_usd
            if fits:
                self.spent_usd += amount
            return fits

    def validate(self, reserved: float, actual: float) -> None:
        """Replace a reservation by what the call really cost."""
        with self._lock:
            self._reserved.remove(reserved)
            self.spent_usd += actual


def check_budget(judge: JudgeConfig, limit_usd: float | None) -> None:
    """Refuse a budget that could not be kept.

    Raises:
        UserError: A budget is set, and the prices of a judge that may cost money are unknown.
    """
    if limit_usd is None or judge.kind != "openai":
        return
    if limit_usd <= 0:
        raise UserError(f"budget_usd={limit_usd} leaves nothing to spend", "set it above 0")
    if judge.price_prompt is None or judge.price_completion is None:
        raise UserError(
            f"budget_usd is set, but the prices of judge {judge.label} are not known",
            "set judge.price_prompt and judge.price_completion in dollars per million tokens "
            "(0 where it costs nothing)",
        )
