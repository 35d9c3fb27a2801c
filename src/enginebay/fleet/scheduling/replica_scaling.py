"""Decides how many replicas of a variant to run. Pure.

    up     to what the load needs: running and waiting requests, divided by what one replica should run
    down   to the most that was needed during the idle time, so that a short lull unloads nothing

A model that is not loaded is not scaled: its first replica loads for a request, or on command.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from enginebay.config.sections.replica_policy import ReplicaPolicy

WAITING_S = 1.0  # requests that wait for less are a burst, which the running replicas absorb


@dataclass(frozen=True, slots=True)
class VariantLoad:
    """A variant's replicas and requests."""

    awake: int  # also those that load or wake
    loading: int = 0  # of those
    running: int = 0
    waiting: int = 0
    waiting_s: float = 0.0  # how long some have been waiting without a break
    quiet_s: float = math.inf  # since the last request ended; counts what the number of running ones missed
    max_batch: int = 0  # requests that one replica's engine runs at once; 0: unknown
    idle_s: float | None = None  # of a fixed number: the idle time after which the model is unloaded; None: never


@dataclass(frozen=True, slots=True)
class ScalingWindow:
    """Since when fewer replicas would do, and the most that were needed since."""

    since: float | None = None
    peak: int = 0


@dataclass(frozen=True, slots=True)
class ScalingDecision:
    target: int  # awake replicas
    reason: str  # empty: no change
    window: ScalingWindow


def plan_scaling(now: float, policy: ReplicaPolicy, load: VariantLoad, window: ScalingWindow) -> ScalingDecision:
    """Return the number of awake replicas to have now. `window`: that of the last decision."""
    if not load.awake:
        return ScalingDecision(0, "", ScalingWindow())
    needed, reason = _compute_need(policy, load)
    floor = max(needed, policy.minimum, 1)
    if floor > load.awake:
        why = reason if needed > max(policy.minimum, 1) else _explain_minimum(policy)
        return ScalingDecision(floor, why, ScalingWindow())
    least = _compute_least(policy, load, needed)
    if least >= load.awake:
        return ScalingDecision(load.awake, "", ScalingWindow())
    if window.since is None:
        return ScalingDecision(load.awake, "", ScalingWindow(now, least))
    peak = max(window.peak, least)
    idle_s = load.idle_s if policy.is_fixed else policy.idle_s
    used = max(1, policy.minimum) if idle_s is not None and load.quiet_s < idle_s else 0
    target = max(peak, used)
    if idle_s is None or now - window.since < idle_s or target >= load.awake:
        return ScalingDecision(load.awake, "", ScalingWindow(window.since, peak))
    return ScalingDecision(target, _explain_idle(target, idle_s), ScalingWindow(now, least))


def _compute_need(policy: ReplicaPolicy, load: VariantLoad) -> tuple[int, str]:
    """Return how many replicas the requests need, at most the maximum, and why."""
    waiting = load.waiting if load.waiting_s >= WAITING_S else 0
    target = _get_target_running(policy, load)
    needed, reason = 0, ""
    if target is not None:
        needed = math.ceil((load.running + waiting) / target)
        reason = f"{load.running} requests running and {waiting} waiting, target {target} per replica"
    if waiting and not load.loading and needed <= load.awake:
        needed, reason = load.awake + 1, f"{waiting} requests waiting, for {load.waiting_s:.1f} s so far"
    return min(needed, policy.maximum), reason


def _get_target_running(policy: ReplicaPolicy, load: VariantLoad) -> int | None:
    """Return the requests that one replica should run: never more than it can."""
    known = [number for number in (policy.target_running, load.max_batch) if number]
    return min(known) if known else None


def _compute_least(policy: ReplicaPolicy, load: VariantLoad, needed: int) -> int:
    """Return how many replicas would do for now."""
    busy = bool(load.running or load.waiting or load.loading)
    if policy.is_fixed:
        return policy.minimum if busy else 0
    return min(load.awake, max(needed, policy.minimum, 1 if busy else 0))


def _explain_minimum(policy: ReplicaPolicy) -> str:
    return f"replicas is {policy.minimum}" if policy.is_fixed else f"replicas.min is {policy.minimum}"


def _explain_idle(peak: int, idle_s: float) -> str:
    if peak == 0:
        return f"no request for {idle_s:g} s"
    return f"{peak} {'replica was' if peak == 1 else 'replicas were'} enough for {idle_s:g} s"
