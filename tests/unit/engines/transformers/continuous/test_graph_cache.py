"""The cache of captured decode steps, and their padded sizes."""

from __future__ import annotations

from enginebay.engines.transformers.continuous.graph_cache import (
    GraphCache,
    GraphKey,
    pad_attended_length,
    pad_row_count,
)


def key(rows: int = 8, tensor_version: int = 1, capacity: int = 256) -> GraphKey:
    return GraphKey(capacity, tensor_version, rows, 256)


def test_few_padded_sizes_and_none_too_small() -> None:
    sizes = [pad_row_count(count, 1000) for count in range(1, 513)]
    assert all(size >= count for count, size in enumerate(sizes, start=1))
    assert sorted(set(sizes)) == [8, 16, 24, 32, 48, 64, 96, 128, 160, 192, 224, 256, 320, 384, 448, 512]


def test_padded_rows_do_not_exceed_the_bucket() -> None:
    assert [pad_row_count(count, 20) for count in (1, 8, 9, 17, 20)] == [8, 8, 16, 20, 20]


def test_a_bucket_has_at_most_four_attended_lengths() -> None:
    for capacity in (256, 512, 1024, 3000, 8192):
        lengths = {pad_attended_length(longest, capacity) for longest in range(1, capacity + 1)}
        assert len(lengths) <= 4 and max(lengths) == capacity
        assert all(pad_attended_length(longest, capacity) >= longest for longest in range(1, capacity + 1))


def test_a_step_is_captured_when_it_recurs() -> None:
    cache: GraphCache[str] = GraphCache()
    assert not cache.should_capture(key()) and cache.should_capture(key())
    assert not cache.should_capture(key(16))
    cache.put(key(), "graph")
    assert cache.get(key()) == "graph" and cache.get(key(16)) is None


def test_the_least_recently_used_graph_is_evicted() -> None:
    cache: GraphCache[str] = GraphCache(max_size=2)
    for rows in (8, 16):
        cache.evict_oldest()
        cache.put(key(rows), str(rows))
    cache.get(key(8))
    cache.evict_oldest()
    cache.put(key(24), "24")
    assert len(cache) == 2
    assert [cache.get(key(rows)) for rows in (8, 16, 24)] == ["8", None, "24"]


def test_graphs_of_replaced_tensors_are_dropped() -> None:
    cache: GraphCache[str] = GraphCache()
    for graph_key in (key(8), key(16), key(8, tensor_version=5, capacity=512)):
        cache.put(graph_key, "graph")
    cache.drop_stale(key(8, tensor_version=2))
    assert len(cache) == 1
    assert cache.get(key(8, tensor_version=5, capacity=512)) == "graph"
    assert not cache.should_capture(key(8, tensor_version=2))


def test_seen_keys_are_bounded() -> None:
    cache: GraphCache[str] = GraphCache()
    for tensor_version in range(5000):
        assert not cache.should_capture(key(tensor_version=tensor_version))
    assert len(cache._seen) <= 1024
