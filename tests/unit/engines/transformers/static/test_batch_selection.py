"""Batches of generate()."""

from __future__ import annotations

from enginebay.engines.transformers.static.batch_selection import (
    BatchRules,
    count_padded_tokens,
    is_batch_ready,
    select_batch,
)
from tests.unit.engines.transformers.fake_sequences import make_sequence


def rules(strategy: str, size: int = 3, tokens: int = 1000) -> BatchRules:
    return BatchRules(strategy, size, tokens, 0.05)


WAITING = [
    make_sequence(1, 50, max_tokens=10),
    make_sequence(2, 10, max_tokens=10),
    make_sequence(3, 400, max_tokens=10),
    make_sequence(4, 20, max_tokens=10),
]


def keys(strategy: str, size: int = 3, tokens: int = 1000) -> list[int]:
    return [sequence.sequence_id for sequence in select_batch(rules(strategy, size, tokens), WAITING)]


def test_static_takes_exactly_the_size_in_order() -> None:
    assert keys("static") == [1, 2, 3]


def test_sorted_static_takes_the_shortest() -> None:
    assert keys("sorted_static") == [2, 4, 1]


def test_dynamic_counts_the_padding() -> None:
    assert count_padded_tokens(WAITING[:3]) == 3 * (400 + 10)
    assert keys("dynamic") == [1, 2]


def test_sorted_dynamic_fits_more() -> None:
    assert keys("dynamic", size=4, tokens=200) == [1, 2]
    assert keys("sorted_dynamic", size=4, tokens=200) == [2, 4, 1]


def test_a_sequence_above_the_token_limit_runs_alone() -> None:
    assert [sequence.sequence_id for sequence in select_batch(rules("dynamic", tokens=16), WAITING[2:])] == [3]


def test_a_batch_has_one_adapter() -> None:
    waiting = [make_sequence(1, lora="a"), make_sequence(2), make_sequence(3, lora="a")]
    assert [sequence.sequence_id for sequence in select_batch(rules("static"), waiting)] == [1, 3]


def test_a_batch_waits_to_fill_up_to_a_limit() -> None:
    assert not is_batch_ready(rules("static"), 0, 1.0)
    assert not is_batch_ready(rules("static"), 2, 0.01)
    assert is_batch_ready(rules("static"), 2, 0.06)
    assert is_batch_ready(rules("static"), 3, 0.0)
