"""Conditions of a device in a window: utilization, clocks, temperature, memory and throttling."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from enginebay.meters.sample import Sample, select_device

_EDGE_SHARE = 0.2  # of the window, at its start and end, for measuring drift


@dataclass(frozen=True, slots=True)
class DeviceConditions:
    """None: the device does not report it, or was not read in the window."""

    utilisation: float | None = None  # mean over time
    sm_clock_hz: float | None = None
    temperature_c: float | None = None
    lowest_sm_clock_hz: float | None = None
    temperature_drift_c: float | None = None  # mean of the last fifth minus mean of the first fifth
    sm_clock_drift: float | None = None  # the same as a share of the first fifth
    peak_memory_bytes: int | None = None
    throttled: dict[str, float] = field(default_factory=dict)  # reason: share of the time


@dataclass(frozen=True, slots=True)
class _WeightedSample:
    """A sample with the time until the next one, so that bursts get no extra weight."""

    sample: Sample
    seconds: float


def summarize_conditions(samples: Sequence[Sample], device: str, start_s: float, end_s: float) -> DeviceConditions:
    """Summarize entry device in entry window."""
    own = select_device(samples, device)
    weighted = _weight_samples(own, start_s, end_s)
    part_s = _EDGE_SHARE * (end_s - start_s)
    first, last = _weight_samples(own, start_s, start_s + part_s), _weight_samples(own, end_s - part_s, end_s)
    clocks = [entry.sample.sm_clock_hz for entry in weighted if entry.sample.sm_clock_hz is not None]
    memories = [entry.sample.memory_bytes for entry in weighted if entry.sample.memory_bytes is not None]
    cool, hot = _compute_weighted_mean(first, _get_temperature), _compute_weighted_mean(last, _get_temperature)
    fast, slow = _compute_weighted_mean(first, _get_clock), _compute_weighted_mean(last, _get_clock)
    return DeviceConditions(
        utilisation=_compute_weighted_mean(weighted, lambda sample: sample.utilisation),
        sm_clock_hz=_compute_weighted_mean(weighted, _get_clock),
        temperature_c=_compute_weighted_mean(weighted, _get_temperature),
        lowest_sm_clock_hz=min(clocks, default=None),
        temperature_drift_c=None if cool is None or hot is None else hot - cool,
        sm_clock_drift=(slow - fast) / fast if fast and slow is not None else None,
        peak_memory_bytes=max(memories, default=None),
        throttled=_compute_throttled_shares(weighted),
    )


def _weight_samples(own: Sequence[Sample], start_s: float, end_s: float) -> list[_WeightedSample]:
    """Return the samples of the window with their durations. The last sample lasts to the window's end."""
    ends = [*(sample.time_s for sample in own[1:]), end_s]
    spans = ((sample, min(end, end_s) - max(sample.time_s, start_s)) for sample, end in zip(own, ends, strict=False))
    return [_WeightedSample(sample, seconds) for sample, seconds in spans if seconds > 0]


def _compute_weighted_mean(weighted: Sequence[_WeightedSample], read: Callable[[Sample], float | None]) -> float | None:
    known = [(value, entry.seconds) for entry in weighted if (value := read(entry.sample)) is not None]
    seconds = sum(weight for _, weight in known)
    return sum(value * weight for value, weight in known) / seconds if seconds else None


def _compute_throttled_shares(weighted: Sequence[_WeightedSample]) -> dict[str, float]:
    seconds = sum(entry.seconds for entry in weighted)
    reasons = sorted({reason for entry in weighted for reason in entry.sample.throttle})
    return {
        reason: sum(entry.seconds for entry in weighted if reason in entry.sample.throttle) / seconds
        for reason in reasons
    }


def _get_clock(sample: Sample) -> float | None:
    return sample.sm_clock_hz


def _get_temperature(sample: Sample) -> float | None:
    return sample.temperature_c
