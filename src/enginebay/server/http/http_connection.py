"""One client connection: parses requests, enforces their limits, and passes them to the application in order.

    reading headers --complete--> reading body --complete--> responding --finished--> reading headers
           | too slow, too big           | too slow, too big      | client disconnected or stopped reading
           v                             v                        v
        408, 431                      408, 413                 aborted

Every state but responding has a deadline; responding gets one while the client does not read. The listener sweeps
the deadlines, so no request needs a timer. After a refusal the connection lingers: our side is closed, and further
input is discarded, so that the client can read the error.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from typing import cast

import httptools

from enginebay.server.http.body_reader import BodyReader
from enginebay.server.http.client_budget import BudgetLease, ClientBudgets
from enginebay.server.http.connection_sweep import LINGER_S, StallTimer, SweptConnection
from enginebay.server.http.exchange import CLIENT_CLOSED_REQUEST, STATUS_LINES, Exchange
from enginebay.server.http.http_settings import HttpApplication, HttpSettings
from enginebay.server.http.refusal import Refusal
from enginebay.server.http.websocket_connection import WebSocketConnection
from enginebay.server.http.websocket_handshake import check_handshake, is_websocket_request

_MAX_PIPELINED = 8  # requests read ahead of the current one
_NOT_HTTP = "the request is not valid HTTP/1.1"
_NO_HOST = "a request needs exactly one Host header"
# Header names that most clients send, in lower case and as written in the RFCs: looking them up is cheaper than decoding.
_COMMON_NAMES = {
    spelling.encode(): name
    for name in (
        "accept", "accept-encoding", "accept-language", "authorization", "connection", "content-length", "content-type",
        "host", "openai-organization", "openai-project", "origin", "referer", "traceparent", "user-agent", "x-api-key",
        "x-request-id", "x-stainless-arch", "x-stainless-async", "x-stainless-lang", "x-stainless-os", "x-stainless-package-version",
        "x-stainless-read-timeout", "x-stainless-retry-count", "x-stainless-runtime", "x-stainless-runtime-version",
    )
    for spelling in (name, name.title())
}  # fmt: skip


class HttpConnection(asyncio.Protocol):
    """Implements asyncio's protocol callbacks and httptools' parser callbacks."""

    def __init__(
        self,
        settings: HttpSettings,
        application: HttpApplication,
        connections: set[SweptConnection],
        budgets: ClientBudgets,
    ) -> None:
        self._settings = settings
        self._budgets = budgets
        self._application = application
        self._connections = connections
        self._parser = httptools.HttpRequestParser(self)
        self._transport: asyncio.Transport = cast("asyncio.Transport", None)
        self._exchange: Exchange | None = None  # the current one
        self._pipelined: deque[Exchange] = deque()
        self._reading: Exchange | None = None  # headers complete, body not yet
        self._body_reader = BodyReader(settings, application, budgets)
        self._after_upgrade = b""  # what a client sent right behind its request for a WebSocket
        self._lingering = False
        self._target = b""
        self._headers: dict[str, str] = {}
        self._head_bytes = 0
        self._expects_continue = False
        self._closing = False
        self._stall = StallTimer()
        self.deadline: float | None = time.monotonic() + settings.header_timeout_s
        self.congested = False
        self.peer = ""

    # asyncio callbacks

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=self._settings.write_buffer_bytes)
        address = transport.get_extra_info("peername")
        self.peer = f"{address[0]}:{address[1]}" if isinstance(address, tuple) else "local"
        self._connections.add(self)

    def connection_lost(self, error: Exception | None) -> None:
        self._connections.discard(self)
        self.deadline = None
        for unhandled in (self._reading, *self._pipelined):
            self._body_reader.release(unhandled)
        for exchange in (self._exchange, *self._pipelined):
            if exchange is not None:
                exchange.closed = True
                exchange.status = exchange.status or CLIENT_CLOSED_REQUEST
                if exchange.on_close is not None:
                    exchange.on_close()
        self._pipelined.clear()
        self._exchange = self._reading = None
        self._body_reader.drop()
        del self._parser  # breaks the reference cycle, so memory is freed without the garbage collector

    def eof_received(self) -> bool:
        return False  # treat a half-closed connection as a disconnect, which cancels its requests

    def data_received(self, data: bytes) -> None:
        while data and not self._closing:
            data = self._feed_parser(data)

    def _feed_parser(self, data: bytes) -> bytes:
        """Feed the parser and return the bytes to parse again."""
        try:
            if self._reading is None:
                self._head_bytes += len(data)
            else:
                self._body_reader.count_wire_bytes(len(data))
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            rest = data[upgrade.args[0] :]
            return b"" if self._start_websocket(rest) else self._strip_upgrade() + rest
        except httptools.HttpParserError:
            self._refuse(400, _NOT_HTTP)
            return b""
        except Refusal as refusal:
            self._refuse_with(refusal, self._reading)
            return b""
        if self._reading is None and self._head_bytes > self._settings.max_header_bytes:
            self._refuse_long_headers()
        return b""

    def _strip_upgrade(self) -> bytes:
        """Return the request head without its Upgrade header: the parser skips the body of an upgrade request."""
        method = self._parser.get_method()
        if method == b"CONNECT":
            self._refuse(400, "CONNECT is not supported: this server is not a proxy")
            return b""
        lines = [f"{name}: {value}\r\n" for name, value in self._headers.items() if name != "upgrade"]
        head = b"%b %b HTTP/1.1\r\n%b\r\n" % (method, self._target, "".join(lines).encode("latin-1"))
        self._parser = httptools.HttpRequestParser(self)
        return head

    def _start_websocket(self, rest: bytes) -> bool:
        """Pass a request for a WebSocket to the application. Return False if it is an ordinary request."""
        target = self._target.decode("latin-1")
        is_requested = is_websocket_request(self._parser.get_method(), self._parser.get_http_version(), self._headers)
        if self._busy_answering or not is_requested or not self._application.takes_websocket(target.partition("?")[0]):
            return False
        exchange = Exchange(self, "WEBSOCKET", target, self._headers)
        exchange.keep_alive = False  # if it is refused
        if self._count_header_bytes() > self._settings.max_header_bytes:
            self._refuse_long_headers()
            return True
        try:
            check_handshake(self._headers)
        except Refusal as refusal:
            exchange.add_header("sec-websocket-version", "13")
            self._refuse(refusal.status, refusal.message, exchange)
        else:
            self._after_upgrade = rest
            self._transport.pause_reading()
            self._dispatch(exchange)
        return True

    def accept_websocket(self, exchange: Exchange) -> WebSocketConnection | None:
        """Hand the transport over to a WebSocket. Respond with an error and return None if there are too many."""
        lease = BudgetLease(self._application.identify_client(exchange))
        try:
            self._budgets.websockets.resize(lease, 1)
        except Refusal as refusal:
            body = self._settings.encode_refusal(refusal.status, refusal.message, refusal.limit, None)
            exchange.respond(refusal.status, body, headers=[("retry-after", "1")])
            return None
        self._connections.discard(self)
        self._exchange = self.deadline = None
        del self._parser  # as in `connection_lost`, which the WebSocket gets
        socket = WebSocketConnection(self._settings, self._connections, self._budgets, lease, self.peer)
        socket.take_over(exchange, self._transport, self._after_upgrade)
        return socket

    def pause_writing(self) -> None:
        self.congested = True
        self._start_stall_timer()

    def _start_stall_timer(self) -> None:
        """Give the client `stall_timeout_s` to read some of the response."""
        self.deadline = self._stall.start(self.unsent_bytes(), self._settings.stall_timeout_s)

    def resume_writing(self) -> None:
        self.congested = False
        self._stall.stop()
        if self._exchange is not None:
            self.deadline = None
            if self._exchange.on_drained is not None:
                self._exchange.on_drained()
        elif self._pipelined:
            self._dispatch_next()
        elif self._closing:
            self._start_stall_timer()
        else:
            self.deadline = time.monotonic() + self._settings.keep_alive_s

    # httptools callbacks

    def on_message_begin(self) -> None:
        self._target = b""
        self._headers = {}
        self._expects_continue = False
        if not self._busy_answering:
            self.deadline = time.monotonic() + self._settings.header_timeout_s

    def on_url(self, url: bytes) -> None:
        self._target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._reading is not None:
            return  # trailers are ignored
        key, text = _COMMON_NAMES.get(name) or name.decode("latin-1").lower(), value.decode("latin-1")
        self._headers[key] = f"{self._headers[key]},{text}" if key in self._headers else text
        if key == "expect" and text.lower() == "100-continue":
            self._expects_continue = True

    def on_headers_complete(self) -> None:
        if self._closing or self._parser.should_upgrade():
            return
        limit = self._settings.max_header_bytes
        if self._head_bytes > limit and self._count_header_bytes() > limit:
            self._refuse_long_headers()
            return
        method = self._parser.get_method().decode("ascii")
        exchange = Exchange(self, method, self._target.decode("latin-1"), self._headers)
        version = self._parser.get_http_version()
        if version == "1.1":
            if "," in self._headers.get("host", ","):  # missing, or sent twice
                self._refuse(400, _NO_HOST, exchange)
                return
            exchange.keep_alive = bool(self._parser.should_keep_alive())
        elif version == "1.0":
            exchange.keep_alive = exchange.accepts_chunked = False
        else:
            self._refuse(400, _NOT_HTTP)
            return
        self._reading = exchange
        self._head_bytes = 0
        if "content-length" in self._headers or "transfer-encoding" in self._headers:
            try:
                self._body_reader.begin(exchange, self)
            except Refusal as refusal:
                self._refuse_with(refusal, exchange)
                return
        if not self._busy_answering:
            self.deadline = time.monotonic() + self._settings.body_timeout_s
        if self._expects_continue and exchange.accepts_chunked and not self._busy_answering:
            self.write(STATUS_LINES[100] + b"\r\n")

    def _count_header_bytes(self) -> int:
        """Return the size of the headers alone: `_head_bytes` may include part of the body."""
        return len(self._target) + sum(len(name) + len(value) + 4 for name, value in self._headers.items())

    def on_body(self, data: bytes) -> None:
        exchange = self._reading
        if exchange is None or self._closing:
            return
        try:
            self._body_reader.add(exchange, data)
        except Refusal as refusal:
            self._refuse_with(refusal, exchange)
            return
        if exchange.form is not None and not self._busy_answering and exchange.form.has_progress():
            self.deadline = time.monotonic() + self._settings.body_timeout_s

    def on_message_complete(self) -> None:
        exchange, self._reading = self._reading, None
        if exchange is None or self._closing:
            return
        try:
            self._body_reader.finish(exchange)
        except Refusal as refusal:
            self._refuse_with(refusal, exchange)
            return
        if not self._busy_answering and not self.congested:
            self._dispatch(exchange)
            return
        self._pipelined.append(exchange)
        if len(self._pipelined) >= _MAX_PIPELINED:
            self._transport.pause_reading()

    # FormSource

    def pause_reading(self) -> None:
        self._transport.pause_reading()

    def resume_reading(self) -> None:
        """Read on, unless enough requests wait."""
        if len(self._pipelined) < _MAX_PIPELINED and not self._transport.is_closing():
            self._transport.resume_reading()

    def fail_form(self, exchange: Exchange, refusal: Refusal) -> None:
        """Refuse a form that could not be stored, while it arrives or when it is its turn."""
        if exchange is self._exchange:
            exchange.keep_alive = False
            exchange.respond(
                refusal.status, self._settings.encode_refusal(refusal.status, refusal.message, "", exchange)
            )
        elif exchange is self._reading:
            self._refuse_with(refusal, exchange)
        elif exchange not in self._pipelined:  # its client left, and the application never gets it
            self.release_body(exchange)

    # Dispatch and ExchangeTransport

    @property
    def _busy_answering(self) -> bool:
        """Whether a request is in progress or about to be dispatched."""
        return self._exchange is not None

    def _dispatch(self, exchange: Exchange) -> None:
        if exchange.closed:
            self.release_body(exchange)
            return
        self.deadline = None
        self._exchange = exchange
        exchange.received_at = time.perf_counter()
        if exchange.form is None:
            self._application.handle(exchange)
        else:
            exchange.form.when_written(lambda: self._application.handle(exchange))

    def finish_exchange(self, exchange: Exchange) -> None:
        """Move on after the application has written the full response."""
        if exchange is not self._exchange:
            return
        self._exchange = None
        self.release_body(exchange)
        if not exchange.keep_alive or (self._closing and not self._pipelined):
            self.close()
        elif self.congested:
            pass  # no further requests until the client reads; the stall timer is running
        elif self._pipelined:
            self._dispatch_next()
        else:
            self.deadline = time.monotonic() + self._settings.keep_alive_s

    def _dispatch_next(self) -> None:
        """Dispatch the next pipelined request."""
        self._exchange = self._pipelined.popleft()
        self.resume_reading()
        asyncio.get_running_loop().call_soon(self._dispatch, self._exchange)

    def hold_bytes(self, exchange: Exchange, size: int) -> None:
        self._body_reader.hold(exchange, size)

    def release_body(self, exchange: Exchange | None) -> None:
        self._body_reader.release(exchange)

    def common_headers(self) -> bytes:
        return self._settings.common_headers

    def write(self, data: bytes) -> None:
        if not self._transport.is_closing():
            self._transport.write(data)

    def unsent_bytes(self) -> int:
        return self._transport.get_write_buffer_size()

    @property
    def unread_bytes(self) -> int:
        """What is kept for a client that reads slowly, in all buffers."""
        return self.unsent_bytes() + (self._exchange.held_bytes if self._exchange is not None else 0)

    # Closing

    def expire(self) -> None:
        """Handle a passed deadline."""
        if self._stall.has_progress(self.unsent_bytes()):
            self._start_stall_timer()
        elif self.congested or self._closing or self._exchange is not None:
            self.abort()
        elif self._reading is not None:
            self._refuse(408, "timed out reading the request body", limit="body_timeout_s")
        elif self._head_bytes:
            self._refuse(408, "timed out reading the request headers", limit="header_timeout_s")
        else:
            self.close()

    def close_when_idle(self) -> None:
        """Accept no further requests. Close now if idle, else after the current response."""
        self._pipelined.clear()
        self._stop_reading()
        if self._exchange is None and not self._lingering:
            self.close()

    def _stop_reading(self) -> None:
        """Stop reading. Requests received so far are still handled, then the connection closes."""
        self._closing = True
        pending = [exchange for exchange in (self._exchange, *self._pipelined) if exchange is not None]
        if pending:
            pending[-1].keep_alive = False

    @property
    def busy(self) -> bool:
        """Whether a response is in progress or not fully sent."""
        return self._exchange is not None or self.unsent_bytes() > 0

    def close(self) -> None:
        """Close once the client has read the response, at most `stall_timeout_s` from now."""
        self._closing = True
        self._pipelined.clear()
        self._start_stall_timer()
        self._transport.close()

    def abort(self) -> None:
        self._closing = True
        self._transport.abort()

    def _refuse_long_headers(self) -> None:
        message = f"the request line and headers exceed {self._settings.max_header_bytes} bytes"
        self._refuse(431, message, limit="header_bytes")

    def _refuse_with(self, refusal: Refusal, exchange: Exchange | None) -> None:
        if exchange is not None and refusal.status in (429, 503):
            exchange.add_header("retry-after", "1")
        self._refuse(refusal.status, refusal.message, exchange, refusal.limit)

    def _refuse(self, status: int, message: str, exchange: Exchange | None = None, limit: str = "") -> None:
        """Send an error without the application and close. `limit` names the exceeded setting."""
        self._body_reader.drop()
        self._body_reader.release(exchange or self._reading)
        if self._exchange is not None or self._pipelined:  # must not interleave with a response in progress
            self._stop_reading()
            return
        if self._lingering or self._transport.is_closing():
            return
        exchange = exchange or self._reading
        body = self._settings.encode_refusal(status, message, limit, exchange)
        head = b"content-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n" % len(body)
        self._closing = True
        self._application.on_refused(status, exchange)
        added = b"" if exchange is None else exchange.added_headers
        self.write(STATUS_LINES[status] + self.common_headers() + added + head + body)
        self._lingering = True
        self._transport.write_eof()
        self.deadline = time.monotonic() + LINGER_S
