"""Whether the joules can be believed. Where there are none, nothing is published and little is to be said."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from enginebay.lab.validity import limits
from enginebay.lab.validity.run_facts import RunFacts
from enginebay.lab.validity.verdict import FINE, UNKNOWN, Finding, Reason, Severity, grade_figure, pick_gravest
from enginebay.meters.analysis.energy_problems import COUNTER, EnergyProblem
from enginebay.meters.analysis.window_energy import WindowEnergy

# Codes of enginebay.meters.analysis.energy_problems. A counter that wrapped is put right there and is no fault.
_BREAK_CODES = ("reset", "jump", "stall", "gap", "uncovered")


def energy_window_short(facts: RunFacts) -> Finding:
    """The edges of the window are a small part of its energy."""
    return pick_gravest(_check_devices(facts, _check_window_length), _check_devices(facts, _check_edges))


def _check_window_length(device: str, energy: WindowEnergy) -> Finding:
    informative, invalid = limits.GPU_WINDOW_S if device.startswith("gpu") else limits.CPU_WINDOW_S
    if energy.window_s >= informative:
        return FINE
    message = f"{device}: energy over {energy.window_s:.1f} s; the meter is too slow for so short a window"
    grave = not energy.window_s >= invalid
    severity: Severity = "invalid" if grave else "informative"
    return Reason("energy_window_short", severity, message, energy.window_s, invalid if grave else informative)


def _check_edges(device: str, energy: WindowEnergy) -> Finding:
    if energy.uncertainty_j is None or not energy.total_j:
        return UNKNOWN
    share = energy.uncertainty_j / energy.total_j
    message = f"{device}: {share:.1%} of the energy may belong to before or after the window"
    return grade_figure("energy_window_short", share, *limits.ENERGY_EDGES, message)


def energy_sources_apart(facts: RunFacts) -> Finding:
    """The counter and the sampled power tell the same joules."""
    return _check_devices(facts, _compare_sources)


def _compare_sources(device: str, energy: WindowEnergy) -> Finding:
    counter, sampled = energy.counter_j, energy.power_j
    if counter is None or sampled is None:
        return UNKNOWN
    apart = abs(sampled / counter - 1) if counter > 0 else float(sampled != counter)
    message = f"{device}: the counter says {counter:.4g} J and sampled power {sampled:.4g} J, {apart:.1%} apart"
    return grade_figure("energy_sources_apart", apart, *limits.ENERGY_APART, message)


def energy_counter(facts: RunFacts) -> Finding:
    """The counter counted throughout the window, and sampled power, which checks it, was read throughout."""
    return pick_gravest(*(_check_breaks(device, energy) for device, energy in (facts.energy or {}).items()))


def _check_breaks(device: str, energy: WindowEnergy) -> Finding:
    found = [problem for problem in energy.problems if problem.code in _BREAK_CODES]
    if not found:
        return FINE if energy.total_j is not None else UNKNOWN
    tail = f"the joules are of the {energy.source}" if energy.total_j is not None else "there are no joules"
    message = f"{_join_messages(device, found)}; {tail}"
    # Joules are never taken from a source that broke: where the counter did, they are of sampled power, unchecked.
    unchecked = energy.total_j is not None and any(COUNTER in problem.untrusted_sources for problem in found)
    return Reason("energy_counter", "invalid" if unchecked else "informative", message, float(len(found)), 0.0)


def energy_baseline(facts: RunFacts) -> Finding:
    """The idle power that is taken off stood still, and was less than the whole."""
    unsteady = [_check_idle_steady(device, found) for device, found in (facts.idle_problems or {}).items()]
    return pick_gravest(_check_devices(facts, _check_above_idle), *unsteady)


def _check_above_idle(device: str, energy: WindowEnergy) -> Finding:
    found = [problem for problem in energy.problems if problem.code == "below_idle"]
    if found:
        return Reason("energy_baseline", "invalid", _join_messages(device, found), energy.total_j, energy.idle_j)
    return FINE if energy.idle_j is not None else UNKNOWN


def _check_idle_steady(device: str, problems: Iterable[EnergyProblem]) -> Finding:
    found = [problem for problem in problems if problem.code == "unsteady"]
    return Reason("energy_baseline", "informative", _join_messages(device, found)) if found else FINE


def _check_devices(facts: RunFacts, check: Callable[[str, WindowEnergy], Finding]) -> Finding:
    """Over the devices whose joules are published."""
    published = {device: energy for device, energy in (facts.energy or {}).items() if energy.total_j is not None}
    return pick_gravest(*(check(device, energy) for device, energy in published.items()))


def _join_messages(device: str, problems: Iterable[EnergyProblem]) -> str:
    return f"{device}: " + "; ".join(problem.message for problem in problems)
