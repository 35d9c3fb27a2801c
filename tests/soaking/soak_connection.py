"""An HTTP/1.1 client connection that may misbehave: read slowly, or disconnect at any point."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from typing import Any, Self

import msgspec

_encode = msgspec.json.encode


class BrokenConnection(Exception):
    """The server closed the connection, or what it sent is not HTTP."""


class SoakConnection:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self.usable = True  # for another request
        self._length = 0
        self._chunked = False

    @classmethod
    async def open(cls, port: int, receive_bytes: int | None = None) -> Self:
        """Connect. `receive_bytes`: the receive buffer; a small one makes the server notice slow reads."""
        raw = socket.socket()
        raw.setblocking(False)
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if receive_bytes is not None:
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        await asyncio.get_running_loop().sock_connect(raw, ("127.0.0.1", port))
        limit = receive_bytes or 1 << 18
        return cls(*await asyncio.open_connection(sock=raw, limit=max(limit, 1 << 14)))

    def send(self, path: str, body: Any = None) -> None:
        self.usable = False
        self._writer.write(build_request(path, body))

    def send_raw(self, data: bytes) -> None:
        self.usable = False
        self._writer.write(data)

    async def read_status(self) -> int:
        """Read the response head and return the status."""
        try:
            head = await self._reader.readuntil(b"\r\n\r\n")
        except (asyncio.IncompleteReadError, ConnectionError) as error:
            raise BrokenConnection("no response") from error
        first, *lines = head[:-4].decode("latin-1").split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        self._chunked = headers.get("transfer-encoding") == "chunked"
        self._length = int(headers.get("content-length", 0))
        self._keep = headers.get("connection", "") != "close"
        return int(first.split(" ", 2)[1])

    async def read_body(self) -> bytes:
        """Read the whole response body."""
        return b"".join([piece async for piece in self.read_pieces()])

    async def read_pieces(self, pause_s: float = 0.0) -> AsyncIterator[bytes]:
        """Yield the response body as it arrives, with a pause after each piece."""
        try:
            if not self._chunked:
                yield await self._reader.readexactly(self._length)
            while self._chunked:
                size = int(await self._reader.readuntil(b"\r\n"), 16)
                piece = await self._reader.readexactly(size + 2)
                if not size:
                    break
                yield piece[:-2]
                if pause_s:
                    await asyncio.sleep(pause_s)
        except (asyncio.IncompleteReadError, ConnectionError, ValueError) as error:
            raise BrokenConnection("the response is cut off") from error
        self.usable = self._keep

    def abort(self) -> None:
        """Disconnect without closing properly."""
        self.usable = False
        self._writer.transport.abort()

    def close(self) -> None:
        self.usable = False
        self._writer.close()


def build_request(path: str, body: Any = None) -> bytes:
    if body is None:
        return f"GET {path} HTTP/1.1\r\nhost: localhost\r\n\r\n".encode()
    data = body if isinstance(body, bytes) else _encode(body)
    head = f"POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: {len(data)}\r\n\r\n"
    return head.encode() + data
