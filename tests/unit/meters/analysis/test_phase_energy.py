"""Idle power, and energy by phase."""

from __future__ import annotations

from itertools import pairwise

import pytest

from enginebay.meters.analysis.idle_power import measure_idle_power
from enginebay.meters.analysis.phase_energy import PhaseInterval, measure_phase_energy, merge_intervals
from tests.unit.meters.replay_meter import PowerTrace
from tests.unit.meters.trace_playback import GPU, SERVING, make_sample_times, play_trace


def test_idle_power_is_the_mean_of_an_idle_window() -> None:
    samples = play_trace(PowerTrace(((0.0, 115.0),)), make_sample_times(20.0), period_s=0.1)
    found = measure_idle_power(samples, GPU, 5.0, 15.0)
    assert found.power_w == pytest.approx(115.0, rel=0.005)
    assert found.source == "counter"
    assert not found.problems


def test_falling_idle_power_is_reported() -> None:
    samples = play_trace(PowerTrace(((0.0, 160.0), (10.0, 110.0))), make_sample_times(20.0))
    assert [problem.code for problem in measure_idle_power(samples, GPU, 5.0, 15.0).problems] == ["unsteady"]


def test_no_samples_give_no_idle_power() -> None:
    found = measure_idle_power([], GPU, 5.0, 15.0)
    assert found.power_w is None
    assert [problem.code for problem in found.problems] == ["no_samples"]


def test_long_phases_are_separated() -> None:
    samples = play_trace(SERVING, make_sample_times(70.0, bursts=[4.8, 6.3]), period_s=0.1)
    phases = [
        PhaseInterval(5.03, 6.52, "prefill"),
        PhaseInterval(6.52, 65.57, "decode"),
        PhaseInterval(65.57, 68.0, "idle"),
    ]
    told = measure_phase_energy(samples, GPU, phases)
    assert told.source == "counter"
    assert told.joules["prefill"] == pytest.approx(600 * 1.49, rel=0.02)
    assert told.joules["decode"] == pytest.approx(350 * 59.05, rel=0.002)
    assert told.joules["idle"] == pytest.approx(100 * 2.43, rel=0.1)
    assert told.seconds == pytest.approx({"prefill": 1.49, "decode": 59.05, "idle": 2.43})
    assert sum(told.joules.values()) == pytest.approx(SERVING.energy_j(5.03, 68.0), rel=0.001)


def test_phases_that_alternate_too_fast_are_not_separated() -> None:
    samples = play_trace(SERVING, make_sample_times(70.0), period_s=0.1)
    phases = [PhaseInterval(10 + n * 0.05, 10.05 + n * 0.05, "prefill" if n % 2 else "decode") for n in range(200)]
    told = measure_phase_energy(samples, GPU, phases)
    assert told.joules == {}
    assert told.unresolved_share == pytest.approx(1.0)
    assert [problem.code for problem in told.problems] == ["unresolved"]


def test_short_intervals_of_one_phase_in_a_row_are_one() -> None:
    samples = play_trace(SERVING, make_sample_times(70.0), period_s=0.1)
    edges = [10 + n * 0.05 for n in range(201)]
    told = measure_phase_energy(samples, GPU, [PhaseInterval(a, b, "decode") for a, b in pairwise(edges)])
    assert told.joules["decode"] == pytest.approx(3500.0, rel=0.01)
    assert told.unresolved_share == 0.0


def test_a_split_of_what_was_not_measured_is_empty() -> None:
    assert measure_phase_energy([], GPU, []).problems
    told = measure_phase_energy(play_trace(SERVING, make_sample_times(10.0)), GPU, [PhaseInterval(5.0, 12.0, "decode")])
    assert told.joules == {}
    assert [problem.code for problem in told.problems] == ["uncovered", "uncovered"]


def test_intervals_may_not_overlap() -> None:
    with pytest.raises(ValueError, match="overlap"):
        merge_intervals([PhaseInterval(0.0, 2.0, "prefill"), PhaseInterval(1.0, 3.0, "decode")])
