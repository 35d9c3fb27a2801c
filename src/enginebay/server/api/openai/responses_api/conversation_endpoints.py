"""/v1/conversations, a conversation, its items, and one item."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from enginebay.errors import InvalidRequest
from enginebay.server.api.body_decoder import read_body
from enginebay.server.api.openai.responses_api.state_requests import (
    encode_page,
    make_cursor_error,
    make_not_found,
    read_page_query,
    read_path_id,
    require_state,
)
from enginebay.server.api.openai.responses_api.state_schemas import (
    ConversationBody,
    ConversationDeletedObject,
    ConversationItemsBody,
    ConversationObject,
    ConversationUpdateBody,
)
from enginebay.server.api.openai.responses_api.stored_items import encode_item_bodies, to_stored_item
from enginebay.server.api.openai.responses_input import check_item
from enginebay.server.auth.client_identity import identify_owner
from enginebay.server.requests.request_context import RequestContext
from enginebay.server.requests.run_generation import add_translation_headers
from enginebay.server.requests.server_context import ServerContext
from enginebay.server.state.state_store import StateStore
from enginebay.server.state.stored_records import (
    ItemPage,
    NotStored,
    StoredConversation,
    StoredItem,
    UnknownItem,
    make_id,
)

_encode = msgspec.json.Encoder().encode


async def create_conversation(context: ServerContext, request_context: RequestContext) -> None:
    state, owner = require_state(context), identify_owner(request_context.key)
    body = (
        read_body(ConversationBody, context, request_context) if request_context.exchange.body else ConversationBody()
    )
    items = await request_context.run_in_thread_if_large(_to_items, body.items or ())
    metadata = _encode(body.metadata or {})
    try:
        found = await state.call(StateStore.add_conversation, owner, make_id("conv"), metadata, items)
    except NotStored as reason:
        raise _make_storing_error(reason) from None
    _respond(request_context, found)


async def get_conversation(context: ServerContext, request_context: RequestContext) -> None:
    state, owner = require_state(context), identify_owner(request_context.key)
    wanted = read_path_id(request_context.exchange)
    _respond(request_context, _require(await state.call(StateStore.get_conversation, owner, wanted), wanted))


async def update_conversation(context: ServerContext, request_context: RequestContext) -> None:
    state, owner = require_state(context), identify_owner(request_context.key)
    wanted = read_path_id(request_context.exchange)
    body = read_body(ConversationUpdateBody, context, request_context)
    found = await state.call(StateStore.set_metadata, owner, wanted, _encode(body.metadata or {}))
    _respond(request_context, _require(found, wanted))


async def delete_conversation(context: ServerContext, request_context: RequestContext) -> None:
    state, owner = require_state(context), identify_owner(request_context.key)
    wanted = read_path_id(request_context.exchange)
    if not await state.call(StateStore.delete_conversation, owner, wanted):
        raise make_not_found("conversation", wanted)
    request_context.exchange.respond(200, _encode(ConversationDeletedObject(id=wanted)))


async def create_items(context: ServerContext, request_context: RequestContext) -> None:
    state, owner = require_state(context), identify_owner(request_context.key)
    wanted = read_path_id(request_context.exchange)
    body = read_body(ConversationItemsBody, context, request_context)
    items = await request_context.run_in_thread_if_large(_to_items, body.items)
    try:
        added = await state.call(StateStore.add_conversation_items, owner, wanted, items)
    except NotStored as reason:
        raise _make_storing_error(reason) from None
    if not added:
        raise make_not_found("conversation", wanted)
    add_translation_headers(request_context)
    request_context.exchange.respond(200, _encode(encode_page(ItemPage(items, has_more=False))))


async def list_items(context: ServerContext, request_context: RequestContext) -> None:
    state, owner = require_state(context), identify_owner(request_context.key)
    wanted = read_path_id(request_context.exchange)
    query = read_page_query(request_context.exchange)
    try:
        page = await state.call(StateStore.list_conversation_items, owner, wanted, query)
    except UnknownItem as error:
        raise make_cursor_error(str(error)) from None
    if page is None:
        raise make_not_found("conversation", wanted)
    request_context.exchange.respond(200, _encode(encode_page(page)))


async def get_item(context: ServerContext, request_context: RequestContext) -> None:
    state, owner = require_state(context), identify_owner(request_context.key)
    conversation, item = (read_path_id(request_context.exchange, position) for position in (3, 5))
    found = await state.call(StateStore.get_conversation_item, owner, conversation, item)
    if found is None:
        raise make_not_found("item", item)
    request_context.exchange.respond(200, found)


async def delete_item(context: ServerContext, request_context: RequestContext) -> None:
    state, owner = require_state(context), identify_owner(request_context.key)
    conversation, item = (read_path_id(request_context.exchange, position) for position in (3, 5))
    if not await state.call(StateStore.delete_conversation_item, owner, conversation, item):
        raise make_not_found("item", item)
    found = await state.call(StateStore.get_conversation, owner, conversation)
    _respond(request_context, _require(found, conversation))


def _to_items(items: Sequence[Mapping[str, Any]]) -> list[StoredItem]:
    for number, item in enumerate(items):
        check_item(item, f"items[{number}]")
    return encode_item_bodies([to_stored_item(item) for item in items])


def _require(found: StoredConversation | None, wanted: str) -> StoredConversation:
    if found is None:
        raise make_not_found("conversation", wanted)
    return found


def _respond(request_context: RequestContext, found: StoredConversation) -> None:
    add_translation_headers(request_context)
    metadata = msgspec.json.decode(found.metadata)
    answer = ConversationObject(id=found.id, created_at=found.created_at, metadata=metadata)
    request_context.exchange.respond(200, _encode(answer))


def _make_storing_error(reason: NotStored) -> InvalidRequest:
    return InvalidRequest(
        f"the items cannot be stored: {reason}", "send fewer, or start another conversation", param="items"
    )
