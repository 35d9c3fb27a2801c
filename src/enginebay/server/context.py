"""What endpoints may use of the server."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol

from enginebay.config.server import ServerConfig
from enginebay.server.call import Call
from enginebay.server.keys import Key
from enginebay.server.logs import Log
from enginebay.server.metrics import Metrics
from enginebay.server.offers import Catalogue, FleetPort
from enginebay.server.rates import Verdict
from enginebay.server.served import ServedModel
from enginebay.server.waiting import wait_for


class RateLimits(Protocol):
    """Where the shares of API keys are counted: in this process, or in the supervisor for several."""

    async def take(self, key: Key) -> Verdict: ...

    def charge(self, key: Key, tokens: int) -> None: ...


@dataclass(slots=True)
class Context:
    config: ServerConfig
    catalogue: Catalogue
    metrics: Metrics
    log: Log
    rates: RateLimits
    scrape: Callable[[], Awaitable[bytes]]  # the metrics of all server processes, as text
    fleet: FleetPort
    max_wait_s: float  # for a model that is not loaded
    draining: bool = False

    async def model(self, call: Call, name: str, *, stream: bool = False) -> tuple[ServedModel, str | None]:
        """The model a request names, loaded, and noted for the log and the response's headers.

        Streams that wait for it are told so meanwhile.
        """
        offer, lora = self.catalogue.find(name)
        session = offer.sessions[min(call.variant, len(offer.sessions) - 1)]  # a reload may have shortened its chain
        call.offer, call.lora, call.model, call.labels = offer, lora, name, (offer.name, session.kind)
        served = session.live
        if served is None:
            served = await wait_for(
                call, session, self.fleet, self.max_wait_s, stream, self.config.limits, self.metrics
            )
        call.served = served
        if call.told:
            call.comment(f"x-enginebay-engine: {served.engine}")
        else:
            call.exchange.header_line(served.engine_header)
        if call.fallback:
            call.say("x-enginebay-fallback", call.fallback)
        return served, lora


Handler = Callable[[Context, Call], Awaitable[None]]
