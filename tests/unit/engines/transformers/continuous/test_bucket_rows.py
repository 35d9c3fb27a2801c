"""The number of rows of a bucket."""

from __future__ import annotations

from enginebay.engines.transformers.continuous.scheduler import KVCacheBudget, choose_bucket_rows

BUDGET = KVCacheBudget(tokens=800_000, max_rows=256)


def test_without_a_budget_a_bucket_doubles() -> None:
    assert [choose_bucket_rows(size + 1, size, 256, 0, None) for size in (0, 1, 2, 4)] == [1, 2, 4, 8]


def test_a_bucket_starts_large_within_its_share_of_the_memory() -> None:
    assert [choose_bucket_rows(1, 0, capacity, 0, BUDGET) for capacity in (256, 512, 1024, 8192)] == [256, 195, 97, 32]


def test_a_bucket_doubles_up_to_the_maximum_rows() -> None:
    assert choose_bucket_rows(98, 97, 1024, 97 * 1024, BUDGET) == 194
    assert choose_bucket_rows(196, 195, 512, 195 * 512, BUDGET) == 256


def test_a_bucket_stays_within_the_budget() -> None:
    assert choose_bucket_rows(1, 0, 8192, 800_000 - 5 * 8192, BUDGET) == 5
    assert choose_bucket_rows(33, 32, 8192, 800_000, BUDGET) == 33  # a needed row is always allocated


def test_a_needed_row_is_always_allocated() -> None:
    for allocated in range(256):
        for allocated_tokens in (0, 400_000, 799_999, 900_000):
            assert choose_bucket_rows(allocated + 1, allocated, 1024, allocated_tokens, BUDGET) > allocated
