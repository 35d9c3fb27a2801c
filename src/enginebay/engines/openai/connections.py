"""Connections to the server: opened, kept while idle, and closed. All in one event loop."""

from __future__ import annotations

import asyncio
import contextlib
import ssl

from enginebay.engines.openai.http import ResponseReader
from enginebay.engines.openai.remote import Remote

_READ = 1 << 16
_IDLE_S = 30.0
_MOST_IDLE = 64


class Unanswered(Exception):
    """The connection ended before a byte of the answer: the request may be sent again."""

    def __init__(self, reused: bool) -> None:
        super().__init__("it closed the connection without an answer")
        self.reused = reused  # it had lain idle: most likely the server had closed it long since


class Connection:
    """One connection, used for one request at a time."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._answers = 0
        self._loop = asyncio.get_running_loop()
        self.idle_since = 0.0

    @property
    def usable(self) -> bool:
        return not (
            self._reader.at_eof()
            or self._writer.is_closing()
            or self._reader.exception() is not None
            or self._loop.time() - self.idle_since > _IDLE_S
        )

    async def ask(self, request: bytes) -> Reply:
        """Send a request and wait for the head of its answer. Raises `Unanswered`, `OSError` or `Garbled`."""
        asked_at = self._loop.time()
        parser = ResponseReader()
        early = b""
        heard = False
        try:
            self._writer.write(request)
            await self._writer.drain()
            while not parser.status:
                data = await self._reader.read(_READ)
                if not data:
                    if not heard:
                        raise Unanswered(self._answers > 0)
                    parser.end()
                heard = True
                early += parser.feed(data)
        except ConnectionError:
            if heard:
                raise
            raise Unanswered(self._answers > 0) from None
        self._answers += 1
        return Reply(self, parser, early, asked_at)

    async def read(self) -> bytes:
        return await self._reader.read(_READ)

    def close(self) -> None:
        """At once: what is still to be sent or read does not matter any more."""
        with contextlib.suppress(Exception):
            self._writer.transport.abort()


class Reply:
    """An answer whose head has come."""

    def __init__(self, connection: Connection, parser: ResponseReader, early: bytes, asked_at: float) -> None:
        self.connection = connection
        self.asked_at = asked_at
        self.status = parser.status
        self.headers = parser.headers
        self._parser = parser
        self._early = early  # the part of the body that came with the head

    @property
    def complete(self) -> bool:
        return self._parser.complete and not self._early

    @property
    def reusable(self) -> bool:
        return self.complete and self._parser.keep_alive

    async def read(self) -> bytes:
        """What has come of the body, at least a byte; nothing at its end. Raises `OSError` or `Garbled`."""
        body, self._early = self._early, b""
        while not body and not self._parser.complete:
            data = await self.connection.read()
            if not data:
                self._parser.end()
                break
            body = self._parser.feed(data)
        return body

    async def read_all(self, most: int) -> bytes:
        """The body, or its first part where it is longer than that."""
        body = b""
        while len(body) <= most and (data := await self.read()):
            body += data
        return body[:most]


class Pool:
    """Opens connections, and keeps those that can be used again."""

    def __init__(self, remote: Remote) -> None:
        self._remote = remote
        self._idle: list[Connection] = []
        self._tls: ssl.SSLContext | None = None

    async def take(self) -> Connection:
        """One that lay idle or a new one. Raises `OSError`, `TimeoutError` among them."""
        while self._idle:
            connection = self._idle.pop()
            if connection.usable:
                return connection
            connection.close()
        remote = self._remote
        if remote.secure and self._tls is None:
            self._tls = ssl.create_default_context()
        async with asyncio.timeout(remote.connect_timeout_s):
            return Connection(*await asyncio.open_connection(remote.host, remote.port, ssl=self._tls, limit=_READ))

    def put_back(self, reply: Reply) -> None:
        """Kept if its answer was read to the end, else closed."""
        connection = reply.connection
        if not reply.reusable or len(self._idle) >= _MOST_IDLE:
            return connection.close()
        connection.idle_since = asyncio.get_running_loop().time()
        self._idle.append(connection)
        return None

    def close(self) -> None:
        for connection in self._idle:
            connection.close()
        self._idle.clear()
