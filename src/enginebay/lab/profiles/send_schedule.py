"""Send times of each request, from a profile and limits."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from enginebay.errors import ConfigError
from enginebay.lab.profiles.profile import (
    ClosedLoopProfile,
    ConstantProfile,
    GammaProfile,
    OfflineProfile,
    PoissonProfile,
    Profile,
    RampProfile,
    RunLimits,
    TraceProfile,
    profile_label,
)
from enginebay.lab.workload.request_records import Request

MAX_REQUESTS = 5_000_000  # per run; more would not fit into memory


def count_requests_needed(profile: Profile, limits: RunLimits) -> int | None:
    """Return how many requests the workload must provide; None if the profile sets no number."""
    needed = limits.max_count
    if isinstance(profile, RampProfile):
        needed = _min_known(needed, _count_ramp_requests(profile))
    elif profile.rate is not None and limits.duration_s is not None:
        needed = _min_known(needed, _count_rate_requests(profile.rate, limits.duration_s))
    if needed is not None and needed > MAX_REQUESTS:
        raise ConfigError(f"{needed} requests are too many for one run", f"use at most {MAX_REQUESTS}", param="limits")
    return needed


def draw_send_times(profile: Profile, limits: RunLimits, seed: int, requests: Sequence[Request]) -> list[float] | None:
    """Return the send time of each request, starting with the first; None for a closed loop, which has no schedule.

    There may be fewer times than requests, never more. Raises `ConfigError` if there would be none.
    """
    from enginebay.lab.profiles import arrivals

    needed = count_requests_needed(profile, limits)
    count = len(requests) if needed is None else min(needed, len(requests))
    match profile:
        case ClosedLoopProfile():
            return None
        case OfflineProfile():
            return [0.0] * count
        case TraceProfile(speed):
            times = arrivals.replay(_read_trace_times(requests[:count]), speed)
        case _:
            times = _draw_arrivals(profile, count, seed)
    return _keep_within_duration(profile, limits, times)


def check_sends_any(profile: Profile, limits: RunLimits, count: int, seed: int) -> None:
    """Raise `ConfigError` if the run ends before the first of `count` requests is due."""
    if limits.duration_s is not None and not isinstance(profile, ClosedLoopProfile | OfflineProfile | TraceProfile):
        _keep_within_duration(profile, limits, _draw_arrivals(profile, count, seed))


def _draw_arrivals(
    profile: ConstantProfile | PoissonProfile | GammaProfile | RampProfile, count: int, seed: int
) -> list[float]:
    from enginebay.lab.profiles import arrivals  # needs numpy, which planning a study does not

    match profile:
        case ConstantProfile(rate):
            return arrivals.constant(rate, count)
        case PoissonProfile(rate):
            return arrivals.poisson(rate, count, seed)
        case GammaProfile(rate, burstiness):
            return arrivals.gamma(rate, burstiness, count, seed)
        case RampProfile(low, high, duration_s):
            return arrivals.ramp(low, high, duration_s, _count_ramp_requests(profile), seed)[:count]


def _keep_within_duration(profile: Profile, limits: RunLimits, times: list[float]) -> list[float]:
    end_s = limits.duration_s
    if end_s is None:
        return times
    within = [time for time in times if time < end_s]
    if not within:
        due = f": the first is due after {times[0]:.3g} s" if times else ""
        raise ConfigError(
            f"{profile_label(profile)} sends no request in {end_s:g} s{due}",
            "raise the duration or the rate",
            param="limits.duration_s",
        )
    return within


def _read_trace_times(requests: Sequence[Request]) -> list[float]:
    times = [request.at_s for request in requests if request.at_s is not None]
    if len(times) < len(requests):
        raise ConfigError(
            "profile trace needs a workload with arrival times",
            "use a workload of kind trace, or another profile",
            param="profile",
        )
    if any(later < earlier for earlier, later in pairwise(times)):
        raise ConfigError("the times of the trace are not in order", "sort its requests by time", param="workload")
    return times


def _count_ramp_requests(profile: RampProfile) -> int:
    return _round_count((profile.from_rate + profile.to_rate) / 2 * profile.duration_s, "the ramp")


def _count_rate_requests(rate: float, duration_s: float) -> int:
    return _round_count(rate * duration_s, f"rate {rate:g} for {duration_s:g} s")


def _round_count(expected: float, source: str) -> int:
    if round(expected) < 1:
        raise ConfigError(f"{source} sends no request", "raise the rate or the duration", param="profile")
    return round(expected)


def _min_known(first: int | None, second: int) -> int:
    return second if first is None else min(first, second)
