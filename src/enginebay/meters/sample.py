"""What a meter says at one moment."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Sample:
    """One device at one moment. None: this device does not tell.

    Counters (`energy_j`, `cpu_s`) are as the device gives them: their zero means nothing, and they may wrap.
    """

    time_s: float  # time.monotonic(), in the middle of the counter's reading
    device: str  # "gpu:0", "cpu:package-0", "host", "tree:server"
    energy_j: float | None = None  # counts up
    power_w: float | None = None
    utilisation: float | None = None  # 0 to 1; of a process tree: of the whole machine
    memory_bytes: int | None = None  # in use now
    sm_clock_hz: float | None = None
    temperature_c: float | None = None
    throttle: tuple[str, ...] = ()  # why the clocks are lower than they could be
    cpu_s: float | None = None  # processor time of all cores, counts up
    peak_memory_bytes: int | None = (
        None  # highest so far by the system's own record; of a tree: the sum of its processes'
    )
    wraps_at_j: float | None = None  # the energy counter starts again at 0 after this many joules
    limit_w: float | None = None  # the device is not allowed to draw more for long


@dataclass(frozen=True, slots=True)
class Absent:
    """Something that cannot be read here, and why."""

    meter: str
    reason: str


class Meter(Protocol):
    """Reads one kind of device. A device that does not answer gives a sample without figures, never an exception."""

    @property
    def name(self) -> str: ...

    def read(self) -> list[Sample]: ...

    def close(self) -> None: ...


def list_devices(samples: Iterable[Sample], prefix: str = "") -> list[str]:
    """The devices among samples whose name starts so, in order of name."""
    return sorted({sample.device for sample in samples if sample.device.startswith(prefix)})


def select_device(samples: Iterable[Sample], device: str) -> list[Sample]:
    """One device's samples in order of time, the last one of each moment."""
    at = {sample.time_s: sample for sample in samples if sample.device == device}
    return [at[time_s] for time_s in sorted(at)]
