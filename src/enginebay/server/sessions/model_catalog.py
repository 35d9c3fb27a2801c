"""The models that this server process serves, loaded or not, with sessions to their current workers."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Iterable
from typing import Any, Protocol

from enginebay.config.sections.server_section import ServerLimits
from enginebay.contract import Facts
from enginebay.errors import Draining, EnginebayError, UnknownModel
from enginebay.fleet.routing.model_client import ModelClient, ReplicaHandle
from enginebay.fleet.routing.variants import ModelRoute
from enginebay.fleet.scheduling.wait_estimate import WaitEstimate
from enginebay.server.sessions.admission_queue import AdmissionQueue
from enginebay.server.sessions.model_session import ModelSession
from enginebay.server.telemetry.server_metrics import ServerMetrics

_IDLE_POLL_S = 0.2


class FleetGateway(Protocol):
    """Access to the fleet, in this process or in the supervisor."""

    async def acquire(self, name: str, timeout_s: float | None = None, failed_address: str = "") -> ReplicaHandle:
        """Return a ready replica of this variant, loading it if needed. `failed_address`: one that does not respond."""

    async def estimate_wait(self, name: str, *, preload: bool = False) -> WaitEstimate:
        """Estimate when the variant is ready. `preload`: also start loading it."""

    async def list_failures(self) -> dict[str, EnginebayError]:
        """Return, for each variant that cannot be loaded now, the error that a request would get."""

    async def run_admin_command(self, command: str, arguments: dict[str, Any]) -> Any:
        """Run an admin command."""


class VariantConnector:
    """This process's connection to one variant. The queue outlives the worker."""

    def __init__(self, name: str, kind: str, limits: ServerLimits, processes: int) -> None:
        self.name = name
        self.kind = kind
        self._processes = processes
        self.queue = AdmissionQueue(
            max(1, limits.running // processes), limits.queue // processes, limits.queue_timeout_s, processes
        )
        self.facts: Facts | None = None  # of the last worker
        self.session: ModelSession | None = None
        self._connecting: dict[str, asyncio.Future[ModelSession]] = {}
        self._closing: set[asyncio.Task[None]] = set()
        self._retired = False

    @property
    def live_session(self) -> ModelSession | None:
        """The session that accepts requests now, as far as known."""
        session = self.session
        return None if session is None or session.draining or session.client.client.broken else session

    @property
    def failed_address(self) -> str:
        """The worker address of a broken session, else empty."""
        session = self.session
        return session.client.handle.address if session is not None and session.client.client.broken else ""

    async def connect(self, replica: ReplicaHandle, limits: ServerLimits, metrics: ServerMetrics) -> ModelSession:
        """Return the session with this replica. Concurrent callers share one connection attempt."""
        if self._retired:
            raise Draining("this model was reconfigured", "retry the request")
        session = self.session
        client = None if session is None else session.client
        if session and client and client.handle.address == replica.address and not client.client.broken:
            session.draining = False
            return session
        opening = self._connecting.get(replica.address)
        if opening is None:
            opening = asyncio.ensure_future(self._open_session(replica, limits, metrics))
            self._connecting[replica.address] = opening
            opening.add_done_callback(lambda _: self._connecting.pop(replica.address, None))
        return await asyncio.shield(opening)

    async def _open_session(self, replica: ReplicaHandle, limits: ServerLimits, metrics: ServerMetrics) -> ModelSession:
        client = await ModelClient.connect(replica)
        self._release_session()
        self.session = ModelSession(client, limits, metrics, self.queue)
        self.facts = replica.facts
        self._apply_engine_limits(limits.running, replica.facts)
        return self.session

    def _apply_engine_limits(self, max_running: int, facts: Facts) -> None:
        """Admit what the engine runs at once: in its own queue, requests would wait behind those of other clients."""
        slots = max(1, max_running // self._processes)
        if facts.max_batch > 0:  # rounded up: a request too many waits in the engine, a slot too few is never used
            slots = min(slots, math.ceil(facts.max_batch / self._processes))
        tokens = facts.reservable_tokens
        share = None if tokens is None else max(1, tokens // self._processes)
        self.queue.resize(slots, share)

    def retire(self) -> None:
        """Close the session after its last response, and open no other."""
        self._retired = True
        self._release_session()

    def _release_session(self) -> None:
        if self.session is not None:
            task = asyncio.ensure_future(_close_when_idle(self.session.client))
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)

    async def close(self) -> None:
        for task in list(self._closing):
            task.cancel()
        if self.session is not None:
            await self.session.client.close()


async def _close_when_idle(client: ModelClient) -> None:
    try:
        while not client.client.idle and not client.client.broken:
            await asyncio.sleep(_IDLE_POLL_S)
    finally:
        await client.close()


class CatalogEntry:
    """One model and the connectors to its variants, in fallback order."""

    def __init__(self, route: ModelRoute, limits: ServerLimits, processes: int) -> None:
        self.route = route
        self.name = route.model
        self.created = int(time.time())
        self.connectors = [
            VariantConnector(name, kind, limits, processes)
            for name, kind in zip(route.variants, route.kinds, strict=True)
        ]

    @property
    def primary(self) -> VariantConnector:
        return self.connectors[0]

    def retire(self) -> None:
        for connector in self.connectors:
            connector.retire()


class ModelCatalog:
    """Models and their adapters by name."""

    def __init__(self, entries: Iterable[CatalogEntry]) -> None:
        self.entries = {entry.name: entry for entry in entries}
        self._adapters = {
            lora: entry for entry in self.entries.values() for lora in entry.route.loras if lora not in self.entries
        }

    @property
    def names(self) -> list[str]:
        return [*self.entries, *self._adapters]

    def find(self, name: str) -> tuple[CatalogEntry, str | None]:
        """Return the model with this name, and the adapter if the name is an adapter's. Raise `UnknownModel`."""
        entry = self.entries.get(name)
        if entry is not None:
            return entry, None
        entry = self._adapters.get(name)
        if entry is not None:
            return entry, name
        raise UnknownModel(f"unknown model {name[:100]!r}", f"available: {', '.join(self.names)}", param="model")

    async def close(self) -> None:
        for entry in self.entries.values():
            for connector in entry.connectors:
                await connector.close()
