"""Who has to make room for a model, and how deep each of them goes: as few and as little as is enough."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass

from enginebay.fleet.scheduling.planner_state import (
    MemoryAccount,
    PoolBytes,
    ReplicaSnapshot,
    ReplicaState,
    compute_extra_memory,
    get_memory_in_state,
)


@dataclass(frozen=True, slots=True)
class EvictionPlan:
    """What makes enough room: how deep each goes, and the account when all have arrived there."""

    targets: Mapping[str, ReplicaState]
    memory_after: PoolBytes
    executable: bool  # False: somebody in it cannot be asked yet, so nobody is


def plan_eviction(
    now: float, account: MemoryAccount, replica: ReplicaSnapshot, awaited: Set[str], reserved: Set[str]
) -> EvictionPlan:
    """The cheapest room for `model` to be awake. `wanted`: others wait for these; `kept`: older requests hold these."""
    more = compute_extra_memory(replica, ReplicaState.AWAKE)
    tiers = _rank_candidates(
        now, [other for other in account.replicas.values() if other.name != replica.name], awaited, reserved
    )
    later = {other.name for other in tiers[-1]}
    candidates: list[ReplicaSnapshot] = []
    for tier in tiers:
        candidates += tier
        attempt = _EvictionSearch(account, more)
        if attempt.search(candidates):
            targets = {one.name: attempt.targets[one.name] for one in candidates if one.name in attempt.targets}
            return EvictionPlan(targets, attempt.settled, later.isdisjoint(targets))
    return EvictionPlan({}, account.settled, executable=False)


def _rank_candidates(
    now: float, others: Sequence[ReplicaSnapshot], awaited: Set[str], reserved: Set[str]
) -> list[list[ReplicaSnapshot]]:
    """Candidates in the order they are drawn on, each tier only when those before are not enough.

    A closed model keeps its place whoever waits for it: else requests for two busy models would have the planner close
    one and open the other for ever, and neither would drain.
    """
    idle: list[ReplicaSnapshot] = []
    busy: list[ReplicaSnapshot] = []
    idle_wanted: list[ReplicaSnapshot] = []
    busy_wanted: list[ReplicaSnapshot] = []
    later: list[ReplicaSnapshot] = []
    for other in others:
        if other.pinned or other.state is ReplicaState.COLD:
            continue
        if other.in_transition or other.name in reserved or now < other.min_residency_until:
            later.append(other)
        elif other.running == 0:
            (idle_wanted if other.name in awaited and not other.draining else idle).append(other)
        elif other.state is ReplicaState.AWAKE:
            (busy_wanted if other.name in awaited and not other.draining else busy).append(other)
        else:
            later.append(other)  # asleep, and something still runs: it cannot stay so
    for tier in (idle, idle_wanted):
        tier.sort(key=lambda it: (it.idle_since, it.name))
    for tier in (busy, busy_wanted):  # those who are on their way out first, then who is likely to be free soonest
        tier.sort(key=lambda it: (not it.draining, it.running, it.awake_since, it.name))
    later.sort(key=lambda it: (it.name in reserved, it.in_transition, it.min_residency_until, it.name))
    return [idle, busy, idle_wanted, busy_wanted, later]


class _EvictionSearch:
    """One search for a sufficient set among given candidates."""

    def __init__(self, account: MemoryAccount, more: PoolBytes) -> None:
        self._capacity = account.capacity
        self._before = account.settled
        self._extra = more
        self.settled = dict(account.settled)
        self.targets: dict[str, ReplicaState] = {}

    def search(self, candidates: Sequence[ReplicaSnapshot]) -> bool:
        """Lowers the first ones first, until there is room; False: all of them are not enough."""
        self._sleep_candidates(candidates)
        self._unload_candidates(candidates)
        if self._find_short_pools():
            return False
        self._undo_unneeded(candidates)
        return True

    def _sleep_candidates(self, candidates: Sequence[ReplicaSnapshot]) -> None:
        for model in candidates:
            short = self._find_short_pools()
            if not short:
                return
            if _can_sleep(model) and _would_free(model, ReplicaState.AWAKE, ReplicaState.ASLEEP, short):
                self._set_target(model, ReplicaState.ASLEEP)

    def _unload_candidates(self, candidates: Sequence[ReplicaSnapshot]) -> None:
        for model in candidates:
            short = self._find_short_pools()
            if not short:
                return
            if _would_free(model, self._get_target(model), ReplicaState.COLD, short):
                self._set_target(model, ReplicaState.COLD)

    def _undo_unneeded(self, candidates: Sequence[ReplicaSnapshot]) -> None:
        """Takes back what turned out not to be needed, the last ones first."""
        for model in reversed(candidates):
            target = self._get_target(model)
            if target is model.state:
                continue
            milder = [model.state]
            if target is ReplicaState.COLD and _can_sleep(model):
                milder.append(ReplicaState.ASLEEP)
            for depth in milder:
                self._set_target(model, depth)
                if not self._find_short_pools():
                    break
                self._set_target(model, target)

    def _find_short_pools(self) -> set[str]:
        """Pools without enough room. What nobody here adds to is no concern, even if it is over its memory."""
        short = set()
        for pool, amount in self.settled.items():
            more = self._extra.get(pool, 0)
            grows = more > 0 or amount > self._before.get(pool, 0)
            if grows and amount + more > self._capacity.get(pool, 0):
                short.add(pool)
        for pool, more in self._extra.items():
            if pool not in self.settled and more > self._capacity.get(pool, 0):
                short.add(pool)
        return short

    def _get_target(self, replica: ReplicaSnapshot) -> ReplicaState:
        return self.targets.get(replica.name, replica.state)

    def _set_target(self, replica: ReplicaSnapshot, state: ReplicaState) -> None:
        for sign, level in ((-1, self._get_target(replica)), (1, state)):
            for pool, amount in get_memory_in_state(replica, level).items():
                self.settled[pool] = self.settled.get(pool, 0) + sign * amount
        self.targets[replica.name] = state
        if state is replica.state:
            del self.targets[replica.name]


def _can_sleep(replica: ReplicaSnapshot) -> bool:
    return replica.state is ReplicaState.AWAKE and replica.asleep_bytes is not None


def _would_free(replica: ReplicaSnapshot, current: ReplicaState, target: ReplicaState, pools: Set[str]) -> bool:
    has, keeps = get_memory_in_state(replica, current), get_memory_in_state(replica, target)
    return any(has.get(pool, 0) > keeps.get(pool, 0) for pool in pools)
