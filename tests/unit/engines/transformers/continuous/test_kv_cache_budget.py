"""How wide shelves are made."""

from __future__ import annotations

from enginebay.engines.transformers.continuous.kv_cache_budget import KVCacheBudget, choose_bucket_rows

ROOM = KVCacheBudget(tokens=800_000, max_rows=256)


def test_without_a_limit_a_shelf_doubles() -> None:
    assert [choose_bucket_rows(size + 1, size, 256, 0, None) for size in (0, 1, 2, 4)] == [1, 2, 4, 8]


def test_a_shelf_starts_wide_where_that_takes_little_of_the_memory() -> None:
    assert [choose_bucket_rows(1, 0, capacity, 0, ROOM) for capacity in (256, 512, 1024, 8192)] == [256, 195, 97, 32]


def test_it_grows_by_doubling_up_to_the_most_rows() -> None:
    assert choose_bucket_rows(98, 97, 1024, 97 * 1024, ROOM) == 194
    assert choose_bucket_rows(196, 195, 512, 195 * 512, ROOM) == 256


def test_it_takes_no_more_than_there_is() -> None:
    assert choose_bucket_rows(1, 0, 8192, 800_000 - 5 * 8192, ROOM) == 5
    assert choose_bucket_rows(33, 32, 8192, 800_000, ROOM) == 33  # one that is needed comes in any case


def test_whatever_is_taken_there_is_room_for_what_is_needed() -> None:
    for allocated in range(256):
        for taken in (0, 400_000, 799_999, 900_000):
            assert choose_bucket_rows(allocated + 1, allocated, 1024, taken, ROOM) > allocated
