"""Profiles say when requests are sent; limits say when a run ends.

An open-loop profile fixes the send times in advance, whatever the server does.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

from enginebay.errors import ConfigError
from enginebay.lab.workload.field_checks import check_bool, check_keys, check_positive_number, check_whole_number


@dataclass(frozen=True, slots=True)
class OfflineProfile:
    """All requests at the start, without a rate."""

    kind: ClassVar[str] = "offline"
    open_loop: ClassVar[bool] = False
    rate: ClassVar[float | None] = None


@dataclass(frozen=True, slots=True)
class ClosedLoopProfile:
    """A fixed number of requests in flight: each response releases the next request."""

    concurrency: int

    kind: ClassVar[str] = "closed"
    open_loop: ClassVar[bool] = False
    rate: ClassVar[float | None] = None

    def __post_init__(self) -> None:
        check_whole_number("profile.concurrency", self.concurrency)


@dataclass(frozen=True, slots=True)
class ConstantProfile:
    """Evenly spaced arrivals, `rate` requests per second."""

    rate: float

    kind: ClassVar[str] = "constant"
    open_loop: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_positive_number("profile.rate", self.rate)


@dataclass(frozen=True, slots=True)
class PoissonProfile:
    """Independent arrivals, `rate` requests per second."""

    rate: float

    kind: ClassVar[str] = "poisson"
    open_loop: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_positive_number("profile.rate", self.rate)


@dataclass(frozen=True, slots=True)
class GammaProfile:
    """Gamma-distributed gaps. `burstiness` is the shape: 1 is Poisson, below 1 is bursty, above 1 is more even."""

    rate: float
    burstiness: float

    kind: ClassVar[str] = "gamma"
    open_loop: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_positive_number("profile.rate", self.rate)
        check_positive_number("profile.burstiness", self.burstiness)


@dataclass(frozen=True, slots=True)
class TraceProfile:
    """Arrivals at the recorded times of a trace, `speed` times as fast."""

    speed: float = 1.0

    kind: ClassVar[str] = "trace"
    open_loop: ClassVar[bool] = True
    rate: ClassVar[float | None] = None

    def __post_init__(self) -> None:
        check_positive_number("profile.speed", self.speed)


@dataclass(frozen=True, slots=True)
class RampProfile:
    """Independent arrivals at a linearly changing rate; either end may be 0."""

    from_rate: float
    to_rate: float
    duration_s: float

    kind: ClassVar[str] = "ramp"
    open_loop: ClassVar[bool] = True
    rate: ClassVar[float | None] = None

    def __post_init__(self) -> None:
        check_positive_number("profile.from_rate", self.from_rate, zero=True)
        check_positive_number("profile.to_rate", self.to_rate, zero=True)
        check_positive_number("profile.duration_s", self.duration_s)
        if self.from_rate == self.to_rate == 0:
            raise ConfigError(
                "a ramp from rate 0 to rate 0 sends nothing", "raise from_rate or to_rate", param="profile"
            )


Profile = (
    OfflineProfile | ClosedLoopProfile | ConstantProfile | PoissonProfile | GammaProfile | TraceProfile | RampProfile
)
STALL_TIMEOUT_S = 120.0
LIMIT_KEYS = (
    "requests", "duration_s", "until_stable", "relative_width", "min_requests", "max_requests", "stall_timeout_s",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class RunLimits:
    """When a run ends: after this many requests or seconds, or once its figures are stable, whichever comes first.

    A request without a byte for `stall_timeout_s` has failed.
    """

    requests: int | None = None
    duration_s: float | None = None
    until_stable: bool = False
    relative_width: float = 0.02  # half-width of the 95% interval relative to the mean
    min_requests: int = 200  # before the first stability check
    max_requests: int = 10_000  # bound when only stability ends the run
    stall_timeout_s: float = STALL_TIMEOUT_S

    def __post_init__(self) -> None:
        if self.requests is not None:
            check_whole_number("limits.requests", self.requests)
        if self.duration_s is not None:
            check_positive_number("limits.duration_s", self.duration_s)
        check_bool("limits.until_stable", self.until_stable)
        if not 0 < check_positive_number("limits.relative_width", self.relative_width) < 1:
            raise ConfigError(
                f"limits.relative_width must be below 1, not {self.relative_width}",
                "it is relative to the mean: 0.02 means 2%",
                param="limits.relative_width",
            )
        check_whole_number("limits.min_requests", self.min_requests)
        check_whole_number("limits.max_requests", self.max_requests)
        check_positive_number("limits.stall_timeout_s", self.stall_timeout_s)

    @property
    def max_count(self) -> int | None:
        """The maximum number of requests; None if unlimited."""
        if self.requests is None and self.until_stable:
            return self.max_requests
        return self.requests


def limits_from_dict(data: Mapping[str, Any]) -> RunLimits:
    """Build limits from config data."""
    values = check_keys("limits", data, LIMIT_KEYS)
    return RunLimits(**{key: value for key, value in values.items() if value is not None})


def profile_label(profile: Profile) -> str:
    """Return a short name of a profile that is safe in file names."""
    match profile:
        case OfflineProfile():
            return "offline"
        case ClosedLoopProfile(concurrency):
            return f"c{concurrency}"
        case GammaProfile(rate, burstiness):
            return f"gamma-{rate:g}-b{burstiness:g}"
        case TraceProfile(speed):
            return f"trace-x{speed:g}"
        case RampProfile(low, high, duration_s):
            return f"ramp-{low:g}-{high:g}-{duration_s:g}s"
        case ConstantProfile(rate) | PoissonProfile(rate):
            return f"{profile.kind}-{rate:g}"


def profile_to_dict(profile: Profile) -> dict[str, Any]:
    """Return a profile as data that `profiles_from_dict` accepts."""
    return {"kind": profile.kind, **asdict(profile)}
