"""What endpoint handlers share: configuration, models, metrics, log, rate limits; and the routes to them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol

from enginebay.config.sections.server_section import ServerConfig
from enginebay.server.auth.api_keys import ApiKey
from enginebay.server.auth.rate_limits import RateLimitDecision
from enginebay.server.http.exchange import Exchange
from enginebay.server.requests.crash_guard import CrashGuard
from enginebay.server.requests.model_wait import wait_for_session
from enginebay.server.requests.request_context import RequestContext
from enginebay.server.requests.resume_policy import check_same_model
from enginebay.server.sessions.admission_queue import AdmissionQueue
from enginebay.server.sessions.model_catalog import FleetGateway, ModelCatalog, VariantConnector
from enginebay.server.sessions.model_session import ModelSession
from enginebay.server.telemetry.server_log import ServerLog
from enginebay.server.telemetry.server_metrics import ServerMetrics

if TYPE_CHECKING:
    from enginebay.server.api.openai.responses_api.background import BackgroundRuns
    from enginebay.server.state.state_client import StateClient


class RateLimitsClient(Protocol):
    """Counts requests and tokens per API key, in this process or in the supervisor."""

    async def take(self, key: ApiKey) -> RateLimitDecision: ...

    def charge(self, key: ApiKey, tokens: int) -> None: ...


@dataclass(slots=True)
class ServerContext:
    config: ServerConfig
    catalog: ModelCatalog
    metrics: ServerMetrics
    log: ServerLog
    rate_limits: RateLimitsClient
    scrape: Callable[[], Awaitable[bytes]]  # returns the metrics of all server processes as text
    fleet: FleetGateway
    max_wait_s: float  # for a model that is not loaded
    routes: tuple[Route, ...]  # every endpoint, for the OpenAPI document
    crash_guard: CrashGuard | None = None
    offline: bool = False  # never use the network
    tokenizer_queue: AdmissionQueue | None = None  # for large bodies
    state: StateClient | None = None  # None: nothing is stored
    background: BackgroundRuns | None = None
    draining: bool = False
    run_exchange: Callable[[Exchange], Awaitable[object]] | None = (
        None  # handles a request within another, such as a message
    )

    async def acquire_session(
        self, request_context: RequestContext, name: str, *, stream: bool = False
    ) -> tuple[ModelSession, str | None]:
        """Return a session with the named model, and the adapter if the name is an adapter's. Load the model if needed.

        Streams get progress comments meanwhile. Records the model for the log and the response headers.
        """
        entry, lora = self.catalog.find(name)
        # A reload may have shortened the chain.
        connector = entry.connectors[min(request_context.variant_index, len(entry.connectors) - 1)]
        request_context.catalog_entry, request_context.lora, request_context.model = entry, lora, name
        request_context.labels = (entry.name, connector.kind)
        session = await self._connect(request_context, connector, stream)
        request_context.server = self
        request_context.tokenizer_queue = self.tokenizer_queue
        request_context.crash_guard = None if session.client.spec.renders else self.crash_guard
        if request_context.wait_announced:
            request_context.write_comment(f"x-enginebay-engine: {session.engine}")
        else:
            request_context.exchange.add_header_line(session.engine_header)
        if request_context.fallback:
            request_context.add_header_or_comment("x-enginebay-fallback", request_context.fallback)
        return session, lora

    async def reacquire_session(self, request_context: RequestContext, before: ModelSession) -> ModelSession:
        """Return a session that can continue a response whose worker died. Load the model if needed."""
        entry, _ = self.catalog.find(request_context.model)
        connector = entry.connectors[min(request_context.variant_index, len(entry.connectors) - 1)]
        session = await self._connect(request_context, connector, request_context.stream, begun=True)
        check_same_model(before, session)
        return session

    async def _connect(
        self, request_context: RequestContext, connector: VariantConnector, stream: bool, begun: bool = False
    ) -> ModelSession:
        session = connector.live_session
        if session is None:
            limits, metrics = self.config.limits, self.metrics
            session = await wait_for_session(
                request_context, connector, self.fleet, self.max_wait_s, stream, limits, metrics, begun
            )
        request_context.session = session
        request_context.variant = connector.name
        return session


def asks_for_stream(exchange: Exchange) -> bool:
    """Return whether the query of a GET asks for a stream of events."""
    return exchange.query.get("stream") == "true"


RouteHandler = Callable[[ServerContext, RequestContext], Awaitable[None]]


class Route(NamedTuple):
    """One endpoint: its method and path, its handler, and who may call it."""

    method: str
    path: str
    handler: RouteHandler
    name: str  # in metrics and logs
    scope: str | None = (
        "inference"  # the scope a key needs; "any": every key; "optional": a key shows more; None: no key
    )
    rate_limited: bool = False  # counts against the key's rate limits
    limits_streams: bool = False  # only `?stream=true` does
    forbidden_hint: str = ""  # what else a caller can do that lacks the scope
    body_limit: str = "body_bytes"  # the key of `server.limits` that bounds the body
    takes_form: bool = False  # multipart/form-data, as `exchange.form`

    def is_limited(self, exchange: Exchange) -> bool:
        """Return whether a request counts against its key's rate limits."""
        return self.rate_limited or (self.limits_streams and asks_for_stream(exchange))

    @property
    def has_body_rule(self) -> bool:
        """Whether it takes other bodies than most endpoints."""
        return self.takes_form or self.body_limit != "body_bytes"
