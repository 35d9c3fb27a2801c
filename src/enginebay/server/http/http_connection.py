"""One client connection: parses requests, enforces the limits on them, and hands them to the application in order.

    waiting for headers --complete--> reading the body --complete--> answering --finished--> waiting for headers
           | too slow, too big              | too slow, too big          | client gone, or it stopped reading
           v                                v                            v
        408, 431                         408, 413                     aborted

Every state but answering has a deadline; answering gets one while the client does not read. A sweep of the listener
looks at the deadlines, so that no timer is made per request. After a refusal the connection lingers: it is closed on
our side, and what the client still sends is thrown away, so that it gets to read why.
"""

from __future__ import annotations

import asyncio
import time
import zlib
from collections import deque
from typing import cast

import httptools

from enginebay.server.http.exchange import CLIENT_CLOSED_REQUEST, STATUS_LINES, Exchange
from enginebay.server.http.http_settings import HttpApplication, HttpSettings

_MAX_PIPELINED = 8  # requests read ahead of the one being answered
_NOT_HTTP = "the request is not HTTP/1.1"
_MAX_FRAMING_FACTOR = (
    8  # times the longest body: so much may be sent for it with sizes of chunks, extensions and trailers
)
_PROGRESS_BYTES = 4096  # a client that reads so much until its deadline gets another one
_UNAUTHENTICATED_BODY_BYTES = 64 << 10  # bytes that anybody may send before we look at who it is
_LINGER_S = 5.0  # how long a refused client may go on sending: an earlier end would take the refusal from it


class HttpConnection(asyncio.Protocol):
    """Implements asyncio's protocol callbacks and httptools' parser callbacks."""

    def __init__(self, settings: HttpSettings, application: HttpApplication, connections: set[HttpConnection]) -> None:
        self._settings = settings
        self._application = application
        self._connections = connections
        self._parser = httptools.HttpRequestParser(self)
        self._transport: asyncio.Transport = cast("asyncio.Transport", None)
        self._exchange: Exchange | None = None  # the one being answered
        self._pipelined: deque[Exchange] = deque()
        self._reading: Exchange | None = None  # headers complete, body not yet
        self._body: list[bytes] = []
        self._body_bytes = 0
        self._body_wire_bytes = 0
        self._lingering = False
        self._target = b""
        self._headers: dict[str, str] = {}
        self._head_bytes = 0
        self._expects_continue = False
        self._closing = False
        self._unread_at_stall = 0  # of what was written, when the client was last seen to read
        self.deadline: float | None = time.monotonic() + settings.header_timeout_s
        self.congested = False
        self.peer = ""

    # asyncio's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=self._settings.write_buffer_bytes)
        address = transport.get_extra_info("peername")
        self.peer = f"{address[0]}:{address[1]}" if isinstance(address, tuple) else "local"
        self._connections.add(self)

    def connection_lost(self, error: Exception | None) -> None:
        self._connections.discard(self)
        self.deadline = None
        for exchange in (self._exchange, *self._pipelined):
            if exchange is not None:
                exchange.closed = True
                exchange.status = exchange.status or CLIENT_CLOSED_REQUEST
                if exchange.on_close is not None:
                    exchange.on_close()
        self._pipelined.clear()
        self._exchange = self._reading = None
        self._body = []
        del self._parser  # it holds us: the two would stay in memory until the garbage collector's turn

    def eof_received(self) -> bool:
        return False  # a client that stops sending is gone: what it asked for is cancelled

    def data_received(self, data: bytes) -> None:
        while data and not self._closing:
            data = self._feed_parser(data)

    def _feed_parser(self, data: bytes) -> bytes:
        """Gives back what is to be read once more."""
        if self._reading is None:
            self._head_bytes += len(data)
        else:
            self._body_wire_bytes += len(data)
            if self._body_wire_bytes > _MAX_FRAMING_FACTOR * self._settings.max_body_bytes:
                self._refuse_large_body()
                return b""
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            return self._strip_upgrade() + data[upgrade.args[0] :]
        except httptools.HttpParserError:
            self._refuse(400, _NOT_HTTP)
            return b""
        if self._reading is None and self._head_bytes > self._settings.max_header_bytes:
            self._refuse_long_headers()
        return b""

    def _strip_upgrade(self) -> bytes:
        """The request asks for another protocol as well, and the parser has left its body alone: once more without that."""
        method = self._parser.get_method()
        if method == b"CONNECT":
            self._refuse(400, "this is no proxy")
            return b""
        lines = [f"{name}: {value}\r\n" for name, value in self._headers.items() if name != "upgrade"]
        head = b"%b %b HTTP/1.1\r\n%b\r\n" % (method, self._target, "".join(lines).encode("latin-1"))
        self._parser = httptools.HttpRequestParser(self)
        return head

    def pause_writing(self) -> None:
        self.congested = True
        self._start_stall_timer()

    def _start_stall_timer(self) -> None:
        """The client has so long to read some of what was written."""
        self._unread_at_stall = self.unsent_bytes()
        self.deadline = time.monotonic() + self._settings.stall_timeout_s

    def resume_writing(self) -> None:
        self.congested = False
        self._unread_at_stall = 0
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

    # httptools' side

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
            return  # a trailer: what comes after the body changes nothing
        key, text = name.decode("latin-1").lower(), value.decode("latin-1")
        self._headers[key] = f"{self._headers[key]},{text}" if key in self._headers else text
        if key == "expect" and text.lower() == "100-continue":
            self._expects_continue = True

    def on_headers_complete(self) -> None:
        if self._closing or self._parser.should_upgrade():
            return
        if (
            self._head_bytes > self._settings.max_header_bytes
            and self._count_header_bytes() > self._settings.max_header_bytes
        ):
            self._refuse_long_headers()
            return
        method = self._parser.get_method().decode("ascii")
        exchange = Exchange(self, method, self._target.decode("latin-1"), self._headers)
        version = self._parser.get_http_version()
        if version == "1.1":
            exchange.keep_alive = bool(self._parser.should_keep_alive())
        elif version == "1.0":
            exchange.keep_alive = exchange.accepts_chunked = False
        else:
            self._refuse(400, _NOT_HTTP)
            return
        self._reading = exchange
        self._body = []
        self._body_bytes = 0
        self._body_wire_bytes = 0
        self._head_bytes = 0
        declared = self._headers.get("content-length", "")
        if declared.isdigit() and int(declared) > self._settings.max_body_bytes:
            self._refuse_large_body()
            return
        if "transfer-encoding" in self._headers or (declared.isdigit() and int(declared) > _UNAUTHENTICATED_BODY_BYTES):
            unwelcome = self._application.check_before_body(exchange)
            if unwelcome is not None:
                self._refuse(*unwelcome)
                return
        if not self._busy_answering:
            self.deadline = time.monotonic() + self._settings.body_timeout_s
        if self._expects_continue and exchange.accepts_chunked and not self._busy_answering:
            self.write(STATUS_LINES[100] + b"\r\n")

    def _count_header_bytes(self) -> int:
        """Of the headers alone, for they may have come together with a body."""
        return len(self._target) + sum(len(name) + len(value) + 4 for name, value in self._headers.items())

    def on_body(self, data: bytes) -> None:
        if self._closing:
            return
        self._body_bytes += len(data)
        if self._body_bytes > self._settings.max_body_bytes:
            self._refuse_large_body()
            return
        self._body.append(data)

    def on_message_complete(self) -> None:
        exchange, self._reading = self._reading, None
        if exchange is None or self._closing:
            return
        exchange.body = self._body[0] if len(self._body) == 1 else b"".join(self._body)
        self._body = []
        if not self._decompress_body(exchange):
            return
        if not self._busy_answering and not self.congested:
            self._dispatch(exchange)
            return
        self._pipelined.append(exchange)
        if len(self._pipelined) >= _MAX_PIPELINED:
            self._transport.pause_reading()

    def _decompress_body(self, exchange: Exchange) -> bool:
        """Undo a compressed body, within the limit for bodies."""
        encoding = exchange.headers.get("content-encoding", "identity").strip().lower()
        if encoding in ("identity", ""):
            return True
        if encoding not in ("gzip", "deflate"):
            self._refuse(415, f"bodies encoded as {encoding[:40]!r} are not taken: use gzip, deflate or none", exchange)
            return False
        try:
            inflater = zlib.decompressobj(47)  # both gzip and zlib wrappers
            exchange.body = inflater.decompress(exchange.body, self._settings.max_body_bytes)
        except zlib.error:
            self._refuse(400, f"the body is not valid {encoding}", exchange)
            return False
        if inflater.eof and not inflater.unused_data:
            return True
        if inflater.unconsumed_tail or len(exchange.body) >= self._settings.max_body_bytes:
            self._refuse(
                413, f"the body is over {self._settings.max_body_bytes} bytes when unpacked", exchange, "body_bytes"
            )
        else:
            self._refuse(400, f"the body is not one whole {encoding} stream", exchange)
        return False

    # The application's side

    @property
    def _busy_answering(self) -> bool:
        """A request is being answered, or waits to be."""
        return self._exchange is not None

    def _dispatch(self, exchange: Exchange) -> None:
        if exchange.closed:
            return
        self.deadline = None
        self._exchange = exchange
        exchange.received_at = time.perf_counter()
        self._application.handle(exchange)

    def finish_exchange(self, exchange: Exchange) -> None:
        """The application has written the whole response."""
        if exchange is not self._exchange:
            return
        self._exchange = None
        if not exchange.keep_alive or (self._closing and not self._pipelined):
            self.close()
        elif self.congested:
            pass  # a client that does not read what it asked for gets no more; the stall's deadline is running
        elif self._pipelined:
            self._dispatch_next()
        else:
            self.deadline = time.monotonic() + self._settings.keep_alive_s

    def _dispatch_next(self) -> None:
        """On to the next of the requests that were sent ahead."""
        self._exchange = self._pipelined.popleft()
        if len(self._pipelined) < _MAX_PIPELINED:
            self._transport.resume_reading()
        asyncio.get_running_loop().call_soon(self._dispatch, self._exchange)

    def common_headers(self) -> bytes:
        return self._settings.common_headers

    def write(self, data: bytes) -> None:
        if not self._transport.is_closing():
            self._transport.write(data)

    def unsent_bytes(self) -> int:
        return self._transport.get_write_buffer_size()

    # Ends

    def expire(self) -> None:
        """The deadline has passed."""
        if self._unread_at_stall - self.unsent_bytes() >= _PROGRESS_BYTES:  # slow, but it reads
            self._start_stall_timer()
        elif self.congested or self._closing or self._exchange is not None:
            self.abort()
        elif self._reading is not None:
            self._refuse(408, "the request's body did not arrive in time", limit="body_timeout_s")
        elif self._head_bytes:
            self._refuse(408, "the request's headers did not arrive in time", limit="header_timeout_s")
        else:
            self.close()

    def close_when_idle(self) -> None:
        """No further requests: close now when idle, else after the answer under way."""
        self._pipelined.clear()
        self._stop_reading()
        if self._exchange is None and not self._lingering:
            self.close()

    def _stop_reading(self) -> None:
        """Nothing more is read: what has been asked by now is answered, then the connection ends."""
        self._closing = True
        waiting = [one for one in (self._exchange, *self._pipelined) if one is not None]
        if waiting:
            waiting[-1].keep_alive = False

    @property
    def busy(self) -> bool:
        """An answer is being made, or not all of it has left us."""
        return self._exchange is not None or self.unsent_bytes() > 0

    def close(self) -> None:
        """Once the client has read what was written, for which it has so long."""
        self._closing = True
        self._pipelined.clear()
        self._start_stall_timer()
        self._transport.close()

    def abort(self) -> None:
        self._closing = True
        self._transport.abort()

    def _refuse_long_headers(self) -> None:
        message = f"the request's line and headers are over {self._settings.max_header_bytes} bytes"
        self._refuse(431, message, limit="header_bytes")

    def _refuse_large_body(self) -> None:
        self._body = []
        self._refuse(413, f"the body is over {self._settings.max_body_bytes} bytes", limit="body_bytes")

    def _refuse(self, status: int, message: str, exchange: Exchange | None = None, limit: str = "") -> None:
        """An answer without the application, after which the connection ends. `limit`: the setting that it is over."""
        if self._exchange is not None or self._pipelined:  # answers under way must not be mixed with this one
            self._stop_reading()
            return
        if self._lingering or self._transport.is_closing():
            return
        body = self._settings.encode_refusal(status, message, limit)
        head = b"content-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n" % len(body)
        self._closing = True
        exchange = exchange or self._reading
        self._application.on_refused(status, exchange)
        added = b"" if exchange is None else exchange.added_headers
        self.write(STATUS_LINES[status] + self.common_headers() + added + head + body)
        self._lingering = True
        self._transport.write_eof()
        self.deadline = time.monotonic() + _LINGER_S


def expire_overdue(connections: set[HttpConnection], now: float) -> None:
    """End what is past its deadline."""
    for connection in [one for one in connections if one.deadline is not None and one.deadline < now]:
        connection.expire()


def extend_deadlines(connections: set[HttpConnection], seconds: float) -> None:
    """Time that no client is to blame for does not count."""
    for connection in connections:
        if connection.deadline is not None:
            connection.deadline += seconds
