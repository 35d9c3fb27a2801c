"""Models as this server process offers them: loaded or not, with a session to whichever worker serves them now."""

from __future__ import annotations

import asyncio
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
    """The fleet, in this process or in the supervisor."""

    async def acquire(self, name: str, timeout_s: float | None = None, failed_address: str = "") -> ReplicaHandle: ...

    async def estimate_wait(self, name: str, *, preload: bool = False) -> WaitEstimate:
        """`wish`: have it loaded, although whoever asks does not wait for it."""

    async def list_failures(self) -> dict[str, EnginebayError]:
        """What whoever asks for a variant would be refused with now, of those that cannot be loaded."""

    async def run_admin_command(self, command: str, arguments: dict[str, Any]) -> Any:
        """Something that an administrator asks for."""


class VariantConnector:
    """This process' way to one variant. The queue outlives the worker that it is for."""

    def __init__(self, name: str, kind: str, limits: ServerLimits, processes: int) -> None:
        self.name = name
        self.kind = kind
        self.queue = AdmissionQueue(
            max(1, limits.running // processes), limits.queue // processes, limits.queue_timeout_s
        )
        self.facts: Facts | None = None  # of the last worker
        self.session: ModelSession | None = None
        self._connecting: dict[str, asyncio.Future[ModelSession]] = {}
        self._closing: set[asyncio.Task[None]] = set()
        self._retired = False

    @property
    def live_session(self) -> ModelSession | None:
        """Where requests can be sent now, as far as is known."""
        served = self.session
        return None if served is None or served.draining or served.client.client.broken else served

    @property
    def failed_address(self) -> str:
        """The address that could not be reached any more, if that is why there is none."""
        served = self.session
        return served.client.handle.address if served is not None and served.client.client.broken else ""

    async def connect(self, resident: ReplicaHandle, limits: ServerLimits, metrics: ServerMetrics) -> ModelSession:
        """The session with this worker, opened once however many ask."""
        if self._retired:
            raise Draining("this model has been configured anew", "send the request again")
        served = self.session
        if served is not None and served.client.handle.address == resident.address and not served.client.client.broken:
            served.draining = False
            return served
        opening = self._connecting.get(resident.address)
        if opening is None:
            opening = asyncio.ensure_future(self._open_session(resident, limits, metrics))
            self._connecting[resident.address] = opening
            opening.add_done_callback(lambda _: self._connecting.pop(resident.address, None))
        return await asyncio.shield(opening)

    async def _open_session(
        self, resident: ReplicaHandle, limits: ServerLimits, metrics: ServerMetrics
    ) -> ModelSession:
        client = await ModelClient.connect(resident)
        self._release_session()
        self.session = ModelSession(client, limits, metrics, self.queue)
        self.facts = resident.facts
        return self.session

    def retire(self) -> None:
        """The session ends with the last of its answers, and there is no other."""
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
    """One model under its name."""

    def __init__(self, offering: ModelRoute, limits: ServerLimits, processes: int) -> None:
        self.offering = offering
        self.name = offering.model
        self.created = int(time.time())
        self.connectors = [
            VariantConnector(name, kind, limits, processes)
            for name, kind in zip(offering.variants, offering.kinds, strict=True)
        ]

    @property
    def primary(self) -> VariantConnector:
        return self.connectors[0]

    def retire(self) -> None:
        for session in self.connectors:
            session.retire()


class ModelCatalog:
    """Models and their adapters by name."""

    def __init__(self, offers: Iterable[CatalogEntry]) -> None:
        self.entries = {offer.name: offer for offer in offers}
        self._adapters = {
            lora: offer for offer in self.entries.values() for lora in offer.offering.loras if lora not in self.entries
        }

    @property
    def names(self) -> list[str]:
        return [*self.entries, *self._adapters]

    def find(self, name: str) -> tuple[CatalogEntry, str | None]:
        """The model of this name, and the adapter if the name is an adapter's."""
        offer = self.entries.get(name)
        if offer is not None:
            return offer, None
        offer = self._adapters.get(name)
        if offer is not None:
            return offer, name
        raise UnknownModel(
            f"there is no model {name[:100]!r}", f"this server has: {', '.join(self.names)}", param="model"
        )

    async def close(self) -> None:
        for offer in self.entries.values():
            for session in offer.connectors:
                await session.close()
