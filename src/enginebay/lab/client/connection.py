"""One connection of the load client: bytes go out, and come in with the time they came."""

from __future__ import annotations

import socket
import ssl
from errno import EINPROGRESS
from functools import cache
from os import strerror
from time import monotonic
from typing import Any

from enginebay.lab.client.framing import LAST_CHUNK, Head, looks_whole, read_head

TRUST = "SSL_CERT_FILE names a file with the certificates to trust"
READ = 1 << 16  # the allocator maps larger buffers from the system one by one: that costs more than the read


class Connection:
    """A socket and the request that runs on it.

    Opening → (handshake) → idle ⇄ busy → gone. A busy one knows which request it has and what came of it so far.
    """

    __slots__ = (
        "connecting", "data", "head", "last_s", "parts", "reused", "sent_s", "served", "shot", "size", "socket", "stamps", "unsent",
    )  # fmt: skip

    def __init__(self, sock: socket.socket) -> None:
        self.socket = sock
        self.connecting = True
        self.served = 0  # requests answered on it
        self.shot = -1  # place of the running request in the process' order
        self.data = b""
        self.unsent = b""
        self.sent_s = 0.0
        self.last_s = 0.0  # when the last byte went or came
        self.reused = False
        self._clear()

    def _clear(self) -> None:
        self.head: Head | None = None
        self.size = 0
        self.parts: list[bytes] = []
        self.stamps: list[float] = []

    @property
    def busy(self) -> bool:
        return self.shot >= 0

    def begin(self, shot: int, data: bytes, sent_s: float | None = None) -> None:
        """Send a request; what the socket does not take yet stays in `unsent`. Raises `OSError`."""
        self._clear()
        self.shot, self.data, self.reused = shot, data, self.served > 0
        self.sent_s = self.last_s = monotonic() if sent_s is None else sent_s
        self.unsent = data
        if not self.connecting:
            self.push()

    def push(self) -> None:
        """Send more of what is unsent. Raises `OSError`."""
        if self.unsent:
            try:
                sent = self.socket.send(self.unsent)
            except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
                sent = 0
            self.unsent = self.unsent[sent:] if sent < len(self.unsent) else b""

    def take(self, data: bytes, now: float) -> bool:
        """Bytes of the answer, stamped. True: it looks whole. Raises `Garbage`."""
        self.parts.append(data)
        self.stamps.append(now)
        self.size += len(data)
        self.last_s = now
        if self.head is None:
            self.head = read_head(data if len(self.parts) == 1 else b"".join(self.parts))
            if self.head is None:
                return False
        tail = data
        if len(data) < len(LAST_CHUNK):
            tail = b"".join(self.parts[-len(LAST_CHUNK) :])
        return looks_whole(self.head, self.size, tail)

    def end(self) -> None:
        """The running request is over; the connection may take another."""
        self.shot, self.data, self.unsent = -1, b"", b""
        self.served += 1


def open_connection(address: tuple[socket.AddressFamily, Any], tls: str | None) -> Connection:
    """Begin to connect, without waiting. Raises `OSError`."""
    family, place = address
    sock = socket.socket(family, socket.SOCK_STREAM)
    sock.setblocking(False)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if tls is not None:
        sock = _trusted().wrap_socket(sock, server_hostname=tls, do_handshake_on_connect=False)
    problem = sock.connect_ex(place)
    if problem not in (0, EINPROGRESS):
        sock.close()
        raise OSError(problem, strerror(problem))
    return Connection(sock)


@cache
def _trusted() -> ssl.SSLContext:
    return ssl.create_default_context()


def untrusted(problem: ssl.SSLCertVerificationError) -> str:
    return f"the server's certificate is not trusted: {problem.verify_message} ({TRUST})"


def connected(connection: Connection) -> bool:
    """Has it been opened, handshake and all? Raises `OSError` when it cannot be."""
    problem = connection.socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
    if problem:
        raise OSError(problem, strerror(problem))
    if isinstance(connection.socket, ssl.SSLSocket):
        try:
            connection.socket.do_handshake()
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return False
        except ssl.SSLCertVerificationError as refusal:
            raise OSError(untrusted(refusal)) from None
    connection.connecting = False
    return True
