"""Values over time."""

from __future__ import annotations

import pytest

from enginebay.meters.analysis.interpolation import covers_window, integrate, interpolate, median_low

TIMES, VALUES = [0.0, 2.0, 3.0], [0.0, 10.0, 4.0]


def test_between_two_values_there_is_a_straight_line() -> None:
    assert [interpolate(TIMES, VALUES, t) for t in (-1.0, 0.0, 1.0, 2.0, 2.5, 9.0)] == [0.0, 0.0, 5.0, 10.0, 7.0, 4.0]


def test_the_area_below_is_exact_for_straight_lines() -> None:
    assert integrate(TIMES, VALUES, 0.0, 3.0) == pytest.approx(17.0)
    assert integrate(TIMES, VALUES, 1.0, 2.5) == pytest.approx(7.5 + 4.25)
    assert integrate(TIMES, VALUES, 0.5, 1.0) == pytest.approx(1.875)


def test_a_window_is_covered_when_both_its_ends_are() -> None:
    assert covers_window(TIMES, 0.0, 3.0)
    assert not covers_window(TIMES, -0.1, 3.0)
    assert not covers_window(TIMES, 0.0, 3.1)
    assert not covers_window([], 0.0, 1.0)


def test_of_two_in_the_middle_the_lower_one_counts() -> None:
    assert median_low([3.0, 1.0, 2.0]) == 2.0
    assert median_low([4.0, 1.0, 2.0, 3.0]) == 2.0
