"""Samples and the meter interface."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Sample:
    """One device at one moment. None: the device does not report it.

    Counters (`energy_j`, `cpu_s`) are raw device values: their zero is arbitrary, and they may wrap.
    """

    time_s: float  # time.monotonic(), in the middle of the counter's reading
    device: str  # "gpu:0", "cpu:package-0", "host", "tree:server"
    energy_j: float | None = None  # counts up
    power_w: float | None = None
    utilisation: float | None = None  # 0 to 1; for a process tree, of the whole machine
    memory_bytes: int | None = None  # in use now
    sm_clock_hz: float | None = None
    temperature_c: float | None = None
    throttle: tuple[str, ...] = ()  # reasons for reduced clocks
    cpu_s: float | None = None  # CPU time of all cores, counts up
    peak_memory_bytes: int | None = None  # highest so far, by the OS; for a tree, the sum over its processes
    wraps_at_j: float | None = None  # the energy counter wraps to 0 after this many joules
    limit_w: float | None = None  # sustained power limit


@dataclass(frozen=True, slots=True)
class Absent:
    """A meter or figure that is unavailable, and why."""

    meter: str
    reason: str


class Meter(Protocol):
    """Reads one kind of device. A device that does not respond yields a sample without figures, never an exception."""

    @property
    def name(self) -> str: ...

    def read(self) -> list[Sample]: ...

    def close(self) -> None: ...


def list_devices(samples: Iterable[Sample], prefix: str = "") -> list[str]:
    """Return the sorted names of devices that start with `prefix`."""
    return sorted({sample.device for sample in samples if sample.device.startswith(prefix)})


def select_device(samples: Iterable[Sample], device: str) -> list[Sample]:
    """Return one device's samples in time order, the last one of each moment."""
    by_time = {sample.time_s: sample for sample in samples if sample.device == device}
    return [by_time[time_s] for time_s in sorted(by_time)]
