"""GET /api/version, the liveness text at /, and the endpoints that change models, which are refused."""

from __future__ import annotations

import msgspec

from enginebay import __version__
from enginebay.errors import Unsupported
from enginebay.server.api.ollama.schemas import OllamaVersionObject
from enginebay.server.api.openapi.docs_endpoints import get_docs_page
from enginebay.server.requests.request_context import RequestContext
from enginebay.server.requests.server_context import RouteHandler, ServerContext

# Clients compare it with the version that brought what they use. This one has the Responses and Messages APIs, too.
API_VERSION = "0.14.0"
_ALIVE = b"Ollama is running"
_encode = msgspec.json.Encoder().encode

_ALTERNATIVES = {
    "copy": "give the model another entry in the configuration's models, then `bay reload`",
    "create": "add the model to the configuration's models, then `bay reload`",
    "delete": "remove it from the configuration, `bay reload`, then `bay models remove`",
    "push": "share the model's files, or create a bundle: `bay bundle`",
}


async def get_version(context: ServerContext, request_context: RequestContext) -> None:
    request_context.exchange.respond(200, _encode(OllamaVersionObject(API_VERSION, __version__)))


async def get_home(context: ServerContext, request_context: RequestContext) -> None:
    """Return the documentation page, or to Ollama's clients the liveness text that they probe for."""
    exchange = request_context.exchange
    if exchange.headers.get("user-agent", "").lower().startswith("ollama") or _wants_text(
        exchange.headers.get("accept", "")
    ):
        exchange.respond(200, _ALIVE, "text/plain; charset=utf-8")
    else:
        await get_docs_page(context, request_context)


def _wants_text(accept: str) -> bool:
    return accept.strip().lower().startswith("text/plain")


def _make_refusal(command: str) -> RouteHandler:
    async def refuse(context: ServerContext, request_context: RequestContext) -> None:
        raise Unsupported(
            f"/api/{command} is not supported: the configuration defines the models", _ALTERNATIVES[command]
        )

    return refuse


copy, create, delete, push = map(_make_refusal, ("copy", "create", "delete", "push"))
