"""Poisson arrivals whose rate climbs in steps: send times, and the verdict on each step. Pure.

There is no pause between steps: each starts with the requests in flight of the one before, so that it soon reaches its steady
state. A window that starts with an idle server mostly measures how it fills up, one that starts overloaded how it drains.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from enginebay.lab.measures.distribution import count_needed
from enginebay.lab.profiles import arrivals
from enginebay.lab.validity import limits
from enginebay.lab.validity.in_flight import upper_percentile
from enginebay.lab.workload.request_records import Record

LatencyKind = Literal["ttft", "e2e"]


@dataclass(frozen=True, slots=True)
class RateWindow:
    """The judged part of a step: request indices and the time in which they are sent."""

    rate: float
    judged: frozenset[int]
    from_s: float
    to_s: float


@dataclass(frozen=True, slots=True)
class WindowVerdict:
    met: bool
    median_s: float
    p95_s: float
    judged: int
    failed: int
    in_flight: tuple[float, float]  # mean in the first and the last third of the window
    grows: bool  # the backlog grows: a longer window would be worse


def plan_climb(rates: Sequence[float], step_s: float, skip_s: float, seed: int) -> tuple[list[float], list[RateWindow]]:
    """Return all send times and the window of each rate.

    The first `skip_s` of a step are not judged: it takes that long to settle, and twice as long from idle. A window has at least
    as many requests as a P95 needs. Climbs share no arrivals if their seeds are at least twice the number of rates apart.
    """
    times, windows = list[float](), list[RateWindow]()
    until_s = 0.0

    def send(rate: float, count: int, own_seed: int) -> None:
        nonlocal until_s
        times.extend(until_s + offset for offset in arrivals.poisson(rate, count, own_seed))
        until_s += count / rate

    for number, rate in enumerate(rates):
        send(rate, max(1, round(rate * (skip_s if number else 2 * skip_s))), seed + 2 * number)
        first, from_s = len(times), until_s
        send(rate, max(count_needed(95), round(rate * (step_s - skip_s))), seed + 2 * number + 1)
        windows.append(RateWindow(rate, frozenset(range(first, len(times))), from_s, until_s))
    return times, windows


def interpolate_rates(low: float, high: float, count: int) -> list[float]:
    """Return `low` and `count` rates between `low` and `high`, evenly spaced on a logarithmic scale."""
    return [float(f"{low * (high / low) ** (number / (count + 1)):.3g}") for number in range(count + 1)]


def judge_window(window: RateWindow, records: Sequence[Record], latency: LatencyKind, limit_s: float) -> WindowVerdict:
    """Judge a window. Latency counts from the intended send time; a failed request counts as infinite."""
    judged = [record for record in records if record.index in window.judged]
    values = [_get_latency(record, latency) for record in judged]
    before, _, after = mean_in_flight_by_thirds(records, window.from_s, window.to_s)
    grows = _is_growing(before, after, window.rate * (window.to_s - window.from_s) * 2 / 3)
    p95_s = upper_percentile(values, 95) if values else math.inf
    median_s = upper_percentile(values, 50) if values else math.inf
    met = p95_s < limit_s and not grows
    return WindowVerdict(met, median_s, p95_s, len(values), sum(map(math.isinf, values)), (before, after), grows)


def _is_growing(before: float, after: float, arrivals: float) -> bool:
    """Apply the lab's limits, see `backlog_grows`."""
    limit = max(limits.BACKLOG_GROWTH * arrivals, limits.BACKLOG_SIGMAS * math.sqrt(before + after))
    return after - before > limit


def mean_in_flight_by_thirds(records: Sequence[Record], from_s: float, to_s: float) -> tuple[float, float, float]:
    """Return the mean number in flight in each third of the time: does the server keep up or fill?"""
    third = (to_s - from_s) / 3
    first, second, last = (
        mean_in_flight(records, from_s + number * third, from_s + (number + 1) * third) for number in range(3)
    )
    return first, second, last


def mean_in_flight(records: Sequence[Record], from_s: float, to_s: float) -> float:
    spent = (
        min(to_s, to_s if record.end_s is None else record.end_s) - max(from_s, record.sent_s) for record in records
    )
    return sum(max(0.0, seconds) for seconds in spent) / (to_s - from_s)


def _get_latency(record: Record, latency: LatencyKind) -> float:
    arrived_s = record.first_s if latency == "ttft" else record.end_s
    return math.inf if record.error or arrived_s is None else arrived_s - record.intended_s
