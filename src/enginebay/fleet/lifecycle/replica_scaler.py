"""Loads and unloads further replicas of the models that may have several, and tells who serves requests."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from enginebay.fleet.lifecycle.replica import Replica
from enginebay.fleet.routing.model_client import ReplicaHandle
from enginebay.fleet.scheduling.planner import ReplicaState
from enginebay.fleet.scheduling.replica_scaling import ScalingWindow, VariantLoad, plan_scaling

if TYPE_CHECKING:
    from enginebay.fleet.fleet import Fleet

_RECOVERY_S = 5.0

ShareReplicas = Callable[[str, tuple[ReplicaHandle, ...]], None]  # of a variant: those that accept requests


def group_replicas(replicas: Iterable[Replica]) -> dict[str, list[Replica]]:
    """Return the replicas by variant."""
    groups: dict[str, list[Replica]] = {}
    for replica in replicas:
        groups.setdefault(replica.variant.name, []).append(replica)
    return groups


def find_ready(copies: Iterable[Replica]) -> Replica | None:
    """Return the replica with the fewest running requests that accepts more."""
    return min((copy for copy in copies if copy.ready), key=lambda copy: (copy.running, copy.number), default=None)


def list_handles(copies: Iterable[Replica]) -> tuple[ReplicaHandle, ...]:
    """Return the handles of the replicas that accept requests."""
    return tuple(copy.worker.handle for copy in copies if copy.ready and copy.worker is not None)


class ReplicaScaler:
    """`run` is called after each plan: it only adds to the queue of loads, and unloads what is idle."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._windows: dict[str, ScalingWindow] = {}
        self._waiting: dict[str, tuple[int, float]] = {}  # by variant: requests queued at the server, and since when
        self._blocked: set[str] = set()  # variants that lack memory for another replica, which is logged once
        self._shared: dict[str, tuple[ReplicaHandle, ...]] = {}
        self.share_replicas: ShareReplicas = lambda variant, handles: None

    def note_waiting(self, waiting: Mapping[str, int]) -> None:
        """Note the requests that wait for a slot at the server, by variant."""
        now = time.monotonic()
        self._waiting = {
            name: (count, self._waiting.get(name, (0, now))[1]) for name, count in waiting.items() if count
        }

    def run(self) -> None:
        groups = group_replicas(self._fleet.replicas.values())
        scaled = {name: copies for name, copies in groups.items() if copies[0].variant.max_replicas > 1}
        for name, copies in scaled.items():
            if not any(copy.updating for copy in copies):
                self._scale(name, copies)
            handles = list_handles(copies)
            if self._shared.get(name, ()) != handles:
                self._shared[name] = handles
                self.share_replicas(name, handles)
        for name in self._shared.keys() - scaled.keys():
            del self._shared[name]

    def _scale(self, name: str, copies: Sequence[Replica]) -> None:
        policy = copies[0].variant.replica_policy
        load = self._measure_load(name, copies)
        decision = plan_scaling(time.monotonic(), policy, load, self._windows.get(name, ScalingWindow()))
        self._windows[name] = decision.window
        if decision.target > load.awake and not load.loading:  # one after the other: each takes memory
            self._load_another(name, copies, decision.reason)
        kept = max(decision.target, 1) if copies[0].is_pinned else decision.target
        if kept < load.awake:
            self._unload_some(copies, load.awake - kept, decision.reason)

    def _measure_load(self, name: str, copies: Sequence[Replica]) -> VariantLoad:
        now = time.monotonic()
        awake = [copy for copy in copies if copy.state is ReplicaState.AWAKE]
        queued = [copy for copy in copies if copy not in awake and self._fleet.is_preloading(copy)]
        queued_requests, since = self._waiting.get(name, (0, 0.0))
        facts = next((copy.facts for copy in awake if copy.facts is not None), None)
        return VariantLoad(
            awake=len(awake) + len(queued) if awake else 0,
            loading=sum(copy.in_transition for copy in awake) + len(queued),
            running=sum(copy.running for copy in awake),
            waiting=queued_requests + self._fleet.count_waiting(name),
            waiting_s=now - since if queued_requests else 0.0,
            quiet_s=now - max((copy.idle_since for copy in awake), default=0.0),
            max_batch=facts.max_batch if facts is not None else 0,
            idle_s=next((copy.idle_s for copy in awake), copies[0].variant.idle_s),
        )

    def _load_another(self, name: str, copies: Sequence[Replica], reason: str) -> None:
        """Queue a load into free memory: of an asleep replica, else of the first that can load now."""
        candidates = [copy for copy in copies if _can_load(copy)]
        if not candidates:
            return
        copy = min(candidates, key=lambda copy: (copy.state is not ReplicaState.ASLEEP, copy.number))
        if self._fleet.fits_without_eviction(copy.name):
            self._blocked.discard(name)
            self._fleet.emit_event("adding a replica", model=name, replica=copy.name, reason=reason)
            self._fleet.preload(copy.name)
        elif name not in self._blocked:
            self._blocked.add(name)
            event = "no free memory for another replica"
            self._fleet.emit_event(event, level="warning", model=name, replica=copy.name, reason=reason)

    def _unload_some(self, copies: Sequence[Replica], count: int, reason: str) -> None:
        """Unload the replicas with the fewest requests, of equal ones the last. Running requests finish first."""
        ready = sorted((copy for copy in copies if copy.ready), key=lambda copy: (copy.running, -copy.number))
        for copy in ready[:count]:
            self._fleet.emit_event("removing a replica", model=copy.variant.name, replica=copy.name, reason=reason)
            self._fleet.begin_unload(copy)


def _can_load(copy: Replica) -> bool:
    """Return whether it is not loaded and has no backoff. One that crashed is reloaded by the fleet itself."""
    ready_at = copy.retry_at + (_RECOVERY_S if copy.recovering else 0.0)
    return copy.state is not ReplicaState.AWAKE and not copy.in_transition and ready_at <= time.monotonic()
