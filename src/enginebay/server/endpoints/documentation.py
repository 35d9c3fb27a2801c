"""The description of the API, for machines and for people."""

from __future__ import annotations

from functools import lru_cache
from importlib import resources

import msgspec

from enginebay.config.server import Limits
from enginebay.server.call import Call
from enginebay.server.context import Context
from enginebay.server.offers import Offer
from enginebay.server.openapi.document import document
from enginebay.server.openapi.operations import HTML

# The page needs nothing but itself and this server, and nobody may put it into a frame.
_POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_PAGE_HEADERS = (
    ("content-security-policy", _POLICY),
    ("x-content-type-options", "nosniff"),
    ("referrer-policy", "no-referrer"),
    ("cache-control", "no-cache"),
)


async def openapi(context: Context, call: Call) -> None:
    offers = {name: context.catalogue.find(name)[0] for name in context.catalogue.names}
    embedders = tuple(name for name, offer in offers.items() if _embeds(offer))
    generating = tuple(name for name, offer in offers.items() if offer.offering.task == "generate")
    call.exchange.respond(200, _document(context.config.limits, generating or embedders, embedders))


def _embeds(offer: Offer) -> bool:
    served = offer.first.served
    return offer.offering.task == "embed" if served is None else served.does("embeddings")


@lru_cache(maxsize=8)
def _document(limits: Limits, models: tuple[str, ...], embedders: tuple[str, ...]) -> bytes:
    return msgspec.json.encode(document(limits, models, embedders))


async def page(context: Context, call: Call) -> None:
    call.exchange.respond(200, _page(), HTML, headers=_PAGE_HEADERS)


@lru_cache(maxsize=1)
def _page() -> bytes:
    return resources.files("enginebay.server").joinpath("docs_page.html").read_bytes()
