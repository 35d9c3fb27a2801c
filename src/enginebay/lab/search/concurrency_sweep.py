"""Closed loops before the rate search: the latency of a single request, and the engine's capacity. Pure.

Each level has a fixed number of requests in flight. The levels tell where the search starts. Only a saturated sweep
limits the search: above its closed-loop throughput a server falls behind, however short the run is.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from enginebay.lab.measures.distribution import count_needed
from enginebay.lab.search.rate_bisection import RateBounds
from enginebay.lab.workload.request_records import Record

CONCURRENCIES = (1, 8, 32, 128, 512)
SINGLE_REQUESTS = 8
REQUESTS_PER_SLOT = 2.5  # requests of a level for each one in flight
MAX_LEVEL_S = 60.0  # of sending, for slow engines
_MIN_GAIN = 1.10  # a level with less gain over the one before is the last
_START_SHARE = 0.8  # of the capacity
_SUSTAINED_SHARE = 0.95  # of the capacity: a server that is never idle eventually falls behind
_LOWEST_SHARE = 1 / 8  # of the sequential rate: no queue forms there


@dataclass(frozen=True, slots=True)
class ConcurrencyLevel:
    """The result of one closed loop."""

    concurrency: int
    rate: float  # responses/s while all slots were in use
    met: bool  # the objective
    hopeless: bool = False  # missed by more than chance


def count_level_requests(concurrency: int) -> int:
    """Return how many requests a level sends."""
    return SINGLE_REQUESTS if concurrency == 1 else math.ceil(REQUESTS_PER_SLOT * concurrency)


def max_sending_s(concurrency: int, single_s: float = 0.0) -> float:
    """Return when a level stops sending. A slow engine still answers enough single requests for a median."""
    return max(MAX_LEVEL_S, count_needed(50) * single_s) if concurrency == 1 else MAX_LEVEL_S


def measure_full_rate(records: Sequence[Record]) -> float | None:
    """Return responses/s from the start to the last send: until then the loop was full. None: there was no response.

    If a slow engine had not responded by then, each slot sent one request: return the rate of that wave.
    """
    ends = [record.end_s for record in records if record.error is None and record.end_s is not None]
    last_s = max((record.sent_s for record in records), default=0.0)
    ended = sum(end_s <= last_s for end_s in ends)
    if ended and last_s > 0:
        return ended / last_s
    return len(ends) / max(ends) if ends and max(ends) > 0 else None


def next_concurrency(levels: Sequence[ConcurrencyLevel]) -> int | None:
    """Return the concurrency of the next level. None: the sweep is over."""
    if not levels:
        return CONCURRENCIES[0]
    if levels[0].hopeless or (len(levels) > 1 and not levels[-1].met) or is_saturated(levels):
        return None
    return CONCURRENCIES[len(levels)] if len(levels) < len(CONCURRENCIES) else None


def is_saturated(levels: Sequence[ConcurrencyLevel]) -> bool:
    """Return whether more concurrency no longer raises the throughput."""
    return len(levels) > 1 and levels[-1].rate < levels[-2].rate * _MIN_GAIN


def find_rate_bounds(levels: Sequence[ConcurrencyLevel], client_rate: float) -> RateBounds:
    """Return where the search starts and ends. `client_rate`: the most the load generator can reliably send."""
    best = max(level.rate for level in levels)
    start = _START_SHARE * best
    if len(levels) > 1 and not levels[-1].met:
        start = min(start, math.sqrt(levels[-2].rate * levels[-1].rate))
    lowest = levels[0].rate * _LOWEST_SHARE
    highest, limit = client_rate, f"this client cannot reliably send more than {client_rate:.3g} requests/s"
    if is_saturated(levels) and _SUSTAINED_SHARE * best < client_rate:
        highest = _SUSTAINED_SHARE * best
        limit = f"its closed-loop throughput is {best:.3g} requests/s, and it needs headroom to catch up"
    return RateBounds(max(lowest, min(start, highest)), min(lowest, highest), float(f"{highest:.3g}"), limit)
