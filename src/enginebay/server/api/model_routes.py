"""GET /v1/models and /v1/models/{id}, in the format of the client's dialect."""

from __future__ import annotations

from urllib.parse import unquote

import msgspec

from enginebay.server.api.anthropic.anthropic_models import build_anthropic_model, list_anthropic_models
from enginebay.server.api.openai import model_endpoints
from enginebay.server.api.request_dialect import speaks_anthropic
from enginebay.server.requests.request_context import RequestContext
from enginebay.server.requests.server_context import ServerContext

_encode = msgspec.json.Encoder().encode


async def list_models(context: ServerContext, request_context: RequestContext) -> None:
    exchange = request_context.exchange
    if not speaks_anthropic(exchange):
        await model_endpoints.list_models(context, request_context)
    else:
        exchange.respond(200, _encode(list_anthropic_models(context.catalog, exchange.query)))


async def get_model(context: ServerContext, request_context: RequestContext) -> None:
    exchange = request_context.exchange
    if not speaks_anthropic(exchange):
        await model_endpoints.get_model(context, request_context)
    else:
        name = unquote(exchange.path.removeprefix("/v1/models/"), errors="replace")
        exchange.respond(200, _encode(build_anthropic_model(context.catalog, name)))
