"""Which decode steps are recorded, and which recordings are kept."""

from __future__ import annotations

from enginebay.engines.transformers.continuous.graph_cache import (
    GraphCache,
    GraphKey,
    pad_attended_length,
    pad_row_count,
)


def key(rows: int = 8, generation: int = 1, capacity: int = 256) -> GraphKey:
    return GraphKey(capacity, generation, rows, 256)


def test_few_sizes_and_none_too_small() -> None:
    sizes = [pad_row_count(count, 1000) for count in range(1, 513)]
    assert all(size >= count for count, size in enumerate(sizes, start=1))
    assert sorted(set(sizes)) == [8, 16, 24, 32, 48, 64, 96, 128, 160, 192, 224, 256, 320, 384, 448, 512]


def test_no_size_is_wider_than_the_shelf() -> None:
    assert [pad_row_count(count, 20) for count in (1, 8, 9, 17, 20)] == [8, 8, 16, 20, 20]


def test_a_shelf_has_at_most_four_reaches() -> None:
    for capacity in (256, 512, 1024, 3000, 8192):
        reaches = {pad_attended_length(longest, capacity) for longest in range(1, capacity + 1)}
        assert len(reaches) <= 4 and max(reaches) == capacity
        assert all(pad_attended_length(longest, capacity) >= longest for longest in range(1, capacity + 1))


def test_a_step_is_recorded_when_it_comes_again() -> None:
    kept: GraphCache[str] = GraphCache()
    assert not kept.should_capture(key()) and kept.should_capture(key())
    assert not kept.should_capture(key(16))
    kept.put(key(), "graph")
    assert kept.get(key()) == "graph" and kept.get(key(16)) is None


def test_the_one_that_was_not_used_longest_goes() -> None:
    kept: GraphCache[str] = GraphCache(max_size=2)
    for rows in (8, 16):
        kept.evict_oldest()
        kept.put(key(rows), str(rows))
    kept.get(key(8))
    kept.evict_oldest()
    kept.put(key(24), "24")
    assert len(kept) == 2
    assert [kept.get(key(rows)) for rows in (8, 16, 24)] == ["8", None, "24"]


def test_recordings_go_with_the_tensors_they_were_made_of() -> None:
    kept: GraphCache[str] = GraphCache()
    for one in (key(8), key(16), key(8, generation=5, capacity=512)):
        kept.put(one, "graph")
    kept.drop_stale(key(8, generation=2))
    assert len(kept) == 1
    assert kept.get(key(8, generation=5, capacity=512)) == "graph"
    assert not kept.should_capture(key(8, generation=2))


def test_what_was_seen_is_not_kept_for_ever() -> None:
    kept: GraphCache[str] = GraphCache()
    for generation in range(5000):
        assert not kept.should_capture(key(generation=generation))
    assert len(kept._seen) <= 1024
