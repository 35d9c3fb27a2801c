"""Energy of a window by phase: prefill, decode, idle."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from enginebay.meters.analysis.energy_problems import COUNTER, EnergyProblem
from enginebay.meters.analysis.interpolation import CLOCK_TOLERANCE_S, median_low
from enginebay.meters.analysis.window_energy import DeviceSeries, build_device_series, measure_series
from enginebay.meters.sample import Sample

MAX_UNRESOLVED_SHARE = 0.1  # maximum share of time in stretches too short to resolve
_MIN_STEPS = 2  # a stretch must last this many updates of its source


@dataclass(frozen=True, slots=True)
class PhaseInterval:
    """[start, end) with its phase. Intervals do not overlap."""

    start_s: float
    end_s: float
    label: str


@dataclass(frozen=True, slots=True)
class PhaseEnergy:
    """Joules by label; empty if they cannot be separated, and then `problems` gives the reason."""

    joules: dict[str, float]
    seconds: dict[str, float]
    source: str
    unresolved_share: float  # share of time in stretches too short for the meter
    problems: tuple[EnergyProblem, ...] = ()


def measure_phase_energy(samples: Sequence[Sample], device: str, intervals: Sequence[PhaseInterval]) -> PhaseEnergy:
    """Measure the energy of each label's intervals. Adjacent intervals with the same label count as series stretch."""
    stretches = merge_intervals(intervals)
    seconds: dict[str, float] = defaultdict(float)
    for stretch in stretches:
        seconds[stretch.label] += stretch.end_s - stretch.start_s
    if not stretches:
        return PhaseEnergy({}, {}, "", 0.0, (EnergyProblem("window_short", "there are no intervals"),))
    series = build_device_series(samples, device)
    total = measure_series(series, stretches[0].start_s, stretches[-1].end_s)
    if total.total_j is None:
        return PhaseEnergy({}, dict(seconds), "", 1.0, total.problems)
    step_s = _estimate_resolution_s(series, total.source)
    unresolved = _compute_unresolved_share(stretches, step_s)
    if len(seconds) > 1 and unresolved > MAX_UNRESOLVED_SHARE:
        message = f"{unresolved:.0%} of the time is in phases shorter than {_MIN_STEPS * step_s * 1e3:.0f} ms"
        return PhaseEnergy(
            {}, dict(seconds), total.source, unresolved, (*total.problems, EnergyProblem("unresolved", message))
        )
    return PhaseEnergy(
        _sum_joules(series, stretches, total.source), dict(seconds), total.source, unresolved, total.problems
    )


def merge_intervals(intervals: Sequence[PhaseInterval]) -> list[PhaseInterval]:
    """Sort intervals and merge neighbours with the same label; raise ValueError if they overlap."""
    merged: list[PhaseInterval] = []
    for interval in sorted((i for i in intervals if i.end_s > i.start_s), key=lambda i: i.start_s):
        last = merged[-1] if merged else None
        if last is not None and interval.start_s < last.end_s - CLOCK_TOLERANCE_S:
            raise ValueError(f"intervals overlap at {interval.start_s}")
        if last is not None and last.label == interval.label and interval.start_s <= last.end_s + CLOCK_TOLERANCE_S:
            merged[-1] = PhaseInterval(last.start_s, interval.end_s, last.label)
        else:
            merged.append(interval)
    return merged


def _sum_joules(series: DeviceSeries, stretches: Sequence[PhaseInterval], source: str) -> dict[str, float]:
    joules: dict[str, float] = defaultdict(float)
    read = series.read_counter_j if source == COUNTER else series.integrate_power_j
    for stretch in stretches:
        joules[stretch.label] += read(stretch.start_s, stretch.end_s) or 0.0
    return dict(joules)


def _estimate_resolution_s(series: DeviceSeries, source: str) -> float:
    """Return the time between two independent readings of the source, given its updates and how often it was read."""
    times = series.counter_times if source == COUNTER else series.power_times
    between = [b - a for a, b in pairwise(times)]
    read_s = median_low(between) if between else 0.0
    period_s = series.counter.period.longest_s if source == COUNTER and series.counter else None
    return max(read_s, period_s or 0.0)


def _compute_unresolved_share(stretches: Sequence[PhaseInterval], step_s: float) -> float:
    lengths = [stretch.end_s - stretch.start_s for stretch in stretches]
    return sum(length for length in lengths if length < _MIN_STEPS * step_s) / sum(lengths)
