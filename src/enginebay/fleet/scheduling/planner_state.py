"""Inputs and outputs of the planner, and its memory account."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Literal, TypeAlias

from enginebay.fleet.scheduling.device_placement import (
    GpuLinks,
    GpuNeed,
    Placement,
    PoolBytes,
    add_shares,
    rank_placements,
)

# A pool with one slot per awake replica, so that `max_awake` is accounted like memory.
_AWAKE_SLOTS = "slots"


class ReplicaState(StrEnum):
    AWAKE = "awake"
    ASLEEP = "asleep"  # the worker stays and accepts no requests
    COLD = "cold"  # no process


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaSnapshot:
    """A replica as the planner sees it."""

    name: str
    state: ReplicaState  # in transition: the target state
    in_transition: bool = False  # no action is possible
    # Only in transition. None: it may hold the larger of its awake and asleep memory.
    previous_state: ReplicaState | None = None
    awake_bytes: PoolBytes  # without GPUs while it has no placement
    asleep_bytes: PoolBytes | None  # None: it cannot sleep
    gpu_need: GpuNeed | None = None  # None: it uses no GPU
    placement: Placement | None = None  # its GPUs; None while cold
    evicts: bool = True  # False: it loads only into free memory
    pinned: bool = False
    awake_slots: int = 1  # its share of `max_awake`; remote engines take none
    running: int = 0  # requests in flight
    awaiting_arrivals: bool = False  # just loaded, and not all requests it was loaded for have arrived
    draining: bool = False  # accepts no new requests
    awake_since: float = 0.0
    idle_since: float = 0.0  # end of its last request, or of its last transition
    idle_s: float | None = None  # unload after this idle time
    min_residency_s: float = 0.0
    time_to_ready_s: float = 0.0  # estimated, until awake; for an awake replica: to load it again
    retry_at: float = 0.0  # no load before this time, after a failure
    recovering: bool = False  # crashed while awake: reloads in parallel with other loads

    @property
    def serving(self) -> bool:
        """Whether it accepts requests."""
        return self.state is ReplicaState.AWAKE and not self.in_transition and not self.draining

    @property
    def unplaced(self) -> bool:
        """Whether its GPUs have to be chosen before it loads."""
        return self.gpu_need is not None and self.placement is None

    def place(self, placement: Placement) -> ReplicaSnapshot:
        assert self.gpu_need is not None
        return replace(self, placement=placement, awake_bytes={**self.awake_bytes, **self.gpu_need.to_pools(placement)})

    def displace(self) -> ReplicaSnapshot:
        """Return it without a placement, as after it was unloaded."""
        if self.placement is None or self.gpu_need is None:
            return self
        pools = self.gpu_need.to_pools(self.placement)
        left = {pool: amount for pool, amount in self.awake_bytes.items() if pool not in pools}
        return replace(self, placement=None, awake_bytes=left)

    @property
    def min_residency_until(self) -> float:
        return self.awake_since + self.min_residency_s if self.state is ReplicaState.AWAKE else 0.0


@dataclass(frozen=True, slots=True)
class WaitingRequest:
    id: int
    model: str
    waiting_since: float
    deadline: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannerLimits:
    max_awake: int | None = None
    parallel_loads: int = 1
    links: GpuLinks = field(default_factory=GpuLinks)
    place_together: bool = True  # leave room for the other awaited models; an estimate does without


@dataclass(frozen=True, slots=True)
class Transition:
    name: str
    to: ReplicaState
    placement: Placement | None = None  # of a load on GPUs
    reason: str = ""  # for this placement


@dataclass(frozen=True, slots=True)
class Drain:
    """Stop accepting requests. A later plan evicts the replica once it is idle."""

    name: str


@dataclass(frozen=True, slots=True)
class CancelDrain:
    """Accept requests again."""

    name: str


@dataclass(frozen=True, slots=True)
class Reject:
    id: int
    reason: Literal["deadline", "memory"]
    retry_after_s: float  # 0: a retry does not help


PlannerAction: TypeAlias = Transition | Drain | CancelDrain | Reject


def get_memory_in_state(replica: ReplicaSnapshot, state: ReplicaState) -> dict[str, int]:
    """Return the memory a replica holds in a state, by pool."""
    if state is ReplicaState.COLD:
        return {}
    if state is ReplicaState.ASLEEP and replica.asleep_bytes is not None:
        return dict(replica.asleep_bytes)
    return {**replica.awake_bytes, _AWAKE_SLOTS: replica.awake_slots}


def compute_extra_memory(replica: ReplicaSnapshot, to: ReplicaState) -> dict[str, int]:
    """Return the memory a transition adds to what the replica holds. Pools that shrink are left out."""
    held = get_memory_in_state(replica, replica.state)
    return {
        pool: amount - held.get(pool, 0)
        for pool, amount in get_memory_in_state(replica, to).items()
        if amount > held.get(pool, 0)
    }


def _compute_transition_memory(replica: ReplicaSnapshot) -> dict[str, int]:
    """Return the memory held during a transition: per pool the larger of before and after."""
    held = get_memory_in_state(replica, replica.state)
    before = [replica.previous_state] if replica.previous_state else [ReplicaState.AWAKE, ReplicaState.ASLEEP]
    for state in before:
        for pool, amount in get_memory_in_state(replica, state).items():
            held[pool] = max(held.get(pool, 0), amount)
    return held


class MemoryAccount:
    """The memory each replica holds, updated while a plan is built."""

    def __init__(self, memory: PoolBytes, replicas: Iterable[ReplicaSnapshot], limits: PlannerLimits) -> None:
        slots = sys.maxsize if limits.max_awake is None else limits.max_awake
        self.capacity = {**add_shares(memory), _AWAKE_SLOTS: slots}
        self.links = limits.links
        self.replicas = {replica.name: replica for replica in replicas}
        self.held: dict[str, int] = {}
        self.settled: dict[str, int] = {}  # once all transitions have finished
        for replica in self.replicas.values():
            self._add(replica, 1)

    @property
    def loading_count(self) -> int:
        return len(self._list_loading())

    def shares_gpu_with_load(self, replica: ReplicaSnapshot) -> bool:
        """Return whether another replica loads on one of its GPUs: an engine measures what is free while it loads."""
        return any(not set(replica.placement or ()).isdisjoint(other.placement or ()) for other in self._list_loading())

    def _list_loading(self) -> list[ReplicaSnapshot]:
        return [it for it in self.replicas.values() if it.in_transition and it.state is ReplicaState.AWAKE]

    def begin_transition(self, name: str, to: ReplicaState, placed: ReplicaSnapshot | None = None) -> None:
        before = self.replicas[name]
        self._add(before, -1)
        after = replace(placed or before, state=to, in_transition=True, previous_state=before.state)
        self.replicas[name] = after
        self._add(after, 1)

    def fits_now(self, extra: PoolBytes) -> bool:
        """Return whether `extra` fits. Pools over capacity matter only if they are in it."""
        return all(self.held.get(pool, 0) + amount <= self.capacity.get(pool, 0) for pool, amount in extra.items())

    def find_room(self, replica: ReplicaSnapshot) -> ReplicaSnapshot | None:
        """Return the replica placed where it fits now; None if it does not."""
        for candidate in self._iter_placed(replica, self.held):
            if self.fits_now(compute_extra_memory(candidate, ReplicaState.AWAKE)):
                return candidate
        return None

    def can_ever_fit(self, replica: ReplicaSnapshot) -> bool:
        """Return whether the replica fits if only pinned replicas stay. One that sleeps may reload on other GPUs."""
        return self.can_fit_in_place(replica) or (
            replica.state is ReplicaState.ASLEEP
            and replica.placement is not None
            and self.can_fit_in_place(replace(replica, state=ReplicaState.COLD).displace())
        )

    def can_fit_in_place(self, replica: ReplicaSnapshot) -> bool:
        """Return whether the replica fits if only pinned replicas stay, on the GPUs it has if it has any."""
        pinned = self.sum_pinned(replica.name)
        for candidate in self._iter_placed(replica, pinned):
            awake = get_memory_in_state(candidate, ReplicaState.AWAKE)
            extra = compute_extra_memory(candidate, ReplicaState.AWAKE)
            if all(pinned.get(pool, 0) + awake[pool] <= self.capacity.get(pool, 0) for pool in extra):
                return True
        return False

    def has_gpus_for(self, replica: ReplicaSnapshot) -> bool:
        """Return whether GPUs could hold it if only pinned replicas stay."""
        return any(True for _ in self._iter_placed(replica, self.sum_pinned(replica.name)))

    def sum_pinned(self, besides: str) -> dict[str, int]:
        """Return the memory of all pinned replicas but one: no eviction frees it."""
        held: dict[str, int] = {}
        for other in self.replicas.values():
            if other.pinned and other.name != besides:
                for pool, amount in get_memory_in_state(other, other.state).items():
                    held[pool] = held.get(pool, 0) + amount
        return held

    def _iter_placed(self, replica: ReplicaSnapshot, held: PoolBytes) -> Iterator[ReplicaSnapshot]:
        """Yield the replica on each placement that fits; itself if it needs none."""
        if not replica.unplaced or replica.gpu_need is None:
            return iter([replica])
        return map(replica.place, rank_placements(replica.gpu_need, self.capacity, held, self.links))

    def _add(self, replica: ReplicaSnapshot, sign: int) -> None:
        settled = get_memory_in_state(replica, replica.state)
        for total, part in (
            (self.held, _compute_transition_memory(replica) if replica.in_transition else settled),
            (self.settled, settled),
        ):
            for pool, amount in part.items():
                total[pool] = total.get(pool, 0) + sign * amount
