"""Models that change while they serve: a new worker takes over when it answers, and no request is lost over it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass

from enginebay.config.sections.fleet_section import FleetConfig
from enginebay.errors import EnginebayError
from enginebay.fleet.fleet import Fleet
from enginebay.fleet.lifecycle.model_worker import ModelWorker
from enginebay.fleet.lifecycle.replica import Replica
from enginebay.fleet.lifecycle.transitions import DrainTimeout, LoadedWorker, drain, smoke_test
from enginebay.fleet.routing.variants import Variant
from enginebay.fleet.scheduling.planner import ReplicaState


@dataclass(frozen=True, slots=True)
class _Successor:
    replica: Replica
    variant: Variant
    loaded: LoadedWorker


class RollingUpdate:
    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._retiring: set[asyncio.Task[None]] = set()

    async def replace_variant(self, replica: Replica, variant: Variant) -> None:
        """The variant as it is to be from now on. Raises, with all as it was, when it cannot be so."""
        await self.apply([variant if one is replica else one.variant for one in self._fleet.replicas.values()])

    async def apply(self, variants: Iterable[Variant], config: FleetConfig | None = None) -> dict[str, list[str]]:
        """These variants and no others. All or nothing: what does not load or does not answer leaves all as it was.

        `rules`: those that workers made beside others are judged by; None for the present ones.
        """
        wanted = {variant.name: variant for variant in variants}
        places = self._fleet.replicas
        changed: list[Replica] = [
            places[name]
            for name, one in wanted.items()
            if name in places and _needs_new_worker(places[name].variant, one)
        ]
        for place in changed:
            place.updating = True
        try:
            successors = await self._start_successors(changed, wanted, config or self._fleet.config)
            try:
                await self._restart_in_place(
                    [place for place in changed if _has_no_successor(place, successors)], wanted
                )
            except BaseException:
                await _kill_all(successors)
                raise
            for successor in successors:
                await _wait_until_settled(successor.replica)
                old = self._fleet.replace_worker(successor.replica, successor.loaded, successor.variant)
                self._retire(old)
        finally:
            for place in changed:
                place.updating = False
        gone = [name for name in places if name not in wanted]
        for name in gone:
            await _wait_until_settled(places[name])
            self._retire(self._fleet.remove_replica(name))
        added = [name for name in wanted if name not in places]
        for name, variant in wanted.items():
            if name in added:
                places[name] = self._fleet.memory_budget.create_replica(variant)
            elif places[name] not in changed:
                places[name].variant, places[name].idle_s = variant, variant.idle_s
        return {"added": added, "removed": gone, "changed": [place.name for place in changed]}

    async def _start_successors(
        self, replicas: list[Replica], wanted: dict[str, Variant], config: FleetConfig
    ) -> list[_Successor]:
        """Workers beside those that serve, as far as memory allows; each has answered."""
        found: list[_Successor] = []
        try:
            for place in replicas:
                variant = wanted[place.name]
                if not place.ready or not self._fits_alongside(variant, found):
                    continue
                if variant.plan is None:
                    raise variant.error or EnginebayError(f"{place.name} cannot be planned")
                raised = await self._fleet.transitions.start_worker(
                    variant.plan, variant.sampling, config.load_timeout_s
                )
                found.append(_Successor(place, variant, raised))
                await smoke_test(raised.worker, config.hang_s)
        except BaseException:
            await _kill_all(found)
            raise
        return found

    def _fits_alongside(self, variant: Variant, others: list[_Successor]) -> bool:
        """Beside all that is there, and beside those that were made before it."""
        needed: dict[str, int] = {}
        for one in (variant, *(other.variant for other in others)):
            for pool, amount in self._fleet.memory_budget.create_replica(one).awake_bytes.items():
                needed[pool] = needed.get(pool, 0) + amount
        return self._fleet.has_memory_for(needed)

    async def _restart_in_place(self, replicas: list[Replica], wanted: dict[str, Variant]) -> None:
        """Where two do not fit: the old one leaves first. Requests wait meanwhile; if the new one fails, the old is back."""
        before: list[tuple[Replica, Variant, bool]] = []
        try:
            for place in replicas:
                await _wait_until_settled(place)
                was_awake = place.worker is not None and place.state is ReplicaState.AWAKE
                place.updating = False
                await self._fleet.sleep_or_unload(place, ReplicaState.COLD)
                before.append((place, place.variant, was_awake))
                self._fleet.apply_variant(place, wanted[place.name])
                if was_awake:
                    await self._fleet.acquire(place.name, queued=False)
        except BaseException:
            for place, variant, was_awake in before:
                await self._roll_back(place, variant, was_awake)
            raise

    async def _roll_back(self, replica: Replica, variant: Variant, was_awake: bool) -> None:
        """As it was. What has come meanwhile finishes on the worker that is to go."""
        await _wait_until_settled(replica)
        worker = replica.worker
        replica.detach_worker()
        self._retire(worker)
        self._fleet.apply_variant(replica, variant)
        self._fleet.reset_failures(replica)
        if was_awake:
            self._fleet.preload(replica.name)

    def _retire(self, worker: ModelWorker | None) -> None:
        """It finishes what it has; what comes to it still is sent elsewhere."""
        if worker is not None:
            task = asyncio.ensure_future(self._drain_and_close(worker))
            self._retiring.add(task)
            task.add_done_callback(self._retiring.discard)

    async def _drain_and_close(self, worker: ModelWorker) -> None:
        patience_s = self._fleet.config.max_wait_s
        try:
            while True:
                try:
                    await drain(worker, patience_s, reopen=False)
                    return
                except DrainTimeout:
                    continue  # an answer may take longer than anybody waits for a model
        finally:
            await worker.close()

    async def close(self) -> None:
        for task in list(self._retiring):
            task.cancel()
        await asyncio.gather(*self._retiring, return_exceptions=True)


def _needs_new_worker(current: Variant, desired: Variant) -> bool:
    """Whether another worker is needed for it."""
    if current.plan is None or desired.plan is None:
        return current.plan is not desired.plan or str(current.error) != str(desired.error)
    return (current.plan.launch, current.plan.tool_format, current.sampling) != (
        desired.plan.launch,
        desired.plan.tool_format,
        desired.sampling,
    )


async def _kill_all(successors: list[_Successor]) -> None:
    await asyncio.gather(*(one.loaded.worker.kill() for one in successors), return_exceptions=True)


async def _wait_until_settled(replica: Replica) -> None:
    while replica.in_transition:
        await asyncio.sleep(0.05)


def _has_no_successor(replica: Replica, successors: list[_Successor]) -> bool:
    return all(one.replica is not replica for one in successors)
