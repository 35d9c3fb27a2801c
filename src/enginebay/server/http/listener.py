"""Accepts connections and watches over them."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from email.utils import formatdate

from enginebay.server.http.http_connection import HttpConnection, expire_overdue, extend_deadlines
from enginebay.server.http.http_settings import HttpApplication, HttpSettings

_SWEEP_INTERVAL_S = 0.5
# Of one connection in the kernel, which would take megabytes from us for a client that does not read.
_KERNEL_UNSENT_BYTES = 128 << 10


class HttpListener:
    """Serves one listening socket, which other processes may share.

    One connection is accepted per wake-up: processes that share the socket then divide connections by who is free.
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
        self.connections: set[HttpConnection] = set()
        sock.setblocking(False)

    def start(self) -> None:
        self._loop.add_reader(self._socket.fileno(), self._accept)
        self._sweep_deadlines()

    def _accept(self) -> None:
        try:
            accepted, _ = self._socket.accept()
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):
            return
        except OSError:  # out of file descriptors: those who wait in the backlog get their turn after the next sweep
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
        return HttpConnection(self._settings, self._application, self.connections)

    def _on_accepted(self, task: asyncio.Task[object]) -> None:
        self._accepting.discard(task)
        if not task.cancelled():
            task.exception()  # a client that was gone before we got to it

    def _pause_accepting(self) -> None:
        self._paused = True
        self._loop.remove_reader(self._socket.fileno())

    def _sweep_deadlines(self) -> None:
        self._sweeper = self._loop.call_later(
            _SWEEP_INTERVAL_S, self._sweep_deadlines
        )  # first: whatever happens here, there is a next time
        now = time.monotonic()
        since_s, self._swept_at = now - self._swept_at, now
        if since_s > 2 * _SWEEP_INTERVAL_S:  # we stood still, and may not yet have read what clients sent in time
            extend_deadlines(self.connections, since_s)
        expire_overdue(self.connections, now)
        self._settings.common_headers = f"date: {formatdate(usegmt=True)}\r\nserver: enginebay\r\n".encode()
        if self._paused and len(self.connections) < self._settings.max_connections:
            self._paused = False
            self._loop.add_reader(self._socket.fileno(), self._accept)

    def stop_accepting(self) -> None:
        self._paused = False
        self._loop.remove_reader(self._socket.fileno())
        self._socket.close()
        for connection in list(self.connections):
            connection.close_when_idle()

    async def wait_drained(self) -> None:
        """Until no answer is under way."""
        while any(connection.busy for connection in self.connections):
            await asyncio.sleep(0.05)

    async def close(self) -> None:
        if self._sweeper is not None:
            self._sweeper.cancel()
        for connection in list(self.connections):
            connection.abort()
        await asyncio.sleep(0)
