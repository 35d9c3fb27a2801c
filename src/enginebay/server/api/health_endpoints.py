"""GET /health, /health/live, /health/ready and /metrics."""

from __future__ import annotations

import msgspec

from enginebay.server.api.readiness import check_readiness
from enginebay.server.requests.request_context import RequestContext
from enginebay.server.requests.server_context import ServerContext
from enginebay.server.telemetry.prometheus_text import CONTENT_TYPE

_encode = msgspec.json.Encoder().encode


async def get_liveness(context: ServerContext, request_context: RequestContext) -> None:
    request_context.exchange.respond(200, b'{"status":"live"}')


async def get_readiness(context: ServerContext, request_context: RequestContext) -> None:
    readiness = await check_readiness(context)
    body: dict[str, object] = {"status": "not ready" if readiness.reasons else "ready", "models": readiness.models}
    if readiness.reasons:
        body["reasons"] = readiness.reasons
    if readiness.failing:
        body["failing"] = readiness.failing
    request_context.exchange.respond(503 if readiness.reasons else 200, _encode(body))


async def get_metrics(context: ServerContext, request_context: RequestContext) -> None:
    request_context.exchange.respond(200, await context.scrape(), CONTENT_TYPE)
