"""A run's energy told apart by what its requests were waiting for: their first token, the next ones, or nothing.

At every moment of the window the load is in one phase: `prefill` while some request waits for its first token (in a queue
too: the client cannot tell), `decode` while requests run and all are past it, `idle` while none runs. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

from enginebay.lab.measures.energy_figures import DECODE, IDLE, PREFILL, EnergyPhases
from enginebay.lab.validity.in_flight import filter_sent
from enginebay.lab.workload.request_records import Record
from enginebay.meters.analysis.phase_energy import PhaseEnergy, PhaseInterval, measure_phase_energy
from enginebay.meters.analysis.window_energy import WindowEnergy
from enginebay.meters.sample import Sample

MIXED_PHASE = "mixed"  # prefill, while others are past their first token


def split_energy_by_phase(
    samples: Sequence[Sample],
    energies: Mapping[str, WindowEnergy],
    records: Sequence[Record],
    zero_s: float,
    window_s: float,
) -> EnergyPhases:
    """The joules of all devices that have any, by phase; or why they cannot be told apart."""
    metered = [device for device, energy in energies.items() if energy.total_j is not None]
    if not metered:
        return EnergyPhases(why="no energy was read")
    told = build_phase_timeline(records, window_s)
    phases = [
        PhaseInterval(zero_s + one.start_s, zero_s + one.end_s, PREFILL if one.label == MIXED_PHASE else one.label)
        for one in told
    ]
    found = {device: measure_phase_energy(samples, device, phases) for device in metered}
    for device, one in found.items():
        if not one.joules:
            return EnergyPhases(why=f"{device}: {_explain_split(one)}")
    joules = {phase: sum(one.joules.get(phase, 0.0) for one in found.values()) for phase in (IDLE, PREFILL, DECODE)}
    return EnergyPhases(joules, _measure_mixed_share(told))


def build_phase_timeline(records: Sequence[Record], window_s: float) -> list[PhaseInterval]:
    """The phases of a window one after the other, in seconds since it began; `mixed` where a prefill has company."""
    changes = sorted(change for record in filter_sent(records) for change in _list_changes(record, window_s))
    found: list[PhaseInterval] = []
    waiting = writing = 0
    edges = [(0.0, 0, 0), *changes, (window_s, 0, 0)]
    for (start_s, more_waiting, more_writing), (end_s, _, _) in pairwise(edges):
        waiting, writing = waiting + more_waiting, writing + more_writing
        if end_s > start_s:
            found.append(PhaseInterval(start_s, end_s, _classify_phase(waiting, writing)))
    return found


def _list_changes(record: Record, window_s: float) -> list[tuple[float, int, int]]:
    """When a request changes how many wait for their first token, and how many are past it."""

    def inside(moment_s: float | None) -> float:
        return window_s if moment_s is None else min(max(moment_s, 0.0), window_s)

    begins, ends = inside(record.sent_s), inside(record.end_s)
    if record.first_s is None:
        return [(begins, 1, 0), (ends, -1, 0)]
    first = inside(record.first_s)
    return [(begins, 1, 0), (first, -1, 1), (max(first, ends), 0, -1)]


def _classify_phase(waiting: int, writing: int) -> str:
    if waiting:
        return MIXED_PHASE if writing else PREFILL
    return DECODE if writing else IDLE


def _measure_mixed_share(told: Sequence[PhaseInterval]) -> float:
    """Of the time in prefill, the share in which other answers were being written."""
    seconds = {
        label: sum(one.end_s - one.start_s for one in told if one.label == label) for label in (PREFILL, MIXED_PHASE)
    }
    whole = sum(seconds.values())
    return seconds[MIXED_PHASE] / whole if whole else 0.0


def _explain_split(one: PhaseEnergy) -> str:
    return "; ".join(problem.message for problem in one.problems) or "its energy cannot be told apart"
