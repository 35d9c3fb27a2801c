"""Confidence intervals, 95% by default. Pure.

Intervals over cycles use Student's t on figures of whole runs: runs are independent, requests within a run are not. The
order-statistics interval of a percentile within one run assumes independent requests, so it is too narrow behind a
queue; prefer the interval over cycles there.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from scipy import special

CONFIDENCE = 0.95
_ROUNDING = 1e-12  # relative: closer figures count as equal


@dataclass(frozen=True, slots=True)
class ConfidenceInterval:
    """An estimate with its interval. An unknown end is None; with a single value both are."""

    estimate: float
    low: float | None
    high: float | None
    count: int

    def contains(self, value: float) -> bool:
        """Return whether the value is inside; an unknown end excludes nothing."""
        return (self.low is None or self.low <= value) and (self.high is None or value <= self.high)


def mean_interval(values: Sequence[float], confidence: float = CONFIDENCE) -> ConfidenceInterval:
    """Return the interval of the mean, by Student's t."""
    _check_values(values)
    count, mean = len(values), math.fsum(values) / len(values)
    if count < 2:
        return ConfidenceInterval(mean, None, None, count)
    half = t_quantile(confidence, count - 1) * sample_deviation(values) / math.sqrt(count)
    return ConfidenceInterval(mean, mean - half, mean + half, count)


def difference_interval(a: Sequence[float], b: Sequence[float], confidence: float = CONFIDENCE) -> ConfidenceInterval:
    """Return the interval of the mean of b - a, each pair from the same cycle."""
    return mean_interval(pair_differences(a, b), confidence)


def ratio_interval(a: Sequence[float], b: Sequence[float], confidence: float = CONFIDENCE) -> ConfidenceInterval | None:
    """Return the interval of mean(b) / mean(a), by Fieller's theorem for pairs; None if the mean of a is 0.

    It excludes 1 exactly when the interval of the difference excludes 0, so the two never contradict. The ends are None
    if the mean of a cannot be distinguished from 0.
    """
    gaps = pair_differences(a, b)
    count, mean_a, mean_b = len(a), math.fsum(a) / len(a), math.fsum(b) / len(b)
    if mean_a == 0:
        return None
    if count < 2:
        return ConfidenceInterval(mean_b / mean_a, None, None, count)
    # Solve for x in r = 1 + x with d = b - a in place of b: no digits are lost when d is small.
    mean_d = math.fsum(gaps) / count
    width = t_quantile(confidence, count - 1) ** 2 / count
    square = mean_a**2 - width * sample_deviation(a) ** 2
    if square <= 0:
        return ConfidenceInterval(mean_b / mean_a, None, None, count)
    cross = mean_a * mean_d - width * _covariance(a, gaps)
    rest = mean_d**2 - width * sample_deviation(gaps) ** 2
    low, high = _solve_quadratic(square, cross, rest)
    return ConfidenceInterval(mean_b / mean_a, 1 + low, 1 + high, count)


def percentile_interval(values: Sequence[float], percent: float, confidence: float = CONFIDENCE) -> ConfidenceInterval:
    """Return the distribution-free interval of a percentile, by order statistics. Values must be independent.

    An end outside the sample is None; for the upper end that is the rule of `measures.distribution.is_quotable`.
    """
    _check_values(values)
    if not 0 < percent < 100:
        raise ValueError(f"percentile must be between 0 and 100, not {percent}")
    ordered = np.sort(np.asarray(values, dtype=np.float64))
    count, share, tail = len(ordered), percent / 100, (1 - confidence) / 2
    below = special.bdtr(np.arange(count), count, share)  # P(at most k values lie below the percentile)
    first = int(np.searchsorted(below, tail))  # 1-based; 0: even the smallest value may lie above
    last = int(np.searchsorted(below, 1 - tail)) + 1
    low = float(ordered[first - 1]) if first >= 1 else None
    high = float(ordered[last - 1]) if last <= count else None
    return ConfidenceInterval(float(np.percentile(ordered, percent)), low, high, count)


def pair_differences(a: Sequence[float], b: Sequence[float]) -> list[float]:
    """Return b - a for each pair; rounding differences become 0."""
    if len(a) != len(b):
        raise ValueError(f"pairs need the same number of values on both sides, not {len(a)} and {len(b)}")
    _check_values(a)
    _check_values(b)
    return [0.0 if math.isclose(x, y, rel_tol=_ROUNDING) else y - x for x, y in zip(a, b, strict=True)]


def sample_deviation(values: Sequence[float]) -> float:
    """Return the sample standard deviation; 0 if values differ only by rounding."""
    mean = math.fsum(values) / len(values)
    deviation = math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1))
    return 0.0 if deviation <= _ROUNDING * max(abs(value) for value in values) else deviation


@lru_cache(maxsize=256)
def t_quantile(confidence: float, degrees: int) -> float:
    """Return the two-sided quantile of Student's t."""
    return float(special.stdtrit(degrees, (1 + confidence) / 2))


def _solve_quadratic(square: float, cross: float, rest: float) -> tuple[float, float]:
    """Return the roots of square·x² - 2·cross·x + rest for square > 0, without cancellation."""
    larger = cross + math.copysign(math.sqrt(max(0.0, cross**2 - square * rest)), cross)
    if larger == 0:
        return 0.0, 0.0
    low, high = sorted((larger / square, rest / larger))
    return low, high


def _covariance(a: Sequence[float], b: Sequence[float]) -> float:
    mean_a, mean_b = math.fsum(a) / len(a), math.fsum(b) / len(b)
    return math.fsum((x - mean_a) * (y - mean_b) for x, y in zip(a, b, strict=True)) / (len(a) - 1)


def _check_values(values: Sequence[float]) -> None:
    if not len(values):
        raise ValueError("an interval needs at least one value")
    if not all(math.isfinite(value) for value in values):
        raise ValueError("an interval needs finite values")
