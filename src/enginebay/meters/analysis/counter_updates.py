"""Estimate when an energy counter was updated.

A counter is a staircase: the device updates it every 1 to 100 ms, and a reading returns the sum at the last update. The
first reading of a new value is the most informative: the update happened after the previous reading.
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
_TOLERANCE_J = 1e-6  # the finest counters step by a few microjoules; less is rounding


@dataclass(frozen=True, slots=True)
class CounterUpdate:
    """One value of the counter."""

    previous_reading_s: float | None  # last reading of an older value; None for the first reading
    first_seen_s: float  # the first reading of this value
    last_seen_s: float  # the last reading of this value
    readings: int
    value_j: float  # as read


@dataclass(frozen=True, slots=True)
class UpdatePeriod:
    """How often the counter updates."""

    longest_s: float | None  # almost never longer; None: too few changes seen
    proven: bool  # readings were dense enough to see repeated values between updates


def find_updates(samples: Sequence[Sample]) -> list[CounterUpdate]:
    """Return the counter's values with when each was first and last seen. Samples are in time order."""
    updates: list[CounterUpdate] = []
    for sample in samples:
        value = sample.energy_j
        if value is None or not math.isfinite(value):
            continue
        last = updates[-1] if updates else None
        if last is not None and abs(value - last.value_j) < _TOLERANCE_J:
            updates[-1] = CounterUpdate(
                last.previous_reading_s, last.first_seen_s, sample.time_s, last.readings + 1, last.value_j
            )
        else:
            updates.append(CounterUpdate(last.last_seen_s if last else None, sample.time_s, sample.time_s, 1, value))
    return updates


def estimate_period(updates: Sequence[CounterUpdate]) -> UpdatePeriod:
    """Estimate the time between updates, best from values that were read several times."""
    known = updates[1:]  # the time of the first value is unknown
    distances = [(b.first_seen_s - a.first_seen_s, a.readings) for a, b in pairwise(known)]
    if not distances:
        return UpdatePeriod(None, False)
    dense = [distance for distance, readings in distances if readings >= _DENSE_READINGS]
    if len(dense) > 1:
        longest_s = _pick_typical(dense)
        sooner = sum(1 for distance, _ in distances if distance < longest_s / 2)
        if sooner <= _MAX_EARLY_SHARE * len(distances):  # otherwise it stalled there
            return UpdatePeriod(longest_s, True)
    return UpdatePeriod(_pick_typical([distance for distance, _ in distances]), False)


def _pick_typical(distances: Sequence[float]) -> float:
    """Return one of the shortest: sparse readings and stalls lengthen the others. Not the very shortest, because after a
    late reading the next update seems early."""
    return sorted(distances)[min(_MIN_UPDATES, math.ceil(len(distances) / 2)) - 1]


def compute_max_delay_s(update: CounterUpdate, period: UpdatePeriod) -> float:
    """Return how long before it was first seen the update can have happened."""
    if update.previous_reading_s is None:
        return period.longest_s or 0.0
    since_before = update.first_seen_s - update.previous_reading_s
    return since_before if period.longest_s is None else min(since_before, period.longest_s)


def estimate_update_time_s(update: CounterUpdate, period: UpdatePeriod) -> float:
    """Return the most likely time of the update. A counter never seen to repeat is treated as always fresh."""
    return update.first_seen_s - compute_max_delay_s(update, period) / 2 if period.proven else update.first_seen_s
