"""The planner: decides which models are loaded. A pure function of replicas, memory, queue and time.

    plan_actions(now, memory, replicas, waiting, limits)           actions to take now; called on every event and second
    estimate_wait(now, memory, replicas, waiting, limits, model)   seconds until `model` would be awake

The model of the oldest waiting request loads next, and all requests for it are served together. While it cannot load,
a younger one may only use memory that the oldest does not need. Idle models are evicted first, least recently used
first; then busy ones drain. A model with running requests never sleeps or unloads, nor does a pinned one. A crashed
model reloads in parallel with other loads if it fits, unless they are on its GPUs.

A model on GPUs is placed before it loads: where it fits without an eviction if there is such a place, and so that the
other awaited models still fit. What is loaded is never moved.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace

from enginebay.fleet.scheduling.device_placement import (
    GpuLinks,
    Placement,
    PoolBytes,
    add_pools,
    place_jointly,
    rank_placements,
)
from enginebay.fleet.scheduling.eviction import EvictionPlan, plan_eviction
from enginebay.fleet.scheduling.planner_state import (
    CancelDrain,
    Drain,
    MemoryAccount,
    PlannerAction,
    PlannerLimits,
    Reject,
    ReplicaSnapshot,
    ReplicaState,
    Transition,
    WaitingRequest,
    compute_extra_memory,
)

__all__ = [
    "CancelDrain",
    "Drain",
    "PlannerAction",
    "PlannerLimits",
    "PoolBytes",
    "Reject",
    "ReplicaSnapshot",
    "ReplicaState",
    "Transition",
    "WaitingRequest",
    "estimate_wait",
    "plan_actions",
]

_MAX_SIMULATION_STEPS = 1000  # of a wait estimate
_MAX_JOINT = 8  # replicas placed together
_MAX_EVICTIONS = 32  # placements whose evictions are compared
_EVICTION_COSTS = {"idle": 1, "busy": 10, "awaited": 100}  # which placements are compared first


def plan_actions(
    now: float,
    memory: PoolBytes,
    replicas: Sequence[ReplicaSnapshot],
    waiting: Sequence[WaitingRequest],
    limits: PlannerLimits,
) -> list[PlannerAction]:
    """Return the actions to take now, in order."""
    account = MemoryAccount(memory, replicas, limits)
    unserved = [request for request in waiting if not _is_serving(account, request.model)]
    hopeless = {name for name in {request.model for request in unserved} if not _can_ever_load(account, name)}
    late = [request for request in unserved if request.deadline <= now and request.model not in hopeless]
    rejects = [Reject(request.id, "memory", 0.0) for request in unserved if request.model in hopeless]
    if late:
        names = {request.model for request in late}
        seconds = {name: estimate_wait(now, memory, replicas, waiting, limits, name) for name in names}
        rejects += [Reject(request.id, "deadline", _finite_or_zero(seconds[request.model])) for request in late]
    rejected = {reject.id for reject in rejects}
    queue = _order_models(request for request in waiting if request.id not in rejected)
    plan = _PlanBuilder(now, account, limits)
    plan.unload_expired(queue)
    plan.plan_loads(queue)
    plan.cancel_drains()
    return [*rejects, *plan.actions]


def _order_models(waiting: Iterable[WaitingRequest]) -> list[str]:
    """Return the awaited models, ordered by the oldest request of each."""
    oldest_first = sorted(waiting, key=lambda request: (request.waiting_since, request.id))
    return list(dict.fromkeys(request.model for request in oldest_first))


def _is_serving(account: MemoryAccount, name: str) -> bool:
    replica = account.replicas.get(name)
    return replica is not None and replica.serving


def _can_ever_load(account: MemoryAccount, name: str) -> bool:
    """Return whether the model can load at some point. An unknown one may return with the next configuration."""
    replica = account.replicas.get(name)
    return replica is None or replica.state is ReplicaState.AWAKE or account.can_ever_fit(replica)


def _finite_or_zero(seconds: float) -> float:
    return seconds if math.isfinite(seconds) else 0.0


class _PlanBuilder:
    """Collects actions over an account that already includes them."""

    def __init__(self, now: float, account: MemoryAccount, limits: PlannerLimits) -> None:
        self._now = now
        self._account = account
        self._limits = limits
        self._evicting: set[str] = set()  # they free memory for the oldest request
        self.actions: list[PlannerAction] = []

    def unload_expired(self, queue: Sequence[str]) -> None:
        for replica in list(self._account.replicas.values()):
            if replica.name not in queue and _is_idle_expired(replica, self._now):
                self._transition(replica.name, ReplicaState.COLD)

    def plan_loads(self, queue: Sequence[str]) -> None:
        """Load what fits, oldest request first, and evict for the first model that does not fit."""
        held: set[str] = set()  # awake or loading for an older request
        memory_later: dict[str, int] | None = None  # in use once the first blocked model is awake
        leaving: set[str] = set()  # evicted for it by then
        for name in queue:
            replica = self._account.replicas.get(name)
            if replica is None or name in leaving:
                continue
            if replica.state is ReplicaState.AWAKE:
                held.add(name)
            elif self._now < replica.retry_at:
                continue
            elif self._must_move(replica):
                self._transition(name, ReplicaState.COLD)
            elif memory_later is not None:
                self._load_alongside(replica, memory_later)
            else:
                replica, eviction, reason = self._place(replica, queue, held)
                if not eviction.targets and not replica.unplaced and self._can_load_now(replica):
                    self._load(replica, reason)
                    held.add(name)
                elif replica.evicts:
                    self._evict(eviction)
                    leaving.update(eviction.targets)
                    memory_later = add_pools(eviction.memory_after, compute_extra_memory(replica, ReplicaState.AWAKE))

    def cancel_drains(self) -> None:
        """Cancel the drain of replicas that no longer have to leave."""
        for replica in self._account.replicas.values():
            draining = replica.draining and replica.state is ReplicaState.AWAKE and not replica.in_transition
            if draining and replica.name not in self._evicting:
                self.actions.append(CancelDrain(replica.name))

    def _can_load_now(self, replica: ReplicaSnapshot) -> bool:
        account = self._account
        may_load_beside = replica.recovering and not account.shares_gpu_with_load(replica)
        return (
            not replica.in_transition
            and (may_load_beside or account.loading_count < self._limits.parallel_loads)
            and self._account.fits_now(compute_extra_memory(replica, ReplicaState.AWAKE))
        )

    def _load_alongside(self, replica: ReplicaSnapshot, memory_later: dict[str, int]) -> None:
        """Load a younger model if it fits now and also once the oldest one is awake."""
        ranked: list[Placement] = []
        if replica.unplaced and replica.gpu_need is not None:
            ranked = rank_placements(replica.gpu_need, self._account.capacity, memory_later, self._limits.links)
        for candidate in map(replica.place, ranked) if replica.unplaced else [replica]:
            extra = compute_extra_memory(candidate, ReplicaState.AWAKE)
            after = add_pools(memory_later, extra)
            fits_later = all(after[pool] <= self._account.capacity.get(pool, 0) for pool in extra)
            if fits_later and self._can_load_now(candidate):
                self._load(candidate, self._explain_placement(candidate, ranked) if ranked else "")
                memory_later.update(after)
                return

    def _must_move(self, replica: ReplicaSnapshot) -> bool:
        """Return whether a sleeping replica can never wake on its GPUs: pinned models hold them, or one is gone."""
        asleep = replica.state is ReplicaState.ASLEEP and not replica.in_transition and replica.running == 0
        return asleep and replica.placement is not None and not self._account.can_fit_in_place(replica)

    def _place(
        self, replica: ReplicaSnapshot, queue: Sequence[str], reserved: set[str]
    ) -> tuple[ReplicaSnapshot, EvictionPlan, str]:
        """Choose the GPUs of a replica that has none. Return it placed, what must leave for it, and the reason."""
        awaited = set(queue)
        if replica.placement is not None and replica.state is ReplicaState.COLD:  # it leaves its GPUs first
            return replica, EvictionPlan({}, self._account.settled, executable=False, tier=0), ""
        if not replica.unplaced or replica.gpu_need is None:
            return replica, plan_eviction(self._now, self._account, replica, awaited, reserved), ""
        fitting = rank_placements(replica.gpu_need, self._account.capacity, self._account.held, self._limits.links)
        if fitting:
            placement = self._place_with_others(replica, queue) or fitting[0]
            placed = replica.place(placement)
            reason = self._explain_placement(placed, fitting)
            return placed, plan_eviction(self._now, self._account, placed, awaited, reserved), reason
        ranked = []
        for number, placement in enumerate(self._list_evictable(replica, awaited)):
            placed = replica.place(placement)
            eviction = plan_eviction(self._now, self._account, placed, awaited, reserved)
            ranked.append((self._rank_eviction(eviction), number, placed, eviction))
        if not ranked:  # pinned models hold what it needs, or a GPU is gone
            return replica, EvictionPlan({}, self._account.settled, executable=False, tier=0), ""
        _, _, placed, eviction = min(ranked, key=lambda it: it[:2])
        return placed, eviction, ""

    def _place_with_others(self, replica: ReplicaSnapshot, queue: Sequence[str]) -> Placement | None:
        """Return a placement that leaves room for the other awaited replicas, as far as possible."""
        others = [it for it in map(self._account.replicas.get, queue) if it is not None and it.unplaced]
        needs = {it.name: it.gpu_need for it in (replica, *others) if it.gpu_need is not None}
        account = self._account
        if len(needs) < 2 or not self._limits.place_together:
            return None
        first = list(needs.items())[:_MAX_JOINT]
        return place_jointly(first, account.capacity, account.held, self._limits.links).get(replica.name)

    def _list_evictable(self, replica: ReplicaSnapshot, awaited: set[str]) -> list[Placement]:
        """Return the placements that evictions could free, those that seem cheapest first."""
        assert replica.gpu_need is not None
        costs: dict[int, float] = {}
        for other in self._account.replicas.values():
            if other.state is ReplicaState.COLD or other.in_transition or other.draining:
                continue
            kind = "awaited" if other.name in awaited else "busy" if other.running else "idle"
            for gpu in other.placement or ():
                costs[gpu] = costs.get(gpu, 0) + _EVICTION_COSTS[kind]
        pinned = self._account.sum_pinned(replica.name)
        ranked = rank_placements(replica.gpu_need, self._account.capacity, pinned, self._limits.links, costs)
        return ranked[:_MAX_EVICTIONS]

    def _explain_placement(self, placed: ReplicaSnapshot, fitting: Sequence[Placement]) -> str:
        assert placed.gpu_need is not None and placed.placement is not None
        neighbours = [
            other.name
            for other in self._account.replicas.values()
            if other.name != placed.name and not set(placed.placement).isdisjoint(other.placement or ())
        ]
        beside = f", beside {', '.join(neighbours)}" if neighbours else ""
        if placed.gpu_need.only:
            return f"configured{beside}"
        if placed.placement != fitting[0]:
            return f"leaves room for models that wait{beside}"
        return _explain_fit(placed.placement, len(fitting), self._limits.links) + beside

    def _rank_eviction(self, eviction: EvictionPlan) -> tuple[bool, int, int, int]:
        """Return a key for the cheapest eviction. One that has begun is cheaper than a new one."""
        leaving = [self._account.replicas[name] for name in eviction.targets]
        begun = sum(it.draining or it.in_transition for it in leaving)
        return not eviction.executable, eviction.tier, len(leaving) - begun, len(leaving)

    def _evict(self, eviction: EvictionPlan) -> None:
        """Evict idle replicas and drain busy ones, but only if all of them can leave."""
        if not eviction.executable:
            return
        self._evicting.update(eviction.targets)
        # Replicas keep serving until a load slot is free. A draining one serves nobody, so it leaves now.
        can_load = self._account.loading_count < self._limits.parallel_loads
        for name, state in eviction.targets.items():
            replica = self._account.replicas[name]
            if not (can_load or replica.draining):
                continue
            if replica.running == 0:
                # Sleep can need RAM that another eviction has to free first.
                if self._account.fits_now(compute_extra_memory(replica, state)):
                    self._transition(name, state)
            elif not (replica.draining or replica.awaiting_arrivals):
                self.actions.append(Drain(name))

    def _load(self, placed: ReplicaSnapshot, reason: str) -> None:
        self._account.begin_transition(placed.name, ReplicaState.AWAKE, placed)
        self.actions.append(Transition(placed.name, ReplicaState.AWAKE, placed.placement, reason))

    def _transition(self, name: str, to: ReplicaState) -> None:
        self._account.begin_transition(name, to)
        self.actions.append(Transition(name, to))


def _is_idle_expired(replica: ReplicaSnapshot, now: float) -> bool:
    busy = replica.running or replica.awaiting_arrivals
    idle = not (replica.pinned or replica.in_transition or busy or replica.state is ReplicaState.COLD)
    return idle and replica.idle_s is not None and now - replica.idle_since >= replica.idle_s


def _explain_fit(placement: Placement, options: int, links: GpuLinks) -> str:
    if len(placement) == 1:
        return "the only GPU with room" if options == 1 else f"the fullest of {options} GPUs with room"
    choices = "the only ones with room" if options == 1 else f"the fullest of {options} choices with room"
    if not links.pairs:
        return choices
    return f"linked GPUs, {choices}" if not links.count_missing(placement) else f"GPUs not all linked, {choices}"


def estimate_wait(
    now: float,
    memory: PoolBytes,
    replicas: Sequence[ReplicaSnapshot],
    waiting: Sequence[WaitingRequest],
    limits: PlannerLimits,
    model: str,
) -> float:
    """Return the seconds until `model` is awake if a request waits for it now; infinite: never.

    Simulates the plan. Running requests and evictions take an unknown time, which counts as 0: the result is a lower
    bound.
    """
    limits = replace(limits, place_together=False)
    queue = [replace(request, deadline=math.inf) for request in waiting if now < request.deadline]
    if all(request.model != model for request in queue):
        queue.append(WaitingRequest(-1, model, math.inf, math.inf))
    simulation = _Simulation(now, replicas, queue)
    for _ in range(_MAX_SIMULATION_STEPS):
        target = simulation.replicas.get(model)
        if target is None or model not in simulation.list_awaited_models():
            return simulation.now - now if target and target.serving else math.inf
        actions = plan_actions(simulation.now, memory, list(simulation.replicas.values()), simulation.queue, limits)
        if actions:
            simulation.apply(actions)
        elif not simulation.advance():
            return math.inf
    return simulation.now - now


class _Simulation:
    """The fleet if every load takes its estimated time and everything else takes none."""

    def __init__(self, now: float, replicas: Sequence[ReplicaSnapshot], queue: Sequence[WaitingRequest]) -> None:
        self.now = now
        self.replicas: dict[str, ReplicaSnapshot] = {}
        self.queue = list(queue)
        self._awake_at: dict[str, float] = {}
        for replica in replicas:
            loading = replica.in_transition and replica.state is ReplicaState.AWAKE
            settled = replica if loading else replace(replica, in_transition=False)
            self.replicas[replica.name] = settled.displace() if settled.state is ReplicaState.COLD else settled
            if loading:
                self._awake_at[replica.name] = now + replica.time_to_ready_s
        self._remove_served()

    def list_awaited_models(self) -> set[str]:
        return {request.model for request in self.queue}

    def apply(self, actions: Sequence[PlannerAction]) -> None:
        for action in actions:
            if isinstance(action, Reject):
                self.queue = [request for request in self.queue if request.id != action.id]
                continue
            replica = self.replicas[action.name]
            if isinstance(action, Drain):
                replica = replace(replica, draining=True, running=0)
            elif isinstance(action, CancelDrain):
                replica = replace(replica, draining=False)
            elif action.to is ReplicaState.AWAKE:
                self._awake_at[replica.name] = self.now + replica.time_to_ready_s
                placed = replica if action.placement is None else replica.place(action.placement)
                replica = replace(placed, state=ReplicaState.AWAKE, in_transition=True, previous_state=replica.state)
            else:
                replica = replace(replica, state=action.to, draining=False, idle_since=self.now)
                replica = replica if replica.state is not ReplicaState.COLD else replica.displace()
            self.replicas[action.name] = replica
        self._remove_served()

    def advance(self) -> bool:
        """Advance to the next time at which something can change. Return False if there is none."""
        times = [*self._awake_at.values()]
        for replica in self.replicas.values():
            times += [at for at in (replica.min_residency_until, replica.retry_at) if at > self.now]
        if not times:
            return False
        self.now = min(times)
        for name in [name for name, at in self._awake_at.items() if at <= self.now]:
            del self._awake_at[name]
            self.replicas[name] = replace(
                self.replicas[name],
                in_transition=False,
                previous_state=None,
                draining=False,
                awake_since=self.now,
                idle_since=self.now,
            )
        self._remove_served()
        return True

    def _remove_served(self) -> None:
        serving = {replica.name for replica in self.replicas.values() if replica.serving}
        self.queue = [request for request in self.queue if request.model not in serving]
