"""When an energy counter was updated, as far as readings of it can tell.

A counter is a staircase: the device adds to it every 1 to 100 ms, and a reading shows the sum as it was at the last update. So a
reading is worth most where its value is seen for the first time (a knot): the update happened after the reading before.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from enginebay.meters.sample import Sample

_MIN_UPDATES = 5
_DENSE_READINGS = 3
_MAX_EARLY_SHARE = 0.1
_TOLERANCE_J = 1e-6  # the finest counters count in steps of a few microjoules; less is rounding


@dataclass(frozen=True, slots=True)
class CounterUpdate:
    """One value of the counter."""

    previous_reading_s: float | None  # the last reading that showed an older value; None: this is the first reading
    first_seen_s: float  # the first reading of this value
    last_seen_s: float  # the last reading of this value
    readings: int
    value_j: float  # as read


@dataclass(frozen=True, slots=True)
class UpdatePeriod:
    """How often the counter is updated."""

    longest_s: float | None  # hardly ever later than this; None: it was not seen to change often enough
    proven: bool  # readings were dense enough to see it stand still between updates


def find_updates(samples: Sequence[Sample]) -> list[CounterUpdate]:
    """The values of one device's counter, each with when it was first and last seen. Samples are in order of time."""
    knots: list[CounterUpdate] = []
    for sample in samples:
        value = sample.energy_j
        if value is None or not math.isfinite(value):
            continue
        last = knots[-1] if knots else None
        if last is not None and abs(value - last.value_j) < _TOLERANCE_J:
            knots[-1] = CounterUpdate(
                last.previous_reading_s, last.first_seen_s, sample.time_s, last.readings + 1, last.value_j
            )
        else:
            knots.append(CounterUpdate(last.last_seen_s if last else None, sample.time_s, sample.time_s, 1, value))
    return knots


def estimate_period(knots: Sequence[CounterUpdate]) -> UpdatePeriod:
    """How far apart updates are, best seen where each value was read several times."""
    updates = knots[1:]  # when the first value came is not known
    distances = [(b.first_seen_s - a.first_seen_s, a.readings) for a, b in pairwise(updates)]
    if not distances:
        return UpdatePeriod(None, False)
    dense = [distance for distance, readings in distances if readings >= _DENSE_READINGS]
    if len(dense) > 1:
        longest_s = _pick_typical(dense)
        sooner = sum(1 for distance, _ in distances if distance < longest_s / 2)
        if sooner <= _MAX_EARLY_SHARE * len(distances):  # else it stood still there because it stalled
            return UpdatePeriod(longest_s, True)
    return UpdatePeriod(_pick_typical([distance for distance, _ in distances]), False)


def _pick_typical(distances: Sequence[float]) -> float:
    """One of the shortest: longer ones come from rare readings and from stalls. Not the very shortest: after one that was late the
    next seems early."""
    return sorted(distances)[min(_MIN_UPDATES, math.ceil(len(distances) / 2)) - 1]


def compute_max_delay_s(update: CounterUpdate, period: UpdatePeriod) -> float:
    """The update that made this value happened at most so long before it was seen."""
    if update.previous_reading_s is None:
        return period.longest_s or 0.0
    since_before = update.first_seen_s - update.previous_reading_s
    return since_before if period.longest_s is None else min(since_before, period.longest_s)


def estimate_update_time_s(update: CounterUpdate, period: UpdatePeriod) -> float:
    """When the update most likely happened. A counter never seen to stand still is taken for one that is always fresh."""
    return update.first_seen_s - compute_max_delay_s(update, period) / 2 if period.proven else update.first_seen_s
