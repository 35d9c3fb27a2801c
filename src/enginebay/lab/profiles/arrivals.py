"""Times of sending: seconds from 0, ascending, the same for the same seed on every machine.

Random arrivals are drawn given that there are exactly `count` of them in `count / rate` seconds. For Poisson arrivals that is
what the process looks like once its count is known; it makes the rate that is offered the rate that was asked for, instead of
one that differs by several percent from seed to seed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from enginebay.lab.workload.seeded_random import make_generator


def constant(rate: float, count: int) -> list[float]:
    """The first at 0, and then evenly."""
    return [number / rate for number in range(count)]


def poisson(rate: float, count: int, seed: int) -> list[float]:
    return gamma(rate, 1.0, count, seed)


def gamma(rate: float, burstiness: float, count: int, seed: int) -> list[float]:
    """Gaps of a gamma distribution with shape `burstiness`, stretched so that `count` of them take `count / rate` seconds."""
    return _to_list(_draw_shares(burstiness, count, seed) * (count / rate))


def ramp(from_rate: float, to_rate: float, duration_s: float, count: int, seed: int) -> list[float]:
    """Poisson arrivals at a rate that goes evenly from one figure to the other."""
    slope = (to_rate - from_rate) / duration_s
    expected = _draw_shares(1.0, count, seed) * (from_rate + to_rate) / 2 * duration_s
    # The time by which so many are expected, in the form that stays exact where the slope is 0.
    root = np.sqrt(np.maximum(from_rate**2 + 2 * slope * expected, 0.0))
    return _to_list(np.minimum(2 * expected / np.maximum(from_rate + root, np.finfo(float).tiny), duration_s))


def replay(at_s: Sequence[float], speed: float) -> list[float]:
    """A trace's own times from its first request on."""
    first = at_s[0] if at_s else 0.0
    return [(time - first) / speed for time in at_s]


def find_peak_rate(times: Sequence[float], window_s: float = 1.0) -> float:
    """The most requests a second that are sent within any window: what the client has to be able to do."""
    if not times:
        return 0.0
    sent = np.asarray(times)
    ahead = np.searchsorted(sent, sent + window_s, side="left") - np.arange(len(sent))
    return float(ahead.max()) / window_s


def _draw_shares(shape: float, count: int, seed: int) -> Any:
    """`count` ascending places within 0..1, with gamma gaps between them and after the last."""
    sums = np.cumsum(make_generator(seed).gamma(shape, size=count + 1))
    return sums[:-1] / sums[-1]


def _to_list(values: Any) -> list[float]:
    found: list[float] = values.tolist()
    return found
