"""The closed loops before a rate search."""

from __future__ import annotations

import pytest

from enginebay.lab.search.concurrency_sweep import (
    ConcurrencyLevel,
    count_level_requests,
    find_rate_bounds,
    measure_full_rate,
    next_concurrency,
)
from enginebay.lab.workload.request_records import Record


def test_the_rate_is_of_the_time_in_which_the_loop_was_full() -> None:
    """Four at once, a second each: two waves are sent while it is full, and the third drains."""
    records = [Record(i, wave, wave, end_s=wave + 1.0) for wave in (0.0, 1.0, 2.0) for i in range(4)]
    assert measure_full_rate(records) == pytest.approx(4.0)


def test_no_answer_has_no_rate() -> None:
    assert measure_full_rate([]) is None
    assert measure_full_rate([Record(0, 0.0, 0.0, end_s=0.1, error="closed"), Record(1, 0.5, 0.5)]) is None


def test_a_loop_too_slow_for_a_second_wave_has_the_rate_of_the_first() -> None:
    assert measure_full_rate([Record(0, 0.0, 0.0, end_s=80.0)]) == 1 / 80
    assert measure_full_rate([Record(i, 0.0, 0.001 * i, end_s=80.0) for i in range(8)]) == 8 / 80
    assert measure_full_rate([Record(0, 0.0, 0.0, end_s=0.1, error="closed"), Record(1, 0.5, 0.5, end_s=2.0)]) == 0.5


def test_concurrency_rises_while_throughput_does() -> None:
    levels: list[ConcurrencyLevel] = []
    swept = []
    while (concurrency := next_concurrency(levels)) is not None:
        swept.append(concurrency)
        levels.append(ConcurrencyLevel(concurrency, min(10.0 * concurrency, 300.0), met=True))
    assert swept == [1, 8, 32, 128]  # 128 gives no more than 32


@pytest.mark.parametrize(
    ("levels", "expected"),
    [
        ([ConcurrencyLevel(1, 2.0, False, hopeless=True)], None),
        ([ConcurrencyLevel(1, 2.0, False)], 8),  # missed, and perhaps by chance
        ([ConcurrencyLevel(1, 2.0, True), ConcurrencyLevel(8, 9.0, False)], None),
        ([ConcurrencyLevel(1, 2.0, True), ConcurrencyLevel(8, 2.1, True)], None),
        ([ConcurrencyLevel(n, 2.0**n, True) for n in (1, 2, 3, 4, 5)], None),
    ],
)
def test_where_the_sweep_ends(levels: list[ConcurrencyLevel], expected: int | None) -> None:
    assert next_concurrency(levels) == expected


def test_a_saturated_sweep_limits_the_search() -> None:
    found = find_rate_bounds(
        [ConcurrencyLevel(1, 2.0, True), ConcurrencyLevel(8, 6.0, True), ConcurrencyLevel(32, 6.2, True)],
        client_rate=1000,
    )
    assert found.highest == 5.89 and "its closed-loop throughput is 6.2 requests/s" in found.limit  # 95%
    assert found.start == pytest.approx(0.8 * 6.2) and found.lowest == 0.25


def test_a_sweep_that_ends_with_a_miss_does_not_limit_the_search() -> None:
    found = find_rate_bounds([ConcurrencyLevel(1, 2.0, True), ConcurrencyLevel(8, 8.0, False)], client_rate=1000)
    assert found.highest == 1000 and "client" in found.limit
    assert found.start == pytest.approx(4.0)


def test_the_client_limits_the_search_of_a_faster_engine() -> None:
    found = find_rate_bounds(
        [ConcurrencyLevel(1, 200.0, True), ConcurrencyLevel(8, 900.0, True), ConcurrencyLevel(32, 910.0, True)],
        client_rate=500,
    )
    assert found.highest == 500 and found.start == 500 and "client" in found.limit
    slow = find_rate_bounds([ConcurrencyLevel(1, 200.0, True)], client_rate=10)
    assert slow.start >= slow.lowest and slow.lowest <= slow.highest == 10


def test_a_level_sends_more_requests_than_its_concurrency() -> None:
    assert count_level_requests(1) == 8 and count_level_requests(32) == 80
