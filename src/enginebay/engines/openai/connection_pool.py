"""Pool of connections to the server, used in one event loop."""

from __future__ import annotations

import asyncio
import contextlib
import re
import socket
import ssl

from enginebay.engines.openai.http_response import HttpResponseParser
from enginebay.engines.openai.remote_server import RemoteServer
from enginebay.util.http_policy import Proxy, create_tls_context, join_authority

_READ_BYTES = 1 << 16
_MAX_PROXY_HEAD_BYTES = 1 << 14
_MAX_IDLE_S = 30.0
_MAX_IDLE_CONNECTIONS = 64


class NoResponse(Exception):
    """The connection closed before any byte of the response. The request can be retried."""

    def __init__(self, reused: bool) -> None:
        super().__init__("it closed the connection without a response")
        self.reused = reused  # the server probably closed it while it was idle


class RemoteConnection:
    """One connection. Handles one request at a time."""

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
        """Send a request and wait for the response head. Raises `NoResponse`, `OSError` or `MalformedResponse`."""
        sent_at = self._loop.time()
        parser = HttpResponseParser()
        body = b""
        received = False
        try:
            self._writer.write(request)
            await self._writer.drain()
            while not parser.status:
                data = await self._reader.read(_READ_BYTES)
                if not data:
                    if not received:
                        raise NoResponse(self._responses > 0)
                    parser.end()
                received = True
                body += parser.feed(data)
        except ConnectionError:
            if received:
                raise
            raise NoResponse(self._responses > 0) from None
        self._responses += 1
        return RemoteResponse(self, parser, body, sent_at)

    async def read(self) -> bytes:
        return await self._reader.read(_READ_BYTES)

    def close(self) -> None:
        """Close at once, without sending or reading the rest."""
        with contextlib.suppress(Exception):
            self._writer.transport.abort()


class RemoteResponse:
    """A response whose head has arrived."""

    def __init__(
        self, connection: RemoteConnection, parser: HttpResponseParser, buffered: bytes, sent_at: float
    ) -> None:
        self.connection = connection
        self.sent_at = sent_at
        self.status = parser.status
        self.headers = parser.headers
        self._parser = parser
        self._buffered = buffered  # body bytes that came with the head

    @property
    def is_complete(self) -> bool:
        return self._parser.is_complete and not self._buffered

    @property
    def is_reusable(self) -> bool:
        return self.is_complete and self._parser.keep_alive

    async def read(self) -> bytes:
        """Return the next bytes of the body; empty at its end. Raises `OSError` or `MalformedResponse`."""
        body, self._buffered = self._buffered, b""
        while not body and not self._parser.is_complete:
            data = await self.connection.read()
            if not data:
                self._parser.end()
                break
            body = self._parser.feed(data)
        return body

    async def read_all(self, max_bytes: int) -> bytes:
        """Return the body, truncated to `max_bytes`."""
        body = b""
        while len(body) <= max_bytes and (data := await self.read()):
            body += data
        return body[:max_bytes]


class ConnectionPool:
    """Opens connections and keeps the reusable ones."""

    def __init__(self, server: RemoteServer) -> None:
        self._server = server
        self._idle: list[RemoteConnection] = []
        self._tls: ssl.SSLContext | None = None

    async def acquire(self) -> RemoteConnection:
        """Return an idle or a new connection. Raises `OSError`, including `TimeoutError`."""
        while self._idle:
            connection = self._idle.pop()
            if connection.is_usable:
                return connection
            connection.close()
        server = self._server
        if server.uses_tls and self._tls is None:
            self._tls = create_tls_context()
        async with asyncio.timeout(server.connect_timeout_s):
            if server.proxy is None:
                streams = asyncio.open_connection(server.host, server.port, ssl=self._tls, limit=_READ_BYTES)
                return RemoteConnection(*await streams)
            return await self._connect_through(server.proxy)

    async def _connect_through(self, proxy: Proxy) -> RemoteConnection:
        """Connect to the proxy and, for TLS, open a tunnel through it."""
        if self._tls is None:
            return RemoteConnection(*await asyncio.open_connection(proxy.host, proxy.port, limit=_READ_BYTES))
        server = self._server
        tunnel = await _open_tunnel(proxy, join_authority(server.host, server.port))
        try:
            streams = asyncio.open_connection(
                sock=tunnel, ssl=self._tls, server_hostname=server.host, limit=_READ_BYTES
            )
            return RemoteConnection(*await streams)
        except BaseException:
            tunnel.close()
            raise

    def release(self, response: RemoteResponse) -> None:
        """Keep the connection if its response was fully read, else close it."""
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


async def _open_tunnel(proxy: Proxy, target: str) -> socket.socket:
    """Return a socket to the target. Reads byte by byte: what follows the proxy's answer must go through TLS."""
    loop = asyncio.get_running_loop()
    lines = [f"CONNECT {target} HTTP/1.1", f"Host: {target}", *map(": ".join, proxy.headers.items()), "", ""]
    family, kind, protocol, _, address = (await loop.getaddrinfo(proxy.host, proxy.port, type=socket.SOCK_STREAM))[0]
    tunnel = socket.socket(family, kind, protocol)
    tunnel.setblocking(False)
    try:
        await loop.sock_connect(tunnel, address)
        await loop.sock_sendall(tunnel, "\r\n".join(lines).encode("ascii"))
        head = b""
        while not head.endswith(b"\r\n\r\n"):
            byte = await loop.sock_recv(tunnel, 1)
            if not byte or len(head) > _MAX_PROXY_HEAD_BYTES:
                raise OSError(f"the proxy {proxy.host} sent no valid response")
            head += byte
        status = head.splitlines()[0].decode("latin-1")
        if not re.match(r"HTTP/1\.[01] 2\d\d\b", status):
            raise OSError(f"the proxy {proxy.host} refused the connection: {status[:80]!r}")
    except BaseException:
        tunnel.close()
        raise
    return tunnel
