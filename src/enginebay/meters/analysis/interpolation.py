"""Linear interpolation and integration of time series."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import pairwise

CLOCK_TOLERANCE_S = 0.001  # closer times count as the same moment


def covers_window(times: Sequence[float], start_s: float, end_s: float) -> bool:
    """Return whether the series has values at both ends of the window."""
    return bool(times) and times[0] <= start_s + CLOCK_TOLERANCE_S and times[-1] >= end_s - CLOCK_TOLERANCE_S


def interpolate(times: Sequence[float], values: Sequence[float], time_s: float) -> float:
    """Return the value at a time; outside the series, that of the nearest end."""
    after = bisect_right(times, time_s)
    if after == 0:
        return values[0]
    if after == len(times):
        return values[-1]
    share = (time_s - times[after - 1]) / (times[after] - times[after - 1])
    return values[after - 1] + share * (values[after] - values[after - 1])


def integrate(times: Sequence[float], values: Sequence[float], start_s: float, end_s: float) -> float:
    """Return the area under the series between two times, by trapezoids with interpolated ends."""
    first, last = bisect_right(times, start_s), bisect_left(times, end_s)
    inner = list(zip(times[first:last], values[first:last], strict=True))
    points = [(start_s, interpolate(times, values, start_s)), *inner, (end_s, interpolate(times, values, end_s))]
    return sum((b[0] - a[0]) * (a[1] + b[1]) / 2 for a, b in pairwise(points))


def median_low(values: Sequence[float]) -> float:
    """Return the median, the lower one of two."""
    return sorted(values)[(len(values) - 1) // 2]
