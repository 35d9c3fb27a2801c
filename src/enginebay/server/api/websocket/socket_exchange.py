"""One message of a WebSocket as an exchange: server-sent events become messages, and so do errors."""

from __future__ import annotations

import msgspec

from enginebay.server.http.exchange import Exchange, Headers
from enginebay.server.http.websocket_connection import SocketMessage, WebSocketConnection

_encode = msgspec.json.Encoder().encode

_UNREPEATED_HEADERS = ("x-request-id",)  # of the upgrade: each message has an id of its own
_REPORTED_PREFIXES = ("x-", "retry-after", "www-authenticate")


class SocketExchange(Exchange):
    """Endpoints use it like any exchange that streams. What would be headers goes into the first message."""

    __slots__ = ("_socket", "_unsent_headers", "extra_fields", "message")

    def __init__(self, socket: WebSocketConnection, upgrade: Exchange, message: SocketMessage) -> None:
        headers = {name: value for name, value in upgrade.headers.items() if name not in _UNREPEATED_HEADERS}
        super().__init__(socket, "MESSAGE", upgrade.path, headers)
        self._socket = socket
        self._unsent_headers = True
        self.message = message.body
        self.body_lease = message.lease
        self.extra_fields = b""  # of every message: `,"name":value`
        socket.begin_exchange(self)

    def transform_event(self, kind: bytes, payload: bytes) -> bytes:
        """Return the message for an event, or nothing to leave it out. For subclasses."""
        return payload

    def respond(self, status: int, body: bytes, content_type: str = "application/json", headers: Headers = ()) -> None:
        """Send an error, or a JSON object, as one message."""
        if self.started or self.closed:
            return
        self.started, self.status = True, status
        for name, value in headers:
            self.add_header(name, value)
        if body:
            self._send([self._to_error(body, status) if status >= 400 else body])
        self._socket.finish_exchange(self)

    def start(self, status: int, content_type: str, headers: object = None) -> None:
        if not self.started and not self.closed:
            self.started, self.status = True, status

    def write(self, data: bytes) -> None:
        if not self.closed:
            self._send(self._read_events(data))

    def end(self, data: bytes = b"") -> None:
        if not self.closed:
            self.write(data)
            self._socket.finish_exchange(self)

    def ping(self) -> None:
        if not self.closed:
            self._socket.ping()

    def _read_events(self, data: bytes) -> list[bytes]:
        """Return the messages for server-sent events. Comments show that the server is alive, so they become pings."""
        messages = []
        for event in data.split(b"\n\n"):
            head, _, payload = event.partition(b"data: ")
            if payload.startswith(b'{"error":'):
                messages.append(self._to_error(payload, 500))
            elif payload and payload != b"[DONE]":
                message = self.transform_event(head[7:-1], payload)  # event: KIND
                messages += [message] if message else []
            elif event.startswith(b":"):
                self.ping()
        return messages

    def _to_error(self, body: bytes, status: int) -> bytes:
        return b'{"type":"error","status":%d,%b' % (status, body[1:])

    def _send(self, messages: list[bytes]) -> None:
        if messages and self._unsent_headers:
            self._unsent_headers = False
            messages[0] = b'%b,"headers":%b}' % (messages[0][:-1], _encode(self._list_headers()))
        if self.extra_fields:
            messages = [b"%b%b}" % (message[:-1], self.extra_fields) for message in messages]
        if messages:
            self._socket.send_texts(messages)

    def _list_headers(self) -> dict[str, str]:
        lines = [line.partition(": ") for line in self.added_headers.decode("latin-1").split("\r\n")]
        return {name: value for name, _, value in lines if name.startswith(_REPORTED_PREFIXES)}
