"""Placement on GPUs: examples, and random hosts beside a brute-force search."""

from __future__ import annotations

from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from enginebay.fleet.scheduling.device_placement import (
    WHOLE_GPU,
    GpuLinks,
    GpuNeed,
    add_pools,
    name_pool,
    name_share,
    place_jointly,
    rank_placements,
    remap_pools,
)


def make_host(*sizes: int) -> dict[str, int]:
    return {name_pool(gpu): size for gpu, size in enumerate(sizes)} | {
        name_share(gpu): WHOLE_GPU for gpu in range(len(sizes))
    }


def test_a_model_goes_where_the_least_memory_is_left() -> None:
    assert rank_placements(GpuNeed((4,)), make_host(10, 10, 10), {"gpu1": 5})[0] == (1,)


def test_a_model_never_goes_where_it_does_not_fit() -> None:
    assert rank_placements(GpuNeed((6,)), make_host(10, 10), {"gpu0": 5}) == [(1,)]
    assert rank_placements(GpuNeed((11,)), make_host(10, 10), {}) == []


def test_linked_gpus_come_first() -> None:
    links = GpuLinks(frozenset({(0, 2), (1, 3)}))
    ranked = rank_placements(GpuNeed((4, 4), WHOLE_GPU), make_host(10, 10, 10, 10), {}, links)
    assert ranked[:2] == [(0, 2), (1, 3)]


def test_whole_gpus_are_shared_with_nobody() -> None:
    host, held = make_host(10, 10), add_pools({}, GpuNeed((1,)).to_pools((0,)))
    assert rank_placements(GpuNeed((1,), WHOLE_GPU), host, held) == [(1,)]
    held = add_pools(held, GpuNeed((1,), WHOLE_GPU).to_pools((1,)))
    assert rank_placements(GpuNeed((1,)), host, held) == [(0,)]


def test_halves_share_one_gpu_and_a_third_half_does_not_fit() -> None:
    half, host = GpuNeed((4,), WHOLE_GPU // 2), make_host(10)
    held = add_pools(add_pools({}, half.to_pools((0,))), half.to_pools((0,)))
    assert rank_placements(half, host, held) == []


def test_configured_gpus_are_the_only_ones() -> None:
    assert rank_placements(GpuNeed((4,), only=(1,)), make_host(10, 10), {}) == [(1,)]
    assert rank_placements(GpuNeed((4,), only=(1,)), make_host(10, 10), {"gpu1": 8}) == []
    assert rank_placements(GpuNeed((4,), only=(5,)), make_host(10, 10), {}) == []


def test_replicas_are_placed_together() -> None:
    needs = [(name, GpuNeed((size,))) for name, size in zip("abcd", (4, 4, 6, 6), strict=True)]
    placed = place_jointly(needs, make_host(10, 10), {})
    assert sorted(placed) == ["a", "b", "c", "d"]
    assert placed["a"] != placed["b"] and placed["c"] != placed["d"]


def test_the_first_replicas_are_placed_when_not_all_fit() -> None:
    needs = [(name, GpuNeed((size,))) for name, size in zip("abc", (6, 6, 6), strict=True)]
    assert sorted(place_jointly(needs, make_host(10, 10), {})) == ["a", "b"]


def test_an_estimate_follows_the_placement() -> None:
    assert remap_pools({"ram": 1, "gpu0": 2, "gpu1": 3}, (4, 1)) == {"ram": 1, "gpu4": 2, "gpu1": 3}


NEED = st.builds(
    lambda sizes, whole: GpuNeed(tuple(sizes), WHOLE_GPU if whole or len(sizes) > 1 else 1),
    st.lists(st.integers(1, 10), min_size=1, max_size=2),
    st.booleans(),
)


def find_by_brute_force(needs: list[GpuNeed], host: dict[str, int], gpus: int) -> bool:
    """Try every placement of every need, in order."""
    if not needs:
        return True
    for placement in permutations(range(gpus), needs[0].count):
        left = {pool: host[pool] - needs[0].to_pools(placement).get(pool, 0) for pool in host}
        if min(left.values()) >= 0 and find_by_brute_force(needs[1:], left, gpus):
            return True
    return False


@given(st.lists(st.integers(5, 12), min_size=1, max_size=4), st.lists(NEED, min_size=1, max_size=6))
def test_a_fit_is_found_when_one_exists(sizes: list[int], needs: list[GpuNeed]) -> None:
    host = make_host(*sizes)
    placed = place_jointly([(str(number), need) for number, need in enumerate(needs)], host, {})
    held: dict[str, int] = {}
    for number, placement in placed.items():
        held = add_pools(held, needs[int(number)].to_pools(placement))
    assert all(amount <= host[pool] for pool, amount in held.items())
    assert (len(placed) == len(needs)) == find_by_brute_force(needs, host, len(sizes))


@pytest.mark.parametrize("count", [8, 16])
def test_many_gpus_do_not_take_long(count: int) -> None:
    host = make_host(*[80] * count)
    needs = [(str(number), GpuNeed((70,) * 4, WHOLE_GPU)) for number in range(count // 4)]
    assert len(place_jointly(needs, host, {})) == count // 4
