"""One WebSocket (RFC 6455), on the transport of the HTTP connection that asked for it.

Frames are parsed by wsproto. Every message has a size limit and a deadline; the server stops reading from a client that sends
faster than it is answered, or does not read. Messages wait in a queue until the application receives them.
"""

from __future__ import annotations

import asyncio
import socket
import struct
import time
from collections import deque
from contextlib import suppress
from typing import NamedTuple

from wsproto.connection import Connection, ConnectionState, ConnectionType
from wsproto.events import BytesMessage, CloseConnection, Event, Message, Ping, TextMessage
from wsproto.utilities import LocalProtocolError

from enginebay.server.http.client_budget import BudgetLease, ClientBudgets
from enginebay.server.http.connection_sweep import LINGER_S, StallTimer, SweptConnection
from enginebay.server.http.exchange import CLIENT_CLOSED_REQUEST, STATUS_LINES, Exchange
from enginebay.server.http.http_settings import HttpSettings
from enginebay.server.http.refusal import Refusal
from enginebay.server.http.websocket_handshake import encode_acceptance

_SLICE_BYTES = 8 << 10  # parsed at a time
_MAX_PARSE_S = 0.005  # before other connections get their turn
_MAX_QUEUED = 8  # messages that wait for their answer
_MAX_FRAMES = 1 << 14  # of one message, with the control frames between them
_LEASED_BYTES = 64 << 10  # a message beyond this counts as a large body
_PING_S = 30.0  # keeps proxies from closing a quiet connection
_KEEPALIVE = (("TCP_KEEPIDLE", 60), ("TCP_KEEPINTVL", 15), ("TCP_KEEPCNT", 4))  # ends half-open connections

NORMAL, GOING_AWAY, PROTOCOL_ERROR, UNSUPPORTED_DATA = 1000, 1001, 1002, 1003
POLICY_VIOLATION, TOO_BIG, TRY_AGAIN_LATER = 1008, 1009, 1013


class SocketMessage(NamedTuple):
    """A text message, as UTF-8, and the lease of a large one."""

    body: bytes
    lease: BudgetLease | None


class WebSocketConnection(asyncio.Protocol):
    """The application calls `receive` for messages, and answers each with an exchange on this connection."""

    def __init__(
        self,
        settings: HttpSettings,
        connections: set[SweptConnection],
        budgets: ClientBudgets,
        lease: BudgetLease,
        peer: str,
    ) -> None:
        self._settings = settings
        self._connections = connections
        self._budgets = budgets
        self._lease = lease
        self._kept = BudgetLease(lease.client)  # what the application keeps between messages
        self._protocol = Connection(ConnectionType.SERVER)
        self._transport: asyncio.Transport
        self._exchange: Exchange | None = None  # being answered
        self._unparsed: deque[bytes] = deque()
        self._parse_scheduled = False
        self._reading_paused = False
        self._partial = bytearray()  # of a message
        self._partial_lease: BudgetLease | None = None
        self._partial_deadline: float | None = None
        self._frames = 0
        self._queue: deque[SocketMessage] = deque()
        self._receiver: asyncio.Future[None] | None = None
        self._stall = StallTimer()
        self._idle_since = time.monotonic()
        self._failed = False  # input is discarded
        self._draining = False
        self.deadline: float | None = None
        self.congested = False
        self.closed = False  # by either side: nothing is received any more
        self.peer = peer

    def take_over(self, upgrade: Exchange, transport: asyncio.Transport, early: bytes) -> None:
        """Accept the upgrade, and read from the transport. `early`: bytes that came before that."""
        upgrade.started, upgrade.status = True, 101
        upgrade.move_to(self)
        self._transport = transport
        with suppress(AttributeError, OSError):  # not TCP, or not Linux
            accepted = transport.get_extra_info("socket")
            accepted.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for option, value in _KEEPALIVE:
                accepted.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
        acceptance = encode_acceptance(upgrade.headers)
        self.write(STATUS_LINES[101] + self.common_headers() + upgrade.added_headers + acceptance)
        transport.set_protocol(self)
        self._connections.add(self)
        self._set_deadline()
        if early:
            self.data_received(early)
        if not self._reading_paused and not transport.is_closing():
            transport.resume_reading()

    # asyncio callbacks

    def connection_lost(self, error: Exception | None) -> None:
        self._connections.discard(self)
        self.deadline = None
        self._failed = True
        self._budgets.websockets.release(self._lease)
        self._budgets.bodies.release(self._kept)
        self._unparsed.clear()
        self._cancel_exchange()
        self._end_receiving()

    def eof_received(self) -> bool:
        return False

    def pause_writing(self) -> None:
        self.congested = True
        self.deadline = self._stall.start(self.unsent_bytes(), self._settings.stall_timeout_s)
        self._update_reading()

    def resume_writing(self) -> None:
        self.congested = False
        self._stall.stop()
        self._set_deadline()
        if self._exchange is not None and self._exchange.on_drained is not None:
            self._exchange.on_drained()
        self._parse()

    def data_received(self, data: bytes) -> None:
        if not self._failed:
            self._unparsed.append(data)
            if not self._parse_scheduled:
                self._parse()

    # Input

    @property
    def _is_blocked(self) -> bool:
        """Whether the client must first read, or wait for its answers."""
        return self.congested or len(self._queue) >= _MAX_QUEUED

    def _parse(self) -> None:
        """Parse what has arrived, a few milliseconds at a time."""
        self._parse_scheduled = False
        stop_at = time.perf_counter() + _MAX_PARSE_S
        while self._unparsed and not self._is_blocked and not self._failed:
            data = self._unparsed.popleft()
            if len(data) > _SLICE_BYTES:
                self._unparsed.appendleft(data[_SLICE_BYTES:])
                data = data[:_SLICE_BYTES]
            self._parse_slice(data)
            if self._unparsed and time.perf_counter() > stop_at:
                self._parse_scheduled = True
                asyncio.get_running_loop().call_soon(self._parse)
                break
        self._update_reading()

    def _parse_slice(self, data: bytes) -> None:
        try:
            self._protocol.receive_data(data)
            for event in self._protocol.events():
                self._handle_event(event)
                if self._failed:
                    break
        except Refusal as refusal:
            code = TRY_AGAIN_LATER if refusal.status in (429, 503) else TOO_BIG
            self.fail(code, f"{refusal.message}: server.limits.{refusal.limit}")
        except LocalProtocolError:  # data behind a Close
            self._failed = True

    def _update_reading(self) -> None:
        paused = bool(self._unparsed) or self._is_blocked
        if paused != self._reading_paused and not self._transport.is_closing():
            self._reading_paused = paused
            if paused:
                self._transport.pause_reading()
            else:
                self._transport.resume_reading()

    def _handle_event(self, event: Event) -> None:
        self._frames += 1
        if isinstance(event, CloseConnection):
            self._handle_close(event)
        elif self.closed:
            pass  # sent before the client saw our Close
        elif isinstance(event, TextMessage):
            self._handle_text(event)
        elif isinstance(event, BytesMessage):
            self.fail(UNSUPPORTED_DATA, "send text messages")
        elif self._frames > _MAX_FRAMES:
            self._refuse_frames()
        elif isinstance(event, Ping):
            self.write(self._protocol.send(event.response()))

    def _handle_text(self, event: Message[str]) -> None:
        text = event.data.encode()
        size, limit = len(self._partial) + len(text), self._settings.max_body_bytes
        if size > limit:
            raise Refusal(413, f"the message exceeds {limit} bytes", "body_bytes")
        if size > _LEASED_BYTES:
            if self._partial_lease is None:
                self._partial_lease = BudgetLease(self._lease.client)
            self._budgets.bodies.resize(self._partial_lease, size)
        if event.message_finished:
            self._queue.append(
                SocketMessage(bytes(self._partial) + text if self._partial else text, self._partial_lease)
            )
            self._partial_lease = None
            self._drop_partial()
            self._wake_receiver()
        elif self._frames > _MAX_FRAMES:
            self._refuse_frames()
        else:
            self._partial += text
            if self._partial_deadline is None:
                self._partial_deadline = time.monotonic() + self._settings.body_timeout_s
                self._set_deadline()

    def _refuse_frames(self) -> None:
        self.fail(POLICY_VIOLATION, f"more than {_MAX_FRAMES} frames for one message")

    def _drop_partial(self) -> None:
        self._release(self._partial_lease)
        self._partial_lease = self._partial_deadline = None
        self._partial = bytearray()
        self._frames = 0

    def _release(self, lease: BudgetLease | None) -> None:
        if lease is not None:
            self._budgets.bodies.release(lease)

    def _handle_close(self, event: CloseConnection) -> None:
        """Answer the client's Close, or end a connection whose frames are invalid."""
        state = self._protocol.state
        if state is ConnectionState.REMOTE_CLOSING:
            self.write(self._protocol.send(event.response()))
            self._disconnect()
        elif state is ConnectionState.CLOSED:  # the answer to our Close
            self._disconnect()
        elif event.code is not None:
            self.fail(int(event.code), event.reason or "")

    # For the application

    async def receive(self) -> SocketMessage | None:
        """Return the next message, or None when the connection is closed or the server stops."""
        while not self._queue:
            if self.closed:
                return None
            self._receiver = asyncio.get_running_loop().create_future()
            await self._receiver
        message = self._queue.popleft()
        if self._unparsed or self._reading_paused:
            self._parse()
        return message

    def begin_exchange(self, exchange: Exchange) -> None:
        self._exchange = exchange
        if self.closed:
            exchange.closed = True

    def finish_exchange(self, exchange: Exchange) -> None:
        if exchange is self._exchange:
            self._exchange = None
            self._idle_since = time.monotonic()
            if self._draining:
                self.close(GOING_AWAY, "the server is stopping")
            elif not self.congested:
                self._set_deadline()

    def keep_bytes(self, size: int) -> bool:
        """Count what the application keeps until the connection ends. Return False if that is too much."""
        try:
            self._budgets.bodies.resize(self._kept, 0 if size <= _LEASED_BYTES else size)
        except Refusal:
            self._budgets.bodies.release(self._kept)
            return False
        return size <= self._settings.max_body_bytes

    def hold_bytes(self, exchange: Exchange, size: int) -> None:
        if size > _LEASED_BYTES:
            exchange.body_lease = exchange.body_lease or BudgetLease(self._lease.client)
            self._budgets.bodies.resize(exchange.body_lease, size)

    def release_body(self, exchange: Exchange | None) -> None:
        if exchange is not None:
            self._release(exchange.body_lease)

    def accept_websocket(self, exchange: Exchange) -> WebSocketConnection | None:
        raise AssertionError("a message cannot open a WebSocket")

    # Output

    def common_headers(self) -> bytes:
        return self._settings.common_headers

    def write(self, data: bytes) -> None:
        if not self._transport.is_closing():
            self._transport.write(data)

    def send_texts(self, texts: list[bytes]) -> None:
        """Send messages, each a text as UTF-8, in one write."""
        if not self.closed:
            self.write(b"".join([frame_text(text) for text in texts]))

    def ping(self) -> None:
        if not self.closed:
            self.write(self._protocol.send(Ping()))

    def unsent_bytes(self) -> int:
        return self._transport.get_write_buffer_size()

    @property
    def unread_bytes(self) -> int:
        return self.unsent_bytes() + (self._exchange.held_bytes if self._exchange is not None else 0)

    @property
    def busy(self) -> bool:
        return self._exchange is not None or self.unsent_bytes() > 0

    # Deadlines and closing

    def _set_deadline(self) -> None:
        now = time.monotonic()
        self.deadline = now + (LINGER_S if self.closed else _PING_S)
        if not self.closed and self._exchange is None:
            self.deadline = min(self.deadline, max(now, self._idle_since + self._settings.websocket_idle_s))
        if self._partial_deadline is not None:
            self.deadline = min(self.deadline, self._partial_deadline)

    def expire(self) -> None:
        """Handle a passed deadline: a stalled reader, an unfinished message, an idle connection, or time for a ping."""
        now = time.monotonic()
        idle_s = 0.0 if self._exchange is not None or self._queue else now - self._idle_since
        if self._stall.has_progress(self.unsent_bytes()):
            self.deadline = self._stall.start(self.unsent_bytes(), self._settings.stall_timeout_s)
        elif self.congested or self.closed:
            self.abort()
        elif self._partial_deadline is not None and self.deadline == self._partial_deadline:
            self.fail(POLICY_VIOLATION, "timed out reading a message: server.limits.body_timeout_s")
        elif idle_s >= self._settings.websocket_idle_s:
            self.close(GOING_AWAY, "idle for too long: server.limits.websocket_idle_s")
        else:
            self.ping()
            self._set_deadline()

    def close_when_idle(self) -> None:
        """Receive no further messages. Close now, or after the current answer."""
        self._draining = True
        if self._exchange is None:
            self.close(GOING_AWAY, "the server is stopping")

    def fail(self, code: int, reason: str) -> None:
        """Close at once because of what the client sent. Its further input is discarded."""
        self.close(code, reason)
        self._failed = True
        self._unparsed.clear()
        self._cancel_exchange()
        if not self._transport.is_closing():
            self._transport.write_eof()

    def close(self, code: int, reason: str) -> None:
        """Start the closing handshake, and end the connection when the client has answered, or after a while."""
        if self.closed:
            return
        self.write(self._protocol.send(CloseConnection(code, reason)))
        self._end_receiving()
        self._set_deadline()

    def _disconnect(self) -> None:
        self._failed = True
        self._end_receiving()
        self._cancel_exchange()
        self.deadline = self._stall.start(self.unsent_bytes(), self._settings.stall_timeout_s)
        self._transport.close()

    def _end_receiving(self) -> None:
        self.closed = True
        self._drop_partial()
        while self._queue:
            self._release(self._queue.popleft().lease)
        self._wake_receiver()

    def _wake_receiver(self) -> None:
        if self._receiver is not None and not self._receiver.done():
            self._receiver.set_result(None)

    def _cancel_exchange(self) -> None:
        """Stop the work on an answer that cannot be sent any more."""
        exchange, self._exchange = self._exchange, None
        if exchange is not None:
            exchange.closed = True
            exchange.status = exchange.status or CLIENT_CLOSED_REQUEST
            if exchange.on_close is not None:
                exchange.on_close()

    def abort(self) -> None:
        self._transport.abort()


def frame_text(payload: bytes) -> bytes:
    """Return a text message as one unmasked frame."""
    size = len(payload)
    if size < 126:
        return b"\x81%c%b" % (size, payload)
    if size < 65536:
        return struct.pack("!BBH", 0x81, 126, size) + payload
    return struct.pack("!BBQ", 0x81, 127, size) + payload
