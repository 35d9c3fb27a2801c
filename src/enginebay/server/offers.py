"""Models as this server process offers them: loaded or not, with a session to whichever worker serves them now."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from typing import Any, Protocol

from enginebay.config.server import Limits
from enginebay.contract import Facts
from enginebay.errors import Draining, EnginebayError, UnknownModel
from enginebay.fleet.model_client import ModelClient, Resident
from enginebay.fleet.outlook import Outlook
from enginebay.fleet.variants import Offering
from enginebay.server.admission import Gate
from enginebay.server.metrics import Metrics
from enginebay.server.served import ServedModel

_RETIRE_S = 0.2


class FleetPort(Protocol):
    """The fleet, in this process or in the supervisor."""

    async def want(self, name: str, patience_s: float | None = None, broken: str = "") -> Resident: ...

    async def look_ahead(self, name: str, *, wish: bool = False) -> Outlook:
        """`wish`: have it loaded, although whoever asks does not wait for it."""

    async def troubles(self) -> dict[str, EnginebayError]:
        """What whoever asks for a variant would be refused with now, of those that cannot be loaded."""

    async def order(self, command: str, arguments: dict[str, Any]) -> Any:
        """Something that an administrator asks for."""


class Session:
    """This process' way to one variant. The queue outlives the worker that it is for."""

    def __init__(self, name: str, kind: str, limits: Limits, share: int) -> None:
        self.name = name
        self.kind = kind
        self.gate = Gate(max(1, limits.running // share), limits.queue // share, limits.queue_timeout_s)
        self.facts: Facts | None = None  # of the last worker
        self.served: ServedModel | None = None
        self._opening: dict[str, asyncio.Future[ServedModel]] = {}
        self._retiring: set[asyncio.Task[None]] = set()
        self._retired = False

    @property
    def live(self) -> ServedModel | None:
        """Where requests can be sent now, as far as is known."""
        served = self.served
        return None if served is None or served.refused or served.client.client.broken else served

    @property
    def broken(self) -> str:
        """The address that could not be reached any more, if that is why there is none."""
        served = self.served
        return served.client.resident.address if served is not None and served.client.client.broken else ""

    async def meet(self, resident: Resident, limits: Limits, metrics: Metrics) -> ServedModel:
        """The session with this worker, opened once however many ask."""
        if self._retired:
            raise Draining("this model has been configured anew", "send the request again")
        served = self.served
        if (
            served is not None
            and served.client.resident.address == resident.address
            and not served.client.client.broken
        ):
            served.refused = False
            return served
        opening = self._opening.get(resident.address)
        if opening is None:
            opening = asyncio.ensure_future(self._open(resident, limits, metrics))
            self._opening[resident.address] = opening
            opening.add_done_callback(lambda _: self._opening.pop(resident.address, None))
        return await asyncio.shield(opening)

    async def _open(self, resident: Resident, limits: Limits, metrics: Metrics) -> ServedModel:
        client = await ModelClient.connect(resident)
        self._let_go()
        self.served = ServedModel(client, limits, metrics, self.gate)
        self.facts = resident.facts
        return self.served

    def retire(self) -> None:
        """The session ends with the last of its answers, and there is no other."""
        self._retired = True
        self._let_go()

    def _let_go(self) -> None:
        if self.served is not None:
            task = asyncio.ensure_future(_close_when_idle(self.served.client))
            self._retiring.add(task)
            task.add_done_callback(self._retiring.discard)

    async def close(self) -> None:
        for task in list(self._retiring):
            task.cancel()
        if self.served is not None:
            await self.served.client.close()


async def _close_when_idle(client: ModelClient) -> None:
    try:
        while not client.client.idle and not client.client.broken:
            await asyncio.sleep(_RETIRE_S)
    finally:
        await client.close()


class Offer:
    """One model under its name."""

    def __init__(self, offering: Offering, limits: Limits, share: int) -> None:
        self.offering = offering
        self.name = offering.model
        self.created = int(time.time())
        self.sessions = [
            Session(name, kind, limits, share) for name, kind in zip(offering.variants, offering.kinds, strict=True)
        ]

    @property
    def first(self) -> Session:
        return self.sessions[0]

    def retire(self) -> None:
        for session in self.sessions:
            session.retire()


class Catalogue:
    """Models and their adapters by name."""

    def __init__(self, offers: Iterable[Offer]) -> None:
        self.offers = {offer.name: offer for offer in offers}
        self._adapters = {
            lora: offer for offer in self.offers.values() for lora in offer.offering.loras if lora not in self.offers
        }

    @property
    def names(self) -> list[str]:
        return [*self.offers, *self._adapters]

    def find(self, name: str) -> tuple[Offer, str | None]:
        """The model of this name, and the adapter if the name is an adapter's."""
        offer = self.offers.get(name)
        if offer is not None:
            return offer, None
        offer = self._adapters.get(name)
        if offer is not None:
            return offer, name
        raise UnknownModel(
            f"there is no model {name[:100]!r}", f"this server has: {', '.join(self.names)}", param="model"
        )

    async def close(self) -> None:
        for offer in self.offers.values():
            for session in offer.sessions:
                await session.close()
