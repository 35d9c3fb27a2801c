"""The WebSocket at /v1/responses: one `response.create` after the other, answered with the events of the stream."""

from __future__ import annotations

from typing import cast

import msgspec

from enginebay.server.api.openai.responses import create_response
from enginebay.server.api.websocket.response_chain import ResponseChain, ResponseCreation
from enginebay.server.api.websocket.socket_exchange import SocketExchange
from enginebay.server.auth.access_control import check_websocket_origin
from enginebay.server.http.exchange import Exchange
from enginebay.server.http.websocket_connection import SocketMessage, WebSocketConnection
from enginebay.server.requests.request_context import RequestContext
from enginebay.server.requests.server_context import ServerContext

_encode = msgspec.json.Encoder().encode
_FINISHED = (b"response.completed", b"response.incomplete")
_WITH_RESPONSE = (b"response.created", b"response.in_progress", b"response.failed", *_FINISHED)


async def serve_responses(context: ServerContext, request_context: RequestContext) -> None:
    """Accept the WebSocket, and answer its messages in order until it closes."""
    upgrade = request_context.exchange
    check_websocket_origin(upgrade, context.config.cors_origins)
    socket = upgrade.accept_websocket()
    if socket is None:
        return
    assert context.run_exchange is not None
    chain = ResponseChain()
    while (message := await socket.receive()) is not None:
        exchange = ResponseExchange(socket, upgrade, message, chain)
        await context.run_exchange(exchange)
        exchange.remember()


async def answer_message(context: ServerContext, request_context: RequestContext) -> None:
    exchange = cast("ResponseExchange", request_context.exchange)
    request_context.takes_comments = False  # they would start the response before its headers and status are known
    if exchange.read_message():
        await create_response(context, request_context)
    else:
        exchange.respond(204, b"")


class ResponseExchange(SocketExchange):
    """A message and its events. Names the response it continues, and leaves out the output of a warm-up."""

    __slots__ = ("_chain", "_creation", "_finished")

    def __init__(
        self, socket: WebSocketConnection, upgrade: Exchange, message: SocketMessage, chain: ResponseChain
    ) -> None:
        super().__init__(socket, upgrade, message)
        self._chain = chain
        self._creation: ResponseCreation | None = None
        self._finished = b""  # the last event of a response that the client may continue

    def read_message(self) -> bool:
        """Set the body of the request. Return False if the message needs no answer."""
        self._creation = self._chain.read_message(self.message)
        if self._creation is None:
            return False
        self.body = self._creation.body
        if self._creation.stream_id is not None:
            self.extra_fields = b',"stream_id":%b' % _encode(self._creation.stream_id)
        return True

    def transform_event(self, kind: bytes, payload: bytes) -> bytes:
        creation = self._creation
        if creation is None:
            return payload
        if kind not in _WITH_RESPONSE:
            is_output = kind.startswith(b"response.")
            return b"" if is_output and not creation.generate else payload
        if creation.previous_id is not None:
            named = b'"previous_response_id":%b' % _encode(creation.previous_id)
            payload = payload.replace(b'"previous_response_id":null', named, 1)
        if not creation.generate:
            payload = _edit_warm_up(kind, payload, creation)
        if kind in _FINISHED:
            self._finished = payload
        return payload

    def remember(self) -> None:
        """Keep the response for the next message, if there is room. One whose continuation failed is forgotten."""
        if self._creation is None:
            return
        if self._finished:
            self._chain.record(self._creation, self._finished)
        elif self._creation.previous_id is not None:
            self._chain.forget()
        if not self._socket.keep_bytes(self._chain.size):
            self._chain.forget()


def _edit_warm_up(kind: bytes, payload: bytes, creation: ResponseCreation) -> bytes:
    """Return an event of a response without output, with the limit on output that the client asked for."""
    event = msgspec.json.decode(payload)
    event["response"]["max_output_tokens"] = msgspec.json.decode(creation.max_output_tokens)
    if kind in _FINISHED:
        event["type"] = "response.completed"
        event["response"] |= {"status": "completed", "incomplete_details": None, "output": []}
    return _encode(event)
