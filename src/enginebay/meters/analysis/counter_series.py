"""An energy counter from its readings: unwrapped, checked, and interpolated at any time."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from enginebay.meters.analysis.counter_updates import (
    CounterUpdate,
    UpdatePeriod,
    compute_max_delay_s,
    estimate_period,
    estimate_update_time_s,
    find_updates,
)
from enginebay.meters.analysis.energy_problems import COUNTER, EnergyProblem
from enginebay.meters.analysis.interpolation import interpolate
from enginebay.meters.sample import Sample

_MIN_STALL_S = 0.5
_STALL_PERIODS = 5
_MIN_STALL_ENERGY_J = 1.0  # with less energy than this, a counter may legitimately stand still
_JUMP_SLACK_S = 0.25  # a larger step than full power for this long is a jump; smaller ones may be two updates at once
_MAX_POWER_W = 5000.0
_MIN_POWER_BOUND_W = 400.0


@dataclass(frozen=True, slots=True)
class CounterSeries:
    """One device's counter over all its samples, starting at 0."""

    updates: tuple[CounterUpdate, ...]
    period: UpdatePeriod
    update_times_s: tuple[float, ...]  # when each update most likely happened
    values_j: tuple[float, ...]  # unwrapped, at each update
    problems: tuple[EnergyProblem, ...]

    @property
    def pending_j(self) -> float:
        """Energy that may not be in the last value yet: one update's worth."""
        if len(self.values_j) < 2 or self.period.longest_s is None:
            return 0.0
        rate_w = (self.values_j[-1] - self.values_j[-2]) / (self.update_times_s[-1] - self.update_times_s[-2])
        return rate_w * self.period.longest_s

    def interpolate_j(self, time_s: float) -> float:
        """Return the energy drawn until then. After the last update it continues at the same rate for at most one update."""
        last = self.update_times_s[-1]
        if time_s <= last or self.period.longest_s is None:
            return self._interpolate_between(time_s)
        return self.values_j[-1] + self.pending_j * min(1.0, (time_s - last) / self.period.longest_s)

    def _interpolate_between(self, time_s: float) -> float:
        """Interpolate between updates. If power changes in between, extend the power before and the power after until the
        two lines meet; otherwise use one straight line."""
        times, values = self.update_times_s, self.values_j
        after = bisect_right(times, time_s)
        if self.period.proven and 2 <= after < len(times) - 1:
            meeting = _intersect_lines(times[after - 2 : after + 2], values[after - 2 : after + 2])
            if meeting is not None:
                bent = (times[after - 1], meeting[0], times[after])
                return interpolate(bent, (values[after - 1], meeting[1], values[after]), time_s)
        return interpolate(times, values, time_s)

    def bound_error_j(self, time_s: float) -> float:
        """Return the maximum error of `interpolate_j`.

        The last value seen by then is a lower bound; the value of the first update after it is an upper bound.
        """
        value = self.interpolate_j(time_s)
        seen = bisect_right([update.first_seen_s for update in self.updates], time_s)
        lower = self.values_j[max(seen - 1, 0)]
        later = (
            self.values_j[index]
            for index, update in enumerate(self.updates)
            if update.first_seen_s - compute_max_delay_s(update, self.period) >= time_s
        )
        upper = next(later, self.values_j[-1] + self.pending_j)
        return max(value - lower, upper - value, 0.0)


def build_counter_series(samples: Sequence[Sample]) -> CounterSeries | None:
    """Return one device's counter from its samples in time order; None if it has none."""
    updates = find_updates(samples)
    if not updates:
        return None
    period = estimate_period(updates)
    power_bound_w = _estimate_power_bound_w(samples, updates)
    wraps_at_j = next((sample.wraps_at_j for sample in samples if sample.wraps_at_j), None)
    values, problems = _unwrap(updates, period, power_bound_w, wraps_at_j)
    return CounterSeries(
        tuple(updates),
        period,
        tuple(estimate_update_time_s(update, period) for update in updates),
        tuple(values),
        (*problems, *_find_stalls(samples, updates, period)),
    )


def _unwrap(
    updates: Sequence[CounterUpdate], period: UpdatePeriod, power_bound_w: float, wraps_at_j: float | None
) -> tuple[list[float], list[EnergyProblem]]:
    """Return the values from 0, corrected for wraps; impossible steps are dropped."""
    values, problems = [0.0], []
    for before, after in pairwise(updates):
        step_j, problem = _compute_step(before, after, period, power_bound_w, wraps_at_j)
        values.append(values[-1] + step_j)
        if problem is not None:
            problems.append(problem)
    return values, problems


def _compute_step(
    before: CounterUpdate, after: CounterUpdate, period: UpdatePeriod, power_bound_w: float, wraps_at_j: float | None
) -> tuple[float, EnergyProblem | None]:
    """Return the energy between two values, and the problem with it, if any."""
    start_s, end_s = before.last_seen_s, after.first_seen_s
    raw_j = after.value_j - before.value_j
    step_j = raw_j + wraps_at_j if raw_j < 0 and wraps_at_j else raw_j
    slack_s = max(_JUMP_SLACK_S, 2 * (period.longest_s or 0.0))
    possible_j = power_bound_w * (
        after.first_seen_s - before.first_seen_s + compute_max_delay_s(before, period) + slack_s
    )

    def problem(code: str, message: str, *untrusted: str) -> EnergyProblem:
        return EnergyProblem(code, message, start_s, end_s, untrusted)

    if step_j < 0 or (raw_j < 0 and step_j > possible_j):
        return 0.0, problem("reset", f"the counter fell from {before.value_j:.0f} to {after.value_j:.0f} J", COUNTER)
    if step_j > possible_j:
        return 0.0, problem("jump", f"the counter rose by {step_j:.0f} J in {end_s - start_s:.2f} s", COUNTER)
    if wraps_at_j and power_bound_w * (end_s - start_s) >= wraps_at_j:
        return step_j, problem("gap", f"the counter may have wrapped unnoticed within {end_s - start_s:.0f} s", COUNTER)
    if raw_j < 0:
        return step_j, problem("wrapped", f"the counter wrapped to 0 after {wraps_at_j:.0f} J")
    return step_j, None


def _find_stalls(
    samples: Sequence[Sample], updates: Sequence[CounterUpdate], period: UpdatePeriod
) -> list[EnergyProblem]:
    """Find values that stayed unusually long while the device drew, or may have drawn, power."""
    longest_s = max(_MIN_STALL_S, _STALL_PERIODS * (period.longest_s or 0.0))
    stalls = []
    for update in updates:
        still_s = update.last_seen_s - update.first_seen_s
        if still_s <= longest_s:
            continue
        powers = [
            s.power_w
            for s in samples
            if s.power_w is not None and update.first_seen_s <= s.time_s <= update.last_seen_s
        ]
        if not powers or still_s * sum(powers) / len(powers) >= _MIN_STALL_ENERGY_J:
            message = f"the counter stalled for {still_s:.2f} s"
            stalls.append(EnergyProblem("stall", message, update.first_seen_s, update.last_seen_s, (COUNTER,)))
    return stalls


def _intersect_lines(times: Sequence[float], values: Sequence[float]) -> tuple[float, float] | None:
    """Return where the line through the first two of four points meets the line through the last two, if between the middle ones."""
    before_w = (values[1] - values[0]) / (times[1] - times[0])
    after_w = (values[3] - values[2]) / (times[3] - times[2])
    if before_w == after_w:
        return None
    span_s, step_j = times[2] - times[1], values[2] - values[1]
    offset_s = (after_w * span_s - step_j) / (after_w - before_w)
    return (times[1] + offset_s, values[1] + before_w * offset_s) if 0 < offset_s < span_s else None


def _estimate_power_bound_w(samples: Sequence[Sample], updates: Sequence[CounterUpdate]) -> float:
    """Return an upper bound on the device's power: from its limit, else its reported power, else its usual rate."""
    limit_w = max((sample.limit_w or 0.0 for sample in samples), default=0.0)
    if limit_w > 0:
        return 1.5 * limit_w  # limits hold on average; peaks are higher
    power_w = max((sample.power_w or 0.0 for sample in samples), default=0.0)
    if power_w > 0:
        return 3 * power_w
    rates = sorted(max(b.value_j - a.value_j, 0.0) / (b.first_seen_s - a.first_seen_s) for a, b in pairwise(updates))
    usual_w = rates[int(0.95 * (len(rates) - 1))] if rates else _MAX_POWER_W
    return min(max(4 * usual_w, _MIN_POWER_BOUND_W), _MAX_POWER_W)
