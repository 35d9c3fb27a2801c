"""An HTTP connection over an in-memory transport."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from typing import Any

from enginebay.server.http.client_budget import ClientBudget, ClientBudgets
from enginebay.server.http.connection_sweep import SweptConnection, expire_overdue
from enginebay.server.http.exchange import Exchange
from enginebay.server.http.http_connection import HttpConnection
from enginebay.server.http.http_settings import BodyRule, HttpSettings

SETTINGS = HttpSettings(
    max_body_bytes=1000,
    max_header_bytes=500,
    max_connections=10,
    header_timeout_s=10,
    body_timeout_s=20,
    keep_alive_s=30,
    stall_timeout_s=40,
    write_buffer_bytes=100,
    encode_refusal=lambda status, message, limit, _: f"{status}:{message}:{limit}".encode(),
    common_headers=b"server: test\r\n",
)


class MemoryTransport(asyncio.Transport):
    """Records writes. The client reads `read_bytes` of them; the rest is unsent."""

    def __init__(self, read_bytes: int = 10**9) -> None:
        super().__init__()
        self.protocol: Any = None
        self.written = b""
        self.read_bytes = read_bytes
        self.closed = self.aborted = self.ended = self.reading_paused = False
        self._high = 0

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._high = high or 0

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return ("192.0.2.1", 1234) if name == "peername" else default

    def write(self, data: Any) -> None:
        assert not self.closed and not self.ended, "nothing is written after the end"
        self.written += data
        if self.get_write_buffer_size() > self._high and not self.protocol.congested:
            self.protocol.pause_writing()

    def get_write_buffer_size(self) -> int:
        return max(0, len(self.written) - self.read_bytes)

    def drain(self) -> None:
        """The client reads everything."""
        self.read_bytes = len(self.written)
        self.protocol.resume_writing()

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self.protocol = protocol

    def write_eof(self) -> None:
        self.ended = True

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        self.closed = True

    def abort(self) -> None:
        self.closed = self.aborted = True

    def pause_reading(self) -> None:
        self.reading_paused = True

    def resume_reading(self) -> None:
        self.reading_paused = False


class RecordingApp:
    """Records requests, and responds at once if given a `reply`. `rules`: what routes take, by path."""

    def __init__(
        self, reply: Callable[[Exchange], None] | None = None, rules: Mapping[str, BodyRule] | None = None
    ) -> None:
        self.requests: list[Exchange] = []
        self.refusals: list[int] = []
        self._reply = reply
        self._rules = rules or {}

    def handle(self, exchange: Exchange) -> None:
        self.requests.append(exchange)
        if self._reply is not None:
            self._reply(exchange)

    def find_body_rule(self, exchange: Exchange) -> BodyRule | None:
        return self._rules.get(exchange.path)

    def takes_websocket(self, path: str) -> bool:
        return path == "/socket"

    def check_before_body(self, exchange: Exchange) -> tuple[int, str] | None:
        return (401, "no key") if "x-no-key" in exchange.headers else None

    def identify_client(self, exchange: Exchange) -> str:
        return exchange.headers.get("x-client", "someone")

    def on_refused(self, status: int, exchange: Exchange | None) -> None:
        self.refusals.append(status)
        if exchange is not None:
            exchange.add_header("x-reply", exchange.headers.get("x-echo", ""))


class MemoryClient:
    """One connection, driven through an in-memory transport."""

    def __init__(
        self,
        reply: Callable[[Exchange], None] | None = None,
        read_bytes: int = 10**9,
        settings: HttpSettings = SETTINGS,
        budget: ClientBudget | None = None,
        rules: Mapping[str, BodyRule] | None = None,
    ) -> None:
        self.app = RecordingApp(reply, rules)
        self.transport = MemoryTransport(read_bytes)
        self.connections: set[SweptConnection] = set()
        self.budgets = ClientBudgets(settings)
        self.budgets.bodies = budget or self.budgets.bodies
        self.connection = HttpConnection(settings, self.app, self.connections, self.budgets)
        self.transport.protocol = self.connection
        self.connection.connection_made(self.transport)

    def send(self, *pieces: bytes) -> MemoryClient:
        for piece in pieces:
            self.transport.protocol.data_received(piece)
        return self

    @property
    def received(self) -> bytes:
        return self.transport.written

    def statuses(self) -> list[int]:
        return [int(part[:3]) for part in self.received.split(b"HTTP/1.1 ")[1:]]


GET = b"GET /a?b=c HTTP/1.1\r\nhost: x\r\n\r\n"
OLD = b"GET /old HTTP/1.0\r\nhost: x\r\n\r\n"


def build_post(body: bytes, headers: str = "") -> bytes:
    return f"POST /p HTTP/1.1\r\nhost: x\r\n{headers}content-length: {len(body)}\r\n\r\n".encode() + body


def reply_ok(exchange: Exchange) -> None:
    exchange.respond(200, exchange.path.encode())


async def run_pending_callbacks() -> None:
    """Run callbacks scheduled with call_soon."""
    for _ in range(3):
        await asyncio.sleep(0)


def wait(client: MemoryClient, seconds: float) -> None:
    expire_overdue(client.connections, time.monotonic() + seconds)
