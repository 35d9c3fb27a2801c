"""What the plan of who stays loaded is made from, what it answers with, and the account of memory it keeps."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Literal, TypeAlias

Bytes: TypeAlias = Mapping[str, int]  # by pool: "ram", "gpu0", …

# Being awake takes one of these, so that `max_awake` is counted as memory is.
_SLOTS = "slots"


class Depth(StrEnum):
    AWAKE = "awake"
    ASLEEP = "asleep"  # the worker is kept, its door closed
    COLD = "cold"  # no process


@dataclass(frozen=True, slots=True, kw_only=True)
class Holding:
    """One variant as the planner sees it."""

    name: str
    depth: Depth  # where it is; when `moving`, where it goes
    moving: bool = False  # on its way: nothing can be asked of it now
    came_from: Depth | None = None  # when `moving`, where it was; unset: it may hold the larger of awake and asleep
    awake: Bytes
    asleep: Bytes | None  # None: it cannot sleep
    pinned: bool = False
    slots: int = 1  # of `max_awake` that it takes; what is computed elsewhere takes none
    running: int = 0  # requests in flight
    arriving: bool = False  # it was raised just now, and those it was raised for are not all there yet
    closed: bool = False  # we closed its door: it takes no new requests
    awake_since: float = 0.0
    idle_since: float = 0.0  # when its last request ended, or since it is awake or asleep
    idle_s: float | None = None  # after so long idle it is unloaded
    min_residency_s: float = 0.0
    raise_s: float = 0.0  # expected, from here to awake; of an awake one: to raise it again
    not_before: float = 0.0  # after a failure: not to be raised earlier
    comes_back: bool = False  # it was awake and died: it does not wait for others to be raised

    @property
    def serves(self) -> bool:
        """Whether a request can be handed to it now."""
        return self.depth is Depth.AWAKE and not self.moving and not self.closed

    @property
    def residency_ends(self) -> float:
        return self.awake_since + self.min_residency_s if self.depth is Depth.AWAKE else 0.0


@dataclass(frozen=True, slots=True)
class Waiting:
    id: int
    model: str
    since: float
    deadline: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    max_awake: int | None = None
    parallel_raises: int = 1


@dataclass(frozen=True, slots=True)
class Move:
    name: str
    to: Depth


@dataclass(frozen=True, slots=True)
class Close:
    """Take no new requests; when nothing runs any more, a later plan moves it."""

    name: str


@dataclass(frozen=True, slots=True)
class Open:
    """The closing is called off."""

    name: str


@dataclass(frozen=True, slots=True)
class Refuse:
    id: int
    reason: Literal["deadline", "memory"]
    retry_after_s: float  # 0: trying again does not help


Action: TypeAlias = Move | Close | Open | Refuse


def need(model: Holding, depth: Depth) -> dict[str, int]:
    """What a model holds at a depth."""
    if depth is Depth.COLD:
        return {}
    if depth is Depth.ASLEEP and model.asleep is not None:
        return dict(model.asleep)
    return {**model.awake, _SLOTS: model.slots}


def extra(model: Holding, to: Depth) -> dict[str, int]:
    """What a model takes on top of what it holds, while it moves and after; nothing in pools where it gives back."""
    has = need(model, model.depth)
    return {pool: amount - has.get(pool, 0) for pool, amount in need(model, to).items() if amount > has.get(pool, 0)}


def _held_on_the_way(model: Holding) -> dict[str, int]:
    """What a model holds on its way: the larger of where it was and where it goes, pool by pool."""
    here = need(model, model.depth)
    was = [model.came_from] if model.came_from else [Depth.AWAKE, Depth.ASLEEP]
    for depth in was:
        for pool, amount in need(model, depth).items():
            here[pool] = max(here.get(pool, 0), amount)
    return here


class Account:
    """Who holds what, kept up to date while a plan is made."""

    def __init__(self, memory: Bytes, models: Iterable[Holding], rules: Rules) -> None:
        self.memory = {**memory, _SLOTS: sys.maxsize if rules.max_awake is None else rules.max_awake}
        self.models = {model.name: model for model in models}
        self.held: dict[str, int] = {}
        self.settled: dict[str, int] = {}  # as if everyone on the way had arrived
        for model in self.models.values():
            self._count(model, 1)

    @property
    def raising(self) -> int:
        return sum(model.moving and model.depth is Depth.AWAKE for model in self.models.values())

    def move(self, name: str, to: Depth) -> None:
        model = self.models[name]
        self._count(model, -1)
        moved = replace(model, depth=to, moving=True, came_from=model.depth)
        self.models[name] = moved
        self._count(moved, 1)

    def fits_now(self, more: Bytes) -> bool:
        """A pool that is over its memory already is no reason against who takes nothing from it."""
        return all(self.held.get(pool, 0) + amount <= self.memory.get(pool, 0) for pool, amount in more.items())

    def can_ever_fit(self, model: Holding) -> bool:
        """Whether there is room for it once everyone who is not pinned has gone."""
        pinned = [other for other in self.models.values() if other.pinned and other.name != model.name]
        left = dict(self.memory)
        for other in pinned:
            for pool, amount in need(other, other.depth).items():
                left[pool] = left.get(pool, 0) - amount
        awake = need(model, Depth.AWAKE)
        return all(awake[pool] <= left.get(pool, 0) for pool in extra(model, Depth.AWAKE))

    def _count(self, model: Holding, sign: int) -> None:
        settled = need(model, model.depth)
        for total, part in ((self.held, _held_on_the_way(model) if model.moving else settled), (self.settled, settled)):
            for pool, amount in part.items():
                total[pool] = total.get(pool, 0) + sign * amount
