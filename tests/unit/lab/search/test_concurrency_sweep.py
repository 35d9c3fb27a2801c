"""Closed loops before the search."""

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


def test_it_climbs_while_more_at_once_gives_more() -> None:
    rungs: list[ConcurrencyLevel] = []
    climbed = []
    while (concurrency := next_concurrency(rungs)) is not None:
        climbed.append(concurrency)
        rungs.append(ConcurrencyLevel(concurrency, min(10.0 * concurrency, 300.0), met=True))
    assert climbed == [1, 8, 32, 128]  # 128 gives no more than 32


@pytest.mark.parametrize(
    ("rungs", "expected"),
    [
        ([ConcurrencyLevel(1, 2.0, False, hopeless=True)], None),
        ([ConcurrencyLevel(1, 2.0, False)], 8),  # missed, and perhaps by chance
        ([ConcurrencyLevel(1, 2.0, True), ConcurrencyLevel(8, 9.0, False)], None),
        ([ConcurrencyLevel(1, 2.0, True), ConcurrencyLevel(8, 2.1, True)], None),
        ([ConcurrencyLevel(n, 2.0**n, True) for n in (1, 2, 3, 4, 5)], None),
    ],
)
def test_where_it_ends(rungs: list[ConcurrencyLevel], expected: int | None) -> None:
    assert next_concurrency(rungs) == expected


def test_a_ladder_that_no_longer_rises_limits_the_search() -> None:
    found = find_rate_bounds(
        [ConcurrencyLevel(1, 2.0, True), ConcurrencyLevel(8, 6.0, True), ConcurrencyLevel(32, 6.2, True)],
        client_rate=1000,
    )
    assert found.highest == 5.89 and "in a closed loop it answers 6.2 requests/s" in found.limit  # 95%
    assert found.start == pytest.approx(0.8 * 6.2) and found.lowest == 0.25


def test_one_that_ends_with_a_miss_does_not() -> None:
    found = find_rate_bounds([ConcurrencyLevel(1, 2.0, True), ConcurrencyLevel(8, 8.0, False)], client_rate=1000)
    assert found.highest == 1000 and "client" in found.limit
    assert found.start == pytest.approx(4.0)


def test_the_client_limits_what_is_faster_than_it() -> None:
    found = find_rate_bounds(
        [ConcurrencyLevel(1, 200.0, True), ConcurrencyLevel(8, 900.0, True), ConcurrencyLevel(32, 910.0, True)],
        client_rate=500,
    )
    assert found.highest == 500 and found.start == 500 and "client" in found.limit
    slow = find_rate_bounds([ConcurrencyLevel(1, 200.0, True)], client_rate=10)
    assert slow.start >= slow.lowest and slow.lowest <= slow.highest == 10


def test_a_rung_has_more_requests_than_it_has_at_once() -> None:
    assert count_level_requests(1) == 8 and count_level_requests(32) == 80
