"""Check that the engine applied its settings, and that the machine was stable and otherwise idle."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from statistics import fmean

from enginebay.lab.validity import limits
from enginebay.lab.validity.in_flight import filter_sent, mean_in_flight
from enginebay.lab.validity.run_facts import RunFacts
from enginebay.lab.validity.verdict import FINE, UNKNOWN, Finding, Reason, grade_figure, pick_gravest
from enginebay.meters.sample import Sample

# A power cap is a device setting and part of the result; idle and fixed clocks are no fault either.
_FAULT_REASONS = frozenset(
    ("hardware_slowdown", "thermal_software", "thermal_hardware", "power_brake")
)  # of meters/devices/nvml_meter.py


def engine_warned(facts: RunFacts) -> Finding:
    """Check that the engine gave no warnings about its settings when it loaded."""
    if facts.engine_warnings is None:
        return UNKNOWN
    if not facts.engine_warnings:
        return FINE
    message = f"the engine warns: {'; '.join(facts.engine_warnings)}"
    # A warning starts with the setting it concerns.
    grave = any(
        re.match(rf"{re.escape(name)}(?![\w.])", warning) for warning in facts.engine_warnings for name in facts.varied
    )
    return Reason(
        "engine_warned", "invalid" if grave else "informative", message, float(len(facts.engine_warnings)), 0.0
    )


def machine_busy(facts: RunFacts) -> Finding:
    """Check that nothing else was running."""
    return pick_gravest(
        _check_other_requests(facts), _check_cores(facts), _check_gpus(facts)
    )  # the easiest to fix goes first


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
    message = f"{device} was {share:.0%} busy before the first request"
    return grade_figure("machine_busy", share, *limits.IDLE_GPU_BUSY, message)


def _check_other_requests(facts: RunFacts) -> Finding:
    """Compare the server's count with the client's: alone, a server holds a request no longer than its client waits."""
    if facts.server_in_flight is None or not facts.window_s:
        return UNKNOWN
    sent = filter_sent(facts.records)
    expected = mean_in_flight(sent, facts.window_s) + limits.COUNTED_LATE_S * len(sent) / facts.window_s
    share = max(0.0, 1 - expected / facts.server_in_flight) if facts.server_in_flight else 0.0
    message = f"{share:.0%} of the server's requests came from other clients ({facts.server_in_flight:.3g} in flight)"
    return grade_figure("machine_busy", share, *limits.OTHERS_IN_FLIGHT, message)


def thermal_drift(facts: RunFacts) -> Finding:
    """Check that devices were as cool and as fast at the end as at the start."""
    return pick_gravest(*(_check_drift(device, own) for device, own in _group_by_device(facts.samples or ())))


def _group_by_device(samples: Sequence[Sample]) -> Iterable[tuple[str, list[Sample]]]:
    devices: dict[str, list[Sample]] = {}
    for sample in samples:
        devices.setdefault(sample.device, []).append(sample)
    return devices.items()


def _check_drift(device: str, samples: Sequence[Sample]) -> Finding:
    temperatures = _average_quarters([sample.temperature_c for sample in samples])
    if temperatures is None:
        return UNKNOWN
    rise = temperatures[1] - temperatures[0]
    if abs(rise) <= limits.TEMPERATURE_DRIFT_C:
        return FINE
    message = f"{device} went from {temperatures[0]:.0f} to {temperatures[1]:.0f} °C in the window"
    clocks = _average_quarters([sample.sm_clock_hz for sample in samples])
    fall = 1 - clocks[1] / clocks[0] if clocks and clocks[0] else 0.0
    if rise > 0 and fall > limits.CLOCK_DRIFT:
        message += f", and its clock dropped by {fall:.0%}: warm it up before the window"
        return Reason("thermal_drift", "invalid", message, rise, limits.TEMPERATURE_DRIFT_C)
    return Reason("thermal_drift", "informative", message, rise, limits.TEMPERATURE_DRIFT_C)


def _average_quarters(values: Iterable[float | None]) -> tuple[float, float] | None:
    """Return the means of the first and the last quarter."""
    known = [value for value in values if value is not None]
    if len(known) < limits.THERMAL_MIN_SAMPLES:
        return None
    quarter = len(known) // 4
    return fmean(known[:quarter]), fmean(known[-quarter:])


def throttled(facts: RunFacts) -> Finding:
    """Check that no device throttled."""
    return pick_gravest(*(_check_throttling(device, own) for device, own in _group_by_device(facts.samples or ())))


def _check_throttling(device: str, samples: Sequence[Sample]) -> Finding:
    if all(sample.temperature_c is None and sample.sm_clock_hz is None and not sample.throttle for sample in samples):
        return UNKNOWN  # this meter does not report throttling
    faults = [_FAULT_REASONS.intersection(sample.throttle) for sample in samples]
    share = sum(map(bool, faults)) / len(samples)
    names = ", ".join(sorted({name for reasons in faults for name in reasons}))
    message = f"{device} throttled ({names}) in {share:.1%} of the samples"
    return grade_figure("throttled", share, *limits.THROTTLED_SHARE, message)
