"""What the stateful endpoints share: the store, ids in the path, and pages."""

from __future__ import annotations

from typing import Any, cast
from urllib.parse import unquote

import msgspec

from enginebay.errors import InvalidRequest, ResponseNotFound, Unsupported
from enginebay.server.api.openai.responses_api.state_schemas import ItemListObject
from enginebay.server.http.exchange import Exchange
from enginebay.server.requests.server_context import ServerContext
from enginebay.server.state.state_client import StateClient
from enginebay.server.state.stored_records import ItemPage, PageQuery

_MAX_PAGE = 100


def require_state(context: ServerContext) -> StateClient:
    if context.state is None:
        raise Unsupported(
            "the server stores nothing: server.state is off",
            "send the whole conversation as input",
            param="server.state",
        )
    return context.state


def read_path_id(exchange: Exchange, position: int = 3) -> str:
    """Return an id from a path such as /v1/responses/{response_id}."""
    return unquote(exchange.path.split("/")[position], errors="replace")


def make_not_found(kind: str, wanted: str) -> ResponseNotFound:
    return ResponseNotFound(f"{kind} {wanted[:80]!r} not found", "it may have expired or been deleted")


def read_page_query(exchange: Exchange) -> PageQuery:
    query = exchange.query
    limit, order = query.get("limit", "20"), query.get("order", "desc")
    if not limit.isascii() or not limit.isdigit() or not 1 <= int(limit[:9]) <= _MAX_PAGE:
        raise InvalidRequest(f"limit is {limit[:20]!r}", f"use 1 to {_MAX_PAGE}", param="limit")
    if order not in ("asc", "desc"):
        raise InvalidRequest(f"order is {order[:20]!r}", "use asc or desc", param="order")
    return PageQuery(query.get("after") or None, int(limit), cast("Any", order))


def make_cursor_error(after: str) -> InvalidRequest:
    return InvalidRequest(
        f"after is {after[:80]!r}, which is not in the list", "use the last_id of a page", param="after"
    )


def encode_page(page: ItemPage) -> ItemListObject:
    ids = [item.id for item in page.items]
    return ItemListObject(
        data=cast("Any", [msgspec.Raw(item.body) for item in page.items]),  # encoded already
        first_id=ids[0] if ids else None,
        last_id=ids[-1] if ids else None,
        has_more=page.has_more,
    )
