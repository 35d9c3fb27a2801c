"""A run's energy told apart by what its requests were waiting for: their first token, the next ones, or nothing.

At every moment of the window the load is in one phase: `prefill` while some request waits for its first token (in a queue
too: the client cannot tell), `decode` while requests run and all are past it, `idle` while none runs. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

from enginebay.lab.measures.energy import DECODE, IDLE, PREFILL, Phases
from enginebay.lab.requests import Record
from enginebay.lab.validity.flow import sent
from enginebay.meters.energy import Energy
from enginebay.meters.sample import Sample
from enginebay.meters.split import Interval, Split, split

_MIXED = "mixed"  # prefill, while others are past their first token


def energy_phases(
    samples: Sequence[Sample], energies: Mapping[str, Energy], records: Sequence[Record], zero_s: float, window_s: float
) -> Phases:
    """The joules of all devices that have any, by phase; or why they cannot be told apart."""
    metered = [device for device, energy in energies.items() if energy.total_j is not None]
    if not metered:
        return Phases(why="no energy was read")
    told = timeline(records, window_s)
    phases = [
        Interval(zero_s + one.start_s, zero_s + one.end_s, PREFILL if one.label == _MIXED else one.label)
        for one in told
    ]
    found = {device: split(samples, device, phases) for device in metered}
    for device, one in found.items():
        if not one.joules:
            return Phases(why=f"{device}: {_why(one)}")
    joules = {phase: sum(one.joules.get(phase, 0.0) for one in found.values()) for phase in (IDLE, PREFILL, DECODE)}
    return Phases(joules, _mixed_share(told))


def timeline(records: Sequence[Record], window_s: float) -> list[Interval]:
    """The phases of a window one after the other, in seconds since it began; `mixed` where a prefill has company."""
    changes = sorted(change for record in sent(records) for change in _changes(record, window_s))
    found: list[Interval] = []
    waiting = writing = 0
    edges = [(0.0, 0, 0), *changes, (window_s, 0, 0)]
    for (start_s, more_waiting, more_writing), (end_s, _, _) in pairwise(edges):
        waiting, writing = waiting + more_waiting, writing + more_writing
        if end_s > start_s:
            found.append(Interval(start_s, end_s, _phase(waiting, writing)))
    return found


def _changes(record: Record, window_s: float) -> list[tuple[float, int, int]]:
    """When a request changes how many wait for their first token, and how many are past it."""

    def inside(moment_s: float | None) -> float:
        return window_s if moment_s is None else min(max(moment_s, 0.0), window_s)

    begins, ends = inside(record.sent_s), inside(record.end_s)
    if record.first_s is None:
        return [(begins, 1, 0), (ends, -1, 0)]
    first = inside(record.first_s)
    return [(begins, 1, 0), (first, -1, 1), (max(first, ends), 0, -1)]


def _phase(waiting: int, writing: int) -> str:
    if waiting:
        return _MIXED if writing else PREFILL
    return DECODE if writing else IDLE


def _mixed_share(told: Sequence[Interval]) -> float:
    """Of the time in prefill, the share in which other answers were being written."""
    seconds = {label: sum(one.end_s - one.start_s for one in told if one.label == label) for label in (PREFILL, _MIXED)}
    whole = sum(seconds.values())
    return seconds[_MIXED] / whole if whole else 0.0


def _why(one: Split) -> str:
    return "; ".join(problem.message for problem in one.problems) or "its energy cannot be told apart"
