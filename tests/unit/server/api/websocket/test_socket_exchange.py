"""Server-sent events and errors as messages of a WebSocket."""

from __future__ import annotations

import json
from typing import Any

import pytest

from enginebay.errors import EnginebayError, InvalidRequest, Overloaded
from enginebay.server.api.app import App
from enginebay.server.api.websocket import response_socket
from enginebay.server.api.websocket.response_chain import ResponseChain
from enginebay.server.api.websocket.response_socket import ResponseExchange
from enginebay.server.http.websocket_connection import SocketMessage
from enginebay.server.requests.request_context import RequestContext
from tests.unit.server.http.websocket_client import SocketClient
from tests.unit.server.http.websocket_frames import PING, TEXT


class Turn:
    """One message on an open WebSocket."""

    def __init__(self, chain: ResponseChain | None = None, **fields: Any) -> None:
        self.client = SocketClient()
        message = SocketMessage(json.dumps({"type": "response.create", **fields}).encode(), None)
        upgrade = self.client.app.requests[0]
        upgrade.headers["x-request-id"] = "of the upgrade"
        self.exchange = ResponseExchange(self.client.socket, upgrade, message, chain or ResponseChain())
        assert self.exchange.read_message()

    def read_messages(self) -> list[Any]:
        return [json.loads(payload) for opcode, payload in self.client.frames if opcode == TEXT]


def encode_event(kind: str, **fields: Any) -> bytes:
    return f"event: {kind}\ndata: {json.dumps({'type': kind, **fields})}\n\n".encode()


def test_each_event_is_a_message_and_the_first_has_the_headers() -> None:
    turn = Turn()
    assert turn.exchange.method == "MESSAGE" and "x-request-id" not in turn.exchange.headers
    turn.exchange.add_header("x-enginebay-ignored", "verbosity")
    turn.exchange.add_header("access-control-allow-origin", "*")
    turn.exchange.start(200, "text/event-stream", {"cache-control": "no-cache"})
    turn.exchange.write(
        encode_event("response.created", response={"id": "r"}) + encode_event("a.delta", delta="data: x\n\n")
    )
    turn.exchange.end(encode_event("response.completed", response={"id": "r", "output": []}))
    first, second, third = turn.read_messages()
    assert first["headers"] == {"x-enginebay-ignored": "verbosity"} and first["type"] == "response.created"
    assert second == {"type": "a.delta", "delta": "data: x\n\n"} and third["type"] == "response.completed"
    assert not turn.client.socket.busy and turn.exchange.status == 200


def test_comments_are_pings() -> None:
    turn = Turn()
    turn.exchange.start(200, "text/event-stream")
    turn.exchange.write(b": loading\n\n")
    assert turn.client.frames == [(PING, b"")]


async def answer_after_a_load(turn: Turn, monkeypatch: pytest.MonkeyPatch, error: EnginebayError | None) -> None:
    """Answer the message as the server does when the model has to load."""
    app: Any = None

    async def create_response(context: Any, request_context: RequestContext) -> None:
        request_context.write_comment("m is loading, about 12 s")
        request_context.add_header_or_comment("x-enginebay-ignored", "verbosity")
        if error is not None:
            raise error
        turn.exchange.start(200, "text/event-stream")
        turn.exchange.end(encode_event("response.completed", response={"id": "r", "output": []}))

    monkeypatch.setattr(response_socket, "create_response", create_response)
    request_context = RequestContext(turn.exchange, "responses", "id")
    try:
        await response_socket.answer_message(app, request_context)
    except EnginebayError as problem:
        App._respond_error(app, request_context, problem)


async def test_a_load_is_shown_by_pings_and_the_headers_follow(monkeypatch: pytest.MonkeyPatch) -> None:
    turn = Turn()
    await answer_after_a_load(turn, monkeypatch, None)
    assert turn.client.frames[0] == (PING, b"")
    [message] = turn.read_messages()
    assert message["headers"] == {"x-request-id": "id", "x-enginebay-ignored": "verbosity"}


@pytest.mark.parametrize(
    ("error", "status"), [(InvalidRequest("wrong", param="input"), 400), (Overloaded("full", retry_after_s=3), 503)]
)
async def test_an_error_after_a_load_has_its_status(
    monkeypatch: pytest.MonkeyPatch, error: EnginebayError, status: int
) -> None:
    turn = Turn()
    await answer_after_a_load(turn, monkeypatch, error)
    [message] = turn.read_messages()
    assert (message["type"], message["status"]) == ("error", status)
    assert message["headers"]["x-enginebay-ignored"] == "verbosity"


def test_an_error_before_and_within_the_stream() -> None:
    turn = Turn(stream_id="lane")
    turn.exchange.respond(429, b'{"error":{"message":"m"}}', headers=[("retry-after", "3")])
    error = {
        "type": "error",
        "status": 429,
        "error": {"message": "m"},
        "headers": {"retry-after": "3"},
        "stream_id": "lane",
    }
    assert turn.read_messages() == [error]
    turn = Turn()
    turn.exchange.start(200, "text/event-stream")
    turn.exchange.end(b'data: {"error":{"message":"m"}}\n\n')
    assert turn.read_messages() == [{"type": "error", "status": 500, "error": {"message": "m"}, "headers": {}}]


def test_nothing_is_sent_to_a_client_that_left() -> None:
    turn = Turn()
    turn.client.transport.protocol.connection_lost(None)
    turn.exchange.start(200, "text/event-stream")
    turn.exchange.write(encode_event("a"))
    turn.exchange.end(encode_event("b"))
    turn.exchange.respond(500, b"{}")
    assert turn.read_messages() == [] and turn.exchange.closed


def test_the_response_names_the_one_before() -> None:
    chain = ResponseChain()
    for number, previous in ((1, None), (2, "r1")):
        turn = Turn(chain, input="hi", **({"previous_response_id": previous} if previous else {}))
        turn.exchange.start(200, "text/event-stream")
        response = {"id": f"r{number}", "output": [], "previous_response_id": None, "store": False}
        data = json.dumps({"type": "response.completed", "response": response}, separators=(",", ":"))
        turn.exchange.end(f"event: response.completed\ndata: {data}\n\n".encode())
        turn.exchange.remember()
        assert turn.read_messages()[0]["response"]["previous_response_id"] == previous


def test_a_warm_up_sends_no_output() -> None:
    turn = Turn(input="hi", generate=False, max_output_tokens=50)
    turn.exchange.start(200, "text/event-stream")
    turn.exchange.write(
        encode_event("response.created", response={"id": "r"}) + encode_event("response.output_text.delta", delta="x")
    )
    reason = {"reason": "max_output_tokens"}
    response = {"id": "r", "output": [{}], "status": "incomplete", "incomplete_details": reason}
    turn.exchange.end(encode_event("response.incomplete", response=response))
    created, completed = turn.read_messages()
    assert created["type"] == "response.created" and completed["type"] == "response.completed"
    done = {"id": "r", "output": [], "status": "completed", "incomplete_details": None, "max_output_tokens": 50}
    assert completed["response"] == done
