"""An open WebSocket over an in-memory transport."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from enginebay.server.http.client_budget import ClientBudgets
from enginebay.server.http.websocket_connection import WebSocketConnection
from tests.unit.server.http.memory_client import SETTINGS, MemoryClient
from tests.unit.server.http.websocket_frames import (
    build_upgrade,
    read_close,
    read_frames,
)

KB = 1 << 10
ROOM = replace(SETTINGS, write_buffer_bytes=10 * KB, websocket_idle_s=100)


class SocketClient(MemoryClient):
    """An open WebSocket."""

    def __init__(self, read_bytes: int = 10**9, budgets: ClientBudgets | None = None, **changes: Any) -> None:
        self.sockets: list[WebSocketConnection | None] = []
        super().__init__(
            lambda exchange: self.sockets.append(exchange.accept_websocket()), read_bytes, replace(ROOM, **changes)
        )
        if budgets is not None:
            self.budgets = self.connection._budgets = budgets
        self.send(build_upgrade())

    @property
    def socket(self) -> WebSocketConnection:
        [socket] = self.sockets
        assert socket is not None
        return socket

    @property
    def sent(self) -> bytes:
        return self.received.partition(b"\r\n\r\n")[2]

    @property
    def frames(self) -> list[tuple[int, bytes]]:
        return read_frames(self.sent)

    @property
    def messages(self) -> list[bytes]:
        return [message.body for message in self.socket._queue]

    def assert_closed(self, code: int, says: str = "") -> None:
        got, reason = read_close(self.sent)
        assert got == code and says in reason, (got, reason)
        assert self.socket.closed and self.budgets.bodies.held == 0
