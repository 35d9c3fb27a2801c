"""GET /health, /health/live, /health/ready and /metrics."""

from __future__ import annotations

import msgspec

from enginebay.server.api.openai.response_objects import LiveObject, ReadinessObject
from enginebay.server.api.readiness import check_readiness
from enginebay.server.requests.request_context import RequestContext
from enginebay.server.requests.server_context import ServerContext
from enginebay.server.telemetry.prometheus_text import CONTENT_TYPE

_encode = msgspec.json.Encoder().encode


async def get_liveness(context: ServerContext, request_context: RequestContext) -> None:
    request_context.exchange.respond(200, _encode(LiveObject()))


async def get_readiness(context: ServerContext, request_context: RequestContext) -> None:
    readiness = await check_readiness(context)
    body = ReadinessObject("not ready" if readiness.reasons else "ready")
    if not request_context.is_anonymous:  # names of models are not for everybody
        body.models = readiness.models
        body.reasons = readiness.reasons or msgspec.UNSET
        body.failing = readiness.failing or msgspec.UNSET
    request_context.exchange.respond(503 if readiness.reasons else 200, _encode(body))


async def get_metrics(context: ServerContext, request_context: RequestContext) -> None:
    request_context.exchange.respond(200, await context.scrape(), CONTENT_TYPE)
