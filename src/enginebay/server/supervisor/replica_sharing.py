"""Tells the server processes which replicas serve a model and how busy they are, and asks how many requests wait."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from enginebay.fleet.fleet import Fleet
from enginebay.fleet.lifecycle.background_tasks import BackgroundTasks
from enginebay.fleet.lifecycle.replica import Replica
from enginebay.fleet.lifecycle.replica_scaler import group_replicas, list_handles
from enginebay.fleet.routing.model_client import ReplicaHandle
from enginebay.server.sessions.model_catalog import ReplicaDemand

_INTERVAL_S = 0.5


class ReplicaUser(Protocol):
    """A server process."""

    async def set_replicas(self, variant: str, replicas: tuple[ReplicaHandle, ...]) -> None:
        """Use exactly these replicas of a variant."""

    async def exchange_loads(self, loads: Mapping[str, Mapping[str, int]]) -> ReplicaDemand:
        """Note the running requests of variants, by worker address."""


class ReplicaSharing:
    """Only for models that may have several replicas. Changes are sent at once; what got lost is sent again."""

    def __init__(self, fleet: Fleet, list_processes: Callable[[], Sequence[ReplicaUser]]) -> None:
        self._fleet = fleet
        self._list_processes = list_processes
        self._tasks = BackgroundTasks(
            lambda error: fleet.emit_event("sharing replicas failed", level="error", error=repr(error))
        )
        fleet.scaler.share_replicas = self._share

    def start(self) -> None:
        self._tasks.spawn(self._run())

    async def close(self) -> None:
        await self._tasks.cancel()

    def _share(self, variant: str, handles: tuple[ReplicaHandle, ...]) -> None:
        for process in self._list_processes():
            self._tasks.spawn(process.set_replicas(variant, handles))

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(_INTERVAL_S)
            groups = group_replicas(self._fleet.replicas.values())
            scaled = {name: copies for name, copies in groups.items() if copies[0].variant.max_replicas > 1}
            if scaled:
                await self._exchange(scaled)

    async def _exchange(self, scaled: Mapping[str, list[Replica]]) -> None:
        processes = self._list_processes()
        loads = {name: count_running(copies) for name, copies in scaled.items()}
        waiting: Counter[str] = Counter()
        demands = await asyncio.gather(*(process.exchange_loads(loads) for process in processes))
        for process, demand in zip(processes, demands, strict=True):
            waiting.update(demand.waiting)
            for name in demand.outdated:
                await process.set_replicas(name, list_handles(scaled[name]))
        self._fleet.scaler.note_waiting(waiting)


def count_running(copies: Sequence[Replica]) -> dict[str, int]:
    """Return the running requests of the replicas that accept more, by worker address."""
    return {copy.worker.handle.address: copy.running for copy in copies if copy.ready and copy.worker is not None}
