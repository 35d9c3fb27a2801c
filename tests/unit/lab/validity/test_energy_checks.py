from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from enginebay.lab.validity.energy_checks import (
    energy_baseline,
    energy_counter,
    energy_sources_apart,
    energy_window_short,
)
from enginebay.lab.validity.run_facts import RunFacts
from enginebay.lab.validity.verdict import FINE, UNKNOWN, Finding, Reason
from enginebay.meters.analysis.energy_problems import COUNTER, POWER, EnergyProblem
from enginebay.meters.analysis.window_energy import WindowEnergy, measure_energy
from enginebay.meters.sample import Sample
from tests.unit.lab.validity.judged_runs import make_open_loop

SOUND = WindowEnergy(1000.0, 300.0, 700.0, COUNTER, (), 1000.0, 1000.0, 0.0, 1.0, 60.0)


def severity(finding: Finding) -> str:
    return finding.severity if isinstance(finding, Reason) else finding.value


def make_facts(device: str = "gpu:1", **changes: Any) -> RunFacts:
    """Return facts with one changed device and one sound device."""
    return make_open_loop(energy={"gpu:0": SOUND, device: replace(SOUND, **changes)})


def problem(code: str, *untrusted: str) -> EnergyProblem:
    return EnergyProblem(code, f"it did {code}", untrusted_sources=untrusted)


@pytest.mark.parametrize(
    ("device", "window_s", "expected"),
    [
        ("gpu:1", 30.0, "fine"),
        ("gpu:1", 29.0, "informative"),
        ("gpu:1", 9.0, "invalid"),
        ("cpu:package-0", 9.0, "fine"),
        ("cpu:package-0", 2.0, "informative"),
        ("cpu:package-0", 0.5, "invalid"),
    ],
)
def test_short_windows(device: str, window_s: float, expected: str) -> None:
    assert severity(energy_window_short(make_facts(device, window_s=window_s))) == expected


@pytest.mark.parametrize(("uncertainty_j", "expected"), [(20.0, "fine"), (30.0, "informative"), (60.0, "invalid")])
def test_windows_with_wide_edges(uncertainty_j: float, expected: str) -> None:
    assert severity(energy_window_short(make_facts(uncertainty_j=uncertainty_j))) == expected


@pytest.mark.parametrize(
    ("sampled_j", "expected"),
    [
        (1000.0, "fine"),
        (960.0, "fine"),
        (940.0, "informative"),
        (1060.0, "informative"),
        (880.0, "invalid"),
        (0.0, "invalid"),
    ],
)
def test_sources_that_disagree(sampled_j: float, expected: str) -> None:
    assert severity(energy_sources_apart(make_facts(power_j=sampled_j))) == expected


def test_a_counter_that_counts_nothing_disagrees_too() -> None:
    assert severity(energy_sources_apart(make_facts(counter_j=0.0))) == "invalid"
    assert energy_sources_apart(make_open_loop(energy={"cpu": replace(SOUND, power_j=None)})) is UNKNOWN


@pytest.mark.parametrize("code", ["reset", "jump", "stall", "gap", "uncovered"])
def test_a_counter_that_did_not_count(code: str) -> None:
    broken = (problem(code, COUNTER),)
    assert severity(energy_counter(make_facts(problems=broken, source=POWER))) == "invalid"
    assert severity(energy_counter(make_facts(problems=(problem(code, POWER),)))) == "informative"
    assert severity(energy_counter(make_facts(problems=broken, source="", total_j=None))) == "informative"


def test_wraps_and_what_is_not_there_are_no_faults() -> None:
    assert energy_counter(make_facts(problems=(problem("wrapped"), problem("no_power", POWER)))) is FINE


def test_a_stall_that_the_meters_found() -> None:
    """The counter stalls from 20 s on while the device draws 100 W."""
    samples = [Sample(t / 10, "gpu:0", energy_j=min(t * 10.0, 2000.0), power_w=100.0) for t in range(600)]
    facts = make_open_loop(energy={"gpu:0": measure_energy(samples, "gpu:0", 1.0, 58.0)})
    found = energy_counter(facts)
    assert isinstance(found, Reason) and found.severity == "invalid" and "energy source: power" in found.message


def test_a_gap_of_the_power_leaves_the_counter_alone() -> None:
    """No power is read from 20 s to 30 s."""
    samples = [
        Sample(t / 10, "gpu:0", energy_j=t * 10.0, power_w=None if 200 < t < 300 else 100.0) for t in range(600)
    ]  # fmt: skip
    found = energy_counter(make_open_loop(energy={"gpu:0": measure_energy(samples, "gpu:0", 1.0, 58.0)}))
    assert isinstance(found, Reason) and found.severity == "informative"
    assert "energy source: counter" in found.message


def test_a_sound_trace_has_nothing_to_find() -> None:
    samples = [Sample(t / 10, "gpu:0", energy_j=t * 10.0, power_w=100.0) for t in range(600)]
    facts = make_open_loop(energy={"gpu:0": measure_energy(samples, "gpu:0", 1.0, 58.0, idle_w=40.0)})
    for check in (energy_window_short, energy_sources_apart, energy_counter, energy_baseline):
        assert check(facts) is FINE


def test_idle_power() -> None:
    assert energy_baseline(make_facts()) is FINE
    assert severity(energy_baseline(make_facts(problems=(problem("below_idle"),)))) == "invalid"
    unsteady = {"gpu:1": (problem("unsteady"),)}
    assert severity(energy_baseline(replace(make_facts(), idle_problems=unsteady))) == "informative"
    assert energy_baseline(replace(make_facts(), idle_problems={"gpu:1": ()})) is FINE
    assert energy_baseline(make_open_loop(energy={"gpu:0": replace(SOUND, idle_j=None)})) is UNKNOWN


def test_without_energy_nothing_is_claimed() -> None:
    for facts in (make_open_loop(), make_open_loop(energy={"gpu:0": WindowEnergy(None)})):
        for check in (energy_window_short, energy_sources_apart, energy_counter, energy_baseline):
            assert check(facts) is UNKNOWN
