from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from enginebay.lab.statistics.cycle_statistics import compare_cycles, compute_cycle_intervals
from enginebay.lab.statistics.paired_comparison import (
    MAX_PAIRS,
    compare_pairs,
    compute_power,
    count_pairs_needed,
    pair_by_cycle,
)


@pytest.mark.parametrize(("effect", "pairs"), [(0.2, 199), (0.5, 34), (0.8, 15), (1.0, 10), (1.5, 6)])
def test_pairs_needed_are_those_of_the_textbook(effect: float, pairs: int) -> None:
    """As G*Power and R's power.t.test(type = "paired") give them for 80% power at 5%."""
    assert count_pairs_needed(effect) == pairs
    assert count_pairs_needed(-effect) == pairs


@pytest.mark.parametrize(("effect", "pairs"), [(0.3, 5), (1.0, 5), (2.0, 4), (9.0, 2), (0.05, 3000)])
def test_power_is_scipys_noncentral_t(effect: float, pairs: int) -> None:
    limit, centre = stats.t.ppf(0.975, pairs - 1), effect * math.sqrt(pairs)
    expected = stats.nct.sf(limit, pairs - 1, centre) + stats.nct.cdf(-limit, pairs - 1, centre)
    assert compute_power(effect, pairs) == pytest.approx(expected, abs=1e-6)


def test_power_is_what_repeated_studies_show() -> None:
    gaps = 1.2 + np.random.default_rng(5).standard_normal((4000, 6))
    found = (stats.ttest_1samp(gaps, 0, axis=1).pvalue < 0.05).mean()
    assert compute_power(1.2, 6) == pytest.approx(found, abs=0.025)


def test_the_number_of_pairs_is_bounded() -> None:
    assert count_pairs_needed(0.0) is None
    assert count_pairs_needed(1e-4) is None
    at_the_edge = count_pairs_needed(2.8025 / math.sqrt(MAX_PAIRS))
    assert at_the_edge is not None
    assert at_the_edge == pytest.approx(MAX_PAIRS, rel=0.01)


def test_a_clear_difference_is_significant() -> None:
    found = compare_pairs([10.0, 10.1, 9.9, 10.05, 9.95], [10.5, 10.62, 10.4, 10.53, 10.47])
    assert found.differs
    assert found.more_runs is None
    assert found.difference.estimate == pytest.approx(0.504)
    assert found.ratio is not None
    assert found.ratio.estimate == pytest.approx(1.0504)
    assert found.outlook == "significant difference"


def test_it_agrees_with_the_paired_test_of_scipy() -> None:
    random = np.random.default_rng(11)
    seen = set()
    for _ in range(200):
        a, b = random.normal(10, 1, 5), random.normal(11, 1, 5)
        differs = compare_pairs(a.tolist(), b.tolist()).differs
        assert differs == bool(stats.ttest_rel(a, b).pvalue < 0.05)
        seen.add(differs)
    assert seen == {True, False}


def test_what_both_cycles_share_does_not_hide_a_difference() -> None:
    """A host slows down over cycles: unpaired the engines overlap, paired they do not."""
    host = [1.0, 1.1, 1.2, 1.3, 1.4]
    a = [10 * slow for slow in host]
    b = [10.5 * slow + wobble for slow, wobble in zip(host, [0.01, -0.02, 0.0, 0.02, -0.01], strict=True)]
    assert stats.ttest_ind(a, b).pvalue > 0.5
    assert compare_pairs(a, b).differs


def test_an_inconclusive_difference_estimates_the_runs_needed() -> None:
    a, b = [10.0, 10.0, 10.0, 10.0], [10.4, 9.8, 10.5, 10.1]
    found = compare_pairs(a, b)
    gaps = np.array(b) - np.array(a)
    assert not found.differs
    assert found.more_runs == (count_pairs_needed(float(gaps.mean() / gaps.std(ddof=1))) or 0) - 4
    assert found.more_runs > 0
    assert f"{found.more_runs} more runs of each" in found.outlook


def test_one_pair_is_inconclusive() -> None:
    found = compare_pairs([10.0], [20.0])
    assert not found.differs
    assert found.more_runs is None
    assert "at least 3" in found.outlook


@pytest.mark.parametrize("b", [[20.0, 20.1], [20.0, 20.0]])
def test_two_pairs_are_inconclusive_even_if_their_interval_excludes_0(b: list[float]) -> None:
    found = compare_pairs([10.0, 10.0], b)
    assert not found.difference.contains(0.0) and not found.differs
    assert found.outlook == "inconclusive: 2 pairs are too few, at least 3 are needed"
    assert compare_pairs([10.0] * 3, [*b, 20.05]).differs


def test_two_inconclusive_pairs_estimate_the_runs_needed() -> None:
    assert "more runs of each would resolve" in compare_pairs([10.0, 10.0], [10.5, 11.5]).outlook


def test_the_same_runs_do_not_differ() -> None:
    found = compare_pairs([1.0, 2.0, 3.0], [1.0, 2.0, 3.0])
    assert not found.differs
    assert found.more_runs is None
    assert found.outlook == "no difference"


def test_figures_without_spread_differ_when_they_are_not_the_same() -> None:
    found = compare_pairs([128.0, 128.0, 128.0], [127.0, 127.0, 127.0])
    assert found.differs
    assert found.difference.low == found.difference.high == -1.0


def test_a_difference_too_small_to_resolve_is_reported() -> None:
    found = compare_pairs([1.0, 1.0, 1.0, 1.0], [1.1, 0.9, 1.1, 0.90001])
    assert not found.differs
    assert found.more_runs is None
    assert str(MAX_PAIRS) in found.outlook


def test_a_cycle_that_one_engine_lacks_has_no_pair() -> None:
    assert pair_by_cycle({1: "a1", 3: "a3", 2: "a2"}, {2: "b2", 3: "b3", 4: "b4"}) == (["a2", "a3"], ["b2", "b3"])


def test_every_figure_of_the_cycles_has_its_interval() -> None:
    runs = [{"ttft_s": {"p95": 0.4}, "absent": {"x": "y"}}, {"ttft_s": {"p95": 0.6}, "energy_j": 7.0}]
    found = compute_cycle_intervals(runs)
    assert set(found) == {"ttft_s.p95", "energy_j"}
    assert found["ttft_s.p95"].estimate == pytest.approx(0.5)
    assert found["ttft_s.p95"].high == pytest.approx(0.5 + 12.7062 * 0.1, rel=1e-4)
    assert (found["energy_j"].count, found["energy_j"].low) == (1, None)


def test_engines_compare_in_what_both_have_in_the_same_cycles() -> None:
    a = {1: {"x": 1.0, "only_a": 1.0}, 2: {"x": 2.0}, 3: {"x": 3.0}}
    b = {1: {"x": 1.5}, 2: {"x": 2.5}, 4: {"x": 100.0}}
    found = compare_cycles(a, b)
    assert set(found) == {"x"}
    assert (found["x"].difference.estimate, found["x"].difference.count) == (0.5, 2)
