"""Eviction: finds the cheapest set of replicas to sleep or unload so that another one fits into memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass

from enginebay.fleet.scheduling.device_placement import PoolBytes
from enginebay.fleet.scheduling.planner_state import (
    MemoryAccount,
    ReplicaSnapshot,
    ReplicaState,
    compute_extra_memory,
    get_memory_in_state,
)


@dataclass(frozen=True, slots=True)
class EvictionPlan:
    """The target state of each evicted replica, and the memory in use afterwards."""

    targets: Mapping[str, ReplicaState]
    memory_after: PoolBytes
    executable: bool  # False: one of them cannot be evicted yet, so none is
    tier: int  # of the replica that is hardest to evict


def plan_eviction(
    now: float, account: MemoryAccount, replica: ReplicaSnapshot, awaited: Set[str], reserved: Set[str]
) -> EvictionPlan:
    """Find the cheapest eviction that lets `replica` be awake.

    `awaited`: models with waiting requests; `reserved`: models held for older requests.
    """
    extra = compute_extra_memory(replica, ReplicaState.AWAKE)
    tiers = _rank_candidates(
        now, [other for other in account.replicas.values() if other.name != replica.name], awaited, reserved
    )
    later = {other.name for other in tiers[-1]}
    candidates: list[ReplicaSnapshot] = []
    for number, tier in enumerate(tiers):
        candidates += tier
        search = _EvictionSearch(account, extra)
        if search.search(candidates):
            targets = {other.name: search.targets[other.name] for other in candidates if other.name in search.targets}
            return EvictionPlan(targets, search.settled, later.isdisjoint(targets), number)
    return EvictionPlan({}, account.settled, executable=False, tier=len(tiers))


def _rank_candidates(
    now: float, others: Sequence[ReplicaSnapshot], awaited: Set[str], reserved: Set[str]
) -> list[list[ReplicaSnapshot]]:
    """Return candidates in tiers. A tier is used only if the tiers before it do not free enough.

    A draining replica keeps its tier even if requests wait for it. Otherwise requests for two busy models would make
    the planner drain one and cancel the other forever, and neither would drain.
    """
    idle: list[ReplicaSnapshot] = []
    busy: list[ReplicaSnapshot] = []
    idle_awaited: list[ReplicaSnapshot] = []
    busy_awaited: list[ReplicaSnapshot] = []
    later: list[ReplicaSnapshot] = []
    for other in others:
        if other.pinned or other.state is ReplicaState.COLD:
            continue
        if other.in_transition or other.name in reserved or now < other.min_residency_until:
            later.append(other)
        elif other.running == 0:
            (idle_awaited if other.name in awaited and not other.draining else idle).append(other)
        elif other.state is ReplicaState.AWAKE:
            (busy_awaited if other.name in awaited and not other.draining else busy).append(other)
        else:
            later.append(other)  # asleep with running requests: a transient state
    for tier in (idle, idle_awaited):
        tier.sort(key=lambda it: (it.idle_since, it.name))
    for tier in (busy, busy_awaited):  # draining ones first, then those likely to be free soonest
        tier.sort(key=lambda it: (not it.draining, it.running, it.awake_since, it.name))
    later.sort(key=lambda it: (it.name in reserved, it.in_transition, it.min_residency_until, it.name))
    return [idle, busy, idle_awaited, busy_awaited, later]


class _EvictionSearch:
    """One search for a sufficient set among the given candidates."""

    def __init__(self, account: MemoryAccount, extra: PoolBytes) -> None:
        self._capacity = account.capacity
        self._before = account.settled
        self._extra = extra
        self.settled = dict(account.settled)
        self.targets: dict[str, ReplicaState] = {}

    def search(self, candidates: Sequence[ReplicaSnapshot]) -> bool:
        """Evict candidates in order until enough memory is free. Return False if all of them free too little."""
        self._sleep_candidates(candidates)
        self._unload_candidates(candidates)
        if self._find_short_pools():
            return False
        self._undo_unneeded(candidates)
        return True

    def _sleep_candidates(self, candidates: Sequence[ReplicaSnapshot]) -> None:
        for replica in candidates:
            short = self._find_short_pools()
            if not short:
                return
            if _can_sleep(replica) and _would_free(replica, ReplicaState.AWAKE, ReplicaState.ASLEEP, short):
                self._set_target(replica, ReplicaState.ASLEEP)

    def _unload_candidates(self, candidates: Sequence[ReplicaSnapshot]) -> None:
        for replica in candidates:
            short = self._find_short_pools()
            if not short:
                return
            if _would_free(replica, self._get_target(replica), ReplicaState.COLD, short):
                self._set_target(replica, ReplicaState.COLD)

    def _undo_unneeded(self, candidates: Sequence[ReplicaSnapshot]) -> None:
        """Undo evictions that turned out to be unnecessary, the last ones first."""
        for replica in reversed(candidates):
            target = self._get_target(replica)
            if target is replica.state:
                continue
            milder = [replica.state]
            if target is ReplicaState.COLD and _can_sleep(replica):
                milder.append(ReplicaState.ASLEEP)
            for state in milder:
                self._set_target(replica, state)
                if not self._find_short_pools():
                    break
                self._set_target(replica, target)

    def _find_short_pools(self) -> set[str]:
        """Return the pools that lack memory. A pool that does not grow is ignored, even if it is over capacity."""
        short = set()
        for pool, amount in self.settled.items():
            extra = self._extra.get(pool, 0)
            grows = extra > 0 or amount > self._before.get(pool, 0)
            if grows and amount + extra > self._capacity.get(pool, 0):
                short.add(pool)
        for pool, extra in self._extra.items():
            if pool not in self.settled and extra > self._capacity.get(pool, 0):
                short.add(pool)
        return short

    def _get_target(self, replica: ReplicaSnapshot) -> ReplicaState:
        return self.targets.get(replica.name, replica.state)

    def _set_target(self, replica: ReplicaSnapshot, state: ReplicaState) -> None:
        for sign, counted in ((-1, self._get_target(replica)), (1, state)):
            for pool, amount in get_memory_in_state(replica, counted).items():
                self.settled[pool] = self.settled.get(pool, 0) + sign * amount
        self.targets[replica.name] = state
        if state is replica.state:
            del self.targets[replica.name]


def _can_sleep(replica: ReplicaSnapshot) -> bool:
    return replica.state is ReplicaState.AWAKE and replica.asleep_bytes is not None


def _would_free(replica: ReplicaSnapshot, current: ReplicaState, target: ReplicaState, pools: Set[str]) -> bool:
    before, after = get_memory_in_state(replica, current), get_memory_in_state(replica, target)
    return any(before.get(pool, 0) > after.get(pool, 0) for pool in pools)
