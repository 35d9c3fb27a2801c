"""The power a device draws with the engine loaded and nothing to do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from enginebay.meters.analysis.energy_problems import EnergyProblem
from enginebay.meters.analysis.window_energy import build_device_series, measure_series
from enginebay.meters.sample import Sample

MAX_IDLE_DRIFT = 0.05  # the halves of the idle window may differ by this share


@dataclass(frozen=True, slots=True)
class IdlePower:
    """Idle power; None where it cannot be told."""

    power_w: float | None
    source: str = ""
    problems: tuple[EnergyProblem, ...] = ()


def measure_idle_power_w(samples: Sequence[Sample], device: str, start_s: float, end_s: float) -> float | None:
    """Mean power of one device in an idle window; `baseline` also says how sure that is."""
    return measure_idle_power(samples, device, start_s, end_s).power_w


def measure_idle_power(samples: Sequence[Sample], device: str, start_s: float, end_s: float) -> IdlePower:
    """Mean power in an idle window, and whether it had settled: clocks and fans go on for a while after work."""
    one = build_device_series(samples, device)
    whole = measure_series(one, start_s, end_s)
    if whole.total_j is None:
        return IdlePower(None, "", whole.problems)
    middle_s = (start_s + end_s) / 2
    early = measure_series(one, start_s, middle_s).total_j
    late = measure_series(one, middle_s, end_s).total_j
    problems = whole.problems
    if early is not None and late is not None and abs(early - late) > MAX_IDLE_DRIFT * whole.total_j / 2:
        half_s = middle_s - start_s
        message = f"idle power went from {early / half_s:.1f} to {late / half_s:.1f} W while it was measured"
        problems = (*problems, EnergyProblem("unsteady", message, start_s, end_s))
    return IdlePower(whole.total_j / (end_s - start_s), whole.source, problems)
