"""Send times: seconds from 0, ascending, identical for the same seed on every machine.

Random arrivals are drawn conditional on exactly `count` of them in `count / rate` seconds. For Poisson arrivals this is
the process given its count. The offered rate is then the requested one; otherwise it would vary by several percent
between seeds.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from enginebay.lab.workload.seeded_random import make_generator


def constant(rate: float, count: int) -> list[float]:
    """Return evenly spaced times, the first at 0."""
    return [number / rate for number in range(count)]


def poisson(rate: float, count: int, seed: int) -> list[float]:
    return gamma(rate, 1.0, count, seed)


def gamma(rate: float, burstiness: float, count: int, seed: int) -> list[float]:
    """Return arrivals with gamma-distributed gaps of shape `burstiness`, scaled so that `count` gaps take `count / rate` seconds."""
    return _to_list(_draw_shares(burstiness, count, seed) * (count / rate))


def ramp(from_rate: float, to_rate: float, duration_s: float, count: int, seed: int) -> list[float]:
    """Return Poisson arrivals at a linearly changing rate."""
    slope = (to_rate - from_rate) / duration_s
    expected = _draw_shares(1.0, count, seed) * (from_rate + to_rate) / 2 * duration_s
    # Inverse of the expected count over time, in the form that stays exact at slope 0.
    root = np.sqrt(np.maximum(from_rate**2 + 2 * slope * expected, 0.0))
    return _to_list(np.minimum(2 * expected / np.maximum(from_rate + root, np.finfo(float).tiny), duration_s))


def replay(at_s: Sequence[float], speed: float) -> list[float]:
    """Return a trace's own times, counted from its first request."""
    first = at_s[0] if at_s else 0.0
    return [(time - first) / speed for time in at_s]


def find_peak_rate(times: Sequence[float], window_s: float = 1.0) -> float:
    """Return the highest request rate within any window: what the client must sustain."""
    if not times:
        return 0.0
    sent = np.asarray(times)
    ahead = np.searchsorted(sent, sent + window_s, side="left") - np.arange(len(sent))
    return float(ahead.max()) / window_s


def _draw_shares(shape: float, count: int, seed: int) -> Any:
    """Draw `count` ascending positions in 0..1, with gamma gaps between them and after the last."""
    sums = np.cumsum(make_generator(seed).gamma(shape, size=count + 1))
    return sums[:-1] / sums[-1]


def _to_list(values: Any) -> list[float]:
    times: list[float] = values.tolist()
    return times
