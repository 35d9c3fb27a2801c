"""GET /openapi.json, and the documentation page at / and /docs."""

from __future__ import annotations

from functools import lru_cache
from importlib import resources

import msgspec

from enginebay.config.sections.server_section import ServerLimits
from enginebay.server.api.openapi.document import build_document
from enginebay.server.api.openapi.operations import HTML
from enginebay.server.requests.request_context import RequestContext
from enginebay.server.requests.server_context import Route, ServerContext
from enginebay.server.sessions.model_catalog import CatalogEntry

# The page loads nothing from other hosts, and must not be framed.
_CONTENT_SECURITY_POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_PAGE_HEADERS = (
    ("content-security-policy", _CONTENT_SECURITY_POLICY),
    ("x-content-type-options", "nosniff"),
    ("referrer-policy", "no-referrer"),
    ("cache-control", "no-cache"),
)


async def get_openapi(context: ServerContext, request_context: RequestContext) -> None:
    entries = {name: context.catalog.find(name)[0] for name in context.catalog.names}
    embedders = tuple(name for name, entry in entries.items() if _can_embed(entry))
    generators = tuple(name for name, entry in entries.items() if entry.route.task == "generate")
    if request_context.is_anonymous:  # names of models are not for everybody
        generators = embedders = ()
    document = _render_document(
        context.routes, context.config.limits, generators or embedders, embedders, context.config.unknown_fields
    )
    request_context.exchange.respond(200, document)


def _can_embed(entry: CatalogEntry) -> bool:
    session = entry.primary.session
    return entry.route.task == "embed" if session is None else session.supports("embeddings")


@lru_cache(maxsize=8)
def _render_document(
    routes: tuple[Route, ...],
    limits: ServerLimits,
    models: tuple[str, ...],
    embedders: tuple[str, ...],
    unknown_fields: str,
) -> bytes:
    return msgspec.json.encode(build_document(routes, limits, models, embedders, unknown_fields))


async def get_docs_page(context: ServerContext, request_context: RequestContext) -> None:
    request_context.exchange.respond(200, _read_page(), HTML, headers=_PAGE_HEADERS)


@lru_cache(maxsize=1)
def _read_page() -> bytes:
    return resources.files("enginebay.server.api.openapi").joinpath("docs_page.html").read_bytes()
