"""The plan of who stays loaded: a pure function of the models, the memory, the queue and the time.

    decide(now, memory, models, waiting, rules)           what to do now; asked on every event and every second
    outlook(now, memory, models, waiting, rules, model)   in how many seconds `model` would be awake

Requests wait for models, not for places in a line: the model of the oldest request is raised next, and all who wait for
it are served together. While it cannot be raised, a younger one may only take what it does not need. Room is made by who
is idle, least recently used first, then by closing the doors of busy ones; a model with a request in flight is never
moved, a pinned one never lowered. One that died comes back beside whatever is being raised, if there is room for it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace

from enginebay.fleet.scheduling.eviction import EvictionPlan, plan_eviction
from enginebay.fleet.scheduling.planner_state import (
    CancelDrain,
    Drain,
    MemoryAccount,
    PlannerAction,
    PlannerLimits,
    PoolBytes,
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

# An outlook that takes more steps than this is not worth more of them.
_MAX_SIMULATION_STEPS = 1000


def plan_actions(
    now: float,
    memory: PoolBytes,
    replicas: Sequence[ReplicaSnapshot],
    waiting: Sequence[WaitingRequest],
    limits: PlannerLimits,
) -> list[PlannerAction]:
    """What to do now. The actions are in the order in which they are to be taken."""
    account = MemoryAccount(memory, replicas, limits)
    in_line = [
        one for one in waiting if not _is_serving(account, one.model)
    ]  # the others can be handed over this moment
    hopeless = {name for name in {one.model for one in in_line} if not _can_ever_load(account, name)}
    late = [one for one in in_line if one.deadline <= now and one.model not in hopeless]
    refused = [Reject(one.id, "memory", 0.0) for one in in_line if one.model in hopeless]
    if late:
        seconds = {
            name: estimate_wait(now, memory, replicas, waiting, limits, name) for name in {one.model for one in late}
        }
        refused += [Reject(one.id, "deadline", _finite_or_zero(seconds[one.model])) for one in late]
    gone = {refusal.id for refusal in refused}
    queue = _order_models(one for one in waiting if one.id not in gone)
    plan = _PlanBuilder(now, account, limits)
    plan.unload_expired(queue)
    plan.plan_loads(queue)
    plan.cancel_drains()
    return [*refused, *plan.actions]


def _order_models(waiting: Iterable[WaitingRequest]) -> list[str]:
    """The models somebody waits for, in the order of the oldest request of each."""
    oldest_first = sorted(waiting, key=lambda one: (one.waiting_since, one.id))
    return list(dict.fromkeys(one.model for one in oldest_first))


def _is_serving(account: MemoryAccount, name: str) -> bool:
    model = account.replicas.get(name)
    return model is not None and model.serving


def _can_ever_load(account: MemoryAccount, name: str) -> bool:
    """Sooner or later. One that is not known may come back with the next config."""
    model = account.replicas.get(name)
    return model is None or model.state is ReplicaState.AWAKE or account.can_ever_fit(model)


def _finite_or_zero(seconds: float) -> float:
    return seconds if math.isfinite(seconds) else 0.0


class _PlanBuilder:
    """Actions as they are found, over an account that already counts them."""

    def __init__(self, now: float, account: MemoryAccount, limits: PlannerLimits) -> None:
        self._now = now
        self._account = account
        self._limits = limits
        self._evicting: set[str] = set()  # they make room for the oldest
        self.actions: list[PlannerAction] = []

    def unload_expired(self, queue: Sequence[str]) -> None:
        for model in list(self._account.replicas.values()):
            if model.name not in queue and _is_idle_expired(model, self._now):
                self._transition(model.name, ReplicaState.COLD)

    def plan_loads(self, queue: Sequence[str]) -> None:
        """Raises what can be raised, oldest first, and makes room for the first that cannot."""
        kept: set[str] = set()  # awake or soon so, for requests older than the one looked at
        reserved: dict[str, int] | None = None  # the account when the first who cannot be raised now will be awake
        spoken_for: set[str] = set()  # they will have made room for it then
        for name in queue:
            model = self._account.replicas.get(name)
            if model is None or name in spoken_for:
                continue
            if model.state is ReplicaState.AWAKE:
                kept.add(name)
            elif self._now < model.retry_at:
                continue
            elif reserved is not None:
                self._load_alongside(model, reserved)
            else:
                room = plan_eviction(self._now, self._account, model, set(queue), kept)
                if not room.targets and self._can_load_now(model):
                    self._transition(name, ReplicaState.AWAKE)
                    kept.add(name)
                else:
                    self._evict(room)
                    spoken_for.update(room.targets)
                    reserved = _add_bytes(room.memory_after, compute_extra_memory(model, ReplicaState.AWAKE))

    def cancel_drains(self) -> None:
        """Opens who was closed and need not leave any more."""
        for model in self._account.replicas.values():
            closed = model.draining and model.state is ReplicaState.AWAKE and not model.in_transition
            if closed and model.name not in self._evicting:
                self.actions.append(CancelDrain(model.name))

    def _can_load_now(self, replica: ReplicaSnapshot) -> bool:
        return (
            not replica.in_transition
            and (replica.recovering or self._account.loading_count < self._limits.parallel_loads)
            and self._account.fits_now(compute_extra_memory(replica, ReplicaState.AWAKE))
        )

    def _load_alongside(self, replica: ReplicaSnapshot, reserved: dict[str, int]) -> None:
        """Raises a younger one if it takes nothing from anybody, now or when the oldest has what it waits for."""
        more = compute_extra_memory(replica, ReplicaState.AWAKE)
        after = _add_bytes(reserved, more)
        if self._can_load_now(replica) and all(after[pool] <= self._account.capacity.get(pool, 0) for pool in more):
            self._transition(replica.name, ReplicaState.AWAKE)
            reserved.update(after)

    def _evict(self, eviction: EvictionPlan) -> None:
        """Lowers who is idle and closes who is busy, once all of them can be asked: nobody leaves to no avail."""
        if not eviction.executable:
            return
        self._evicting.update(eviction.targets)
        # Until a raise can follow, others serve on; who is closed already is of no use to anybody.
        can_follow = self._account.loading_count < self._limits.parallel_loads
        for name, depth in eviction.targets.items():
            model = self._account.replicas[name]
            if not (can_follow or model.draining):
                continue
            if model.running == 0:
                # Going to sleep can take RAM that another one of these has to give back first.
                if self._account.fits_now(compute_extra_memory(model, depth)):
                    self._transition(name, depth)
            elif not (model.draining or model.awaiting_arrivals):
                self.actions.append(Drain(name))

    def _transition(self, name: str, to: ReplicaState) -> None:
        self._account.begin_transition(name, to)
        self.actions.append(Transition(name, to))


def _is_idle_expired(replica: ReplicaSnapshot, now: float) -> bool:
    free = not (replica.pinned or replica.in_transition or replica.running or replica.state is ReplicaState.COLD)
    return free and replica.idle_s is not None and now - replica.idle_since >= replica.idle_s


def _add_bytes(held: PoolBytes, more: PoolBytes) -> dict[str, int]:
    return {**held, **{pool: held.get(pool, 0) + amount for pool, amount in more.items()}}


def estimate_wait(
    now: float,
    memory: PoolBytes,
    replicas: Sequence[ReplicaSnapshot],
    waiting: Sequence[WaitingRequest],
    limits: PlannerLimits,
    model: str,
) -> float:
    """In how many seconds `model` would be awake, if it is asked for now or is waited for already; infinite: never.

    Plays the plan forward. How long running requests and going down take is not known here and counts as nothing, so
    this is the least it takes.
    """
    line = [replace(one, deadline=math.inf) for one in waiting if now < one.deadline]
    if all(one.model != model for one in line):
        line.append(WaitingRequest(-1, model, math.inf, math.inf))
    foresight = _Simulation(now, replicas, line)
    for _ in range(_MAX_SIMULATION_STEPS):
        target = foresight.replicas.get(model)
        if target is None or model not in foresight.list_awaited_models():
            return foresight.now - now if target and target.serving else math.inf
        actions = plan_actions(foresight.now, memory, list(foresight.replicas.values()), foresight.queue, limits)
        if actions:
            foresight.apply(actions)
        elif not foresight.advance():
            return math.inf
    return foresight.now - now


class _Simulation:
    """The fleet as it would go on if every raise took what it is expected to take, and everything else no time."""

    def __init__(self, now: float, replicas: Sequence[ReplicaSnapshot], queue: Sequence[WaitingRequest]) -> None:
        self.now = now
        self.replicas: dict[str, ReplicaSnapshot] = {}
        self.queue = list(queue)
        self._awake_at: dict[str, float] = {}
        for model in replicas:
            rising = model.in_transition and model.state is ReplicaState.AWAKE
            self.replicas[model.name] = model if rising else replace(model, in_transition=False)
            if rising:
                self._awake_at[model.name] = now + model.time_to_ready_s
        self._remove_served()

    def list_awaited_models(self) -> set[str]:
        return {one.model for one in self.queue}

    def apply(self, actions: Sequence[PlannerAction]) -> None:
        for action in actions:
            if isinstance(action, Reject):
                self.queue = [one for one in self.queue if one.id != action.id]
                continue
            model = self.replicas[action.name]
            if isinstance(action, Drain):
                model = replace(model, draining=True, running=0)
            elif isinstance(action, CancelDrain):
                model = replace(model, draining=False)
            elif action.to is ReplicaState.AWAKE:
                self._awake_at[model.name] = self.now + model.time_to_ready_s
                model = replace(model, state=ReplicaState.AWAKE, in_transition=True, previous_state=model.state)
            else:
                model = replace(model, state=action.to, draining=False, idle_since=self.now)
            self.replicas[action.name] = model
        self._remove_served()

    def advance(self) -> bool:
        """Goes to the next moment at which something can change; False: there is none."""
        moments = [*self._awake_at.values()]
        for model in self.replicas.values():
            moments += [moment for moment in (model.min_residency_until, model.retry_at) if moment > self.now]
        if not moments:
            return False
        self.now = min(moments)
        for name in [name for name, moment in self._awake_at.items() if moment <= self.now]:
            del self._awake_at[name]
            model = self.replicas[name]
            self.replicas[name] = replace(
                model,
                in_transition=False,
                previous_state=None,
                draining=False,
                awake_since=self.now,
                idle_since=self.now,
            )
        self._remove_served()
        return True

    def _remove_served(self) -> None:
        serving = {model.name for model in self.replicas.values() if model.serving}
        self.queue = [one for one in self.queue if one.model not in serving]
