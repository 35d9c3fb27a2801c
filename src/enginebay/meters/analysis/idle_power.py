"""Power of a device with the engine loaded and idle."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from enginebay.meters.analysis.energy_problems import EnergyProblem
from enginebay.meters.analysis.window_energy import build_device_series, measure_series
from enginebay.meters.sample import Sample

MAX_IDLE_DRIFT = 0.05  # maximum relative difference between the halves of the idle window


@dataclass(frozen=True, slots=True)
class IdlePower:
    """Idle power; None if unknown."""

    power_w: float | None
    source: str = ""
    problems: tuple[EnergyProblem, ...] = ()


def measure_idle_power(samples: Sequence[Sample], device: str, start_s: float, end_s: float) -> IdlePower:
    """Measure the mean power in an idle window, and whether it was steady: clocks and fans lag behind work."""
    series = build_device_series(samples, device)
    total = measure_series(series, start_s, end_s)
    if total.total_j is None:
        return IdlePower(None, "", total.problems)
    middle_s = (start_s + end_s) / 2
    early = measure_series(series, start_s, middle_s).total_j
    late = measure_series(series, middle_s, end_s).total_j
    problems = total.problems
    if early is not None and late is not None and abs(early - late) > MAX_IDLE_DRIFT * total.total_j / 2:
        half_s = middle_s - start_s
        message = f"idle power went from {early / half_s:.1f} to {late / half_s:.1f} W while being measured"
        problems = (*problems, EnergyProblem("unsteady", message, start_s, end_s))
    return IdlePower(total.total_j / (end_s - start_s), total.source, problems)
