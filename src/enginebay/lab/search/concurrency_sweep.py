"""Closed loops before the search: what an engine needs for a request alone, and how much it answers at most. Pure.

Each rung has so many requests in flight. A rung tells where the search begins; only the last one of a ladder that no
longer rises limits it, because above what a server answers in a closed loop it falls behind, however short the run is.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from enginebay.lab.search.rate_bisection import RateBounds
from enginebay.lab.workload.request_records import Record

CONCURRENCIES = (1, 8, 32, 128, 512)
SINGLE_REQUESTS = 8
REQUESTS_PER_SLOT = 2.5  # requests of a rung for each one in flight
MAX_LEVEL_S = 60.0  # of sending; a slow engine is not held up longer
_MIN_GAIN = 1.10  # a rung that answers less than so much more than the one before it is the last
_START_SHARE = 0.8  # of the capacity
_SUSTAINED_SHARE = 0.95  # of the capacity: a server that is never idle falls behind sooner or later
_LOWEST_SHARE = 1 / 8  # of the rate of one request after the other: no queue forms there


@dataclass(frozen=True, slots=True)
class ConcurrencyLevel:
    """What came of one closed loop."""

    concurrency: int
    rate: float  # answers a second while it was full
    met: bool  # the objective was kept
    hopeless: bool = False  # it was missed by more than chance


def count_level_requests(concurrency: int) -> int:
    """How many requests a rung sends."""
    return SINGLE_REQUESTS if concurrency == 1 else math.ceil(REQUESTS_PER_SLOT * concurrency)


def measure_full_rate(records: Sequence[Record]) -> float | None:
    """Answers a second from the start to the last send: until then the loop was full. None: there was no answer.

    Where none had come by then, a slow engine was asked only once for each place: the rate is that of this wave.
    """
    ends = [record.end_s for record in records if record.error is None and record.end_s is not None]
    last_s = max((record.sent_s for record in records), default=0.0)
    ended = sum(end_s <= last_s for end_s in ends)
    if ended and last_s > 0:
        return ended / last_s
    return len(ends) / max(ends) if ends and max(ends) > 0 else None


def next_concurrency(levels: Sequence[ConcurrencyLevel]) -> int | None:
    """The next rung; None: the ladder is over."""
    if not levels:
        return CONCURRENCIES[0]
    if levels[0].hopeless or (len(levels) > 1 and not levels[-1].met) or is_saturated(levels):
        return None
    return CONCURRENCIES[len(levels)] if len(levels) < len(CONCURRENCIES) else None


def is_saturated(levels: Sequence[ConcurrencyLevel]) -> bool:
    """More at once no longer gives more answers."""
    return len(levels) > 1 and levels[-1].rate < levels[-2].rate * _MIN_GAIN


def find_rate_bounds(levels: Sequence[ConcurrencyLevel], client_rate: float) -> RateBounds:
    """Where the search begins and ends. `client_rate`: the most that the load client can be trusted with."""
    best = max(rung.rate for rung in levels)
    start = _START_SHARE * best
    if len(levels) > 1 and not levels[-1].met:
        start = min(start, math.sqrt(levels[-2].rate * levels[-1].rate))
    lowest = levels[0].rate * _LOWEST_SHARE
    highest, limit = client_rate, f"this client cannot be trusted with more than {client_rate:.3g} requests/s"
    if is_saturated(levels) and _SUSTAINED_SHARE * best < client_rate:
        highest = _SUSTAINED_SHARE * best
        limit = f"in a closed loop it answers {best:.3g} requests/s and no more, and it needs some room to catch up"
    return RateBounds(max(lowest, min(start, highest)), min(lowest, highest), float(f"{highest:.3g}"), limit)
