"""GET and DELETE /v1/responses/{response_id}, POST …/cancel, GET …/input_items."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from typing import Any

import msgspec

from enginebay.errors import InvalidRequest, StateUnavailable
from enginebay.server.api.openai.responses_api.state_requests import (
    encode_page,
    make_cursor_error,
    make_not_found,
    read_page_query,
    read_path_id,
    require_state,
)
from enginebay.server.api.openai.responses_api.state_schemas import ResponseDeletedObject
from enginebay.server.auth.client_identity import identify_owner
from enginebay.server.http.exchange import Exchange
from enginebay.server.requests.request_context import RequestContext
from enginebay.server.requests.server_context import ServerContext, asks_for_stream
from enginebay.server.state.state_client import StateClient
from enginebay.server.state.state_store import StateStore
from enginebay.server.state.stored_records import StoredResponse, UnknownItem

_encode = msgspec.json.Encoder().encode
_POLL_S = 0.25
_CHECK_S = 1.0  # between looks whether the process that generates it is alive
_CANCELLING_S = 3.0  # until the process that generates it has seen that it is cancelled
_RUNNING = ("queued", "in_progress")
_SEQUENCE = re.compile(rb'"sequence_number":(\d+)')
_LOST = {"code": "server_error", "message": "the server process that generated this response died"}


async def get_response(context: ServerContext, request_context: RequestContext) -> None:
    state, owner = require_state(context), identify_owner(request_context.key)
    response_id = read_path_id(request_context.exchange)
    if asks_for_stream(request_context.exchange):
        start = _read_start(request_context.exchange.query)
        await _stream_events(context, request_context, state, owner, response_id, start)
        return
    request_context.exchange.respond(200, (await _find_response(state, owner, response_id)).body)


def _read_start(query: dict[str, str]) -> int:
    start = query.get("starting_after", "-1")
    if not re.fullmatch(r"-1|[0-9]{1,12}", start):
        raise InvalidRequest(f"starting_after is {start[:20]!r}", "use a sequence number", param="starting_after")
    return int(start)


async def _find_response(state: StateClient, owner: str, response_id: str) -> StoredResponse:
    """Return the response. One whose server process has died is marked as failed."""
    found = await state.call(StateStore.get_response, owner, response_id)
    if found is None:
        raise make_not_found("response", response_id)
    if found.runner and not await asyncio.to_thread(state.is_alive, found.runner):
        await _end_response(state, found, "failed", _LOST)
        found = await state.call(StateStore.get_response, owner, response_id)
        if found is None:
            raise make_not_found("response", response_id)
    return found


async def _end_response(state: StateClient, found: StoredResponse, status: str, error: Any = None) -> bool:
    response = msgspec.json.decode(found.body)
    response |= {"status": status, "error": error}
    return await state.call(StateStore.finish_response, found.id, found.runner, status, _encode(response))


async def cancel_response(context: ServerContext, request_context: RequestContext) -> None:
    state, owner = require_state(context), identify_owner(request_context.key)
    response_id = read_path_id(request_context.exchange)
    found = await _find_response(state, owner, response_id)
    if not msgspec.json.decode(found.body)["background"]:
        raise InvalidRequest("only background responses can be cancelled", "set background to true")
    if found.runner and await _end_response(state, found, "cancelled") and context.background is not None:
        context.background.cancel(response_id)
    request_context.exchange.respond(200, (await _find_response(state, owner, response_id)).body)


async def delete_response(context: ServerContext, request_context: RequestContext) -> None:
    state, owner = require_state(context), identify_owner(request_context.key)
    response_id = read_path_id(request_context.exchange)
    if not await state.call(StateStore.delete_response, owner, response_id):
        raise make_not_found("response", response_id)
    if context.background is not None:
        context.background.cancel(response_id)
    request_context.exchange.respond(200, _encode(ResponseDeletedObject(id=response_id)))


async def list_input_items(context: ServerContext, request_context: RequestContext) -> None:
    state, owner = require_state(context), identify_owner(request_context.key)
    response_id = read_path_id(request_context.exchange)
    query = read_page_query(request_context.exchange)
    try:
        page = await state.call(StateStore.list_input_items, owner, response_id, query)
    except UnknownItem as error:
        raise make_cursor_error(str(error)) from None
    if page is None:
        raise make_not_found("response", response_id)
    request_context.exchange.respond(200, _encode(encode_page(page)))


async def _stream_events(
    context: ServerContext,
    request_context: RequestContext,
    state: StateClient,
    owner: str,
    response_id: str,
    after: int,
) -> None:
    """Send the events after this one, also those to come. Any server process can: they are in the store."""
    exchange, last = request_context.exchange, after
    found = await _find_response(state, owner, response_id)
    if (await _read_batches(state, owner, response_id, -1))[0] == [] and found.status not in _RUNNING:
        raise InvalidRequest(
            "this response has no stored events", "create it with background and stream set to true", param="stream"
        )
    request_context.stream = True
    exchange.start(200, "text/event-stream; charset=utf-8", {"cache-control": "no-cache"})
    clock = asyncio.get_running_loop().time
    deadline, check_at, last_look = clock() + context.config.limits.request_timeout_s, clock() + _CHECK_S, None
    while not exchange.closed and clock() < deadline:
        if clock() >= check_at:
            await _find_response(state, owner, response_id)
            check_at = clock() + _CHECK_S
        batches, status = await _read_batches(state, owner, response_id, last + 1)
        for batch in batches:
            last = _write_events(exchange, batch, last)
        if status == "cancelled" and not _has_end(batches):  # the process that runs it has yet to store the last event
            last_look = last_look or clock() + _CANCELLING_S
        if status not in _RUNNING and (last_look is None or _has_end(batches) or clock() >= last_look):
            break
        await asyncio.sleep(_POLL_S)
        while exchange.congested and not exchange.closed:
            await asyncio.sleep(_POLL_S)
    exchange.end()


def _has_end(batches: Sequence[bytes]) -> bool:
    return bool(batches) and batches[-1].rstrip(b"\n").rpartition(b"\n\n")[2].startswith(b"event: response.failed\n")


async def _read_batches(state: StateClient, owner: str, response_id: str, first: int) -> tuple[list[bytes], str]:
    found = await state.call(StateStore.read_events, owner, response_id, first)
    if found is None:
        raise StateUnavailable("the response was deleted")
    return [body for _, body in found[0]], found[1]


def _write_events(exchange: Exchange, batch: bytes, last: int) -> int:
    """Write the events of a batch that come after `last`. Return the number of the last one."""
    for event in batch.split(b"\n\n"):
        number = _SEQUENCE.search(event)
        if number is not None and int(number[1]) > last:
            last = int(number[1])
            exchange.write(event + b"\n\n")
    return last
