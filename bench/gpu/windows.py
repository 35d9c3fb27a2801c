"""Windows of Poisson arrivals: what is sent in one, and whether it kept an objective. Pure."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from enginebay.lab.measures.distribution import needed
from enginebay.lab.profiles import arrivals
from enginebay.lab.requests import Record, Request
from enginebay.lab.validity.flow import highest

Latency = Literal["ttft", "e2e"]

_HEAD_S = 2.5  # in which what would be running already is sent
_STEADY = 0.28  # of a step of all streams: the part that does not grow with them, as reading the weights
_MOST_IN_FLIGHT = 1.5  # times the streams of the closed loop
_GROWTH, _SIGMAS = 0.1, 2.0  # from the first third to the last; what is in flight scatters like a Poisson count


@dataclass(frozen=True, slots=True)
class Window:
    """What is sent, and when; those of `judged` count."""

    requests: Sequence[Request]
    times: Sequence[float]
    judged: frozenset[int]
    from_s: float
    to_s: float


@dataclass(frozen=True, slots=True)
class Verdict:
    met: bool
    median_s: float
    p95_s: float
    judged: int
    failed: int
    in_flight: tuple[float, float]  # on the mean, in the first and the last third of what is judged
    grows: bool  # a longer window would have missed it


def expected_in_flight(share: float, streams: int) -> int:
    """Requests that run at once at this share of what a closed loop of so many streams gives.

    By Little's law, with steps that take longer by the same time for each request in them.
    """
    most = _MOST_IN_FLIGHT * streams
    left = 1 - (1 - _STEADY) * share
    return round(min(most, streams * _STEADY * share / left)) if left > 0 else round(most)


def head_of(rate: float, seen: Mapping[float, float], capacity: float, streams: int) -> int:
    """Requests to begin a window with: as many as ran at the end of the one at the nearest rate, or as expected. Pure.

    `seen`: in flight at the end of earlier windows, by their rates.
    """
    if not seen:
        return expected_in_flight(rate / capacity, streams)
    nearest = min(seen, key=lambda one: abs(math.log(one / rate)))
    return round(min(_MOST_IN_FLIGHT * streams, seen[nearest] * rate / nearest))


def length(window_s: float, skip_s: float, rate: float) -> float:
    """Seconds of a window that has enough requests for a P95. Pure."""
    return max(window_s, skip_s + needed(95) / rate)


def window(rate: float, fresh: Sequence[Request], skip_s: float, head: Sequence[Request], seed: int) -> Window:
    """`fresh` arrive at the rate; `head` stand for what a server at this rate is busy with, each with some of its tokens done.

    Without them a short window would mostly show how a server fills up.
    """
    source = random.Random(seed)
    begun = [replace(one, output_tokens=source.randint(1, one.output_tokens or 1)) for one in head]
    sent = [(_HEAD_S * number / len(begun), False, one) for number, one in enumerate(begun)]
    sent += [(at, at >= skip_s, one) for at, one in zip(arrivals.poisson(rate, len(fresh), seed), fresh, strict=True)]
    sent.sort(key=lambda one: one[0])
    return Window(
        requests=[one for _, _, one in sent],
        times=[at for at, _, _ in sent],
        judged=frozenset(index for index, (_, judged, _) in enumerate(sent) if judged),
        from_s=skip_s,
        to_s=len(fresh) / rate,
    )


def judge(sent: Window, records: Sequence[Record], latency: Latency, limit_s: float) -> Verdict:
    """Latencies are from when a request should have been sent; one that failed took for ever."""
    judged = [record for record in records if record.index in sent.judged]
    values = [_latency(record, latency) for record in judged]
    before, _, after = in_flight_by_thirds(records, sent.from_s, sent.to_s)
    grows = after - before > max(_GROWTH * before, _SIGMAS * math.sqrt(before))
    p95_s = highest(values, 95) if values else math.inf
    median_s = highest(values, 50) if values else math.inf
    met = p95_s < limit_s and not grows
    return Verdict(met, median_s, p95_s, len(values), sum(map(math.isinf, values)), (before, after), grows)


def in_flight_by_thirds(records: Sequence[Record], from_s: float, to_s: float) -> tuple[float, float, float]:
    """On the mean, in each third of the time: whether a server kept up, or was filling."""
    third = (to_s - from_s) / 3
    first, second, last = (
        mean_in_flight(records, from_s + number * third, from_s + (number + 1) * third) for number in range(3)
    )
    return first, second, last


def mean_in_flight(records: Sequence[Record], from_s: float, to_s: float) -> float:
    spent = (min(to_s, to_s if one.end_s is None else one.end_s) - max(from_s, one.sent_s) for one in records)
    return sum(max(0.0, seconds) for seconds in spent) / (to_s - from_s)


def _latency(record: Record, latency: Latency) -> float:
    came_s = record.first_s if latency == "ttft" else record.end_s
    return math.inf if record.error or came_s is None else came_s - record.intended_s
