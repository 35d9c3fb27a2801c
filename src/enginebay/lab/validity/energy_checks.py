"""Check that the joules are reliable. Devices without joules publish nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from enginebay.lab.validity import limits
from enginebay.lab.validity.run_facts import RunFacts
from enginebay.lab.validity.verdict import FINE, UNKNOWN, Finding, Reason, Severity, grade_figure, pick_gravest
from enginebay.meters.analysis.energy_problems import COUNTER, EnergyProblem
from enginebay.meters.analysis.window_energy import WindowEnergy

# Codes of enginebay.meters.analysis.energy_problems. A wrapped counter is corrected there and is not a fault.
_BREAK_CODES = ("reset", "jump", "stall", "gap", "uncovered")


def energy_window_short(facts: RunFacts) -> Finding:
    """Check that the edges of the window are a small part of its energy."""
    return pick_gravest(_check_devices(facts, _check_window_length), _check_devices(facts, _check_edges))


def _check_window_length(device: str, energy: WindowEnergy) -> Finding:
    informative, invalid = limits.GPU_WINDOW_S if device.startswith("gpu") else limits.CPU_WINDOW_S
    if energy.window_s >= informative:
        return FINE
    message = f"{device}: energy over {energy.window_s:.1f} s; the window is too short for this meter"
    grave = not energy.window_s >= invalid
    severity: Severity = "invalid" if grave else "informative"
    return Reason("energy_window_short", severity, message, energy.window_s, invalid if grave else informative)


def _check_edges(device: str, energy: WindowEnergy) -> Finding:
    if energy.uncertainty_j is None or not energy.total_j:
        return UNKNOWN
    share = energy.uncertainty_j / energy.total_j
    message = f"{device}: {share:.1%} of the energy may fall outside the window"
    return grade_figure("energy_window_short", share, *limits.ENERGY_EDGES, message)


def energy_sources_apart(facts: RunFacts) -> Finding:
    """Check that the counter and sampled power agree."""
    return _check_devices(facts, _compare_sources)


def _compare_sources(device: str, energy: WindowEnergy) -> Finding:
    counter, sampled = energy.counter_j, energy.power_j
    if counter is None or sampled is None:
        return UNKNOWN
    apart = abs(sampled / counter - 1) if counter > 0 else float(sampled != counter)
    message = f"{device}: the counter reads {counter:.4g} J and sampled power {sampled:.4g} J, {apart:.1%} apart"
    return grade_figure("energy_sources_apart", apart, *limits.ENERGY_APART, message)


def energy_counter(facts: RunFacts) -> Finding:
    """Check that the counter ran, and that sampled power was read, throughout the window."""
    return pick_gravest(*(_check_breaks(device, energy) for device, energy in (facts.energy or {}).items()))


def _check_breaks(device: str, energy: WindowEnergy) -> Finding:
    faults = [problem for problem in energy.problems if problem.code in _BREAK_CODES]
    if not faults:
        return FINE if energy.total_j is not None else UNKNOWN
    tail = f"energy source: {energy.source}" if energy.total_j is not None else "energy is unknown"
    message = f"{_join_messages(device, faults)}; {tail}"
    # A faulty source is never used: if the counter failed, the joules are from sampled power, without a cross-check.
    unchecked = energy.total_j is not None and any(COUNTER in problem.untrusted_sources for problem in faults)
    return Reason("energy_counter", "invalid" if unchecked else "informative", message, float(len(faults)), 0.0)


def energy_baseline(facts: RunFacts) -> Finding:
    """Check that the subtracted idle power was steady and below the total."""
    unsteady = [_check_idle_steady(device, problems) for device, problems in (facts.idle_problems or {}).items()]
    return pick_gravest(_check_devices(facts, _check_above_idle), *unsteady)


def _check_above_idle(device: str, energy: WindowEnergy) -> Finding:
    faults = [problem for problem in energy.problems if problem.code == "below_idle"]
    if faults:
        return Reason("energy_baseline", "invalid", _join_messages(device, faults), energy.total_j, energy.idle_j)
    return FINE if energy.idle_j is not None else UNKNOWN


def _check_idle_steady(device: str, problems: Iterable[EnergyProblem]) -> Finding:
    unsteady = [problem for problem in problems if problem.code == "unsteady"]
    return Reason("energy_baseline", "informative", _join_messages(device, unsteady)) if unsteady else FINE


def _check_devices(facts: RunFacts, check: Callable[[str, WindowEnergy], Finding]) -> Finding:
    """Run a check over the devices whose joules are published."""
    published = {device: energy for device, energy in (facts.energy or {}).items() if energy.total_j is not None}
    return pick_gravest(*(check(device, energy) for device, energy in published.items()))


def _join_messages(device: str, problems: Iterable[EnergyProblem]) -> str:
    return f"{device}: " + "; ".join(problem.message for problem in problems)
