"""Whether the engine ran as it was told to, and the machine was the same from beginning to end, and alone."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from statistics import fmean

from enginebay.lab.validity import limits
from enginebay.lab.validity.in_flight import filter_sent, mean_in_flight
from enginebay.lab.validity.run_facts import RunFacts
from enginebay.lab.validity.verdict import FINE, UNKNOWN, Finding, Reason, grade_figure, pick_gravest
from enginebay.meters.sample import Sample

# A power cap is how the device is set and belongs to its result; idle and chosen clocks are no fault either.
_FAULT_REASONS = frozenset(
    ("hardware_slowdown", "thermal_software", "thermal_hardware", "power_brake")
)  # of meters/devices/nvml_meter.py


def engine_warned(facts: RunFacts) -> Finding:
    """The engine had nothing to say against its settings when it loaded."""
    if facts.engine_warnings is None:
        return UNKNOWN
    if not facts.engine_warnings:
        return FINE
    message = f"the engine says: {'; '.join(facts.engine_warnings)}"
    # What a warning is about stands first.
    grave = any(re.match(rf"{re.escape(name)}(?![\w.])", one) for one in facts.engine_warnings for name in facts.varied)
    return Reason(
        "engine_warned", "invalid" if grave else "informative", message, float(len(facts.engine_warnings)), 0.0
    )


def machine_busy(facts: RunFacts) -> Finding:
    """Nothing else ran."""
    return pick_gravest(
        _check_other_requests(facts), _check_cores(facts), _check_gpus(facts)
    )  # what one can do most about goes first


def _check_cores(facts: RunFacts) -> Finding:
    share = facts.others_busy
    if share is None:
        return UNKNOWN
    message = f"other processes used {share:.0%} of the machine's cores"
    return grade_figure("machine_busy", share, *limits.OTHERS_BUSY, message)


def _check_gpus(facts: RunFacts) -> Finding:
    if not facts.idle_gpu_busy:
        return UNKNOWN
    share, device = max((share, device) for device, share in facts.idle_gpu_busy.items())
    message = f"{device} was {share:.0%} busy before anything was asked of the engine"
    return grade_figure("machine_busy", share, *limits.IDLE_GPU_BUSY, message)


def _check_other_requests(facts: RunFacts) -> Finding:
    """Alone, a server has a request for no longer than its client waits: what it counts beyond that is of others."""
    if facts.server_in_flight is None or not facts.window_s:
        return UNKNOWN
    own = filter_sent(facts.records)
    ours = mean_in_flight(own, facts.window_s) + limits.COUNTED_LATE_S * len(own) / facts.window_s
    share = max(0.0, 1 - ours / facts.server_in_flight) if facts.server_in_flight else 0.0
    message = (
        f"{share:.0%} of the requests that the server worked on were others' ({facts.server_in_flight:.3g} in flight)"
    )
    return grade_figure("machine_busy", share, *limits.OTHERS_IN_FLIGHT, message)


def thermal_drift(facts: RunFacts) -> Finding:
    """The devices were as warm and as fast at the end as at the beginning."""
    return pick_gravest(*(_check_drift(device, own) for device, own in _group_by_device(facts.samples or ())))


def _group_by_device(samples: Sequence[Sample]) -> Iterable[tuple[str, list[Sample]]]:
    devices: dict[str, list[Sample]] = {}
    for sample in samples:
        devices.setdefault(sample.device, []).append(sample)
    return devices.items()


def _check_drift(device: str, samples: Sequence[Sample]) -> Finding:
    warmth = _average_quarters([one.temperature_c for one in samples])
    if warmth is None:
        return UNKNOWN
    rise = warmth[1] - warmth[0]
    if abs(rise) <= limits.TEMPERATURE_DRIFT_C:
        return FINE
    message = f"{device} went from {warmth[0]:.0f} to {warmth[1]:.0f} °C in the window"
    clocks = _average_quarters([one.sm_clock_hz for one in samples])
    fall = 1 - clocks[1] / clocks[0] if clocks and clocks[0] else 0.0
    if rise > 0 and fall > limits.CLOCK_DRIFT:
        message += f", and its clock fell by {fall:.0%}: warm it up before the window"
        return Reason("thermal_drift", "invalid", message, rise, limits.TEMPERATURE_DRIFT_C)
    return Reason("thermal_drift", "informative", message, rise, limits.TEMPERATURE_DRIFT_C)


def _average_quarters(values: Iterable[float | None]) -> tuple[float, float] | None:
    """Means of the first and the last quarter."""
    known = [value for value in values if value is not None]
    if len(known) < limits.THERMAL_MIN_SAMPLES:
        return None
    quarter = len(known) // 4
    return fmean(known[:quarter]), fmean(known[-quarter:])


def throttled(facts: RunFacts) -> Finding:
    """No device was slowed down to save itself."""
    return pick_gravest(*(_check_throttling(device, own) for device, own in _group_by_device(facts.samples or ())))


def _check_throttling(device: str, samples: Sequence[Sample]) -> Finding:
    if all(one.temperature_c is None and one.sm_clock_hz is None and not one.throttle for one in samples):
        return UNKNOWN  # a meter that does not look at this
    faults = [_FAULT_REASONS.intersection(one.throttle) for one in samples]
    share = sum(map(bool, faults)) / len(samples)
    names = ", ".join(sorted({name for found in faults for name in found}))
    message = f"{device} was slowed down ({names}) in {share:.1%} of the samples"
    return grade_figure("throttled", share, *limits.THROTTLED_SHARE, message)
