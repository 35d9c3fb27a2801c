"""An energy counter, read every now and then: unwrapped, checked, and asked for its value at any time."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from enginebay.meters.knots import Knot, Period, find_knots, find_period, moment_s, width_s
from enginebay.meters.problem import COUNTER, Problem
from enginebay.meters.sample import Sample
from enginebay.meters.series import value_at

_LEAST_STALL_S = 0.5
_STALL_PERIODS = 5
_DRAWN_J = 1.0  # less than this drawn meanwhile, and a counter may well stand still
_JUMP_S = 0.25  # a step that full power for this long would not explain; smaller ones may be two updates at once
_MOST_W = 5000.0
_LEAST_CEILING_W = 400.0


@dataclass(frozen=True, slots=True)
class Counter:
    """The counter of one device over all its samples, counted from 0 at the first one."""

    knots: tuple[Knot, ...]
    period: Period
    moments_s: tuple[float, ...]  # of the knots: when each update most likely happened
    values_j: tuple[float, ...]  # of the knots: unwrapped
    problems: tuple[Problem, ...]

    @property
    def pending_j(self) -> float:
        """What may be drawn by now and not yet be in the last value: one update's worth."""
        if len(self.values_j) < 2 or self.period.longest_s is None:
            return 0.0
        rate_w = (self.values_j[-1] - self.values_j[-2]) / (self.moments_s[-1] - self.moments_s[-2])
        return rate_w * self.period.longest_s

    def at(self, time_s: float) -> float:
        """The energy drawn until then. After the last update it goes on as before it, for one update at most."""
        last = self.moments_s[-1]
        if time_s <= last or self.period.longest_s is None:
            return self._between(time_s)
        return self.values_j[-1] + self.pending_j * min(1.0, (time_s - last) / self.period.longest_s)

    def _between(self, time_s: float) -> float:
        """Work often starts or ends between two updates, and with it the power changes: then the power before and the
        power after are each kept up until the two lines meet. Else one straight line."""
        times, values = self.moments_s, self.values_j
        after = bisect_right(times, time_s)
        if self.period.proven and 2 <= after < len(times) - 1:
            met = _meet(times[after - 2 : after + 2], values[after - 2 : after + 2])
            if met is not None:
                bent = (times[after - 1], met[0], times[after])
                return value_at(bent, (values[after - 1], met[1], values[after]), time_s)
        return value_at(times, values, time_s)

    def unsure_j(self, time_s: float) -> float:
        """How far `at` can be from the truth.

        What a reading showed had been drawn by then; and what an update added had been drawn only when it happened.
        """
        value = self.at(time_s)
        seen = bisect_right([knot.seen_s for knot in self.knots], time_s)
        least = self.values_j[max(seen - 1, 0)]
        later = (
            self.values_j[place]
            for place, knot in enumerate(self.knots)
            if knot.seen_s - width_s(knot, self.period) >= time_s
        )
        most = next(later, self.values_j[-1] + self.pending_j)
        return max(value - least, most - value, 0.0)


def read_counter(samples: Sequence[Sample]) -> Counter | None:
    """One device's counter from its samples in order of time; None where it has none."""
    knots = find_knots(samples)
    if not knots:
        return None
    period = find_period(knots)
    ceiling_w = _ceiling_w(samples, knots)
    wraps_at_j = next((sample.wraps_at_j for sample in samples if sample.wraps_at_j), None)
    values, problems = _unwrap(knots, period, ceiling_w, wraps_at_j)
    return Counter(
        tuple(knots),
        period,
        tuple(moment_s(knot, period) for knot in knots),
        tuple(values),
        (*problems, *_stalls(samples, knots, period)),
    )


def _unwrap(
    knots: Sequence[Knot], period: Period, ceiling_w: float, wraps_at_j: float | None
) -> tuple[list[float], list[Problem]]:
    """The values from 0, with what was added where the counter started again; a step that cannot be is left out."""
    values, problems = [0.0], []
    for before, after in pairwise(knots):
        step_j, problem = _step(before, after, period, ceiling_w, wraps_at_j)
        values.append(values[-1] + step_j)
        if problem is not None:
            problems.append(problem)
    return values, problems


def _step(
    before: Knot, after: Knot, period: Period, ceiling_w: float, wraps_at_j: float | None
) -> tuple[float, Problem | None]:
    """What was drawn between two values, and what is wrong with it."""
    start_s, end_s = before.until_s, after.seen_s
    raw_j = after.value_j - before.value_j
    step_j = raw_j + wraps_at_j if raw_j < 0 and wraps_at_j else raw_j
    slack_s = max(_JUMP_S, 2 * (period.longest_s or 0.0))
    possible_j = ceiling_w * (after.seen_s - before.seen_s + width_s(before, period) + slack_s)

    def problem(code: str, message: str, *spoils: str) -> Problem:
        return Problem(code, message, start_s, end_s, spoils)

    if step_j < 0 or (raw_j < 0 and step_j > possible_j):
        return 0.0, problem("reset", f"the counter fell from {before.value_j:.0f} to {after.value_j:.0f} J", COUNTER)
    if step_j > possible_j:
        return 0.0, problem("jump", f"the counter rose by {step_j:.0f} J in {end_s - start_s:.2f} s", COUNTER)
    if wraps_at_j and ceiling_w * (end_s - start_s) >= wraps_at_j:
        return step_j, problem("gap", f"in {end_s - start_s:.0f} s the counter may have wrapped unseen", COUNTER)
    if raw_j < 0:
        return step_j, problem("wrapped", f"the counter started again at 0 after {wraps_at_j:.0f} J")
    return step_j, None


def _stalls(samples: Sequence[Sample], knots: Sequence[Knot], period: Period) -> list[Problem]:
    """Where one value was seen for many times the usual while the device drew power, or may have."""
    longest_s = max(_LEAST_STALL_S, _STALL_PERIODS * (period.longest_s or 0.0))
    stalls = []
    for knot in knots:
        still_s = knot.until_s - knot.seen_s
        if still_s <= longest_s:
            continue
        powers = [s.power_w for s in samples if s.power_w is not None and knot.seen_s <= s.time_s <= knot.until_s]
        if not powers or still_s * sum(powers) / len(powers) >= _DRAWN_J:
            message = f"the counter stood still for {still_s:.2f} s"
            stalls.append(Problem("stall", message, knot.seen_s, knot.until_s, (COUNTER,)))
    return stalls


def _meet(times: Sequence[float], values: Sequence[float]) -> tuple[float, float] | None:
    """Where the line through the first two of four points meets the line through the last two, if between the middle ones."""
    before_w = (values[1] - values[0]) / (times[1] - times[0])
    after_w = (values[3] - values[2]) / (times[3] - times[2])
    if before_w == after_w:
        return None
    span_s, step_j = times[2] - times[1], values[2] - values[1]
    kept_s = (after_w * span_s - step_j) / (after_w - before_w)
    return (times[1] + kept_s, values[1] + before_w * kept_s) if 0 < kept_s < span_s else None


def _ceiling_w(samples: Sequence[Sample], knots: Sequence[Knot]) -> float:
    """More than this the device cannot draw: by its limit, else by the power it told, else by what it usually drew."""
    limit_w = max((sample.limit_w or 0.0 for sample in samples), default=0.0)
    if limit_w > 0:
        return 1.5 * limit_w  # limits are kept on average; peaks are higher
    power_w = max((sample.power_w or 0.0 for sample in samples), default=0.0)
    if power_w > 0:
        return 3 * power_w
    rates = sorted(max(b.value_j - a.value_j, 0.0) / (b.seen_s - a.seen_s) for a, b in pairwise(knots))
    usual_w = rates[int(0.95 * (len(rates) - 1))] if rates else _MOST_W
    return min(max(4 * usual_w, _LEAST_CEILING_W), _MOST_W)
