from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import optimize, stats

from enginebay.lab.measures.distribution import count_needed
from enginebay.lab.statistics.confidence_intervals import (
    ConfidenceInterval,
    difference_interval,
    mean_interval,
    percentile_interval,
    ratio_interval,
)

A = [10.2, 11.1, 9.8, 10.6, 10.9]
B = [10.9, 11.4, 10.1, 11.5, 11.2]
_runs = st.lists(st.tuples(st.floats(0.5, 2.0), st.floats(0.5, 2.0)), min_size=2, max_size=12)


@pytest.mark.parametrize("confidence", [0.9, 0.95, 0.99])
def test_the_interval_of_a_mean_is_scipys(confidence: float) -> None:
    expected = stats.ttest_1samp(A, 0).confidence_interval(confidence)
    found = mean_interval(A, confidence)
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high), rel=1e-9)
    assert found.estimate == pytest.approx(np.mean(A))
    assert found.count == 5


def test_the_interval_of_a_difference_is_scipys_paired_one() -> None:
    expected = stats.ttest_rel(B, A).confidence_interval(0.95)
    found = difference_interval(A, B)
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high), rel=1e-9)
    assert found.estimate == pytest.approx(np.mean(B) - np.mean(A))


def test_the_ends_of_a_ratio_are_where_the_paired_test_of_b_minus_ratio_times_a_stands_at_5_percent() -> None:
    found = ratio_interval(A, B)
    assert found is not None
    assert found.low is not None
    assert found.high is not None

    def p_value(ratio: float) -> float:
        return float(stats.ttest_1samp(np.array(B) - ratio * np.array(A), 0).pvalue)

    for low, high, end in ((0.5, found.estimate, found.low), (found.estimate, 2.0, found.high)):
        assert end == pytest.approx(optimize.brentq(lambda ratio: p_value(ratio) - 0.05, low, high), rel=1e-9)


@given(_runs)
def test_the_ratio_leaves_out_1_exactly_when_the_difference_leaves_out_0(runs: list[tuple[float, float]]) -> None:
    a, b = [x for x, _ in runs], [y for _, y in runs]
    difference, ratio = difference_interval(a, b), ratio_interval(a, b)
    assert ratio is not None
    if ratio.low is None or ratio.high is None or difference.low is None or difference.high is None:
        return
    if min(abs(difference.low), abs(difference.high)) > 1e-9:  # on the edge, rounding decides
        assert ratio.contains(1.0) == difference.contains(0.0)


@given(_runs, st.floats(1e-3, 1e3))
def test_units_do_not_matter_to_a_ratio(runs: list[tuple[float, float]], unit: float) -> None:
    a, b = [x for x, _ in runs], [y for _, y in runs]
    one, other = ratio_interval(a, b), ratio_interval([x * unit for x in a], [y * unit for y in b])
    assert one is not None
    assert other is not None
    if one.low is not None and other.low is not None and abs(one.low) < 1e3:
        assert other.low == pytest.approx(one.low, rel=1e-3, abs=1e-3)


def test_a_ratio_to_a_mean_near_zero_has_no_ends() -> None:
    assert ratio_interval([0.0, 0.0], [1.0, 2.0]) is None
    found = ratio_interval([-1.0, 1.0, 0.5], [1.0, 2.0, 1.5])
    assert found is not None
    assert (found.low, found.high) == (None, None)


def test_one_value_has_an_estimate_and_no_ends() -> None:
    assert mean_interval([3.0]) == ConfidenceInterval(3.0, None, None, 1)
    assert difference_interval([3.0], [4.0]) == ConfidenceInterval(1.0, None, None, 1)
    assert ratio_interval([2.0], [3.0]) == ConfidenceInterval(1.5, None, None, 1)


def test_values_that_differ_by_rounding_only_are_equal() -> None:
    found = difference_interval([0.1 + 0.2, 0.3], [0.3, 0.1 + 0.2])
    assert (found.low, found.estimate, found.high) == (0.0, 0.0, 0.0)


@pytest.mark.parametrize(("count", "percent"), [(30, 50), (100, 90), (73, 95), (500, 99), (50, 10)])
def test_the_interval_of_a_percentile_holds_it_at_least_95_percent_of_the_time_and_no_tighter_one_does(
    count: int, percent: float
) -> None:
    values = list(range(1, count + 1))
    found = percentile_interval(values, percent)
    below = stats.binom(count, percent / 100)  # how many values lie below the true percentile
    first = 0 if found.low is None else int(found.low)
    last = count + 1 if found.high is None else int(found.high)
    assert below.cdf(first - 1) <= 0.025 < below.cdf(first)
    assert below.sf(last - 1) <= 0.025 < below.sf(last - 2)


@pytest.mark.parametrize("percent", [50, 75, 90, 95, 99, 99.9])
def test_a_percentile_is_quotable_exactly_when_its_interval_ends_inside_the_sample(percent: float) -> None:
    enough = count_needed(percent)
    assert percentile_interval(range(enough), percent).high is not None
    assert percentile_interval(range(enough - 1), percent).high is None


def test_the_order_of_values_does_not_matter_to_a_percentile() -> None:
    values = np.random.default_rng(3).exponential(1.0, 400)
    assert percentile_interval(values, 95) == percentile_interval(np.sort(values)[::-1], 95)


@pytest.mark.parametrize("values", [[], [1.0, math.nan], [math.inf]])
def test_empty_and_non_finite_values_have_no_interval(values: list[float]) -> None:
    with pytest.raises(ValueError, match="value"):
        mean_interval(values)
    with pytest.raises(ValueError, match="value"):
        percentile_interval(values, 50)


def test_pairs_need_a_partner() -> None:
    with pytest.raises(ValueError, match="not 2 and 1"):
        difference_interval([1.0, 2.0], [1.0])
