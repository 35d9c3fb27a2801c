"""A meter's sample as a run keeps it."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Protocol


class SampleLike(Protocol):
    """What is kept of `enginebay.meters.sample.Sample`."""

    @property
    def time_s(self) -> float: ...
    @property
    def device(self) -> str: ...
    @property
    def energy_j(self) -> float | None: ...
    @property
    def power_w(self) -> float | None: ...
    @property
    def utilisation(self) -> float | None: ...
    @property
    def memory_bytes(self) -> int | None: ...
    @property
    def sm_clock_hz(self) -> float | None: ...
    @property
    def temperature_c(self) -> float | None: ...
    @property
    def throttle(self) -> tuple[str, ...]: ...
    @property
    def cpu_s(self) -> float | None: ...
    @property
    def peak_memory_bytes(self) -> int | None: ...
    @property
    def wraps_at_j(self) -> float | None: ...
    @property
    def limit_w(self) -> float | None: ...


@dataclass(frozen=True, slots=True)
class StoredSample:
    """A sample of a run. Its time is in seconds since the start of the measured window, as that of a record."""

    time_s: float
    device: str
    energy_j: float | None = None
    power_w: float | None = None
    utilisation: float | None = None
    memory_bytes: int | None = None
    sm_clock_hz: float | None = None
    temperature_c: float | None = None
    throttle: tuple[str, ...] = ()
    cpu_s: float | None = None
    peak_memory_bytes: int | None = None
    wraps_at_j: float | None = None
    limit_w: float | None = None


def to_stored_sample(sample: SampleLike, origin_s: float) -> StoredSample:
    """A sample on the run's own clock, whose zero is the meter's `origin_s`."""
    kept = {one.name: getattr(sample, one.name) for one in fields(StoredSample)}
    return StoredSample(**{**kept, "time_s": sample.time_s - origin_s})
