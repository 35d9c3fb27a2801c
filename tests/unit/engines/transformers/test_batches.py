"""Batches of generate()."""

from __future__ import annotations

from enginebay.engines.transformers.batches import BatchRules, padded_tokens, pick, ready
from tests.unit.engines.transformers.helpers import row


def rules(strategy: str, size: int = 3, tokens: int = 1000) -> BatchRules:
    return BatchRules(strategy, size, tokens, 0.05)


WAITING = [row(1, 50, max_tokens=10), row(2, 10, max_tokens=10), row(3, 400, max_tokens=10), row(4, 20, max_tokens=10)]


def keys(strategy: str, size: int = 3, tokens: int = 1000) -> list[int]:
    return [one.key for one in pick(rules(strategy, size, tokens), WAITING)]


def test_static_takes_exactly_the_size_in_order() -> None:
    assert keys("static") == [1, 2, 3]


def test_sorted_static_takes_the_shortest() -> None:
    assert keys("sorted_static") == [2, 4, 1]


def test_dynamic_counts_the_padding() -> None:
    assert padded_tokens(WAITING[:3]) == 3 * (400 + 10)
    assert keys("dynamic") == [1, 2]


def test_sorted_dynamic_fits_more() -> None:
    assert keys("dynamic", size=4, tokens=200) == [1, 2]
    assert keys("sorted_dynamic", size=4, tokens=200) == [2, 4, 1]


def test_a_row_too_large_for_the_budget_runs_alone() -> None:
    assert [one.key for one in pick(rules("dynamic", tokens=16), WAITING[2:])] == [3]


def test_a_batch_has_one_adapter() -> None:
    waiting = [row(1, lora="a"), row(2), row(3, lora="a")]
    assert [one.key for one in pick(rules("static"), waiting)] == [1, 3]


def test_a_batch_waits_to_fill_but_not_for_ever() -> None:
    assert not ready(rules("static"), 0, 1.0)
    assert not ready(rules("static"), 2, 0.01)
    assert ready(rules("static"), 2, 0.06)
    assert ready(rules("static"), 3, 0.0)
