"""From a profile and limits to the times at which each request is sent."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from enginebay.errors import ConfigError
from enginebay.lab.profiles import arrivals
from enginebay.lab.profiles.profile import (
    Closed,
    Constant,
    Gamma,
    Limits,
    Offline,
    Poisson,
    Profile,
    Ramp,
    Trace,
    label,
)
from enginebay.lab.requests import Request

MOST = 5_000_000  # requests of one run; more would not fit into memory


def requests_needed(profile: Profile, limits: Limits) -> int | None:
    """How many requests the workload must have; None: as many as it likes, nothing here says."""
    wanted = limits.most
    if isinstance(profile, Ramp):
        wanted = _least(wanted, _ramp_count(profile))
    elif profile.rate is not None and limits.duration_s is not None:
        wanted = _least(wanted, _rate_count(profile.rate, limits.duration_s))
    if wanted is not None and wanted > MOST:
        raise ConfigError(f"{wanted} requests are too many for one run", f"ask for at most {MOST}", param="limits")
    return wanted


def send_times(profile: Profile, limits: Limits, seed: int, requests: Sequence[Request]) -> list[float] | None:
    """When each request is sent, from the first on; None: a closed loop, where nothing is scheduled.

    There may be fewer times than requests, never more. Raises `ConfigError` where there would be none.
    """
    wanted = requests_needed(profile, limits)
    count = len(requests) if wanted is None else min(wanted, len(requests))
    match profile:
        case Closed():
            return None
        case Offline():
            return [0.0] * count
        case Trace(speed):
            times = arrivals.replay(_recorded(requests[:count]), speed)
        case _:
            times = _drawn(profile, count, seed)
    return _in_time(profile, limits, times)


def check_sends(profile: Profile, limits: Limits, count: int, seed: int) -> None:
    """Raises `ConfigError` where the time of a run is over before the first of `count` requests is due."""
    if limits.duration_s is not None and not isinstance(profile, Closed | Offline | Trace):
        _in_time(profile, limits, _drawn(profile, count, seed))


def _drawn(profile: Constant | Poisson | Gamma | Ramp, count: int, seed: int) -> list[float]:
    match profile:
        case Constant(rate):
            return arrivals.constant(rate, count)
        case Poisson(rate):
            return arrivals.poisson(rate, count, seed)
        case Gamma(rate, burstiness):
            return arrivals.gamma(rate, burstiness, count, seed)
        case Ramp(low, high, duration_s):
            return arrivals.ramp(low, high, duration_s, _ramp_count(profile), seed)[:count]


def _in_time(profile: Profile, limits: Limits, times: list[float]) -> list[float]:
    end_s = limits.duration_s
    if end_s is None:
        return times
    kept = [time for time in times if time < end_s]
    if not kept:
        due = f": its first is due after {times[0]:.3g} s" if times else ""
        raise ConfigError(
            f"{label(profile)} sends no request at all in {end_s:g} s{due}",
            "give it a longer duration or a higher rate",
            param="limits.duration_s",
        )
    return kept


def _recorded(requests: Sequence[Request]) -> list[float]:
    times = [request.at_s for request in requests if request.at_s is not None]
    if len(times) < len(requests):
        raise ConfigError(
            "the profile trace needs a workload with times",
            "take a workload of kind trace, or another profile",
            param="profile",
        )
    if any(later < earlier for earlier, later in pairwise(times)):
        raise ConfigError("the times of the trace go backwards", "sort its requests by time", param="workload")
    return times


def _ramp_count(profile: Ramp) -> int:
    return _some((profile.from_rate + profile.to_rate) / 2 * profile.duration_s, "the ramp")


def _rate_count(rate: float, duration_s: float) -> int:
    return _some(rate * duration_s, f"rate {rate:g} for {duration_s:g} s")


def _some(expected: float, what: str) -> int:
    if round(expected) < 1:
        raise ConfigError(f"{what} sends no request at all", "raise the rate or the duration", param="profile")
    return round(expected)


def _least(first: int | None, second: int) -> int:
    return second if first is None else min(first, second)
