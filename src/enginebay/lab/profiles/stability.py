"""Until stable: whether the figures stand still, by a rule that can be stated.

1. Warm-up by MSER-5: of the values in order, averaged in fives, so many are cut off at the start that the standard error of the
   rest is smallest. Where that is half of them or more, the warm-up is not over.
2. The rest is split into 20 batches of equal size. Half the width of the 95% interval (Student's t) of their means must be
   within `relative_width` of the mean.
3. Neighbouring batches must not be correlated (lag-1 below 0.31, the 5% point for 20 independent values): where they are, the
   interval claims too much, be it that the load builds up or that batches are too short.

Looking again and again stops on lucky moments too often, so `next_look` spaces the looks out.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import stdtrit

MSER_GROUP = 5  # MSER-5
BATCHES = 20
MIN_BATCH_SIZE = 5
MAX_CORRELATION = 0.31  # (-1 + 1.645 * sqrt(BATCHES - 2)) / (BATCHES - 1)
CHECK_GROWTH = 1.25


@dataclass(frozen=True, slots=True)
class StabilityCheck:
    """What a look at the values found. Figures are None where there were too few values for them."""

    stable: bool
    reason: str
    warmup_end: int
    mean: float | None = None
    half_width: float | None = None  # of the mean's 95% interval


def find_warmup_end(values: Sequence[float]) -> int:
    """How many values at the start belong to the warm-up (MSER-5); half of them at most."""
    return _find_mser_cut(values)[0]


def is_warmup_over(values: Sequence[float]) -> bool:
    """Whether the best cut lies in the first half; with fewer than 20 values that cannot be told, so no."""
    return _find_mser_cut(values)[1]


def _find_mser_cut(values: Sequence[float]) -> tuple[int, bool]:
    groups = len(values) // MSER_GROUP
    if groups < 4:
        return 0, False
    means = np.asarray(values[: groups * MSER_GROUP], dtype=float).reshape(groups, MSER_GROUP).mean(axis=1)
    means = means - means.mean()
    left: Any = groups - np.arange(groups)  # how many remain after each cut
    sums, squares = (np.cumsum(series[::-1])[::-1] for series in (means, means**2))
    spread = np.maximum(squares - sums**2 / left, 0.0) / left**2
    # Near the end too little is left for its spread to mean anything, which is why MSER looks at the first half only.
    half = groups // 2
    best = int(np.argmin(spread[: half + 1]))
    return best * MSER_GROUP, best < half


def check_stability(values: Sequence[float], relative_width: float = 0.02) -> StabilityCheck:
    """Whether the mean of the values, in the order they came, stands still."""
    end, over = _find_mser_cut(values)
    if not over:
        return StabilityCheck(False, "the warm-up is not over", end)
    rest = values[end:]
    if len(rest) < BATCHES * MIN_BATCH_SIZE:
        return StabilityCheck(False, f"fewer than {BATCHES * MIN_BATCH_SIZE} requests since the warm-up", end)
    means = _compute_batch_means(rest)
    mean = float(means.mean())
    half = float(stdtrit(BATCHES - 1, 0.975) * means.std(ddof=1) / math.sqrt(BATCHES))
    if half > relative_width * abs(mean):
        return StabilityCheck(False, "the interval of the mean is too wide", end, mean, half)
    if half > 0 and _lag_1_correlation(means) > MAX_CORRELATION:
        return StabilityCheck(False, "successive batches hang together", end, mean, half)
    return StabilityCheck(True, "the mean stands still", end, mean, half)


def next_check_count(finished: int) -> int:
    """How many requests should have finished before it is worth looking again."""
    return math.ceil(finished * CHECK_GROWTH)


def _compute_batch_means(values: Sequence[float]) -> Any:
    size = len(values) // BATCHES
    return np.asarray(values[len(values) - size * BATCHES :], dtype=float).reshape(BATCHES, size).mean(axis=1)


def _lag_1_correlation(means: Any) -> float:
    centred = means - means.mean()
    return float((centred[1:] * centred[:-1]).sum() / (centred**2).sum())
