"""Accepts connections and watches over them."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from email.utils import formatdate

from enginebay.server.http.protocol import Connection, put_off, sweep
from enginebay.server.http.settings import Application, HttpSettings

_SWEEP_S = 0.5
# Of one connection in the kernel, which would take megabytes from us for a client that does not read.
_UNSENT_BYTES = 128 << 10


class Listener:
    """Serves one listening socket, which other processes may share.

    One connection is accepted per wake-up: processes that share the socket then divide connections by who is free.
    """

    def __init__(self, sock: socket.socket, settings: HttpSettings, application: Application) -> None:
        self._socket = sock
        self._settings = settings
        self._application = application
        self._loop = asyncio.get_running_loop()
        self._sweeper: asyncio.TimerHandle | None = None
        self._swept_at = time.monotonic()
        self._opening: set[asyncio.Task[object]] = set()
        self._full = False
        self.connections: set[Connection] = set()
        sock.setblocking(False)

    def start(self) -> None:
        self._loop.add_reader(self._socket.fileno(), self._accept)
        self._sweep()

    def _accept(self) -> None:
        try:
            accepted, _ = self._socket.accept()
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):
            return
        except OSError:  # out of file descriptors: those who wait in the backlog get their turn after the next sweep
            self._pause()
            return
        accepted.setblocking(False)
        with contextlib.suppress(OSError):
            accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, _UNSENT_BYTES)
        task = self._loop.create_task(self._loop.connect_accepted_socket(self._connection, accepted))
        self._opening.add(task)
        task.add_done_callback(self._opened)
        if len(self.connections) + len(self._opening) >= self._settings.connections:
            self._pause()

    def _connection(self) -> Connection:
        return Connection(self._settings, self._application, self.connections)

    def _opened(self, task: asyncio.Task[object]) -> None:
        self._opening.discard(task)
        if not task.cancelled():
            task.exception()  # a client that was gone before we got to it

    def _pause(self) -> None:
        self._full = True
        self._loop.remove_reader(self._socket.fileno())

    def _sweep(self) -> None:
        self._sweeper = self._loop.call_later(
            _SWEEP_S, self._sweep
        )  # first: whatever happens here, there is a next time
        now = time.monotonic()
        since_s, self._swept_at = now - self._swept_at, now
        if since_s > 2 * _SWEEP_S:  # we stood still, and may not yet have read what clients sent in time
            put_off(self.connections, since_s)
        sweep(self.connections, now)
        self._settings.common_headers = f"date: {formatdate(usegmt=True)}\r\nserver: enginebay\r\n".encode()
        if self._full and len(self.connections) < self._settings.connections:
            self._full = False
            self._loop.add_reader(self._socket.fileno(), self._accept)

    def stop_accepting(self) -> None:
        self._full = False
        self._loop.remove_reader(self._socket.fileno())
        self._socket.close()
        for connection in list(self.connections):
            connection.shut()

    async def drained(self) -> None:
        """Until no answer is under way."""
        while any(connection.busy for connection in self.connections):
            await asyncio.sleep(0.05)

    async def close(self) -> None:
        if self._sweeper is not None:
            self._sweeper.cancel()
        for connection in list(self.connections):
            connection.abort()
        await asyncio.sleep(0)
