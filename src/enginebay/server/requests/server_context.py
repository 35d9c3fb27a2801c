"""What endpoints may use of the server."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol

from enginebay.config.sections.server_section import ServerConfig
from enginebay.server.auth.api_keys import ApiKey
from enginebay.server.auth.rate_limits import RateLimitDecision
from enginebay.server.requests.model_wait import wait_for_session
from enginebay.server.requests.request_context import RequestContext
from enginebay.server.sessions.model_catalog import FleetGateway, ModelCatalog
from enginebay.server.sessions.model_session import ModelSession
from enginebay.server.telemetry.server_log import ServerLog
from enginebay.server.telemetry.server_metrics import ServerMetrics


class RateLimitsClient(Protocol):
    """Where the shares of API keys are counted: in this process, or in the supervisor for several."""

    async def take(self, key: ApiKey) -> RateLimitDecision: ...

    def charge(self, key: ApiKey, tokens: int) -> None: ...


@dataclass(slots=True)
class ServerContext:
    config: ServerConfig
    catalog: ModelCatalog
    metrics: ServerMetrics
    log: ServerLog
    rate_limits: RateLimitsClient
    scrape: Callable[[], Awaitable[bytes]]  # the metrics of all server processes, as text
    fleet: FleetGateway
    max_wait_s: float  # for a model that is not loaded
    draining: bool = False

    async def acquire_session(
        self, request_context: RequestContext, name: str, *, stream: bool = False
    ) -> tuple[ModelSession, str | None]:
        """The model a request names, loaded, and noted for the log and the response's headers.

        Streams that wait for it are told so meanwhile.
        """
        offer, lora = self.catalog.find(name)
        session = offer.connectors[
            min(request_context.variant_index, len(offer.connectors) - 1)
        ]  # a reload may have shortened its chain
        request_context.catalog_entry, request_context.lora, request_context.model, request_context.labels = (
            offer,
            lora,
            name,
            (offer.name, session.kind),
        )
        served = session.live_session
        if served is None:
            served = await wait_for_session(
                request_context, session, self.fleet, self.max_wait_s, stream, self.config.limits, self.metrics
            )
        request_context.session = served
        if request_context.wait_announced:
            request_context.write_comment(f"x-enginebay-engine: {served.engine}")
        else:
            request_context.exchange.add_header_line(served.engine_header)
        if request_context.fallback:
            request_context.add_header_or_comment("x-enginebay-fallback", request_context.fallback)
        return served, lora


RouteHandler = Callable[[ServerContext, RequestContext], Awaitable[None]]
