"""Chooses the GPUs of a replica. Pure.

An engine's memory estimate counts GPUs from 0 for itself: its "gpu0" is the replica's first GPU, whichever that is on
the host. A placement lists the host's GPUs in that order. Besides memory, each GPU has a share: a replica that was
given whole GPUs takes all of it, so that no other replica is placed there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import TypeAlias

WHOLE_GPU = 1000  # shares are counted in thousandths of a GPU
_MAX_CANDIDATES = 2000  # placements to compare for one replica
_MAX_SEARCH_STEPS = 5000  # of a joint placement: enough for 6 replicas on 4 GPUs

PoolBytes: TypeAlias = Mapping[str, int]  # by pool: "ram", "gpu0", "gpu0.share", …
Placement: TypeAlias = tuple[int, ...]  # indexes of the host's GPUs, by rank


@dataclass(frozen=True, slots=True)
class GpuNeed:
    """What one replica takes of GPUs."""

    bytes_by_rank: tuple[int, ...]  # one GPU each
    share: int = 1  # of each GPU; WHOLE_GPU: it has them to itself
    only: Placement = ()  # the configured GPUs; empty: any

    @property
    def count(self) -> int:
        return len(self.bytes_by_rank)

    def to_pools(self, placement: Placement) -> dict[str, int]:
        """Return what it takes of each pool of the host when it is placed there."""
        pools = {name_pool(gpu): amount for gpu, amount in zip(placement, self.bytes_by_rank, strict=True)}
        return pools | {name_share(gpu): self.share for gpu in placement}


@dataclass(frozen=True, slots=True)
class GpuLinks:
    """Which GPUs of the host are joined by a fast link, as pairs in ascending order."""

    pairs: frozenset[tuple[int, int]] = frozenset()

    def count_missing(self, placement: Placement) -> int:
        """Return how many pairs of these GPUs are not linked."""
        return sum(pair not in self.pairs for pair in combinations(sorted(placement), 2))


def name_pool(gpu: int) -> str:
    return f"gpu{gpu}"


def name_share(gpu: int) -> str:
    return f"gpu{gpu}.share"


def list_gpus(capacity: PoolBytes) -> list[int]:
    """Return the indexes of the GPUs that have a memory pool."""
    return sorted(int(pool[3:]) for pool in capacity if pool.startswith("gpu") and pool[3:].isdigit())


def rank_placements(
    need: GpuNeed, capacity: PoolBytes, held: PoolBytes, links: GpuLinks | None = None
) -> list[Placement]:
    """Return the placements that fit beside what is held, best first.

    Linked GPUs come first, then those that are left with the least memory: large gaps stay for large models.
    """
    fitting = [
        placement for placement in _iter_candidates(need, capacity) if _fits(need.to_pools(placement), capacity, held)
    ]
    links = links or GpuLinks()
    left = {gpu: capacity[name_pool(gpu)] - held.get(name_pool(gpu), 0) for gpu in list_gpus(capacity)}
    return sorted(fitting, key=lambda it: (links.count_missing(it), sum(left[gpu] for gpu in it), it))


def place_jointly(
    needs: Sequence[tuple[str, GpuNeed]], capacity: PoolBytes, held: PoolBytes, links: GpuLinks | None = None
) -> dict[str, Placement]:
    """Place as many replicas as possible together, the first of the list before all others.

    Searches all combinations, best placements first, within a bounded number of steps. One replica after the other
    would miss fits: 4 + 4 + 6 + 6 GiB on two GPUs of 10 GiB fit only as 4 + 6 each.
    """
    search = _JointSearch(needs, capacity, links)
    search.descend(0, dict(held), {})
    return search.best


class _JointSearch:
    def __init__(self, needs: Sequence[tuple[str, GpuNeed]], capacity: PoolBytes, links: GpuLinks | None) -> None:
        self._needs = needs
        self._capacity = capacity
        self._links = links
        self._steps = 0
        self.best: dict[str, Placement] = {}

    def descend(self, depth: int, held: dict[str, int], placed: dict[str, Placement]) -> bool:
        """Place the replicas from `depth` on. Return whether all of them were placed."""
        if len(placed) > len(self.best):
            self.best = dict(placed)
        if depth == len(self._needs):
            return True
        name, need = self._needs[depth]
        for placement in self._drop_equivalent(rank_placements(need, self._capacity, held, self._links), held):
            self._steps += 1
            if self._steps > _MAX_SEARCH_STEPS:
                return False
            after = add_pools(held, need.to_pools(placement))
            if self.descend(depth + 1, after, {**placed, name: placement}):
                return True
        return False

    def _drop_equivalent(self, placements: Sequence[Placement], held: PoolBytes) -> Iterator[Placement]:
        """Yield one of all placements on GPUs in the same state: empty GPUs of one size, unless links differ."""
        seen: set[tuple[object, ...]] = set()
        for placement in placements:
            state = tuple(self._describe(gpu, held) for gpu in placement)
            if state not in seen:
                seen.add(state)
                yield placement

    def _describe(self, gpu: int, held: PoolBytes) -> tuple[object, ...]:
        pool, share = name_pool(gpu), name_share(gpu)
        configured = any(gpu in need.only for _, need in self._needs)
        linked = self._links is not None and any(gpu in pair for pair in self._links.pairs)
        return self._capacity[pool], held.get(pool, 0), held.get(share, 0), gpu if configured or linked else -1


def add_pools(held: PoolBytes, extra: PoolBytes) -> dict[str, int]:
    return {**held, **{pool: held.get(pool, 0) + amount for pool, amount in extra.items()}}


def remap_pools(pools: Mapping[str, int], placement: Placement) -> dict[str, int]:
    """Return an engine's estimate with its own GPUs replaced by those of the placement."""
    names = {name_pool(rank): name_pool(gpu) for rank, gpu in enumerate(placement)}
    return {names.get(pool, pool): amount for pool, amount in pools.items()}


def _iter_candidates(need: GpuNeed, capacity: PoolBytes) -> Iterator[Placement]:
    gpus = list_gpus(capacity)
    if need.only:
        if set(need.only) <= set(gpus):
            yield need.only
        return
    for number, placement in enumerate(combinations(gpus, need.count)):
        if number == _MAX_CANDIDATES:
            return
        yield placement


def _fits(extra: PoolBytes, capacity: PoolBytes, held: PoolBytes) -> bool:
    return all(held.get(pool, 0) + amount <= capacity.get(pool, 0) for pool, amount in extra.items())
