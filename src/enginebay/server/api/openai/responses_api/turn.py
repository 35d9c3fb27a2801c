"""One request's turn: the items before it, its own, and whether and where its response is stored."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from enginebay.config.sections.server_section import ServerLimits
from enginebay.errors import InvalidRequest, PreviousResponseNotFound, ResponseNotFound, Unsupported
from enginebay.server.api.openai.response_objects import ResponseObject
from enginebay.server.api.openai.responses_api.stored_items import (
    decode_item_bodies,
    encode_item_bodies,
    to_stored_item,
)
from enginebay.server.auth.client_identity import identify_owner
from enginebay.server.requests.request_context import RequestContext
from enginebay.server.requests.server_context import ServerContext
from enginebay.server.state.state_client import StateClient
from enginebay.server.state.state_store import StateStore
from enginebay.server.state.stored_records import (
    NewResponse,
    ReadBound,
    StoredItem,
    TooMuchStored,
    is_made_id,
    make_id,
)
from enginebay.util.limit_errors import format_limit_hint, make_limit_error

_encode = msgspec.json.Encoder().encode
_LARGE_BYTES = 32 << 10  # takes milliseconds to parse
_ENDED = ("completed", "incomplete")
_STATE_OFF = "the server stores nothing: server.state is off"

Items = list[dict[str, Any]]


@dataclass(slots=True)
class ResponseTurn:
    id: str
    owner: str
    history: Sequence[Mapping[str, Any]]  # the items before the request's own
    inputs: Sequence[Mapping[str, Any]]
    previous: str | None = None
    conversation: str | None = None
    stores: bool = False
    history_bytes: int = 0  # of the stored items, for another attempt

    def make_record(
        self, status: str, body: bytes, outputs: Sequence[StoredItem] = (), runner: str = ""
    ) -> NewResponse:
        inputs = encode_item_bodies([to_stored_item(item) for item in self.inputs])
        previous = self.previous if self.conversation is None else None
        return NewResponse(self.id, status, body, inputs, outputs, previous, self.conversation, runner)


async def begin_turn(
    context: ServerContext,
    request_context: RequestContext,
    input_: str | Sequence[Mapping[str, Any]] | None,
    previous: str | None = None,
    conversation: str | None = None,
    stores: bool | None = False,
) -> ResponseTurn:
    """Find what the request refers to. Raises `RequestError` if it does not exist, or is another key's."""
    state, owner = context.state, identify_owner(request_context.key)
    inputs = [{"role": "user", "content": input_}] if isinstance(input_, str) else list(input_ or ())
    limits = context.config.limits
    if len(inputs) > limits.messages:
        raise make_limit_error(f"input has {len(inputs)} entries", limits, "messages", "input")
    turn = ResponseTurn(make_id("resp"), owner, (), inputs, previous, conversation)
    if previous is not None and conversation is not None:
        raise InvalidRequest(
            "previous_response_id and conversation are mutually exclusive", "remove one of them", param="conversation"
        )
    if state is None:
        if stores:
            request_context.ignored["store"] = "server.state is off"
    else:
        turn.stores = stores is not False
    if previous is not None:
        turn.history = await _load_previous(state, request_context, limits, owner, previous)
    elif conversation is not None:
        turn.history = await _load_conversation(state, request_context, limits, owner, conversation)
    if any(_is_reference(item) for item in inputs):
        turn.inputs = await _resolve_references(state, request_context, limits, owner, inputs)
    turn.history_bytes = request_context.history_bytes
    if not turn.inputs and not turn.history:
        raise InvalidRequest("input is missing", "send a string or a list of items", param="input")
    return turn


def read_conversation_id(conversation: Any) -> str | None:
    """Return the id from `conversation`: an id, or an object with one."""
    found = conversation.get("id") if isinstance(conversation, Mapping) else conversation
    if conversation is not None and not isinstance(found, str):
        raise InvalidRequest("conversation has no id", 'use an id, or {"id": "conv_…"}', param="conversation")
    return found


async def _load_previous(
    state: StateClient | None, request_context: RequestContext, limits: ServerLimits, owner: str, previous: str
) -> Sequence[Mapping[str, Any]]:
    if state is None:
        raise Unsupported(_STATE_OFF, "send the whole conversation as input", param="previous_response_id")
    found = await state.call(StateStore.get_response, owner, previous)
    if found is None:
        raise _make_previous_error(previous)
    if found.chain.startswith("conv_"):
        raise InvalidRequest(
            f"the previous response belongs to the conversation {found.chain}", "send conversation instead",
            param="previous_response_id",
        )  # fmt: skip
    if found.status not in _ENDED:
        raise InvalidRequest(
            f"the previous response is {found.status}", "continue one that is completed", param="previous_response_id"
        )
    try:
        bodies = await state.call(StateStore.load_history, owner, previous, _make_bound(limits))
    except TooMuchStored as error:
        raise _make_size_error("the previous response and what it continues", error, limits) from None
    if bodies is None:
        raise _make_previous_error(previous)
    return await _decode(request_context, bodies)


def _make_previous_error(previous: str) -> PreviousResponseNotFound:
    return PreviousResponseNotFound(
        f"previous response {previous[:80]!r}, or one that it continues, was not found",
        "it may have expired or been deleted: send the whole conversation as input", param="previous_response_id",
    )  # fmt: skip


async def _load_conversation(
    state: StateClient | None, request_context: RequestContext, limits: ServerLimits, owner: str, conversation: str
) -> Items:
    if state is None:
        raise Unsupported(_STATE_OFF, "send the whole conversation as input", param="conversation")
    try:
        bodies = await state.call(StateStore.load_conversation, owner, conversation, _make_bound(limits))
    except TooMuchStored as error:
        raise _make_size_error("the conversation", error, limits) from None
    if bodies is None:
        raise ResponseNotFound(f"conversation {conversation[:80]!r} not found", param="conversation")
    return await _decode(request_context, bodies)


def _make_bound(limits: ServerLimits) -> ReadBound:
    return ReadBound(limits.messages, limits.body_bytes)


def _make_size_error(what: str, error: TooMuchStored, limits: ServerLimits) -> InvalidRequest:
    unit = "items" if error.setting == "messages" else "bytes"
    return InvalidRequest(
        f"there are more than {getattr(limits, error.setting)} {unit} in {what}",
        format_limit_hint(error.setting, "send the part that matters as input; compact a conversation before it is this long"),
        param="input",
    )  # fmt: skip


async def _decode(request_context: RequestContext, bodies: Sequence[bytes]) -> Items:
    size = sum(map(len, bodies))
    request_context.add_history(size)
    return await asyncio.to_thread(decode_item_bodies, bodies) if size > _LARGE_BYTES else decode_item_bodies(bodies)


def _is_reference(item: Mapping[str, Any]) -> bool:
    return item.get("type") == "item_reference" or item.keys() == {"id"}


async def _resolve_references(
    state: StateClient | None,
    request_context: RequestContext,
    limits: ServerLimits,
    owner: str,
    inputs: Sequence[Mapping[str, Any]],
) -> Sequence[Mapping[str, Any]]:
    """Replace references by the stored items."""
    if state is None:
        raise Unsupported(f"input has an item_reference, and {_STATE_OFF}", "send the item itself", param="input")
    ids = [item.get("id") for item in inputs if _is_reference(item)]
    if not all(isinstance(one, str) for one in ids):
        raise InvalidRequest("an item_reference has no id", "send the id of an item", param="input")
    wanted = [str(one) for one in ids if is_made_id(str(one))]
    try:
        found = await state.call(
            StateStore.find_items, owner, wanted, limits.body_bytes - request_context.history_bytes
        )
    except TooMuchStored as error:
        raise _make_size_error("the items that input refers to and those before it", error, limits) from None
    for number, item in enumerate(inputs):
        if _is_reference(item) and item["id"] not in found:
            raise InvalidRequest(
                f"input[{number}] refers to the item {item['id'][:80]!r}, which is not stored",
                "send the item itself, as SDKs do with store set to false", param="input",
            )  # fmt: skip
    decoded = dict(zip(found, await _decode(request_context, list(found.values())), strict=True))
    request_context.add_history(sum(len(found[one]) for one in wanted) - sum(map(len, found.values())))
    return [decoded[item["id"]] if _is_reference(item) else item for item in inputs]


async def store_turn(
    context: ServerContext, request_context: RequestContext, turn: ResponseTurn, response: ResponseObject
) -> None:
    """Store a response that has ended. If it cannot be stored, the response says so, and the header and the log say why."""
    assert context.state is not None
    reason = await context.state.add_response(turn.owner, lambda: _encode_record(turn, response))
    if reason:
        response.store = False
        request_context.ignored["store"] = reason
        note = f"store: {reason}"
        if request_context.exchange.started:
            request_context.write_comment(f"x-enginebay-ignored: {note}")
        else:
            request_context.exchange.add_header("x-enginebay-ignored", note)
        context.log.log_event(
            "response not stored", level="warning", request_id=request_context.id, reason=reason, response=turn.id
        )


def _encode_record(turn: ResponseTurn, response: ResponseObject) -> NewResponse:
    return turn.make_record(response.status, _encode(response), encode_outputs(response))


def encode_outputs(response: ResponseObject) -> list[StoredItem]:
    return [StoredItem(item.id, _encode(item)) for item in response.output]
