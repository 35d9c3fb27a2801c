"""Chooses the GPUs of a replica. Pure.

An engine's memory estimate counts GPUs from 0 for itself: its "gpu0" is the replica's first GPU, whichever that is on
the host. A placement lists the host's GPUs in that order. Besides memory, each GPU has a share: a replica that was
given whole GPUs takes all of it, so that no other replica is placed there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations, islice, permutations
from typing import TypeAlias

WHOLE_GPU = 1000  # shares are counted in thousandths of a GPU
_MAX_CANDIDATES = 100  # placements to compare for one replica, of each group of GPUs
_MAX_SEARCH_STEPS = 2000  # of a joint placement: enough for 6 replicas on 4 GPUs

PoolBytes: TypeAlias = Mapping[str, int]  # by pool: "ram", "gpu0", "gpu0.share", …
Placement: TypeAlias = tuple[int, ...]  # indexes of the host's GPUs, by rank


@dataclass(frozen=True, slots=True)
class GpuNeed:
    """What one replica takes of GPUs."""

    bytes_by_rank: tuple[int, ...]  # one GPU each; 0: it sees this GPU and does not use it
    share: int = 1  # of each GPU; WHOLE_GPU: it has them to itself
    only: Placement = ()  # the configured GPUs; empty: any

    @property
    def count(self) -> int:
        return len(self.bytes_by_rank)

    def to_pools(self, placement: Placement) -> dict[str, int]:
        """Return what it takes of each pool of the host when it is placed there."""
        used = [(gpu, amount) for gpu, amount in zip(placement, self.bytes_by_rank, strict=True) if amount]
        return {name_pool(gpu): amount for gpu, amount in used} | {name_share(gpu): self.share for gpu, _ in used}

    def list_used(self, placement: Placement) -> Placement:
        """Return the GPUs of a placement that it computes on."""
        return tuple(gpu for gpu, amount in zip(placement, self.bytes_by_rank, strict=True) if amount)


@dataclass(frozen=True, slots=True)
class GpuLinks:
    """Which GPUs of the host are joined by a fast link, as pairs in ascending order."""

    pairs: frozenset[tuple[int, int]] = frozenset()

    def count_missing(self, placement: Placement) -> int:
        """Return how many pairs of these GPUs are not linked; 0 on a host without links."""
        if not self.pairs:
            return 0
        return sum(pair not in self.pairs for pair in combinations(sorted(placement), 2))

    def list_groups(self, gpus: Sequence[int]) -> list[list[int]]:
        """Return each GPU with those it is linked to, once per group, in the given order."""
        groups = ([other for other in gpus if other == gpu or self._has(gpu, other)] for gpu in gpus)
        return [list(group) for group in dict.fromkeys(map(tuple, groups))]

    def _has(self, one: int, other: int) -> bool:
        return (min(one, other), max(one, other)) in self.pairs


def name_pool(gpu: int) -> str:
    return f"gpu{gpu}"


def name_share(gpu: int) -> str:
    return f"gpu{gpu}.share"


@lru_cache(maxsize=4096)
def parse_pool(pool: str) -> int | None:
    """Return the GPU of a memory pool; None for RAM, shares and slots."""
    return int(pool[3:]) if pool.startswith("gpu") and pool[3:].isdigit() else None


def list_gpus(capacity: PoolBytes) -> list[int]:
    """Return the indexes of the GPUs that have a memory pool."""
    return sorted(gpu for gpu in map(parse_pool, capacity) if gpu is not None)


def add_shares(memory: PoolBytes) -> dict[str, int]:
    """Return the capacity of a host with one share per GPU."""
    return {**memory, **{name_share(gpu): WHOLE_GPU for gpu in list_gpus(memory)}}


def rank_placements(
    need: GpuNeed,
    capacity: PoolBytes,
    held: PoolBytes,
    links: GpuLinks | None = None,
    costs: Mapping[int, float] | None = None,
) -> list[Placement]:
    """Return the placements that fit beside what is held, best first.

    Those of the lowest `costs` come first, then linked GPUs, then those that are left with the least memory: large gaps
    stay for large models.
    """
    left = {gpu: capacity[name_pool(gpu)] - held.get(name_pool(gpu), 0) for gpu in list_gpus(capacity)}
    links, costs = links or GpuLinks(), costs or {}
    tightest = sorted(left, key=lambda gpu: (costs.get(gpu, 0), left[gpu], gpu))
    candidates = _iter_candidates(need, tightest, capacity, held, links)

    def rank(placement: Placement) -> tuple[object, ...]:
        cost = sum(costs.get(gpu, 0) for gpu in placement) if costs else 0
        return cost, links.count_missing(placement), sum(left[gpu] for gpu in placement), placement

    return sorted(candidates, key=rank)


def _iter_candidates(
    need: GpuNeed, gpus: Sequence[int], capacity: PoolBytes, held: PoolBytes, links: GpuLinks
) -> Iterator[Placement]:
    """Yield placements that fit: those of the linked groups, then any, within a limit each."""
    if need.only:
        if _fits(need.to_pools(need.only), capacity, held):
            yield need.only
        return
    least = GpuNeed((min(need.bytes_by_rank),), need.share)
    able = [gpu for gpu in gpus if _fits(least.to_pools((gpu,)), capacity, held)]
    alike = len(set(need.bytes_by_rank)) == 1
    groups = [*links.list_groups(able), able] if need.count > 1 else [able]
    seen: set[Placement] = set()
    for group in groups:
        chosen = combinations(group, need.count) if alike else permutations(group, need.count)
        for gpus_by_rank in islice(chosen, _MAX_CANDIDATES):
            placement = tuple(sorted(gpus_by_rank)) if alike else gpus_by_rank
            if placement in seen:
                continue
            seen.add(placement)
            if alike or _fits(need.to_pools(placement), capacity, held):
                yield placement


def place_jointly(
    needs: Sequence[tuple[str, GpuNeed]], capacity: PoolBytes, held: PoolBytes, links: GpuLinks | None = None
) -> dict[str, Placement]:
    """Place as many replicas as possible together, those at the front of the list first.

    Searches all combinations, best placements first, within a bounded number of steps. One replica after the other
    would miss fits: 4 + 4 + 6 + 6 GiB on two GPUs of 10 GiB fit only as 4 + 6 each.
    """
    search = _JointSearch(_drop_hopeless(needs, capacity, held), capacity, links)
    search.descend(0, dict(held), {})
    return search.best


def _drop_hopeless(
    needs: Sequence[tuple[str, GpuNeed]], capacity: PoolBytes, held: PoolBytes
) -> Sequence[tuple[str, GpuNeed]]:
    """Return the first replicas, as many as the free memory of all GPUs could hold."""
    pools = [name_pool(gpu) for gpu in list_gpus(capacity)]
    free = sum(max(0, capacity[pool] - held.get(pool, 0)) for pool in pools)
    for number, (_, need) in enumerate(needs):
        free -= sum(need.bytes_by_rank)
        if free < 0:
            return needs[:number]
    return needs


class _JointSearch:
    def __init__(self, needs: Sequence[tuple[str, GpuNeed]], capacity: PoolBytes, links: GpuLinks | None) -> None:
        self._needs = needs
        self._capacity = capacity
        self._gpus = list_gpus(capacity)
        self._configured = {gpu for _, need in needs for gpu in need.only}
        self._links = links
        self._steps = 0
        self._failed: set[tuple[object, ...]] = set()
        self.best: dict[str, Placement] = {}

    def descend(self, depth: int, held: dict[str, int], placed: dict[str, Placement]) -> bool:
        """Place the replicas from `depth` on. Return whether all of them were placed."""
        if len(placed) > len(self.best):
            self.best = dict(placed)
        if depth == len(self._needs):
            return True
        state = (depth, *sorted(self._describe(gpu, held) for gpu in self._gpus))
        if state in self._failed:
            return False
        name, need = self._needs[depth]
        for placement in self._drop_equivalent(rank_placements(need, self._capacity, held, self._links), held):
            self._steps += 1
            if self._steps > _MAX_SEARCH_STEPS:
                return False
            after = add_pools(held, need.to_pools(placement))
            if self.descend(depth + 1, after, {**placed, name: placement}):
                return True
        self._failed.add(state)
        return False

    def _drop_equivalent(self, placements: Sequence[Placement], held: PoolBytes) -> Iterator[Placement]:
        """Yield one of all placements on GPUs in the same state, such as empty ones of one size: the best linked."""
        seen: set[tuple[object, ...]] = set()
        for placement in placements:
            state = tuple(self._describe(gpu, held) for gpu in placement)
            if state not in seen:
                seen.add(state)
                yield placement

    def _describe(self, gpu: int, held: PoolBytes) -> tuple[int, ...]:
        pool, share = name_pool(gpu), name_share(gpu)
        return (
            self._capacity[pool],
            held.get(pool, 0),
            held.get(share, 0),
            gpu if gpu in self._configured else -1,
        )


def add_pools(held: PoolBytes, extra: PoolBytes) -> dict[str, int]:
    return {**held, **{pool: held.get(pool, 0) + amount for pool, amount in extra.items()}}


def remap_pools(pools: PoolBytes, placement: Placement) -> dict[str, int]:
    """Return an engine's estimate with its own GPUs replaced by those of the placement."""
    names = {name_pool(rank): name_pool(gpu) for rank, gpu in enumerate(placement)}
    return {names.get(pool, pool): amount for pool, amount in pools.items()}


def _fits(extra: PoolBytes, capacity: PoolBytes, held: PoolBytes) -> bool:
    return all(held.get(pool, 0) + amount <= capacity.get(pool, 0) for pool, amount in extra.items())
