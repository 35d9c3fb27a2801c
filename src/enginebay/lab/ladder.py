"""Closed loops before the search: what an engine needs for a request alone, and how much it answers at most. Pure.

Each rung has so many requests in flight. A rung tells where the search begins; only the last one of a ladder that no
longer rises limits it, because above what a server answers in a closed loop it falls behind, however short the run is.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from enginebay.lab.choosing import Bounds
from enginebay.lab.requests import Record

CONCURRENCIES = (1, 8, 32, 128, 512)
ALONE_REQUESTS = 8
WAVES = 2.5  # requests of a rung for each one in flight
LONGEST_S = 60.0  # of sending; a slow engine is not held up longer
_RISE = 1.10  # a rung that answers less than so much more than the one before it is the last
_BEGIN = 0.8  # of the capacity
_SUSTAINED = 0.95  # of the capacity: a server that is never idle falls behind sooner or later
_LOWEST = 1 / 8  # of the rate of one request after the other: no queue forms there


@dataclass(frozen=True, slots=True)
class Rung:
    """What came of one closed loop."""

    concurrency: int
    rate: float  # answers a second while it was full
    met: bool  # the objective was kept
    hopeless: bool = False  # it was missed by more than chance


def requests_of(concurrency: int) -> int:
    """How many requests a rung sends."""
    return ALONE_REQUESTS if concurrency == 1 else math.ceil(WAVES * concurrency)


def full_rate(records: Sequence[Record]) -> float | None:
    """Answers a second from the start to the last send: until then the loop was full. None: there was no answer.

    Where none had come by then, a slow engine was asked only once for each place: the rate is that of this wave.
    """
    ends = [record.end_s for record in records if record.error is None and record.end_s is not None]
    last_s = max((record.sent_s for record in records), default=0.0)
    ended = sum(end_s <= last_s for end_s in ends)
    if ended and last_s > 0:
        return ended / last_s
    return len(ends) / max(ends) if ends and max(ends) > 0 else None


def next_concurrency(rungs: Sequence[Rung]) -> int | None:
    """The next rung; None: the ladder is over."""
    if not rungs:
        return CONCURRENCIES[0]
    if rungs[0].hopeless or (len(rungs) > 1 and not rungs[-1].met) or saturated(rungs):
        return None
    return CONCURRENCIES[len(rungs)] if len(rungs) < len(CONCURRENCIES) else None


def saturated(rungs: Sequence[Rung]) -> bool:
    """More at once no longer gives more answers."""
    return len(rungs) > 1 and rungs[-1].rate < rungs[-2].rate * _RISE


def bounds(rungs: Sequence[Rung], client_rate: float) -> Bounds:
    """Where the search begins and ends. `client_rate`: the most that the load client can be trusted with."""
    best = max(rung.rate for rung in rungs)
    start = _BEGIN * best
    if len(rungs) > 1 and not rungs[-1].met:
        start = min(start, math.sqrt(rungs[-2].rate * rungs[-1].rate))
    lowest = rungs[0].rate * _LOWEST
    highest, limit = client_rate, f"this client cannot be trusted with more than {client_rate:.3g} requests/s"
    if saturated(rungs) and _SUSTAINED * best < client_rate:
        highest = _SUSTAINED * best
        limit = f"in a closed loop it answers {best:.3g} requests/s and no more, and it needs some room to catch up"
    return Bounds(max(lowest, min(start, highest)), min(lowest, highest), float(f"{highest:.3g}"), limit)
