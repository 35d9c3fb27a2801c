"""Split a run's energy into prefill, decode and idle by what its requests were waiting for. Pure.

Every moment of the window is in one phase: `prefill` while any request waits for its first token (queueing included,
since the client cannot see it), `decode` while requests run and all have their first token, `idle` while none runs.
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

MIXED_PHASE = "mixed"  # prefill while other requests decode


def split_energy_by_phase(
    samples: Sequence[Sample],
    energies: Mapping[str, WindowEnergy],
    records: Sequence[Record],
    zero_s: float,
    window_s: float,
) -> EnergyPhases:
    """Return the joules of all metered devices by phase, or why they cannot be separated."""
    metered = [device for device, energy in energies.items() if energy.total_j is not None]
    if not metered:
        return EnergyPhases(why="no energy was read")
    timeline = build_phase_timeline(records, window_s)
    phases = [
        PhaseInterval(
            zero_s + interval.start_s,
            zero_s + interval.end_s,
            PREFILL if interval.label == MIXED_PHASE else interval.label,
        )
        for interval in timeline
    ]
    split = {device: measure_phase_energy(samples, device, phases) for device in metered}
    for device, energy in split.items():
        if not energy.joules:
            return EnergyPhases(why=f"{device}: {_explain_split(energy)}")
    joules = {phase: sum(part.joules.get(phase, 0.0) for part in split.values()) for phase in (IDLE, PREFILL, DECODE)}
    return EnergyPhases(joules, _measure_mixed_share(timeline))


def build_phase_timeline(records: Sequence[Record], window_s: float) -> list[PhaseInterval]:
    """Return the consecutive phases in seconds since the window's start; `mixed` is prefill that overlaps decoding."""
    changes = sorted(change for record in filter_sent(records) for change in _list_changes(record, window_s))
    intervals: list[PhaseInterval] = []
    waiting = decoding = 0
    edges = [(0.0, 0, 0), *changes, (window_s, 0, 0)]
    for (start_s, more_waiting, more_decoding), (end_s, _, _) in pairwise(edges):
        waiting, decoding = waiting + more_waiting, decoding + more_decoding
        if end_s > start_s:
            intervals.append(PhaseInterval(start_s, end_s, _classify_phase(waiting, decoding)))
    return intervals


def _list_changes(record: Record, window_s: float) -> list[tuple[float, int, int]]:
    """Return when the request changes the counts of waiting and of decoding requests."""

    def clamp(moment_s: float | None) -> float:
        return window_s if moment_s is None else min(max(moment_s, 0.0), window_s)

    begins, ends = clamp(record.sent_s), clamp(record.end_s)
    if record.first_s is None:
        return [(begins, 1, 0), (ends, -1, 0)]
    first = clamp(record.first_s)
    return [(begins, 1, 0), (first, -1, 1), (max(first, ends), 0, -1)]


def _classify_phase(waiting: int, decoding: int) -> str:
    if waiting:
        return MIXED_PHASE if decoding else PREFILL
    return DECODE if decoding else IDLE


def _measure_mixed_share(timeline: Sequence[PhaseInterval]) -> float:
    """Return the share of the prefill time during which other requests decoded."""
    seconds = {
        label: sum(interval.end_s - interval.start_s for interval in timeline if interval.label == label)
        for label in (PREFILL, MIXED_PHASE)
    }
    total = sum(seconds.values())
    return seconds[MIXED_PHASE] / total if total else 0.0


def _explain_split(energy: PhaseEnergy) -> str:
    return "; ".join(problem.message for problem in energy.problems) or "energy cannot be split by phase"
