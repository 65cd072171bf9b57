"""pass@k."""

from __future__ import annotations

import math
from collections.abc import Sequence


def pass_at(passed: Sequence[Sequence[bool]]) -> dict[int, float]:
    """pass@k for k = 1, 2, 4 ... and the number of samples, by the unbiased estimator.

    That is the chance that some of k samples, drawn without putting back, passes; the mean over
    questions.

    Args:
        passed: For each question whether each sample passed; those with fewer samples than the
            others are left out.

    Returns:
        Empty where there is no question.

    >>> pass_at([[True, False], [False, False]])
    {1: 0.25, 2: 0.5}
    """
    count = max(map(len, passed), default=0)
    whole = [samples for samples in passed if len(samples) == count]
    sizes = sorted({*(2**power for power in range(count.bit_length())), count} - {0})
    return {
        k: sum(1 - math.comb(count - sum(samples), k) / math.comb(count, k) for samples in whole)
        / len(whole)
        for k in sizes
        if count
    }
