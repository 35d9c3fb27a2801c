"""One HTTP request and its response."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Protocol
from urllib.parse import parse_qsl

if TYPE_CHECKING:
    from enginebay.server.http.client_budget import BudgetLease
    from enginebay.server.http.form_body import Form
    from enginebay.server.http.websocket_connection import WebSocketConnection

REASON_PHRASES = {
    100: "Continue", 101: "Switching Protocols", 200: "OK", 204: "No Content", 400: "Bad Request", 401: "Unauthorized", 403: "Forbidden",
    404: "Not Found", 405: "Method Not Allowed", 408: "Request Timeout", 409: "Conflict", 413: "Content Too Large",
    415: "Unsupported Media Type", 422: "Unprocessable Content",
    426: "Upgrade Required", 429: "Too Many Requests", 431: "Request Header Fields Too Large", 499: "Client Closed Request", 500: "Internal Server Error",
    501: "Not Implemented", 502: "Bad Gateway", 503: "Service Unavailable", 504: "Gateway Timeout", 529: "Overloaded",
}  # fmt: skip
STATUS_LINES = {status: f"HTTP/1.1 {status} {reason}\r\n".encode() for status, reason in REASON_PHRASES.items()}

CLIENT_CLOSED_REQUEST = 499  # logged when the client disconnects before the response

Headers = Iterable[tuple[str, str]]


class ExchangeTransport(Protocol):
    """The connection that carries an exchange."""

    @property
    def peer(self) -> str: ...

    @property
    def congested(self) -> bool: ...

    def unsent_bytes(self) -> int: ...

    def common_headers(self) -> bytes: ...

    def write(self, data: bytes) -> None: ...

    def finish_exchange(self, exchange: Exchange) -> None: ...

    def hold_bytes(self, exchange: Exchange, size: int) -> None: ...

    def release_body(self, exchange: Exchange | None) -> None: ...

    def accept_websocket(self, exchange: Exchange) -> WebSocketConnection | None: ...

    def abort(self) -> None: ...


class Exchange:
    """A request with its full body, and its single response: `respond`, or `start`, `write`..., `end`.

    Nothing here raises when the client disconnects: `closed` becomes true and `on_close` is called.
    """

    __slots__ = (
        "_chunked",
        "_connection",
        "_header_lines",
        "accepts_chunked",
        "body",
        "body_lease",
        "closed",
        "form",
        "headers",
        "held_bytes",
        "keep_alive",
        "method",
        "on_close",
        "on_drained",
        "path",
        "query_string",
        "received_at",
        "started",
        "status",
    )  # fmt: skip

    def __init__(self, connection: ExchangeTransport, method: str, target: str, headers: dict[str, str]) -> None:
        self._connection = connection
        self.method = method  # WEBSOCKET for a request to upgrade
        self.path, _, self.query_string = target.partition("?")
        self.headers = headers  # lower-case names; values of a repeated header joined by commas
        self.body = b""
        self.body_lease: BudgetLease | None = None  # of a large body
        self.form: Form | None = None  # a multipart body, on routes that take one
        self.held_bytes = 0  # of the response, not written yet because the client reads slowly
        self.keep_alive = True
        self.accepts_chunked = True  # false for HTTP/1.0
        self.received_at = time.perf_counter()
        self.status = 0
        self.started = False
        self.closed = False
        self.on_close: Callable[[], object] | None = None  # the client disconnected
        self.on_drained: Callable[[], None] | None = None  # the write buffer drained: writing may continue
        self._chunked = False
        self._header_lines: list[bytes] = []

    @property
    def query(self) -> dict[str, str]:
        return dict(parse_qsl(self.query_string, keep_blank_values=True))

    @property
    def peer(self) -> str:
        return self._connection.peer

    @property
    def unsent_bytes(self) -> int:
        """Bytes written but not yet sent to the client."""
        return self._connection.unsent_bytes()

    @property
    def congested(self) -> bool:
        """Whether the client reads too slowly: pause writing until `on_drained`."""
        return self._connection.congested

    def add_header(self, name: str, value: str) -> None:
        """Add a header to the response, whichever code writes it."""
        self._header_lines.append(f"{name}: {value}\r\n".encode("latin-1", "replace"))

    @property
    def added_headers(self) -> bytes:
        """The headers added so far."""
        return b"".join(self._header_lines)

    def mark_headers(self) -> int:
        return len(self._header_lines)

    def rewind_headers(self, mark: int) -> None:
        """Remove the headers added since `mark`."""
        del self._header_lines[mark:]

    def add_header_line(self, line: bytes) -> None:
        """Add a header that is already encoded."""
        self._header_lines.append(line)

    def respond(self, status: int, body: bytes, content_type: str = "application/json", headers: Headers = ()) -> None:
        """Send the complete response."""
        if self.started or self.closed:
            return
        self.started = True
        self.status = status
        parts = [STATUS_LINES[status], self._connection.common_headers(), *self._header_lines]
        parts += [f"{name}: {value}\r\n".encode("latin-1", "replace") for name, value in headers]
        close = b"" if self.keep_alive else b"connection: close\r\n"
        length = (
            b"" if status == 204 else b"content-type: %b\r\ncontent-length: %d\r\n" % (content_type.encode(), len(body))
        )
        parts += [length, close, b"\r\n"]
        if self.method != "HEAD":
            parts.append(body)
        self._connection.write(b"".join(parts))
        self._connection.finish_exchange(self)

    def start(self, status: int, content_type: str, headers: Mapping[str, str] | None = None) -> None:
        """Start a response of unknown length."""
        if self.started or self.closed:
            return
        self.started = True
        self.status = status
        self._chunked = self.accepts_chunked
        self.keep_alive = self.keep_alive and self._chunked
        parts = [STATUS_LINES[status], self._connection.common_headers(), *self._header_lines]
        parts += [f"{name}: {value}\r\n".encode("latin-1", "replace") for name, value in (headers or {}).items()]
        framing = b"transfer-encoding: chunked\r\n" if self._chunked else b""
        close = b"" if self.keep_alive else b"connection: close\r\n"
        parts.append(b"content-type: %b\r\n%b%b\r\n" % (content_type.encode(), framing, close))
        self._connection.write(b"".join(parts))

    def write(self, data: bytes) -> None:
        """Send a part of a started response."""
        if data and not self.closed:
            self._connection.write(b"%x\r\n%b\r\n" % (len(data), data) if self._chunked else data)

    def end(self, data: bytes = b"") -> None:
        """Finish a started response."""
        if self.closed:
            return
        if self._chunked:
            self._connection.write(b"%x\r\n%b\r\n0\r\n\r\n" % (len(data), data) if data else b"0\r\n\r\n")
        elif data:
            self._connection.write(data)
        self._connection.finish_exchange(self)

    def ping(self) -> None:
        """Show that the server is alive, where the protocol has a way apart from the response."""

    def hold_bytes(self, size: int) -> None:
        """Count this much instead of the body's size, until `release_body`: what it refers to is in memory too.

        Raise `Refusal` if that is too much.
        """
        self._connection.hold_bytes(self, size)

    def release_body(self) -> None:
        """Count the body no more: the application has ended its work, also for a client that left."""
        if self.body_lease is not None or self.form is not None:
            self._connection.release_body(self)

    def accept_websocket(self) -> WebSocketConnection | None:
        """Upgrade the connection. Respond with an error and return None if there are too many WebSockets."""
        return None if self.started or self.closed else self._connection.accept_websocket(self)

    def move_to(self, connection: ExchangeTransport) -> None:
        """Continue on another connection, which took over the transport."""
        self._connection = connection

    def abort(self) -> None:
        """Drop the connection, so that the client does not mistake a partial response for a complete one."""
        self._connection.abort()
