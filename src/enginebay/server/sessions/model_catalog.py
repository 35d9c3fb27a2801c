"""The models that this server process serves, loaded or not, with sessions to their current workers."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol

from enginebay.config.sections.server_section import ServerLimits
from enginebay.contract import Facts
from enginebay.errors import Draining, EnginebayError, UnknownModel
from enginebay.fleet.routing.model_client import ModelClient, ReplicaHandle
from enginebay.fleet.routing.variants import ModelRoute
from enginebay.fleet.scheduling.wait_estimate import WaitEstimate
from enginebay.server.sessions.admission_queue import AdmissionQueue
from enginebay.server.sessions.model_session import ModelSession
from enginebay.server.sessions.replica_pool import ReplicaPool, identify_service
from enginebay.server.telemetry.server_metrics import ServerMetrics

_IDLE_POLL_S = 0.2
_RESERVE_POLL_S = 0.02


class ReplicaDemand(NamedTuple):
    """What a server process says of the variants that may have several replicas."""

    waiting: Mapping[str, int] = {}  # requests in its queues, by variant
    outdated: tuple[str, ...] = ()  # variants whose replicas it does not know


class FleetGateway(Protocol):
    """Access to the fleet, in this process or in the supervisor."""

    async def acquire(
        self, name: str, timeout_s: float | None = None, failed_address: str = "", queued: bool = True
    ) -> ReplicaHandle:
        """Return a ready replica of this variant, loading it if needed.

        `failed_address`: one that does not respond. `queued`: count against `fleet.queue`.
        """

    async def estimate_wait(self, name: str, *, preload: bool = False) -> WaitEstimate:
        """Estimate when the variant is ready. `preload`: also start loading it."""

    async def list_failures(self) -> dict[str, EnginebayError]:
        """Return, for each variant that cannot be loaded now, the error that a request would get."""

    async def run_admin_command(self, command: str, arguments: dict[str, Any]) -> Any:
        """Run an admin command."""


class VariantConnector:
    """This process's connections to one variant. The queue outlives the workers, and is shared by all replicas."""

    def __init__(self, name: str, kind: str, limits: ServerLimits, processes: int) -> None:
        self.name = name
        self.kind = kind
        self._processes = processes
        self.queue = AdmissionQueue(
            max(1, limits.running // processes), limits.queue // processes, limits.queue_timeout_s, processes
        )
        self.facts: Facts | None = None  # of the last worker
        self.session: ModelSession | None = None  # the last that was opened, live or not
        self._sessions: dict[str, ModelSession] = {}  # by worker address
        self._pools: dict[str, ReplicaPool] = {}  # by what they serve: more than one only during an update
        self._connecting: dict[str, asyncio.Future[ModelSession]] = {}
        self._closing: set[asyncio.Task[None]] = set()
        self._max_running = limits.running
        self._reserved_address = ""  # of a replica that gets no requests
        self._retired = False

    @property
    def live_session(self) -> ModelSession | None:
        """A session that accepts requests now, as far as known."""
        session = self.session
        if session is None or session.pool is None:
            return session if session is not None and session.is_live else None
        pools = list(self._pools.values())
        if len(pools) > 1:
            pools.sort(key=lambda pool: pool.load)
        return next((live for pool in pools if (live := pool.find_live()) is not None), None)

    def list_live_sessions(self) -> list[ModelSession]:
        """Return the sessions with all replicas that accept requests now, as far as known."""
        sessions = self._sessions.values() if self._pools else [self.session]
        return [session for session in sessions if session is not None and session.is_live]

    @property
    def failed_address(self) -> str:
        """The worker address of a broken session, else empty."""
        session = self.session
        return session.address if session is not None and session.client.client.broken else ""

    async def connect(self, replica: ReplicaHandle, limits: ServerLimits, metrics: ServerMetrics) -> ModelSession:
        """Return the session with this replica. Concurrent callers share one connection attempt."""
        if self._retired:
            raise Draining("this model was reconfigured", "retry the request")
        session = self._sessions.get(replica.address)
        if session is not None and session.replica == replica.replica and not session.client.client.broken:
            self._accept_requests(session)
            return session
        opening = self._connecting.get(replica.address)
        if opening is None:
            opening = asyncio.ensure_future(self._open_session(replica, limits, metrics))
            self._connecting[replica.address] = opening
            opening.add_done_callback(lambda _: self._connecting.pop(replica.address, None))
        return await asyncio.shield(opening)

    async def set_replicas(
        self, replicas: Sequence[ReplicaHandle], limits: ServerLimits, metrics: ServerMetrics
    ) -> None:
        """Use exactly these replicas. Responses of others finish."""
        listed = {replica.address for replica in replicas}
        for address in [address for address in self._sessions if address not in listed]:
            self._release_session(address)
        self._apply_engine_limits(limits.running)
        for session in await asyncio.gather(
            *(self.connect(replica, limits, metrics) for replica in replicas), return_exceptions=True
        ):
            if isinstance(session, ModelSession):
                session.client.loras = next(it.loras for it in replicas if it.address == session.address)

    def note_loads(self, running: Mapping[str, int]) -> bool:
        """Note the requests of all server processes by worker address. Return whether other replicas than ours are listed.

        Every one listed accepts requests.
        """
        for address, count in running.items():
            session = self._sessions.get(address)
            if session is not None and session.pool is not None:
                if session.draining:  # a drain that was cancelled
                    self._accept_requests(session)
                if self._processes > 1:
                    session.pool.note_shared_load(address, count)
        return self._sessions.keys() != running.keys()

    def set_loras(self, loras: tuple[str, ...]) -> None:
        for session in self._sessions.values():
            session.client.loras = loras

    def _accept_requests(self, session: ModelSession) -> None:
        session.draining = False
        if session.pool is not None:
            session.pool.refresh()

    async def _open_session(self, replica: ReplicaHandle, limits: ServerLimits, metrics: ServerMetrics) -> ModelSession:
        client = await ModelClient.connect(replica)
        session = ModelSession(client, limits, metrics, self.queue)
        for other in list(self._sessions.values()):
            if other.replica == session.replica or not (other.replica and session.replica):
                self._release_session(other.address)
        self.session = self._sessions[session.address] = session
        self.facts = replica.facts
        if session.replica:
            session.reserved = session.address == self._reserved_address
            pool = self._pools.setdefault(identify_service(replica), ReplicaPool())
            pool.add(session)
            if self._processes > 1:  # else our own count is exact
                client.client.on_load = partial(pool.note_load, session.address)
        self._apply_engine_limits(limits.running)
        return session

    def _apply_engine_limits(self, max_running: int) -> None:
        """Admit what the engines run at once: in their own queues, requests would wait behind those of other clients."""
        self._max_running = max_running
        if not self._sessions:
            return
        slots, tokens = 0, 0
        for session in self._sessions.values():
            facts = session.client.facts
            share = max(1, max_running // self._processes)
            if facts.max_batch > 0:  # rounded up: a request too many waits in the engine, a slot too few is never used
                share = min(share, math.ceil(facts.max_batch / self._processes))
            if session.reserved:  # what runs there holds slots until it ends; then only the suspect does
                share = min(share, max(1, session.in_flight))
            slots += share
            tokens += max(1, (facts.reservable_tokens or 0) // self._processes)
        reserves = all(session.client.facts.reservable_tokens is not None for session in self._sessions.values())
        self.queue.resize(slots, tokens if reserves else None)

    # A replica for a suspect

    def reserve(self, address: str) -> bool:
        """Send no more requests to this replica. Return False if no other one would get them."""
        others = (session for session in self._sessions.values() if session.address != address)
        if not any(session.pool is not None and session.is_routed for session in others):
            return False
        self._set_reserved(address)
        return True

    def is_reserved(self, address: str) -> bool:
        return bool(address) and address == self._reserved_address

    async def wait_idle(self, address: str) -> None:
        """Wait until none of our requests runs on this replica."""
        while (session := self._sessions.get(address)) is not None and session.in_flight and session.is_live:
            await asyncio.sleep(_RESERVE_POLL_S)
            self._apply_engine_limits(self._max_running)
        self._apply_engine_limits(self._max_running)

    def end_reservation(self) -> None:
        self._set_reserved("")

    def _set_reserved(self, address: str) -> None:
        self._reserved_address = address
        for session in self._sessions.values():
            session.reserved = session.address == address
        for pool in self._pools.values():
            pool.refresh()
        self._apply_engine_limits(self._max_running)

    # The end

    def retire(self) -> None:
        """Close the sessions after their last responses, and open no other."""
        self._retired = True
        for address in list(self._sessions):
            self._release_session(address)

    def _release_session(self, address: str) -> None:
        session = self._sessions.pop(address)
        if session.pool is not None:
            session.pool.remove(address)
            self._pools = {service: pool for service, pool in self._pools.items() if pool.sessions}
        task = asyncio.ensure_future(_close_when_idle(session.client))
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    async def close(self) -> None:
        for task in list(self._closing):
            task.cancel()
        for session in list(self._sessions.values()):
            await session.client.close()


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
