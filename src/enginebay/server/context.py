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
from enginebay.server.rates import Verdict
from enginebay.server.served import Catalogue, ServedModel


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
    draining: bool = False

    def model(self, call: Call, name: str) -> tuple[ServedModel, str | None]:
        """The model a request names, noted for the log and the response's headers."""
        served, lora = self.catalogue.find(name)
        call.served, call.lora, call.model = served, lora, name
        call.exchange.header_line(served.engine_header)
        return served, lora


Handler = Callable[[Context, Call], Awaitable[None]]
