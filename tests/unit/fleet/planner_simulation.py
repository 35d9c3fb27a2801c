"""A simulated fleet that checks the planner's guarantees: transitions and requests take time.

The simulation does not know how the planner decides. It executes the actions and raises `PromiseBroken` at the first
one that violates a guarantee, if the planner never settles, or if a request never ends.
"""

from __future__ import annotations

import heapq
import math
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import count, permutations

from enginebay.fleet.scheduling.device_placement import (
    WHOLE_GPU,
    GpuNeed,
    Placement,
    add_pools,
    add_shares,
    name_pool,
)
from enginebay.fleet.scheduling.planner import (
    CancelDrain,
    Drain,
    PlannerAction,
    PlannerLimits,
    Reject,
    ReplicaSnapshot,
    ReplicaState,
    Transition,
    WaitingRequest,
    plan_actions,
)

Planner = Callable[
    [float, Mapping[str, int], Sequence[ReplicaSnapshot], Sequence[WaitingRequest], PlannerLimits], list[PlannerAction]
]

TICK_S = 1.0  # the planner runs on every event and every tick
_BACKOFF_S = 2.0
_MAX_ROUNDS = 20  # of planning at one moment
_MAX_EVENTS = 20_000


class PromiseBroken(AssertionError):
    """The planner violated a guarantee."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedModel:
    name: str
    awake: Mapping[str, int]  # without GPUs
    gpu_need: GpuNeed | None = None
    asleep: Mapping[str, int] | None = None
    asleep_gpu: int = 0  # on each of its GPUs
    pinned: bool = False
    starts_awake: bool = False
    load_s: float = 1.0
    wake_s: float = 0.5
    release_s: float = 0.5  # to sleep or unload
    idle_s: float | None = None
    min_residency_s: float = 0.0
    failures: int = 0  # of its first loads


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedArrival:
    at: float
    model: str
    service_s: float = 1.0
    wait_s: float = math.inf
    cancel_s: float | None = None  # its client disconnects after this time


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    models: Sequence[SimulatedModel]
    arrivals: Sequence[SimulatedArrival]
    memory: Mapping[str, int]
    memory_later: Sequence[tuple[float, Mapping[str, int]]] = ()  # other programs use or free some
    limits: PlannerLimits = field(default_factory=PlannerLimits)
    lost_gpus: Sequence[tuple[float, int]] = ()  # their workers crash
    late: bool = False  # requests start only after the planner has seen their model awake
    reports_origin: bool = True  # whether snapshots have a previous_state


@dataclass(slots=True)
class SimulationOutcome:
    ends: Counter[str] = field(default_factory=Counter)
    loads: int = 0


def count_fcfs_loads(models: Iterable[str], slots: int) -> int:
    """Count the loads of first come first served with LRU eviction."""
    loaded: OrderedDict[str, None] = OrderedDict()
    loads = 0
    for model in models:
        if model not in loaded:
            loads += 1
            if len(loaded) == slots:
                loaded.popitem(last=False)
        loaded[model] = None
        loaded.move_to_end(model)
    return loads


def simulate(history: History, planner: Planner = plan_actions) -> SimulationOutcome:
    return _Simulation(history, planner).run()


@dataclass(slots=True)
class _LiveModel:
    """A model in the simulation."""

    model: SimulatedModel
    state: ReplicaState
    origin: ReplicaState | None = None  # in transition
    draining: bool = False
    running: int = 0
    awake_since: float = 0.0
    idle_since: float = 0.0
    done_at: float = 0.0
    failures: int = 0
    retry_at: float = 0.0
    placement: Placement | None = None

    def get_memory(self, state: ReplicaState) -> Mapping[str, int]:
        need = self.model.gpu_need
        placed = {} if need is None or self.placement is None else need.to_pools(self.placement)
        kept = {name_pool(gpu): self.model.asleep_gpu for gpu in self.placement or ()}
        return {
            ReplicaState.AWAKE: {**self.model.awake, **placed},
            ReplicaState.ASLEEP: {**(self.model.asleep or {}), **kept},
            ReplicaState.COLD: {},
        }[state]

    def get_held_memory(self, pool: str) -> int:
        return max(self.get_memory(state).get(pool, 0) for state in (self.state, self.origin or self.state))

    def take_snapshot(self, now: float, reports_origin: bool) -> ReplicaSnapshot:
        model, in_transition = self.model, self.origin is not None
        time_to_ready_s = model.load_s if self.state is ReplicaState.COLD else model.wake_s
        return ReplicaSnapshot(
            name=model.name, state=self.state, in_transition=in_transition, previous_state=self.origin if reports_origin else None,
            awake_bytes=self.get_memory(ReplicaState.AWAKE), gpu_need=model.gpu_need, placement=self.placement,
            asleep_bytes=None if model.asleep is None else self.get_memory(ReplicaState.ASLEEP), pinned=model.pinned, running=self.running, draining=self.draining,
            awake_since=self.awake_since, idle_since=self.idle_since, idle_s=model.idle_s,
            min_residency_s=model.min_residency_s, time_to_ready_s=self.done_at - now if in_transition else time_to_ready_s,
            retry_at=self.retry_at,
        )  # fmt: skip


@dataclass(slots=True)
class _Request:
    id: int
    arrival: SimulatedArrival
    end: str | None = None
    running: bool = False

    @property
    def deadline(self) -> float:
        return self.arrival.at + self.arrival.wait_s


class _Simulation:
    def __init__(self, history: History, planner: Planner) -> None:
        self.history = history
        self.planner = planner
        self.now = 0.0
        self.memory = dict(history.memory)
        self.live = {
            model.name: _LiveModel(
                model, ReplicaState.AWAKE if model.starts_awake else ReplicaState.COLD, failures=model.failures
            )
            for model in history.models
        }  # fmt: skip
        self.waiting: dict[int, _Request] = {}
        self.outcome = SimulationOutcome()
        self._requests = [_Request(number, arrival) for number, arrival in enumerate(history.arrivals)]
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = count()
        self._ticking = False

    def run(self) -> SimulationOutcome:
        for request in self._requests:
            self._schedule(request.arrival.at, partial(self._arrive, request))
        for moment, memory in self.history.memory_later:
            self._schedule(moment, partial(self.memory.update, memory))
        for moment, gpu in self.history.lost_gpus:
            self._schedule(moment, partial(self._lose_gpu, gpu))
        for _ in range(_MAX_EVENTS):
            if not self._events:
                break
            self._next_moment()
            self._run_planner()
            self._keep_ticking()
        else:
            raise PromiseBroken("the simulation never ends")
        if lost := [request.id for request in self._requests if request.end is None]:
            raise PromiseBroken(f"requests that never end: {lost}")
        return self.outcome

    def _lose_gpu(self, gpu: int) -> None:
        self.memory.pop(name_pool(gpu), None)
        for live in self.live.values():
            if gpu in (live.placement or ()) and live.origin is None:
                for request in self._requests:
                    if request.running and request.arrival.model == live.model.name:
                        self._finish(request, "crashed")
                live.state, live.placement, live.draining = ReplicaState.COLD, None, False

    # Time

    def _schedule(self, moment: float, event: Callable[[], None]) -> None:
        heapq.heappush(self._events, (moment, next(self._order), event))

    def _next_moment(self) -> None:
        self.now = self._events[0][0]
        while self._events and self._events[0][0] <= self.now:
            heapq.heappop(self._events)[2]()

    def _keep_ticking(self) -> None:
        """Tick every second while anything could depend on it."""
        idle = any(live.model.idle_s is not None and live.state is not ReplicaState.COLD for live in self.live.values())
        more_to_come = any(request.end is None for request in self._requests)
        if not self._ticking and (self.waiting or (idle and more_to_come)):
            self._ticking = True
            self._schedule(self.now + TICK_S, self._tick)

    def _tick(self) -> None:
        self._ticking = False
        for request in self.waiting.values():
            if self.now > request.deadline + 2 * TICK_S:
                raise PromiseBroken(f"request {request.id} waits beyond its deadline")

    # Requests

    def _arrive(self, request: _Request) -> None:
        self.waiting[request.id] = request
        if request.arrival.cancel_s is not None:
            self._schedule(self.now + request.arrival.cancel_s, partial(self._finish, request, "cancelled"))
        if not self.history.late:
            self._dispatch()

    def _dispatch(self) -> None:
        for request in list(self.waiting.values()):
            live = self.live[request.arrival.model]
            if live.state is ReplicaState.AWAKE and live.origin is None and not live.draining:
                if self.now > request.deadline + TICK_S:
                    raise PromiseBroken(f"request {request.id} is served after its deadline")
                del self.waiting[request.id]
                request.running = True
                live.running += 1
                self._schedule(self.now + request.arrival.service_s, partial(self._finish, request, "answered"))

    def _finish(self, request: _Request, how: str) -> None:
        if request.end is not None:
            return
        request.end = how
        self.outcome.ends[how] += 1
        self.waiting.pop(request.id, None)
        if request.running:
            live = self.live[request.arrival.model]
            live.running -= 1
            live.idle_since = self.now

    # Planner

    def _run_planner(self) -> None:
        if not self.history.late:
            self._dispatch()
        for _ in range(_MAX_ROUNDS):
            snapshots = [live.take_snapshot(self.now, self.history.reports_origin) for live in self.live.values()]
            queue = [
                WaitingRequest(it.id, it.arrival.model, it.arrival.at, it.deadline)
                for it in reversed(self.waiting.values())
            ]
            actions = self.planner(self.now, self.memory, snapshots, queue, self.history.limits)
            for action in actions:
                self._apply_action(action)
            self._dispatch()
            if not actions:
                return
        raise PromiseBroken(f"the planner does not settle: {actions}")

    def _apply_action(self, action: PlannerAction) -> None:
        if isinstance(action, Reject):
            self._reject(action)
            return
        live = self.live[action.name]
        if live.origin is not None:
            raise PromiseBroken(f"{action} during a transition")
        if isinstance(action, Transition):
            self._start_transition(live, action.to, action.placement)
        elif live.state is not ReplicaState.AWAKE or live.draining is isinstance(action, Drain):
            raise PromiseBroken(f"{action} of a model that is not awake, or is in that state already")
        elif isinstance(action, Drain) and (
            live.model.pinned or self.now < live.awake_since + live.model.min_residency_s
        ):
            raise PromiseBroken(f"{action} of a pinned model, or before its minimum residency")
        else:
            assert isinstance(action, Drain | CancelDrain)
            live.draining = isinstance(action, Drain)

    def _reject(self, action: Reject) -> None:
        request = self.waiting[action.id]
        if action.reason == "deadline" and self.now < request.deadline:
            raise PromiseBroken(f"{action} before its deadline")
        if action.reason == "memory" and self._could_fit(self.live[request.arrival.model]):
            raise PromiseBroken(f"{action} although it could fit")
        if not 0 <= action.retry_after_s < math.inf:
            raise PromiseBroken(f"{action} has no finite retry_after_s")
        self._finish(request, f"rejected: {action.reason}")

    def _could_fit(self, live: _LiveModel) -> bool:
        pinned = [other for other in self.live.values() if other.model.pinned and other is not live]
        if live.model.gpu_need is not None and not self._could_place(live.model.gpu_need, pinned):
            return False
        slots = self.history.limits.max_awake
        if slots is not None and sum(other.state is ReplicaState.AWAKE for other in pinned) >= slots:
            return False
        return all(
            amount + sum(other.get_memory(other.state).get(pool, 0) for other in pinned) <= self.memory.get(pool, 0)
            for pool, amount in live.model.awake.items()
        )

    def _could_place(self, need: GpuNeed, pinned: Sequence[_LiveModel]) -> bool:
        capacity = add_shares(self.memory)
        gpus = [int(pool[3:]) for pool in self.memory if pool.startswith("gpu")]
        for placement in [need.only] if need.only else permutations(gpus, need.count):
            held = need.to_pools(placement)
            for other in pinned:
                held = add_pools(held, other.get_memory(other.state))
            if all(amount <= capacity.get(pool, 0) for pool, amount in held.items() if pool.startswith("gpu")):
                return True
        return False

    # Transitions

    def _start_transition(self, live: _LiveModel, to: ReplicaState, placement: Placement | None = None) -> None:
        if to is live.state or (
            to is ReplicaState.ASLEEP and (live.model.asleep is None or live.state is ReplicaState.COLD)
        ):
            raise PromiseBroken(f"{live.model.name} cannot go from {live.state} to {to}")
        if to is ReplicaState.AWAKE:
            self._check_load(live, placement)
            self.outcome.loads += 1
            takes = live.model.load_s if live.state is ReplicaState.COLD else live.model.wake_s
        else:
            self._check_release(live)
            takes = live.model.release_s
        before = self._sum_held_memory()
        if to is ReplicaState.AWAKE and live.placement is None:
            live.placement = placement
        live.origin, live.state, live.done_at = live.state, to, self.now + takes
        for pool, amount in self._sum_held_memory().items():
            limit = WHOLE_GPU if pool.endswith(".share") else self.memory.get(pool, 0)
            if amount > max(limit, before.get(pool, 0)):
                raise PromiseBroken(f"{amount} held of {limit} in {pool}")
        self._schedule(live.done_at, partial(self._finish_transition, live))

    def _check_load(self, live: _LiveModel, placement: Placement | None) -> None:
        need = live.model.gpu_need
        if need is not None and live.placement is None and not _suits(need, placement):
            raise PromiseBroken(f"{live.model.name} loads on {placement}")
        limits, others = self.history.limits, list(self.live.values())
        if self.now < live.retry_at:
            raise PromiseBroken(f"{live.model.name} loads too soon after a failure")
        if sum(it.origin is not None and it.state is ReplicaState.AWAKE for it in others) >= limits.parallel_loads:
            raise PromiseBroken("too many loads at once")
        if limits.max_awake is not None and sum(it.state is ReplicaState.AWAKE for it in others) >= limits.max_awake:
            raise PromiseBroken("too many awake")

    def _check_release(self, live: _LiveModel) -> None:
        if live.running:
            raise PromiseBroken(f"{live.model.name} is busy")
        if live.model.pinned:
            raise PromiseBroken(f"{live.model.name} is pinned")
        expired = live.model.idle_s is not None and self.now - live.idle_since >= live.model.idle_s
        if (
            live.state is ReplicaState.AWAKE
            and self.now < live.awake_since + live.model.min_residency_s
            and not expired
        ):
            raise PromiseBroken(f"{live.model.name} has not been awake for long enough")

    def _sum_held_memory(self) -> dict[str, int]:
        pools = {pool for live in self.live.values() for pool in live.get_memory(ReplicaState.AWAKE)} | set(self.memory)
        return {pool: sum(live.get_held_memory(pool) for live in self.live.values()) for pool in pools}

    def _finish_transition(self, live: _LiveModel) -> None:
        live.origin = None
        live.draining = False
        live.idle_since = self.now
        lost = any(name_pool(gpu) not in self.memory for gpu in live.placement or ())
        if live.state is ReplicaState.COLD or lost:
            live.state, live.placement = ReplicaState.COLD, None
        if live.state is ReplicaState.AWAKE:
            live.awake_since = self.now
            if live.failures:
                live.failures -= 1
                live.state = ReplicaState.COLD
                live.placement = None
                live.retry_at = self.now + _BACKOFF_S


def _suits(need: GpuNeed, placement: Placement | None) -> bool:
    return placement is not None and len(set(placement)) == need.count and need.only in ((), placement)
