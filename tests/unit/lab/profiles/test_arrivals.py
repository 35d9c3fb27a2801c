from __future__ import annotations

import statistics
from itertools import pairwise

import pytest

from enginebay.lab.profiles.arrivals import constant, find_peak_rate, gamma, poisson, ramp, replay


def gaps(times):
    return [later - earlier for earlier, later in pairwise(times)]


def spread(times):
    """The coefficient of variation of the gaps: 0 for even ones, 1 for Poisson."""
    return statistics.stdev(gaps(times)) / statistics.mean(gaps(times))


def test_constant_is_even():
    assert constant(4, 5) == [0, 0.25, 0.5, 0.75, 1.0]


@pytest.mark.parametrize("times", [poisson(50, 5000, 3), gamma(50, 0.25, 5000, 3), ramp(10, 90, 100, 5000, 3)])
def test_random_arrivals_ascend_and_take_the_time_they_should(times):
    assert len(times) == 5000
    assert times == sorted(times)
    assert times[0] >= 0
    assert 99 < times[-1] <= 100


def test_gaps_of_poisson_arrivals_are_exponential():
    found = sorted(gaps(poisson(1, 20_000, 1)))
    assert spread(poisson(1, 20_000, 1)) == pytest.approx(1, abs=0.03)
    assert found[len(found) // 2] == pytest.approx(0.693, abs=0.02)  # ln 2


@pytest.mark.parametrize(("burstiness", "expected"), [(0.25, 2.0), (1.0, 1.0), (4.0, 0.5)])
def test_burstiness_is_the_shape(burstiness, expected):
    assert spread(gamma(10, burstiness, 20_000, 1)) == pytest.approx(expected, rel=0.06)


@pytest.mark.parametrize("make", [lambda seed: poisson(5, 50, seed), lambda seed: ramp(0, 9, 10, 45, seed)])
def test_the_seed_decides(make):
    assert make(1) == make(1) != make(2)


@pytest.mark.parametrize(("low", "high"), [(0, 100), (100, 0), (20, 80), (50, 50)])
def test_a_ramp_has_the_rates_it_should_on_the_way(low, high):
    times = ramp(low, high, 100, 5000, 1)
    for part in range(4):
        middle = low + (high - low) * (part + 0.5) / 4
        count = sum(part * 25 <= time < part * 25 + 25 for time in times)
        assert count == pytest.approx(middle * 25, abs=5 * (middle * 25) ** 0.5)


def test_replay_starts_at_zero_and_may_be_faster():
    assert replay([5.0, 6.0, 9.0], 2.0) == [0, 0.5, 2.0]
    assert replay([], 1.0) == []


def test_the_peak_is_that_of_the_busiest_second():
    assert find_peak_rate([0, 0.1, 5.0, 5.2, 5.9, 6.0, 9.0]) == 3
    assert find_peak_rate(constant(10, 100)) == pytest.approx(10, abs=1)
    assert find_peak_rate([]) == 0
