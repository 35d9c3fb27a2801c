from __future__ import annotations

import math
import statistics

import numpy as np
import pytest

from enginebay.lab.measures.distribution import count_needed, is_quotable, summarize


def test_a_distribution_has_the_figures_it_names() -> None:
    values = np.random.default_rng(1).permutation(np.arange(101.0)).tolist()
    found = summarize(values)
    assert found.to_dict() == {
        "count": 101, "mean": 50.0, "median": 50.0, "p90": 90.0, "p95": 95.0, "p99": 99.0, "minimum": 0.0, "maximum": 100.0
    }  # fmt: skip


def test_it_agrees_with_the_standard_library() -> None:
    values = np.random.default_rng(2).exponential(1.0, 333).tolist()
    found, cuts = summarize(values), statistics.quantiles(values, n=100, method="inclusive")
    assert (found.median, found.p90, found.p95, found.p99) == pytest.approx((cuts[49], cuts[89], cuts[94], cuts[98]))
    assert found.mean == pytest.approx(statistics.fmean(values))


def test_figures_are_plain_numbers() -> None:
    assert {type(value) for value in summarize(np.ones(3, dtype=np.float32)).to_dict().values()} == {int, float}


def test_one_value_is_all_its_percentiles() -> None:
    found = summarize([0.25])
    assert (found.count, found.minimum, found.median, found.p99, found.maximum) == (1, 0.25, 0.25, 0.25, 0.25)


@pytest.mark.parametrize("values", [[], [math.nan], [1.0, math.inf]])
def test_no_values_have_no_distribution(values: list[float]) -> None:
    with pytest.raises(ValueError, match="distribution"):
        summarize(values)


@pytest.mark.parametrize(("percent", "count"), [(50, 6), (90, 36), (95, 72), (99, 368), (99.9, 3688), (10, 36)])
def test_a_percentile_needs_so_many_values(percent: float, count: int) -> None:
    assert count_needed(percent) == count
    assert is_quotable(percent, count)
    assert not is_quotable(percent, count - 1)


@pytest.mark.parametrize("percent", [0, 100, -5, 101])
def test_the_ends_are_no_percentiles(percent: float) -> None:
    with pytest.raises(ValueError, match="between 0 and 100"):
        count_needed(percent)
