"""Joules of a window, against known traces."""

from __future__ import annotations

import random

import pytest

from enginebay.meters.analysis.window_energy import (
    WindowEnergy,
    measure_energy,
    subtract_idle,
    sum_energies,
)
from enginebay.meters.sample import Sample
from tests.unit.meters.replay_meter import Jump, PowerTrace, Stall
from tests.unit.meters.trace_playback import GPU, SERVING, make_sample_times, play_trace

START_S, END_S = 5.03, 65.57  # of the work
WINDOWS = [(START_S, END_S), (4.0, 68.0), (5.75, 60.0), (10.0, 20.0)]


def codes(energy: WindowEnergy) -> set[str]:
    return {problem.code for problem in energy.problems}


@pytest.mark.parametrize("period_s", [0.0, 0.001, 0.02, 0.05, 0.1, 0.13])
@pytest.mark.parametrize(("start_s", "end_s"), WINDOWS)
def test_a_known_trace_gives_its_joules(period_s: float, start_s: float, end_s: float) -> None:
    read_at = make_sample_times(70.0, bursts=[0.0, start_s - 0.25, end_s - 0.05])
    energy = measure_energy(play_trace(SERVING, read_at, period_s=period_s), GPU, start_s, end_s)
    assert energy.source == "counter"
    assert energy.total_j == pytest.approx(SERVING.energy_j(start_s, end_s), rel=0.001)
    assert not energy.problems


def test_without_bursts_the_joules_are_within_the_uncertainty() -> None:
    for period_s in (0.0, 0.02, 0.1, 0.13, 0.4):
        energy = measure_energy(play_trace(SERVING, make_sample_times(70.0), period_s=period_s), GPU, START_S, END_S)
        assert energy.total_j is not None and energy.uncertainty_j is not None
        assert abs(energy.total_j - SERVING.energy_j(START_S, END_S)) <= energy.uncertainty_j
        assert energy.total_j == pytest.approx(SERVING.energy_j(START_S, END_S), rel=0.005)


@pytest.mark.parametrize("seed", range(60))
def test_the_error_never_exceeds_the_uncertainty(seed: int) -> None:
    chance = random.Random(seed)
    steps = [(0.0, 100.0), *((t + chance.random(), chance.uniform(60, 700)) for t in range(1, 20))]
    trace = PowerTrace(tuple(steps))
    period_s = chance.choice([0.0, chance.uniform(0.001, 0.3)])
    read_at = make_sample_times(21.0, chance.choice([0.02, 0.1, 0.25]), bursts=[0.0, chance.uniform(1, 19)], seed=seed)
    start_s = chance.uniform(1, 10)
    end_s = start_s + chance.uniform(1, 9)
    energy = measure_energy(play_trace(trace, read_at, period_s=period_s), GPU, start_s, end_s)
    assert energy.counter_j is not None and energy.uncertainty_j is not None
    assert abs(energy.counter_j - trace.energy_j(start_s, end_s)) <= energy.uncertainty_j + 1e-6


def test_work_that_starts_and_ends_between_two_updates_keeps_its_joules() -> None:
    trace = PowerTrace(((0.0, 100.0), (5.05, 600.0), (15.05, 100.0)))
    samples = play_trace(trace, make_sample_times(20.0, bursts=[0.0, 4.8, 14.8]), period_s=0.1)
    assert measure_energy(samples, GPU, 5.05, 15.05).total_j == pytest.approx(6000.0, rel=0.001)


def test_a_counter_that_is_late_is_not_late_on_average() -> None:
    trace = PowerTrace(((0.0, 100.0), (5.0, 600.0)))
    samples = play_trace(trace, make_sample_times(20.0, bursts=[0.0]), period_s=0.09)
    found = [measure_energy(samples, GPU, 2.0, 10.0 + n * 0.01).total_j or 0.0 for n in range(500)]
    truth = [trace.energy_j(2.0, 10.0 + n * 0.01) for n in range(500)]
    assert sum(found) - sum(truth) == pytest.approx(0.0, abs=500 * 5.0), "5 J are 8 ms of it; the counter is 45 ms late"


def test_a_counter_that_wraps_is_unwrapped() -> None:
    samples = play_trace(SERVING, make_sample_times(70.0), wraps_at_j=1000.0, first_j=990.0, limit_w=700.0)
    energy = measure_energy(samples, GPU, START_S, END_S)
    assert energy.source == "counter"
    assert energy.total_j == pytest.approx(SERVING.energy_j(START_S, END_S), rel=0.001)
    assert codes(energy) == {"wrapped"}


def test_possibly_missed_wraps_are_reported() -> None:
    read_at = [t for t in make_sample_times(70.0) if not 12.0 < t < 20.0]
    energy = measure_energy(
        play_trace(SERVING, read_at, wraps_at_j=1000.0, limit_w=700.0, reports_power=False), GPU, START_S, END_S
    )
    assert energy.total_j is None
    assert "gap" in codes(energy)


def test_a_counter_that_goes_backwards_is_not_trusted() -> None:
    energy = measure_energy(
        play_trace(SERVING, make_sample_times(70.0), first_j=9000.0, faults=[Jump(20.0, -9900.0)]), GPU, START_S, END_S
    )
    assert "reset" in codes(energy)
    assert energy.source == "power"
    assert energy.total_j == pytest.approx(SERVING.energy_j(START_S, END_S), rel=0.01)


def test_a_reset_is_not_taken_for_a_wrap() -> None:
    samples = play_trace(
        SERVING, make_sample_times(70.0), first_j=9000.0, wraps_at_j=262143.0, faults=[Jump(20.0, -14100.0)]
    )
    assert "reset" in codes(measure_energy(samples, GPU, START_S, END_S))


@pytest.mark.parametrize("reports_power", [True, False])
@pytest.mark.parametrize("limit_w", [700.0, None])
def test_a_counter_that_jumps_is_caught(reports_power: bool, limit_w: float | None) -> None:
    samples = play_trace(
        SERVING, make_sample_times(70.0), limit_w=limit_w, reports_power=reports_power, faults=[Jump(20.0, 2000.0)]
    )
    energy = measure_energy(samples, GPU, START_S, END_S)
    assert "jump" in codes(energy)
    assert energy.source == ("power" if reports_power else "")
    assert (energy.total_j is None) != reports_power
    assert "jump" not in codes(measure_energy(samples, GPU, 21.0, END_S)), "it was before that window"


@pytest.mark.parametrize("period_s", [0.0, 0.02, 0.1])
@pytest.mark.parametrize("catches_up", [True, False])
def test_a_counter_that_stalls_is_caught(period_s: float, catches_up: bool) -> None:
    stall = Stall(12.0, 15.0, catches_up)
    samples = play_trace(SERVING, make_sample_times(70.0, bursts=[0.0]), period_s=period_s, faults=[stall])
    energy = measure_energy(samples, GPU, START_S, END_S)
    assert "stall" in codes(energy)
    assert energy.source == "power"
    assert energy.total_j == pytest.approx(SERVING.energy_j(START_S, END_S), rel=0.01)
    assert "stall" not in codes(measure_energy(samples, GPU, 16.0, END_S))


def test_a_counter_that_never_moves_is_caught() -> None:
    read_at = make_sample_times(10.0)
    samples = play_trace(SERVING, read_at, faults=[Stall(0.0, 99.0)], reports_power=False)
    energy = measure_energy(samples, GPU, 1.0, 9.0)
    assert [problem.code for problem in energy.problems] == ["stall", "no_power"]
    assert energy.total_j is None


def test_a_device_that_draws_nothing_may_stand_still() -> None:
    energy = measure_energy(play_trace(PowerTrace(((0.0, 0.0),)), make_sample_times(10.0)), GPU, 1.0, 9.0)
    assert energy.total_j == 0.0
    assert "stall" not in codes(energy)


def test_a_slow_counter_is_no_stalled_one() -> None:
    energy = measure_energy(play_trace(SERVING, make_sample_times(70.0), period_s=2.0), GPU, START_S, END_S)
    assert energy.source == "counter"
    assert "stall" not in codes(energy)
    assert "window_short" in codes(energy), "an update's worth at each end is more than 3% of it"


def test_the_counter_goes_on_where_sampling_stopped_for_a_while() -> None:
    read_at = [t for t in make_sample_times(70.0) if not 12.0 < t < 15.0]
    energy = measure_energy(play_trace(SERVING, read_at), GPU, START_S, END_S)
    assert energy.source == "counter"
    assert energy.total_j == pytest.approx(SERVING.energy_j(START_S, END_S), rel=0.001)
    assert codes(energy) == {"gap"}


def test_a_gap_at_the_windows_end_makes_it_unsure() -> None:
    read_at = [t for t in make_sample_times(70.0) if not 62.0 < t < 68.0]
    energy = measure_energy(play_trace(SERVING, read_at), GPU, START_S, END_S)
    assert {"gap", "window_short"} <= codes(energy)
    assert energy.total_j is not None and energy.uncertainty_j is not None
    assert abs(energy.total_j - SERVING.energy_j(START_S, END_S)) <= energy.uncertainty_j


def test_without_counter_a_gap_leaves_nothing() -> None:
    samples = [s for s in play_trace(SERVING, make_sample_times(70.0)) if not 12.0 < s.time_s < 15.0]
    powers = [Sample(s.time_s, s.device, power_w=s.power_w) for s in samples]
    energy = measure_energy(powers, GPU, START_S, END_S)
    assert energy.total_j is None
    assert codes(energy) == {"gap", "no_counter"}


def test_a_window_shorter_than_the_counters_period_goes_by_power() -> None:
    samples = play_trace(SERVING, make_sample_times(70.0, interval_s=0.02), period_s=0.5)
    energy = measure_energy(samples, GPU, 10.1, 10.6)
    assert "window_short" in codes(energy)
    assert energy.source == "power"
    assert energy.total_j == pytest.approx(175.0, rel=0.001)


def test_a_window_with_hardly_a_sample_has_no_joules() -> None:
    energy = measure_energy(play_trace(SERVING, make_sample_times(70.0), period_s=0.3), GPU, 10.0, 10.2)
    assert energy.total_j is None
    assert energy.source == ""


@pytest.mark.parametrize(("start_s", "end_s"), [(-1.0, 10.0), (10.0, 71.0), (80.0, 90.0)])
def test_without_samples_there_is_no_energy(start_s: float, end_s: float) -> None:
    energy = measure_energy(play_trace(SERVING, make_sample_times(70.0)), GPU, start_s, end_s)
    assert energy.total_j is None
    assert codes(energy) == {"uncovered"}


def test_a_window_without_length_and_a_device_without_samples() -> None:
    samples = play_trace(SERVING, make_sample_times(10.0))
    assert codes(measure_energy(samples, GPU, 5.0, 5.0)) == {"window_short"}
    assert codes(measure_energy(samples, "gpu:1", 5.0, 6.0)) == {"no_samples"}


def test_disagreement_of_counter_and_samples_is_reported() -> None:
    samples = play_trace(SERVING, make_sample_times(70.0))
    loud = [Sample(s.time_s, s.device, s.energy_j, (s.power_w or 0.0) * 1.07) for s in samples]
    energy = measure_energy(loud, GPU, START_S, END_S)
    assert energy.source == "counter"
    assert energy.disagreement == pytest.approx(0.07, abs=0.005)
    assert "apart" in codes(energy)
    assert measure_energy(samples, GPU, START_S, END_S).disagreement == pytest.approx(0.0, abs=0.005)


def test_failed_readings_are_skipped() -> None:
    samples = play_trace(SERVING, make_sample_times(70.0))
    holed = [Sample(s.time_s, s.device) if n % 7 == 0 else s for n, s in enumerate(samples)]
    assert measure_energy(holed, GPU, START_S, END_S).total_j == pytest.approx(
        SERVING.energy_j(START_S, END_S), rel=0.002
    )


def test_order_of_samples_and_other_devices_do_not_matter() -> None:
    samples = play_trace(SERVING, make_sample_times(70.0))
    mixed = [*play_trace(SERVING, make_sample_times(70.0), device="gpu:1", first_j=5e6), *samples]
    random.Random(3).shuffle(mixed)
    assert measure_energy(mixed, GPU, START_S, END_S).total_j == measure_energy(samples, GPU, START_S, END_S).total_j


def test_idle_energy_is_separated() -> None:
    energy = measure_energy(play_trace(SERVING, make_sample_times(70.0)), GPU, START_S, END_S, idle_w=100.0)
    assert energy.idle_j == pytest.approx(6054.0)
    assert energy.total_j is not None and energy.active_j == pytest.approx(energy.total_j - 6054.0)
    below = subtract_idle(energy, 1000.0)
    assert below.active_j is None
    assert "below_idle" in codes(below)


def test_several_devices_together_lack_what_one_lacks() -> None:
    whole = measure_energy(play_trace(SERVING, make_sample_times(70.0)), GPU, START_S, END_S, idle_w=100.0)
    both = sum_energies([whole, whole])
    assert whole.total_j is not None and both.total_j == 2 * whole.total_j
    assert both.source == "counter" and both.idle_j == pytest.approx(12108.0)
    broken = sum_energies([whole, measure_energy([], GPU, START_S, END_S)])
    assert broken.total_j is None and broken.source == ""
    assert codes(broken) == {"no_samples"}
    assert sum_energies([]).total_j is None
