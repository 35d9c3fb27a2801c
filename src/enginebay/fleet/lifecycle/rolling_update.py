"""Rolling updates: a changed model gets a new worker, which takes over once it answers. No request is dropped."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from enginebay.config.sections.fleet_section import FleetConfig
from enginebay.errors import EnginebayError
from enginebay.fleet.fleet import Fleet
from enginebay.fleet.lifecycle.model_worker import ModelWorker
from enginebay.fleet.lifecycle.replica import Replica
from enginebay.fleet.lifecycle.transitions import DrainTimeout, LoadedWorker, drain, smoke_test
from enginebay.fleet.routing.variants import Variant
from enginebay.fleet.scheduling.planner import ReplicaSnapshot, ReplicaState


@dataclass(frozen=True, slots=True)
class _Successor:
    replica: Replica
    variant: Variant
    loaded: LoadedWorker
    placed: ReplicaSnapshot  # where it has room beside everything loaded


class RollingUpdate:
    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._retiring: set[asyncio.Task[None]] = set()

    async def replace_variant(self, replica: Replica, variant: Variant) -> None:
        """Replace the variant of one replica. On failure it raises and nothing changes."""
        replicas = self._fleet.replicas.values()
        await self.apply([variant if other is replica else other.variant for other in replicas])

    async def apply(self, variants: Iterable[Variant], config: FleetConfig | None = None) -> dict[str, list[str]]:
        """Make the fleet serve exactly these variants. All or nothing: on failure nothing changes.

        `config`: timeouts for the new workers; None keeps the current ones.
        """
        desired = {variant.name: variant for variant in variants}
        replicas = self._fleet.replicas
        changed: list[Replica] = [
            replicas[name]
            for name, variant in desired.items()
            if name in replicas and _needs_new_worker(replicas[name].variant, variant)
        ]
        for replica in changed:
            replica.updating = True
        try:
            successors = await self._start_successors(changed, desired, config or self._fleet.config)
            try:
                await self._restart_in_place(
                    [replica for replica in changed if _has_no_successor(replica, successors)], desired
                )
            except BaseException:
                await _kill_all(successors)
                raise
            for successor in successors:
                await _wait_until_settled(successor.replica)
                old = self._fleet.replace_worker(successor.replica, successor.loaded, successor.variant)
                self._retire(old)
        finally:
            for replica in changed:
                replica.updating = False
        removed = [name for name in replicas if name not in desired]
        for name in removed:
            await _wait_until_settled(replicas[name])
            self._retire(self._fleet.remove_replica(name))
        added = [name for name in desired if name not in replicas]
        for name, variant in desired.items():
            if name in added:
                replicas[name] = self._fleet.memory_budget.create_replica(variant)
            elif replicas[name] not in changed:
                replicas[name].variant, replicas[name].idle_s = variant, variant.idle_s
        return {"added": added, "removed": removed, "changed": [replica.name for replica in changed]}

    async def _start_successors(
        self, replicas: list[Replica], desired: dict[str, Variant], config: FleetConfig
    ) -> list[_Successor]:
        """Start and test new workers next to the serving ones, as far as memory allows."""
        successors: list[_Successor] = []
        try:
            for replica in replicas:
                variant = desired[replica.name]
                placed = self._find_room(variant, successors) if replica.ready else None
                if placed is None:
                    continue
                if variant.plan is None:
                    raise variant.error or EnginebayError(f"{replica.name} has no launch plan")
                loaded = await self._fleet.transitions.start_worker(
                    variant.plan, variant, placed.placement, config.load_timeout_s
                )
                successors.append(_Successor(replica, variant, loaded, placed))
                await smoke_test(loaded.worker, config.hang_s)
        except BaseException:
            await _kill_all(successors)
            raise
        return successors

    def _find_room(self, variant: Variant, others: list[_Successor]) -> ReplicaSnapshot | None:
        """Return the variant where it fits next to everything loaded and the successors started so far."""
        account = self._fleet.build_memory_account()
        for other in others:
            account.add_loaded(other.placed)
        fresh = self._fleet.memory_budget.create_replica(variant)
        return account.find_room(replace(self._fleet.memory_budget.snapshot_replica(fresh), awake_slots=0))

    async def _restart_in_place(self, replicas: list[Replica], desired: dict[str, Variant]) -> None:
        """Unload the old worker first where two do not fit. Requests wait meanwhile; a failure rolls back."""
        before: list[tuple[Replica, Variant, bool]] = []
        try:
            for replica in replicas:
                await _wait_until_settled(replica)
                was_awake = replica.worker is not None and replica.state is ReplicaState.AWAKE
                replica.updating = False
                await self._fleet.sleep_or_unload(replica, ReplicaState.COLD)
                before.append((replica, replica.variant, was_awake))
                self._fleet.apply_variant(replica, desired[replica.name])
                if was_awake:
                    await self._fleet.acquire(replica.name, queued=False)
        except BaseException:
            for replica, variant, was_awake in before:
                await self._roll_back(replica, variant, was_awake)
            raise

    async def _roll_back(self, replica: Replica, variant: Variant, was_awake: bool) -> None:
        """Restore the old variant. Requests on the new worker finish there."""
        await _wait_until_settled(replica)
        worker = replica.worker
        replica.detach_worker()
        self._retire(worker)
        self._fleet.apply_variant(replica, variant)
        self._fleet.reset_failures(replica)
        if was_awake:
            self._fleet.preload(replica.name)

    def _retire(self, worker: ModelWorker | None) -> None:
        """Drain and stop a worker in the background."""
        if worker is not None:
            task = asyncio.ensure_future(self._drain_and_close(worker))
            self._retiring.add(task)
            task.add_done_callback(self._retiring.discard)

    async def _drain_and_close(self, worker: ModelWorker) -> None:
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
    return (before.launch, before.tool_format, before.allow_special_tokens, current.sampling) != (
        after.launch,
        after.tool_format,
        after.allow_special_tokens,
        desired.sampling,
    )


def _list_gpu_choices(variant: Variant) -> tuple[Any, ...]:
    """Return what a placement depends on."""
    need = variant.gpu_need
    return () if need is None else (need.count, need.only)


async def _kill_all(successors: list[_Successor]) -> None:
    await asyncio.gather(*(successor.loaded.worker.kill() for successor in successors), return_exceptions=True)


async def _wait_until_settled(replica: Replica) -> None:
    while replica.in_transition:
        await asyncio.sleep(0.05)


def _has_no_successor(replica: Replica, successors: list[_Successor]) -> bool:
    return all(successor.replica is not replica for successor in successors)
