"""Stopping rule for `until_stable`: whether the mean of a series is stable.

1. MSER-5 finds the warm-up: values are averaged in groups of five, and the cut minimizes the standard error of the rest.
   If the cut is at half of the values or later, the warm-up is not over.
2. The rest is split into 20 batches of equal size. The half-width of the 95% interval (Student's t) of their means must
   be within `relative_width` of the mean.
3. Neighbouring batches must not be correlated (lag-1 below 0.31, the 5% point for 20 independent values). If they are,
   the interval is too narrow: the backlog grows, or the batches are too short.

Checking too often stops on lucky moments, so `next_check_count` spaces the checks out.
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
    """Result of one check. Figures are None with too few values."""

    stable: bool
    reason: str
    warmup_end: int
    mean: float | None = None
    half_width: float | None = None  # of the mean's 95% interval


def find_warmup_end(values: Sequence[float]) -> int:
    """Return how many values at the start are warm-up (MSER-5), at most half of them."""
    return _find_mser_cut(values)[0]


def is_warmup_over(values: Sequence[float]) -> bool:
    """Return whether the best cut is in the first half; always False with fewer than 20 values."""
    return _find_mser_cut(values)[1]


def _find_mser_cut(values: Sequence[float]) -> tuple[int, bool]:
    groups = len(values) // MSER_GROUP
    if groups < 4:
        return 0, False
    means = np.asarray(values[: groups * MSER_GROUP], dtype=float).reshape(groups, MSER_GROUP).mean(axis=1)
    means = means - means.mean()
    remaining: Any = groups - np.arange(groups)  # values remaining after each cut
    sums, squares = (np.cumsum(series[::-1])[::-1] for series in (means, means**2))
    spread = np.maximum(squares - sums**2 / remaining, 0.0) / remaining**2
    # Near the end too few values remain for a meaningful spread, so MSER searches the first half only.
    half = groups // 2
    best = int(np.argmin(spread[: half + 1]))
    return best * MSER_GROUP, best < half


def check_stability(values: Sequence[float], relative_width: float = 0.02) -> StabilityCheck:
    """Return whether the mean of the values, in arrival order, is stable."""
    end, over = _find_mser_cut(values)
    if not over:
        return StabilityCheck(False, "the warm-up is not over", end)
    rest = values[end:]
    if len(rest) < BATCHES * MIN_BATCH_SIZE:
        return StabilityCheck(False, f"fewer than {BATCHES * MIN_BATCH_SIZE} requests after the warm-up", end)
    means = _compute_batch_means(rest)
    mean = float(means.mean())
    half = float(stdtrit(BATCHES - 1, 0.975) * means.std(ddof=1) / math.sqrt(BATCHES))
    if half > relative_width * abs(mean):
        return StabilityCheck(False, "the interval of the mean is too wide", end, mean, half)
    if half > 0 and _lag_1_correlation(means) > MAX_CORRELATION:
        return StabilityCheck(False, "successive batches are correlated", end, mean, half)
    return StabilityCheck(True, "the mean is stable", end, mean, half)


def next_check_count(finished: int) -> int:
    """Return how many requests must finish before the next check."""
    return math.ceil(finished * CHECK_GROWTH)


def _compute_batch_means(values: Sequence[float]) -> Any:
    size = len(values) // BATCHES
    return np.asarray(values[len(values) - size * BATCHES :], dtype=float).reshape(BATCHES, size).mean(axis=1)


def _lag_1_correlation(means: Any) -> float:
    centred = means - means.mean()
    return float((centred[1:] * centred[:-1]).sum() / (centred**2).sum())
