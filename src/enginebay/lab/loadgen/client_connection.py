"""One connection of the load generator: sends bytes, and timestamps the bytes it receives.

A measuring instrument: no client library or proxy may stand between the socket and the clock.
"""

from __future__ import annotations

import socket
import ssl
from errno import EINPROGRESS
from functools import cache
from os import strerror
from time import monotonic
from typing import Any

from enginebay.lab.loadgen.http_framing import LAST_CHUNK, ResponseHead, looks_complete, parse_head
from enginebay.util.http_policy import TRUST_HINT, create_tls_context

_get_tls_context = cache(create_tls_context)
READ_BYTES = 1 << 16  # the allocator maps larger buffers one by one, which costs more than the read


class ClientConnection:
    """A socket and the request in flight on it.

    Connecting → (TLS handshake) → idle ⇄ busy → closed.
    """

    __slots__ = (
        "connecting",
        "data",
        "head",
        "last_s",
        "parts",
        "request_position",
        "reused",
        "sent_s",
        "served_requests",
        "size",
        "socket",
        "stamps",
        "unsent",
    )  # fmt: skip

    def __init__(self, sock: socket.socket) -> None:
        self.socket = sock
        self.connecting = True
        self.served_requests = 0
        self.request_position = -1  # index of the request in flight in the sender's task; -1: idle
        self.data = b""
        self.unsent = b""
        self.sent_s = 0.0
        self.last_s = 0.0  # time of the last byte sent or received
        self.reused = False
        self._reset_response()

    def _reset_response(self) -> None:
        self.head: ResponseHead | None = None
        self.size = 0
        self.parts: list[bytes] = []
        self.stamps: list[float] = []

    @property
    def is_busy(self) -> bool:
        return self.request_position >= 0

    def begin(self, position: int, data: bytes, sent_s: float | None = None) -> None:
        """Send a request; what the socket does not accept yet stays in `unsent`. Raise `OSError`."""
        self._reset_response()
        self.request_position, self.data, self.reused = position, data, self.served_requests > 0
        self.sent_s = self.last_s = monotonic() if sent_s is None else sent_s
        self.unsent = data
        if not self.connecting:
            self.flush()

    def flush(self) -> None:
        """Send more of `unsent`. Raise `OSError`."""
        if self.unsent:
            try:
                sent = self.socket.send(self.unsent)
            except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
                sent = 0
            self.unsent = self.unsent[sent:] if sent < len(self.unsent) else b""

    def receive(self, data: bytes, now: float) -> bool:
        """Record bytes of the response. Return whether it looks complete. Raise `MalformedHttp`."""
        self.parts.append(data)
        self.stamps.append(now)
        self.size += len(data)
        self.last_s = now
        if self.head is None:
            self.head = parse_head(data if len(self.parts) == 1 else b"".join(self.parts))
            if self.head is None:
                return False
        tail = data
        if len(data) < len(LAST_CHUNK):
            tail = b"".join(self.parts[-len(LAST_CHUNK) :])
        return looks_complete(self.head, self.size, tail)

    def release(self) -> None:
        """Free the connection for the next request."""
        self.request_position, self.data, self.unsent = -1, b"", b""
        self.served_requests += 1


def open_connection(address: tuple[socket.AddressFamily, Any], tls: str | None) -> ClientConnection:
    """Start to connect, without waiting. Raise `OSError`."""
    family, sockaddr = address
    sock = socket.socket(family, socket.SOCK_STREAM)
    sock.setblocking(False)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if tls is not None:
        sock = _get_tls_context().wrap_socket(sock, server_hostname=tls, do_handshake_on_connect=False)
    error = sock.connect_ex(sockaddr)
    if error not in (0, EINPROGRESS):
        sock.close()
        raise OSError(error, strerror(error))
    return ClientConnection(sock)


def describe_untrusted(error: ssl.SSLCertVerificationError) -> str:
    return f"the server's certificate is not trusted: {error.verify_message} ({TRUST_HINT})"


def finish_connecting(connection: ClientConnection) -> bool:
    """Return whether the connection is open, TLS handshake included. Raise `OSError` if it fails."""
    error = connection.socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
    if error:
        raise OSError(error, strerror(error))
    if isinstance(connection.socket, ssl.SSLSocket):
        try:
            connection.socket.do_handshake()
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return False
        except ssl.SSLCertVerificationError as untrusted:
            raise OSError(describe_untrusted(untrusted)) from None
    connection.connecting = False
    return True
