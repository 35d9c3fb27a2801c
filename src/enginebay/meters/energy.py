"""The energy a device drew in a window, from its counter, with sampled power as the cross-check."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from enginebay.meters.counter import Counter, read_counter
from enginebay.meters.problem import COUNTER, POWER, Problem
from enginebay.meters.sample import Sample, of_device
from enginebay.meters.series import covers, integral, median

APART = 0.05  # counter and samples may differ by this share
UNSURE = 0.03  # this share of the energy may belong to the other side of the window's ends
_LEAST_GAP_S = 1.0
_GAP_INTERVALS = 5
_LEAST_POWERS = 5
_LEAST_PERIODS = 2


@dataclass(frozen=True, slots=True)
class Energy:
    """What one device, or several together, drew in a window. None: cannot be told; the problems say why."""

    total_j: float | None
    idle_j: float | None = None  # what it would have drawn with the engine loaded and nothing to do
    active_j: float | None = None  # above that
    source: str = ""  # "counter", "power", "counter+power" for devices that differ, or "" where there is no total
    problems: tuple[Problem, ...] = ()
    counter_j: float | None = None  # from each source alone, whether it was trusted or not
    power_j: float | None = None
    apart: float | None = None  # |counter - power| / counter
    unsure_j: float | None = None  # at most this much may belong to the other side of the window's ends
    window_s: float = 0.0
    devices: tuple[str, ...] = ()  # those that were added up, where it is told


@dataclass(frozen=True, slots=True)
class Track:
    """One device's samples, ready to be asked for any window."""

    samples: tuple[Sample, ...]
    counter: Counter | None
    counter_times: tuple[float, ...]
    power_times: tuple[float, ...]
    powers_w: tuple[float, ...]
    problems: tuple[Problem, ...]  # of the whole time

    def counter_j(self, start_s: float, end_s: float) -> float | None:
        """By the counter, whatever is wrong with it."""
        if self.counter is None or not covers(self.counter_times, start_s, end_s):
            return None
        return self.counter.at(end_s) - self.counter.at(start_s)

    def power_j(self, start_s: float, end_s: float) -> float | None:
        """By the sampled power, whatever is wrong with it."""
        if not covers(self.power_times, start_s, end_s):
            return None
        return integral(self.power_times, self.powers_w, start_s, end_s)


def track(samples: Sequence[Sample], device: str) -> Track:
    """One device's samples out of many, in order, with everything that is wrong with them."""
    own = of_device(samples, device)
    counter = read_counter(own)
    counted = tuple(s.time_s for s in own if s.energy_j is not None and math.isfinite(s.energy_j))
    powers = [(s.time_s, s.power_w) for s in own if s.power_w is not None and math.isfinite(s.power_w)]
    times = tuple(time_s for time_s, _ in powers)
    problems = (*(counter.problems if counter else ()), *_gaps(times))
    return Track(tuple(own), counter, counted, times, tuple(watts for _, watts in powers), problems)


def energy_j(samples: Sequence[Sample], device: str, start_s: float, end_s: float) -> float | None:
    """The joules of one device in a window; None where no source can be trusted. `measure` says why."""
    return measure(samples, device, start_s, end_s).total_j


def check(samples: Sequence[Sample], device: str, start_s: float, end_s: float) -> tuple[Problem, ...]:
    """Everything that is wrong with a device's energy in a window."""
    return measure(samples, device, start_s, end_s).problems


def measure(
    samples: Sequence[Sample], device: str, start_s: float, end_s: float, idle_w: float | None = None
) -> Energy:
    """The energy of one device in a window: by the counter where it can be trusted, else by sampled power, else not."""
    return measure_track(track(samples, device), start_s, end_s, idle_w)


def measure_track(one: Track, start_s: float, end_s: float, idle_w: float | None = None) -> Energy:
    """The same for samples that are asked more than once."""
    window_s = end_s - start_s
    counter_j, power_j = one.counter_j(start_s, end_s), one.power_j(start_s, end_s)
    problems = _window_problems(one, start_s, end_s)
    spoilt = {source for problem in problems for source in problem.spoils}
    total_j, source = _trusted(counter_j, power_j, spoilt)
    unsure_j = _unsure_j(one, start_s, end_s) if source == COUNTER else None
    apart = _apart(counter_j, power_j)
    if total_j is not None and unsure_j is not None and unsure_j > UNSURE * total_j:
        message = f"up to {unsure_j:.1f} of {total_j:.1f} J may belong to before or after the window"
        problems.append(Problem("window_short", message, start_s, end_s))
    if apart is not None and apart > APART:
        message = f"counter {counter_j:.0f} J, sampled power {power_j:.0f} J: {apart:.1%} apart"
        problems.append(Problem("apart", message, start_s, end_s))
    energy = Energy(total_j, None, None, source, tuple(problems), counter_j, power_j, apart, unsure_j, window_s)
    return energy if idle_w is None else above_idle(energy, idle_w)


def above_idle(energy: Energy, idle_w: float) -> Energy:
    """The same energy told apart into what idling would have drawn and what came on top."""
    idle_j = idle_w * energy.window_s
    if energy.total_j is None:
        return replace(energy, idle_j=idle_j, active_j=None)
    active_j = energy.total_j - idle_j
    if active_j >= 0:
        return replace(energy, idle_j=idle_j, active_j=active_j)
    message = f"{energy.total_j:.1f} J were drawn, and idling at {idle_w:.1f} W alone would be {idle_j:.1f} J"
    return replace(energy, idle_j=idle_j, active_j=None, problems=(*energy.problems, Problem("below_idle", message)))


def together(energies: Sequence[Energy]) -> Energy:
    """Several devices over the same window as one; what one of them lacks, all lack."""
    if not energies:
        return Energy(None, problems=(Problem("no_samples", "there is no device to add up"),))
    counter_j, power_j = _sum([e.counter_j for e in energies]), _sum([e.power_j for e in energies])
    total_j = _sum([e.total_j for e in energies])
    return Energy(
        total_j,
        _sum([e.idle_j for e in energies]),
        _sum([e.active_j for e in energies]),
        "+".join(sorted({e.source for e in energies})) if total_j is not None else "",
        tuple(problem for e in energies for problem in e.problems),
        counter_j,
        power_j,
        _apart(counter_j, power_j),
        _sum([e.unsure_j for e in energies]),
        max(e.window_s for e in energies),
    )


def _window_problems(one: Track, start_s: float, end_s: float) -> list[Problem]:
    """What is wrong with either source in this window."""
    if not one.samples:
        return [Problem("no_samples", "nothing was read from the device", start_s, end_s, (COUNTER, POWER))]
    if end_s <= start_s:
        return [Problem("window_short", "the window has no length", start_s, end_s, (COUNTER, POWER))]
    problems = [problem for problem in one.problems if problem.touches(start_s, end_s)]
    return problems + _counter_problems(one, start_s, end_s) + _power_problems(one, start_s, end_s)


def _counter_problems(one: Track, start_s: float, end_s: float) -> list[Problem]:
    if one.counter is None:
        return [Problem("no_counter", "the device has no energy counter", start_s, end_s, (COUNTER,))]
    if not covers(one.counter_times, start_s, end_s):
        return [_uncovered("counter", one.counter_times, start_s, end_s, COUNTER)]
    period = one.counter.period
    if period.proven and period.longest_s is not None and end_s - start_s < _LEAST_PERIODS * period.longest_s:
        message = f"the counter is updated every {period.longest_s * 1e3:.0f} ms, the window is {(end_s - start_s) * 1e3:.0f} ms"
        return [Problem("window_short", message, start_s, end_s, (COUNTER,))]
    return []


def _power_problems(one: Track, start_s: float, end_s: float) -> list[Problem]:
    if not one.power_times:
        return [Problem("no_power", "the device does not tell its power", start_s, end_s, (POWER,))]
    if not covers(one.power_times, start_s, end_s):
        return [_uncovered("power", one.power_times, start_s, end_s, POWER)]
    inside = sum(1 for time_s in one.power_times if start_s <= time_s <= end_s)
    if inside < _LEAST_POWERS:
        return [Problem("window_short", f"power was sampled {inside} times in the window", start_s, end_s, (POWER,))]
    return []


def _uncovered(what: str, times: Sequence[float], start_s: float, end_s: float, source: str) -> Problem:
    late, early = max(times[0] - start_s, 0.0), max(end_s - times[-1], 0.0)
    message = f"samples of the {what} start {late:.2f} s after the window starts and end {early:.2f} s before it ends"
    return Problem("uncovered", message, start_s, end_s, (source,))


def _gaps(times: Sequence[float]) -> list[Problem]:
    """Where no power was sampled for too long. A counter goes on counting meanwhile."""
    steps = [b - a for a, b in pairwise(times)]
    if not steps:
        return []
    longest_s = max(_LEAST_GAP_S, _GAP_INTERVALS * median(steps))
    return [
        Problem("gap", f"no sample for {b - a:.2f} s", a, b, (POWER,)) for a, b in pairwise(times) if b - a > longest_s
    ]


def _trusted(counter_j: float | None, power_j: float | None, spoilt: set[str]) -> tuple[float | None, str]:
    if counter_j is not None and COUNTER not in spoilt:
        return counter_j, COUNTER
    if power_j is not None and POWER not in spoilt:
        return power_j, POWER
    return None, ""


def _unsure_j(one: Track, start_s: float, end_s: float) -> float | None:
    return one.counter.unsure_j(start_s) + one.counter.unsure_j(end_s) if one.counter else None


def _apart(counter_j: float | None, power_j: float | None) -> float | None:
    if counter_j is None or power_j is None or counter_j <= 0:
        return None
    return abs(counter_j - power_j) / counter_j


def _sum(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if len(known) == len(values) else None
