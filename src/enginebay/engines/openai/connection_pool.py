"""Connections to the server: opened, kept while idle, and closed. All in one event loop."""

from __future__ import annotations

import asyncio
import contextlib
import ssl

from enginebay.engines.openai.http_response import HttpResponseParser
from enginebay.engines.openai.remote_server import RemoteServer

_READ_BYTES = 1 << 16
_MAX_IDLE_S = 30.0
_MAX_IDLE_CONNECTIONS = 64


class NoResponse(Exception):
    """The connection ended before a byte of the answer: the request may be sent again."""

    def __init__(self, reused: bool) -> None:
        super().__init__("it closed the connection without an answer")
        self.reused = reused  # it had lain idle: most likely the server had closed it long since


class RemoteConnection:
    """One connection, used for one request at a time."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._responses = 0
        self._loop = asyncio.get_running_loop()
        self.idle_since = 0.0

    @property
    def is_usable(self) -> bool:
        return not (
            self._reader.at_eof()
            or self._writer.is_closing()
            or self._reader.exception() is not None
            or self._loop.time() - self.idle_since > _MAX_IDLE_S
        )

    async def send(self, request: bytes) -> RemoteResponse:
        """Send a request and wait for the head of its answer. Raises `Unanswered`, `OSError` or `Garbled`."""
        asked_at = self._loop.time()
        parser = HttpResponseParser()
        early = b""
        heard = False
        try:
            self._writer.write(request)
            await self._writer.drain()
            while not parser.status:
                data = await self._reader.read(_READ_BYTES)
                if not data:
                    if not heard:
                        raise NoResponse(self._responses > 0)
                    parser.end()
                heard = True
                early += parser.feed(data)
        except ConnectionError:
            if heard:
                raise
            raise NoResponse(self._responses > 0) from None
        self._responses += 1
        return RemoteResponse(self, parser, early, asked_at)

    async def read(self) -> bytes:
        return await self._reader.read(_READ_BYTES)

    def close(self) -> None:
        """At once: what is still to be sent or read does not matter any more."""
        with contextlib.suppress(Exception):
            self._writer.transport.abort()


class RemoteResponse:
    """An answer whose head has come."""

    def __init__(
        self, connection: RemoteConnection, parser: HttpResponseParser, buffered: bytes, sent_at: float
    ) -> None:
        self.connection = connection
        self.sent_at = sent_at
        self.status = parser.status
        self.headers = parser.headers
        self._parser = parser
        self._buffered = buffered  # the part of the body that came with the head

    @property
    def is_complete(self) -> bool:
        return self._parser.is_complete and not self._buffered

    @property
    def is_reusable(self) -> bool:
        return self.is_complete and self._parser.keep_alive

    async def read(self) -> bytes:
        """What has come of the body, at least a byte; nothing at its end. Raises `OSError` or `Garbled`."""
        body, self._buffered = self._buffered, b""
        while not body and not self._parser.is_complete:
            data = await self.connection.read()
            if not data:
                self._parser.end()
                break
            body = self._parser.feed(data)
        return body

    async def read_all(self, max_bytes: int) -> bytes:
        """The body, or its first part where it is longer than that."""
        body = b""
        while len(body) <= max_bytes and (data := await self.read()):
            body += data
        return body[:max_bytes]


class ConnectionPool:
    """Opens connections, and keeps those that can be used again."""

    def __init__(self, server: RemoteServer) -> None:
        self._server = server
        self._idle: list[RemoteConnection] = []
        self._tls: ssl.SSLContext | None = None

    async def acquire(self) -> RemoteConnection:
        """One that lay idle or a new one. Raises `OSError`, `TimeoutError` among them."""
        while self._idle:
            connection = self._idle.pop()
            if connection.is_usable:
                return connection
            connection.close()
        remote = self._server
        if remote.uses_tls and self._tls is None:
            self._tls = ssl.create_default_context()
        async with asyncio.timeout(remote.connect_timeout_s):
            return RemoteConnection(
                *await asyncio.open_connection(remote.host, remote.port, ssl=self._tls, limit=_READ_BYTES)
            )

    def release(self, response: RemoteResponse) -> None:
        """Kept if its answer was read to the end, else closed."""
        connection = response.connection
        if not response.is_reusable or len(self._idle) >= _MAX_IDLE_CONNECTIONS:
            return connection.close()
        connection.idle_since = asyncio.get_running_loop().time()
        self._idle.append(connection)
        return None

    def close(self) -> None:
        for connection in self._idle:
            connection.close()
        self._idle.clear()
