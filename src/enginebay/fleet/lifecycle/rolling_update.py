"""Rolling updates: a changed model gets a new worker, which takes over once it answers. No request is dropped."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

from enginebay.config.sections.fleet_section import FleetConfig
from enginebay.errors import EnginebayError, LoadFailed
from enginebay.fleet.fleet import Fleet
from enginebay.fleet.lifecycle.launch_plan import LaunchPlan
from enginebay.fleet.lifecycle.model_worker import ModelWorker
from enginebay.fleet.lifecycle.replica import Replica
from enginebay.fleet.lifecycle.replica_scaler import find_ready, group_replicas
from enginebay.fleet.lifecycle.transitions import DrainTimeout, LoadedWorker, drain, smoke_test
from enginebay.fleet.routing.variants import Variant
from enginebay.fleet.scheduling.planner import ReplicaSnapshot, ReplicaState

_POLL_S = 0.05


@dataclass(frozen=True, slots=True)
class _Successor:
    replica: Replica
    variant: Variant
    loaded: LoadedWorker
    release: Callable[[], None]  # of the memory that is held for it


class RollingUpdate:
    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._retiring: set[asyncio.Task[None]] = set()

    async def replace_variant(self, variant: Variant) -> None:
        """Replace one variant. On failure it raises and nothing changes."""
        current = {replica.variant.name: replica.variant for replica in self._fleet.replicas.values()}
        await self.apply({**current, variant.name: variant}.values())

    async def apply(self, variants: Iterable[Variant], config: FleetConfig | None = None) -> dict[str, list[str]]:
        """Make the fleet serve exactly these variants. All or nothing: on failure nothing changes.

        Of several replicas, one shows that the new variant works; then the others follow one by one.
        `config`: timeouts for the new workers; None keeps the current ones.
        """
        desired = {variant.name: variant for variant in variants}
        config = config or self._fleet.config
        groups = group_replicas(self._fleet.replicas.values())
        changed = [
            copies
            for name, copies in groups.items()
            if name in desired and _needs_new_worker(copies[0].variant, desired[name])
        ]
        leaders = [find_ready(copies) or copies[0] for copies in changed]
        followers = [copy for copies in changed for copy in copies if copy not in leaders]
        for replica in (*leaders, *followers):
            replica.updating = True
        try:
            await self._update_leaders(leaders, desired, config)
            for replica in followers:
                await self._update_follower(replica, desired[replica.variant.name], config)
        finally:
            for replica in (*leaders, *followers):
                replica.updating = False
        removed = [name for name in groups if name not in desired]
        for name in removed:
            await self._remove(groups[name])
        for name, variant in desired.items():
            await self._resize(variant, groups.get(name, []))
        added = [name for name in desired if name not in groups]
        return {"added": added, "removed": removed, "changed": [copies[0].variant.name for copies in changed]}

    async def _update_leaders(self, leaders: list[Replica], desired: dict[str, Variant], config: FleetConfig) -> None:
        successors = await self._start_successors(leaders, desired, config)
        try:
            await self._restart_in_place(
                [replica for replica in leaders if _has_no_successor(replica, successors)], desired
            )
        except BaseException:
            await _kill_all(successors)
            raise
        for successor in successors:
            await self._hand_over(successor)

    async def _update_follower(self, replica: Replica, variant: Variant, config: FleetConfig) -> None:
        """Update one replica while others serve. If it fails, the replica is unloaded, and may load again later."""
        await _wait_until_settled(replica)
        was_ready = replica.ready
        try:
            successors = await self._start_successors([replica], {replica.variant.name: variant}, config)
            if successors:
                await self._hand_over(successors[0])
                return
            await self._fleet.sleep_or_unload(ReplicaState.COLD, replica, for_update=True)
            self._fleet.apply_variant(replica, variant)
            if was_ready:
                await self._load(replica)
        except EnginebayError as error:
            await _wait_until_settled(replica)  # a load may still run, and succeed
            if replica.ready and replica.variant is variant:
                return
            event = "replica update failed; the replica is unloaded"
            self._fleet.emit_event(event, level="warning", **replica.log_names, error=error.message)
            self._retire(replica)
            self._fleet.apply_variant(replica, variant)

    async def _hand_over(self, successor: _Successor) -> None:
        replica = successor.replica
        await _wait_until_settled(replica)
        held, old = self._fleet.memory_budget.snapshot_replica(replica), replica.worker
        successor.release()
        self._fleet.replace_worker(replica, successor.loaded, successor.variant)
        self._retire_worker(old, held)

    async def _load(self, replica: Replica) -> None:
        """Load this very replica, while others may serve."""
        if len(self._fleet.list_copies(replica)) == 1:
            await self._fleet.acquire(replica.name, queued=False)
            return
        self._fleet.preload(replica.name)
        while self._fleet.is_preloading(replica):
            await asyncio.sleep(_POLL_S)
        if not replica.ready:
            raise replica.load_error or LoadFailed(
                f"{replica.name} did not load within {self._fleet.config.max_wait_s:g} s"
            )

    async def _remove(self, copies: Iterable[Replica]) -> None:
        for replica in copies:
            await _wait_until_settled(replica)
            self._retire(replica)
            self._fleet.remove_replica(replica.name)

    async def _resize(self, variant: Variant, copies: list[Replica]) -> None:
        """Apply what needs no new worker: the number of replicas, and settings of the fleet."""
        await self._remove(copies[variant.max_replicas :])
        for replica in copies[: variant.max_replicas]:
            replica.variant, replica.idle_s = variant, variant.idle_s
            replica.name_worker()
        for replica in self._fleet.memory_budget.create_replicas(variant)[len(copies) :]:
            self._fleet.replicas[replica.name] = replica

    async def _start_successors(
        self, replicas: list[Replica], desired: dict[str, Variant], config: FleetConfig
    ) -> list[_Successor]:
        """Start and test new workers next to the serving ones, as far as memory allows."""
        successors: list[_Successor] = []
        try:
            for replica in replicas:
                variant = desired[replica.variant.name]
                placed = self._find_room(variant) if replica.ready else None
                if placed is None:
                    continue
                successors.append(await self._start_successor(replica, variant, placed, config))
                await smoke_test(successors[-1].loaded.worker, config.hang_s)
        except BaseException:
            await _kill_all(successors)
            raise
        return successors

    async def _start_successor(
        self, replica: Replica, variant: Variant, placed: ReplicaSnapshot, config: FleetConfig
    ) -> _Successor:
        if variant.plan is None:
            raise variant.error or EnginebayError(f"{replica.name} has no launch plan")
        release = self._fleet.memory_budget.hold(replace(placed, state=ReplicaState.AWAKE))
        try:
            loaded = await self._fleet.transitions.start_worker(
                replica.name_log(variant.plan), variant, placed.placement, config.load_timeout_s
            )
        except BaseException:
            release()
            raise
        return _Successor(replica, variant, loaded, release)

    def _find_room(self, variant: Variant) -> ReplicaSnapshot | None:
        """Return the variant where it fits next to everything loaded."""
        fresh = self._fleet.memory_budget.create_replica(variant)
        snapshot = self._fleet.memory_budget.snapshot_replica(fresh)
        return self._fleet.build_memory_account().find_room(replace(snapshot, awake_slots=0))

    async def _restart_in_place(self, replicas: list[Replica], desired: dict[str, Variant]) -> None:
        """Unload the old worker first where two do not fit. Requests wait meanwhile; a failure rolls back."""
        before: list[tuple[Replica, Variant, bool]] = []
        try:
            for replica in replicas:
                await _wait_until_settled(replica)
                was_awake = replica.worker is not None and replica.state is ReplicaState.AWAKE
                await self._fleet.sleep_or_unload(ReplicaState.COLD, replica, for_update=True)
                before.append((replica, replica.variant, was_awake))
                variant, list_lost_gpus = desired[replica.variant.name], self._fleet.memory_budget.list_lost_gpus
                stays_lost = list_lost_gpus(replica.variant) and list_lost_gpus(variant)
                self._fleet.apply_variant(replica, variant)
                if was_awake and not stays_lost:
                    await self._load(replica)
        except BaseException:
            for replica, variant, was_awake in before:
                await self._roll_back(replica, variant, was_awake)
            raise

    async def _roll_back(self, replica: Replica, variant: Variant, was_awake: bool) -> None:
        """Restore the old variant. Requests on the new worker finish there."""
        await _wait_until_settled(replica)
        self._retire(replica)
        self._fleet.apply_variant(replica, variant)
        self._fleet.reset_failures(replica)
        if was_awake:
            self._fleet.preload(replica.name)

    def _retire(self, replica: Replica) -> None:
        """Take the worker from a replica, and stop it after its last request."""
        worker, held = replica.worker, self._fleet.memory_budget.snapshot_replica(replica)
        replica.detach_worker()
        self._fleet.request_plan()
        self._retire_worker(worker, held)

    def _retire_worker(self, worker: ModelWorker | None, held: ReplicaSnapshot) -> None:
        """Drain and stop a worker in the background."""
        if worker is not None:
            task = asyncio.ensure_future(self._drain_and_close(worker, self._fleet.memory_budget.hold(held)))
            self._retiring.add(task)
            task.add_done_callback(self._retiring.discard)

    async def _drain_and_close(self, worker: ModelWorker, release: Callable[[], None]) -> None:
        timeout_s = self._fleet.config.max_wait_s
        try:
            while True:
                try:
                    await drain(worker, timeout_s, reopen=False)
                    return
                except DrainTimeout:
                    continue  # a running request has no time limit
        finally:
            await worker.close()
            release()
            self._fleet.request_plan()

    async def close(self) -> None:
        for task in list(self._retiring):
            task.cancel()
        await asyncio.gather(*self._retiring, return_exceptions=True)


def _needs_new_worker(current: Variant, desired: Variant) -> bool:
    """Return whether the change needs a new worker."""
    if current.plan is None or desired.plan is None:
        return current.plan is not desired.plan or str(current.error) != str(desired.error)
    before, after = current.plan, desired.plan
    if _list_gpu_choices(current) != _list_gpu_choices(desired):
        return True
    return (*_list_chat_settings(before), current.sampling) != (*_list_chat_settings(after), desired.sampling)


def _list_chat_settings(plan: LaunchPlan) -> tuple[object, ...]:
    return plan.launch, plan.tool_format, plan.reasoning_format, plan.allow_special_tokens


def _list_gpu_choices(variant: Variant) -> tuple[Any, ...]:
    """Return what a placement depends on."""
    need = variant.gpu_need
    return () if need is None else (need.count, need.only)


async def _kill_all(successors: list[_Successor]) -> None:
    await asyncio.gather(*(successor.loaded.worker.kill() for successor in successors), return_exceptions=True)
    for successor in successors:
        successor.release()


async def _wait_until_settled(replica: Replica) -> None:
    while replica.in_transition:
        await asyncio.sleep(_POLL_S)


def _has_no_successor(replica: Replica, successors: list[_Successor]) -> bool:
    return all(successor.replica is not replica for successor in successors)
