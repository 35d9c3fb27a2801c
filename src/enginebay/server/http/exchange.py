"""One request and the answer to it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl

if TYPE_CHECKING:
    from enginebay.server.http.http_connection import HttpConnection

REASON_PHRASES = {
    100: "Continue", 200: "OK", 204: "No Content", 400: "Bad Request", 401: "Unauthorized", 403: "Forbidden",
    404: "Not Found", 405: "Method Not Allowed", 408: "Request Timeout", 409: "Conflict", 413: "Content Too Large",
    415: "Unsupported Media Type", 422: "Unprocessable Content", 429: "Too Many Requests",
    431: "Request Header Fields Too Large", 499: "Client Closed Request", 500: "Internal Server Error",
    501: "Not Implemented", 502: "Bad Gateway", 503: "Service Unavailable", 504: "Gateway Timeout",
}  # fmt: skip
STATUS_LINES = {status: f"HTTP/1.1 {status} {reason}\r\n".encode() for status, reason in REASON_PHRASES.items()}

CLIENT_CLOSED_REQUEST = 499  # what is written down when nobody was left to answer

Headers = Iterable[tuple[str, str]]


class Exchange:
    """A request with its body read, and the one response to it: `respond`, or `start`, `write`..., `end`.

    Nothing here raises when the client has gone: `closed` is true then, and `on_close` was called.
    """

    __slots__ = (
        "_chunked",
        "_connection",
        "_header_lines",
        "accepts_chunked",
        "body",
        "closed",
        "headers",
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

    def __init__(self, connection: HttpConnection, method: str, target: str, headers: dict[str, str]) -> None:
        self._connection = connection
        self.method = method
        self.path, _, self.query_string = target.partition("?")
        self.headers = headers  # names in lower case; of a repeated header, the values joined by commas
        self.body = b""
        self.keep_alive = True
        self.accepts_chunked = True  # the client knows chunked answers
        self.received_at = time.perf_counter()
        self.status = 0
        self.started = False
        self.closed = False
        self.on_close: Callable[[], object] | None = None  # the client has gone
        self.on_drained: Callable[[], None] | None = None  # the client has read what was written: more may be
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
        """Bytes written that the client has not taken yet."""
        return self._connection.unsent_bytes()

    @property
    def congested(self) -> bool:
        """The client reads more slowly than we write: hold back until `on_drained`."""
        return self._connection.congested

    def add_header(self, name: str, value: str) -> None:
        """A header of the response to come, whoever writes it."""
        self._header_lines.append(f"{name}: {value}\r\n".encode("latin-1", "replace"))

    @property
    def added_headers(self) -> bytes:
        """The headers that were added so far."""
        return b"".join(self._header_lines)

    def mark_headers(self) -> int:
        return len(self._header_lines)

    def rewind_headers(self, mark: int) -> None:
        """Forget the headers that were added since."""
        del self._header_lines[mark:]

    def add_header_line(self, line: bytes) -> None:
        """The same, written out beforehand."""
        self._header_lines.append(line)

    def respond(self, status: int, body: bytes, content_type: str = "application/json", headers: Headers = ()) -> None:
        """The whole response at once."""
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
        """Begin a response whose length is not known yet."""
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
        """One more piece of a started response."""
        if data and not self.closed:
            self._connection.write(b"%x\r\n%b\r\n" % (len(data), data) if self._chunked else data)

    def end(self, data: bytes = b"") -> None:
        """The last piece."""
        if self.closed:
            return
        if self._chunked:
            self._connection.write(b"%x\r\n%b\r\n0\r\n\r\n" % (len(data), data) if data else b"0\r\n\r\n")
        elif data:
            self._connection.write(data)
        self._connection.finish_exchange(self)

    def abort(self) -> None:
        """Drop the connection: the client must not take what it has for the whole answer."""
        self._connection.abort()
