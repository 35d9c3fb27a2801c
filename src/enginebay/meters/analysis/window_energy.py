"""Energy of a device in a window, from its counter, with sampled power as a cross-check."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from enginebay.meters.analysis.counter_series import CounterSeries, build_counter_series
from enginebay.meters.analysis.energy_problems import COUNTER, POWER, EnergyProblem
from enginebay.meters.analysis.interpolation import covers_window, integrate, median_low
from enginebay.meters.sample import Sample, select_device

MAX_DISAGREEMENT = 0.05  # maximum relative difference between counter and sampled power
MAX_UNCERTAINTY = 0.03  # maximum share of energy that may fall outside the window
_MIN_GAP_S = 1.0
_GAP_INTERVALS = 5
_MIN_POWER_SAMPLES = 5
_MIN_PERIODS = 2


@dataclass(frozen=True, slots=True)
class WindowEnergy:
    """Energy of one or several devices in a window. None: unknown; `problems` gives the reason."""

    total_j: float | None
    idle_j: float | None = None  # with the engine loaded and idle
    active_j: float | None = None  # above that
    source: str = ""  # "counter", "power", "counter+power" for mixed devices, or "" without a total
    problems: tuple[EnergyProblem, ...] = ()
    counter_j: float | None = None  # from each source alone, trusted or not
    power_j: float | None = None
    disagreement: float | None = None  # |counter - power| / counter
    uncertainty_j: float | None = None  # at most this much may fall outside the window
    window_s: float = 0.0
    devices: tuple[str, ...] = ()  # devices in the sum, if known


@dataclass(frozen=True, slots=True)
class DeviceSeries:
    """One device's samples, prepared for queries of any window."""

    samples: tuple[Sample, ...]
    counter: CounterSeries | None
    counter_times: tuple[float, ...]
    power_times: tuple[float, ...]
    powers_w: tuple[float, ...]
    problems: tuple[EnergyProblem, ...]  # over all samples

    def read_counter_j(self, start_s: float, end_s: float) -> float | None:
        """Return the counter's energy, ignoring problems."""
        if self.counter is None or not covers_window(self.counter_times, start_s, end_s):
            return None
        return self.counter.interpolate_j(end_s) - self.counter.interpolate_j(start_s)

    def integrate_power_j(self, start_s: float, end_s: float) -> float | None:
        """Return the energy of sampled power, ignoring problems."""
        if not covers_window(self.power_times, start_s, end_s):
            return None
        return integrate(self.power_times, self.powers_w, start_s, end_s)


def build_device_series(samples: Sequence[Sample], device: str) -> DeviceSeries:
    """Select and order one device's samples, and find their problems."""
    own = select_device(samples, device)
    counter = build_counter_series(own)
    counted = tuple(s.time_s for s in own if s.energy_j is not None and math.isfinite(s.energy_j))
    powers = [(s.time_s, s.power_w) for s in own if s.power_w is not None and math.isfinite(s.power_w)]
    times = tuple(time_s for time_s, _ in powers)
    problems = (*(counter.problems if counter else ()), *_find_gaps(times))
    return DeviceSeries(tuple(own), counter, counted, times, tuple(watts for _, watts in powers), problems)


def measure_energy(
    samples: Sequence[Sample], device: str, start_s: float, end_s: float, idle_w: float | None = None
) -> WindowEnergy:
    """Measure one device in a window: by its counter if trustworthy, else by sampled power."""
    return measure_series(build_device_series(samples, device), start_s, end_s, idle_w)


def measure_series(series: DeviceSeries, start_s: float, end_s: float, idle_w: float | None = None) -> WindowEnergy:
    """Like `measure_energy`, for a series that is queried more than once."""
    window_s = end_s - start_s
    counter_j, power_j = series.read_counter_j(start_s, end_s), series.integrate_power_j(start_s, end_s)
    problems = _find_window_problems(series, start_s, end_s)
    untrusted = {source for problem in problems for source in problem.untrusted_sources}
    total_j, source = _choose_source(counter_j, power_j, untrusted)
    uncertainty_j = _estimate_uncertainty_j(series, start_s, end_s) if source == COUNTER else None
    disagreement = _compute_disagreement(counter_j, power_j)
    if total_j is not None and uncertainty_j is not None and uncertainty_j > MAX_UNCERTAINTY * total_j:
        message = f"up to {uncertainty_j:.1f} of {total_j:.1f} J may fall outside the window"
        problems.append(EnergyProblem("window_short", message, start_s, end_s))
    if disagreement is not None and disagreement > MAX_DISAGREEMENT:
        message = f"counter {counter_j:.0f} J, sampled power {power_j:.0f} J: {disagreement:.1%} apart"
        problems.append(EnergyProblem("apart", message, start_s, end_s))
    energy = WindowEnergy(
        total_j, None, None, source, tuple(problems), counter_j, power_j, disagreement, uncertainty_j, window_s
    )
    return energy if idle_w is None else subtract_idle(energy, idle_w)


def subtract_idle(energy: WindowEnergy, idle_w: float) -> WindowEnergy:
    """Split the energy into idle and active parts."""
    idle_j = idle_w * energy.window_s
    if energy.total_j is None:
        return replace(energy, idle_j=idle_j, active_j=None)
    active_j = energy.total_j - idle_j
    if active_j >= 0:
        return replace(energy, idle_j=idle_j, active_j=active_j)
    message = f"{energy.total_j:.1f} J were drawn, but idling at {idle_w:.1f} W alone takes {idle_j:.1f} J"
    return replace(
        energy, idle_j=idle_j, active_j=None, problems=(*energy.problems, EnergyProblem("below_idle", message))
    )


def sum_energies(energies: Sequence[WindowEnergy]) -> WindowEnergy:
    """Sum several devices over the same window; a figure is None if any device lacks it."""
    if not energies:
        return WindowEnergy(None, problems=(EnergyProblem("no_samples", "there are no devices to sum"),))
    counter_j, power_j = _sum_or_none([e.counter_j for e in energies]), _sum_or_none([e.power_j for e in energies])
    total_j = _sum_or_none([e.total_j for e in energies])
    return WindowEnergy(
        total_j,
        _sum_or_none([e.idle_j for e in energies]),
        _sum_or_none([e.active_j for e in energies]),
        "+".join(sorted({e.source for e in energies})) if total_j is not None else "",
        tuple(problem for e in energies for problem in e.problems),
        counter_j,
        power_j,
        _compute_disagreement(counter_j, power_j),
        _sum_or_none([e.uncertainty_j for e in energies]),
        max(e.window_s for e in energies),
    )


def _find_window_problems(series: DeviceSeries, start_s: float, end_s: float) -> list[EnergyProblem]:
    """Return the problems of both sources in this window."""
    if not series.samples:
        return [EnergyProblem("no_samples", "nothing was read from the device", start_s, end_s, (COUNTER, POWER))]
    if end_s <= start_s:
        return [EnergyProblem("window_short", "the window has no length", start_s, end_s, (COUNTER, POWER))]
    problems = [problem for problem in series.problems if problem.overlaps(start_s, end_s)]
    return problems + _find_counter_problems(series, start_s, end_s) + _find_power_problems(series, start_s, end_s)


def _find_counter_problems(series: DeviceSeries, start_s: float, end_s: float) -> list[EnergyProblem]:
    if series.counter is None:
        return [EnergyProblem("no_counter", "the device has no energy counter", start_s, end_s, (COUNTER,))]
    if not covers_window(series.counter_times, start_s, end_s):
        return [_build_uncovered_problem("counter", series.counter_times, start_s, end_s, COUNTER)]
    period = series.counter.period
    if period.proven and period.longest_s is not None and end_s - start_s < _MIN_PERIODS * period.longest_s:
        message = f"the counter updates every {period.longest_s * 1e3:.0f} ms, but the window is only {(end_s - start_s) * 1e3:.0f} ms"
        return [EnergyProblem("window_short", message, start_s, end_s, (COUNTER,))]
    return []


def _find_power_problems(series: DeviceSeries, start_s: float, end_s: float) -> list[EnergyProblem]:
    if not series.power_times:
        return [EnergyProblem("no_power", "the device does not report its power", start_s, end_s, (POWER,))]
    if not covers_window(series.power_times, start_s, end_s):
        return [_build_uncovered_problem("power", series.power_times, start_s, end_s, POWER)]
    inside = sum(1 for time_s in series.power_times if start_s <= time_s <= end_s)
    if inside < _MIN_POWER_SAMPLES:
        message = f"power was sampled only {inside} times in the window"
        return [EnergyProblem("window_short", message, start_s, end_s, (POWER,))]
    return []


def _build_uncovered_problem(
    name: str, times: Sequence[float], start_s: float, end_s: float, source: str
) -> EnergyProblem:
    late, early = max(times[0] - start_s, 0.0), max(end_s - times[-1], 0.0)
    message = f"samples of the {name} start {late:.2f} s after the window starts and end {early:.2f} s before it ends"
    return EnergyProblem("uncovered", message, start_s, end_s, (source,))


def _find_gaps(times: Sequence[float]) -> list[EnergyProblem]:
    """Find gaps in sampled power. A counter keeps counting meanwhile."""
    steps = [b - a for a, b in pairwise(times)]
    if not steps:
        return []
    longest_s = max(_MIN_GAP_S, _GAP_INTERVALS * median_low(steps))
    return [
        EnergyProblem("gap", f"no sample for {b - a:.2f} s", a, b, (POWER,))
        for a, b in pairwise(times)
        if b - a > longest_s
    ]


def _choose_source(counter_j: float | None, power_j: float | None, untrusted: set[str]) -> tuple[float | None, str]:
    if counter_j is not None and COUNTER not in untrusted:
        return counter_j, COUNTER
    if power_j is not None and POWER not in untrusted:
        return power_j, POWER
    return None, ""


def _estimate_uncertainty_j(series: DeviceSeries, start_s: float, end_s: float) -> float | None:
    return series.counter.bound_error_j(start_s) + series.counter.bound_error_j(end_s) if series.counter else None


def _compute_disagreement(counter_j: float | None, power_j: float | None) -> float | None:
    if counter_j is None or power_j is None or counter_j <= 0:
        return None
    return abs(counter_j - power_j) / counter_j


def _sum_or_none(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if len(known) == len(values) else None
