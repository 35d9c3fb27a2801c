"""Accepts connections and enforces their deadlines."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from email.utils import formatdate

from enginebay.server.http.client_budget import ClientBudgets
from enginebay.server.http.connection_sweep import (
    SweptConnection,
    bound_unread_bytes,
    expire_overdue,
    extend_deadlines,
)
from enginebay.server.http.http_connection import HttpConnection
from enginebay.server.http.http_settings import HttpApplication, HttpSettings
from enginebay.util.hardware import release_free_memory

_SWEEP_INTERVAL_S = 0.5
# Per connection. Without it the kernel buffers megabytes for a client that does not read.
_KERNEL_UNSENT_BYTES = 128 << 10
_WORTH_RELEASING_BYTES = 32 << 20


class HttpListener:
    """Serves one listening socket, which other processes may share.

    Accepts one connection per wake-up, so that processes sharing the socket split connections by availability.
    """

    def __init__(self, sock: socket.socket, settings: HttpSettings, application: HttpApplication) -> None:
        self._socket = sock
        self._settings = settings
        self._application = application
        self._loop = asyncio.get_running_loop()
        self._sweeper: asyncio.TimerHandle | None = None
        self._swept_at = time.monotonic()
        self._accepting: set[asyncio.Task[object]] = set()
        self._paused = False
        self.connections: set[SweptConnection] = set()
        self._budgets = ClientBudgets(settings)
        self._peak_bytes = 0  # of bodies and unread responses, since memory was last released
        sock.setblocking(False)

    def start(self) -> None:
        self._loop.add_reader(self._socket.fileno(), self._accept)
        self._sweep_deadlines()

    def _accept(self) -> None:
        try:
            accepted, _ = self._socket.accept()
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):
            return
        except OSError:  # out of file descriptors: retry after the next sweep; clients wait in the backlog
            self._pause_accepting()
            return
        accepted.setblocking(False)
        with contextlib.suppress(OSError):
            accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, _KERNEL_UNSENT_BYTES)
        task = self._loop.create_task(self._loop.connect_accepted_socket(self._make_connection, accepted))
        self._accepting.add(task)
        task.add_done_callback(self._on_accepted)
        if len(self.connections) + len(self._accepting) >= self._settings.max_connections:
            self._pause_accepting()

    def _make_connection(self) -> HttpConnection:
        return HttpConnection(self._settings, self._application, self.connections, self._budgets)

    def _on_accepted(self, task: asyncio.Task[object]) -> None:
        self._accepting.discard(task)
        if not task.cancelled():
            task.exception()  # marks it as retrieved: the client disconnected before we accepted

    def _pause_accepting(self) -> None:
        self._paused = True
        self._loop.remove_reader(self._socket.fileno())

    def _sweep_deadlines(self) -> None:
        # Rescheduled first, so that an exception below does not stop the sweeps.
        self._sweeper = self._loop.call_later(_SWEEP_INTERVAL_S, self._sweep_deadlines)
        now = time.monotonic()
        elapsed_s, self._swept_at = now - self._swept_at, now
        if elapsed_s > 2 * _SWEEP_INTERVAL_S:  # the loop was blocked: data that clients sent in time may be unread
            extend_deadlines(self.connections, elapsed_s)
        expire_overdue(self.connections, now)
        unread_bytes = bound_unread_bytes(self.connections, self._settings.max_unread_bytes)
        self._release_memory(self._budgets.bodies.held + unread_bytes)
        self._settings.common_headers = f"date: {formatdate(usegmt=True)}\r\nserver: enginebay\r\n".encode()
        if self._paused and len(self.connections) < self._settings.max_connections:
            self._paused = False
            self._loop.add_reader(self._socket.fileno(), self._accept)

    def _release_memory(self, buffered_bytes: int) -> None:
        """Give memory back to the system after large buffers were freed."""
        self._peak_bytes = max(self._peak_bytes, buffered_bytes)
        if self._peak_bytes > _WORTH_RELEASING_BYTES and buffered_bytes < self._peak_bytes // 4:
            self._peak_bytes = buffered_bytes
            self._loop.run_in_executor(None, release_free_memory)

    def stop_accepting(self) -> None:
        self._paused = False
        self._loop.remove_reader(self._socket.fileno())
        self._socket.close()
        for connection in list(self.connections):
            connection.close_when_idle()

    async def wait_drained(self) -> None:
        """Wait until no response is in progress."""
        while any(connection.busy for connection in self.connections):
            await asyncio.sleep(0.05)

    async def close(self) -> None:
        if self._sweeper is not None:
            self._sweeper.cancel()
        for connection in list(self.connections):
            connection.abort()
        await asyncio.sleep(0)
