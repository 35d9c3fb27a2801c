"""What the plan of who stays loaded is made from, what it answers with, and the account of memory it keeps."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Literal, TypeAlias

PoolBytes: TypeAlias = Mapping[str, int]  # by pool: "ram", "gpu0", …

# Being awake takes one of these, so that `max_awake` is counted as memory is.
_AWAKE_SLOTS = "slots"


class ReplicaState(StrEnum):
    AWAKE = "awake"
    ASLEEP = "asleep"  # the worker is kept, its door closed
    COLD = "cold"  # no process


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaSnapshot:
    """One variant as the planner sees it."""

    name: str
    state: ReplicaState  # where it is; when `moving`, where it goes
    in_transition: bool = False  # on its way: nothing can be asked of it now
    previous_state: ReplicaState | None = (
        None  # when `moving`, where it was; unset: it may hold the larger of awake and asleep
    )
    awake_bytes: PoolBytes
    asleep_bytes: PoolBytes | None  # None: it cannot sleep
    pinned: bool = False
    awake_slots: int = 1  # of `max_awake` that it takes; what is computed elsewhere takes none
    running: int = 0  # requests in flight
    awaiting_arrivals: bool = False  # it was raised just now, and those it was raised for are not all there yet
    draining: bool = False  # we closed its door: it takes no new requests
    awake_since: float = 0.0
    idle_since: float = 0.0  # when its last request ended, or since it is awake or asleep
    idle_s: float | None = None  # after so long idle it is unloaded
    min_residency_s: float = 0.0
    time_to_ready_s: float = 0.0  # expected, from here to awake; of an awake one: to raise it again
    retry_at: float = 0.0  # after a failure: not to be raised earlier
    recovering: bool = False  # it was awake and died: it does not wait for others to be raised

    @property
    def serving(self) -> bool:
        """Whether a request can be handed to it now."""
        return self.state is ReplicaState.AWAKE and not self.in_transition and not self.draining

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


@dataclass(frozen=True, slots=True)
class Transition:
    name: str
    to: ReplicaState


@dataclass(frozen=True, slots=True)
class Drain:
    """Take no new requests; when nothing runs any more, a later plan moves it."""

    name: str


@dataclass(frozen=True, slots=True)
class CancelDrain:
    """The closing is called off."""

    name: str


@dataclass(frozen=True, slots=True)
class Reject:
    id: int
    reason: Literal["deadline", "memory"]
    retry_after_s: float  # 0: trying again does not help


PlannerAction: TypeAlias = Transition | Drain | CancelDrain | Reject


def get_memory_in_state(replica: ReplicaSnapshot, state: ReplicaState) -> dict[str, int]:
    """What a model holds at a depth."""
    if state is ReplicaState.COLD:
        return {}
    if state is ReplicaState.ASLEEP and replica.asleep_bytes is not None:
        return dict(replica.asleep_bytes)
    return {**replica.awake_bytes, _AWAKE_SLOTS: replica.awake_slots}


def compute_extra_memory(replica: ReplicaSnapshot, to: ReplicaState) -> dict[str, int]:
    """What a model takes on top of what it holds, while it moves and after; nothing in pools where it gives back."""
    has = get_memory_in_state(replica, replica.state)
    return {
        pool: amount - has.get(pool, 0)
        for pool, amount in get_memory_in_state(replica, to).items()
        if amount > has.get(pool, 0)
    }


def _compute_transition_memory(replica: ReplicaSnapshot) -> dict[str, int]:
    """What a model holds on its way: the larger of where it was and where it goes, pool by pool."""
    here = get_memory_in_state(replica, replica.state)
    was = [replica.previous_state] if replica.previous_state else [ReplicaState.AWAKE, ReplicaState.ASLEEP]
    for depth in was:
        for pool, amount in get_memory_in_state(replica, depth).items():
            here[pool] = max(here.get(pool, 0), amount)
    return here


class MemoryAccount:
    """Who holds what, kept up to date while a plan is made."""

    def __init__(self, memory: PoolBytes, replicas: Iterable[ReplicaSnapshot], limits: PlannerLimits) -> None:
        self.capacity = {**memory, _AWAKE_SLOTS: sys.maxsize if limits.max_awake is None else limits.max_awake}
        self.replicas = {model.name: model for model in replicas}
        self.held: dict[str, int] = {}
        self.settled: dict[str, int] = {}  # as if everyone on the way had arrived
        for model in self.replicas.values():
            self._add(model, 1)

    @property
    def loading_count(self) -> int:
        return sum(model.in_transition and model.state is ReplicaState.AWAKE for model in self.replicas.values())

    def begin_transition(self, name: str, to: ReplicaState) -> None:
        model = self.replicas[name]
        self._add(model, -1)
        moved = replace(model, state=to, in_transition=True, previous_state=model.state)
        self.replicas[name] = moved
        self._add(moved, 1)

    def fits_now(self, more: PoolBytes) -> bool:
        """A pool that is over its memory already is no reason against who takes nothing from it."""
        return all(self.held.get(pool, 0) + amount <= self.capacity.get(pool, 0) for pool, amount in more.items())

    def can_ever_fit(self, replica: ReplicaSnapshot) -> bool:
        """Whether there is room for it once everyone who is not pinned has gone."""
        pinned = [other for other in self.replicas.values() if other.pinned and other.name != replica.name]
        left = dict(self.capacity)
        for other in pinned:
            for pool, amount in get_memory_in_state(other, other.state).items():
                left[pool] = left.get(pool, 0) - amount
        awake = get_memory_in_state(replica, ReplicaState.AWAKE)
        return all(awake[pool] <= left.get(pool, 0) for pool in compute_extra_memory(replica, ReplicaState.AWAKE))

    def _add(self, replica: ReplicaSnapshot, sign: int) -> None:
        settled = get_memory_in_state(replica, replica.state)
        for total, part in (
            (self.held, _compute_transition_memory(replica) if replica.in_transition else settled),
            (self.settled, settled),
        ):
            for pool, amount in part.items():
                total[pool] = total.get(pool, 0) + sign * amount
