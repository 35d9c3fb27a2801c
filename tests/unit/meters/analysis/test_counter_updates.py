"""Update times of a counter, from its readings."""

from __future__ import annotations

from itertools import pairwise

import pytest

from enginebay.meters.analysis.counter_series import build_counter_series
from enginebay.meters.analysis.counter_updates import estimate_period, find_updates
from enginebay.meters.sample import Sample
from tests.unit.meters.replay_meter import PowerTrace, Stall
from tests.unit.meters.trace_playback import SERVING, make_sample_times, play_trace

STEADY = PowerTrace(((0.0, 300.0),))


def readings(*values: float) -> list[Sample]:
    return [Sample(n * 0.1, "gpu:0", energy_j=value) for n, value in enumerate(values)]


def test_a_value_is_known_from_its_first_reading_to_its_last() -> None:
    first, second, third = find_updates(readings(5, 5, 5, 8, 9, 9))
    assert (first.previous_reading_s, first.first_seen_s, first.last_seen_s, first.readings) == (
        None,
        0.0,
        pytest.approx(0.2),
        3,
    )
    assert (second.previous_reading_s, second.first_seen_s) == (pytest.approx(0.2), pytest.approx(0.3))
    assert (third.value_j, third.readings) == (9, 2)


def test_readings_without_a_value_are_no_readings() -> None:
    samples = [*readings(5, 6), Sample(0.2, "gpu:0"), Sample(0.3, "gpu:0", energy_j=float("nan"))]
    assert [knot.value_j for knot in find_updates(samples)] == [5, 6]


@pytest.mark.parametrize("period_s", [0.02, 0.05, 0.1, 0.13])
def test_a_burst_shows_how_often_the_counter_is_updated(period_s: float) -> None:
    period = estimate_period(find_updates(play_trace(STEADY, make_sample_times(20.0, bursts=[0.0]), period_s=period_s)))
    assert period.proven
    assert period.longest_s == pytest.approx(period_s, abs=0.006)


def test_a_counter_that_is_always_fresh_is_not_taken_for_a_late_one() -> None:
    period = estimate_period(find_updates(play_trace(STEADY, make_sample_times(20.0, bursts=[0.0]))))
    assert not period.proven
    assert period.longest_s is not None and period.longest_s < 0.007


def test_stalls_do_not_make_a_period() -> None:
    stalls = [Stall(5.0, 8.0), Stall(10.0, 13.0), Stall(15.0, 18.0)]
    period = estimate_period(find_updates(play_trace(STEADY, make_sample_times(20.0), faults=stalls)))
    assert not period.proven
    assert period.longest_s is not None and period.longest_s < 0.11


def test_a_counter_that_hardly_changes_has_no_period() -> None:
    assert estimate_period(find_updates(readings(5, 5, 5))).longest_s is None
    assert estimate_period(find_updates(readings(5, 5, 6))).longest_s is None
    assert build_counter_series([Sample(0.0, "gpu:0")]) is None


def test_the_value_never_falls_and_goes_on_for_one_update_at_most() -> None:
    counter = build_counter_series(play_trace(SERVING, make_sample_times(20.0, bursts=[0.0]), period_s=0.13))
    assert counter is not None
    values = [counter.interpolate_j(n * 0.01) for n in range(2200)]
    assert all(b >= a for a, b in pairwise(values))
    assert values[-1] - counter.values_j[-1] == pytest.approx(counter.pending_j)
    assert 0 < counter.pending_j < 350 * 0.2
