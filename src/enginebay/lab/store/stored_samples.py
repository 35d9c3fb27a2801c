"""A meter's sample as a run stores it."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Protocol


class SampleLike(Protocol):
    """The stored fields of `enginebay.meters.sample.Sample`."""

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
    """A sample of a run. `time_s` counts from the start of the measured window, as in a record."""

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
    """Convert a sample to the run's clock, whose zero is `origin_s` on the meter's clock."""
    values = {field.name: getattr(sample, field.name) for field in fields(StoredSample)}
    return StoredSample(**{**values, "time_s": sample.time_s - origin_s})
