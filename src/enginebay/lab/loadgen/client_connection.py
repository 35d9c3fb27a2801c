"""One connection of the load client: bytes go out, and come in with the time they came."""

from __future__ import annotations

import socket
import ssl
from errno import EINPROGRESS
from functools import cache
from os import strerror
from time import monotonic
from typing import Any

from enginebay.lab.loadgen.http_framing import LAST_CHUNK, ResponseHead, looks_complete, parse_head

TRUST_HINT = "SSL_CERT_FILE names a file with the certificates to trust"
READ_BYTES = 1 << 16  # the allocator maps larger buffers from the system one by one: that costs more than the read


class ClientConnection:
    """A socket and the request that runs on it.

    Opening → (handshake) → idle ⇄ busy → gone. A busy one knows which request it has and what came of it so far.
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
        self.served_requests = 0  # requests answered on it
        self.request_position = -1  # place of the running request in the process' order
        self.data = b""
        self.unsent = b""
        self.sent_s = 0.0
        self.last_s = 0.0  # when the last byte went or came
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
        """Send a request; what the socket does not take yet stays in `unsent`. Raises `OSError`."""
        self._reset_response()
        self.request_position, self.data, self.reused = position, data, self.served_requests > 0
        self.sent_s = self.last_s = monotonic() if sent_s is None else sent_s
        self.unsent = data
        if not self.connecting:
            self.flush()

    def flush(self) -> None:
        """Send more of what is unsent. Raises `OSError`."""
        if self.unsent:
            try:
                sent = self.socket.send(self.unsent)
            except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
                sent = 0
            self.unsent = self.unsent[sent:] if sent < len(self.unsent) else b""

    def receive(self, data: bytes, now: float) -> bool:
        """Bytes of the answer, stamped. True: it looks whole. Raises `Garbage`."""
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
        """The running request is over; the connection may take another."""
        self.request_position, self.data, self.unsent = -1, b"", b""
        self.served_requests += 1


def open_connection(address: tuple[socket.AddressFamily, Any], tls: str | None) -> ClientConnection:
    """Begin to connect, without waiting. Raises `OSError`."""
    family, place = address
    sock = socket.socket(family, socket.SOCK_STREAM)
    sock.setblocking(False)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if tls is not None:
        sock = _default_tls_context().wrap_socket(sock, server_hostname=tls, do_handshake_on_connect=False)
    problem = sock.connect_ex(place)
    if problem not in (0, EINPROGRESS):
        sock.close()
        raise OSError(problem, strerror(problem))
    return ClientConnection(sock)


@cache
def _default_tls_context() -> ssl.SSLContext:
    return ssl.create_default_context()


def describe_untrusted(problem: ssl.SSLCertVerificationError) -> str:
    return f"the server's certificate is not trusted: {problem.verify_message} ({TRUST_HINT})"


def finish_connecting(connection: ClientConnection) -> bool:
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
            raise OSError(describe_untrusted(refusal)) from None
    connection.connecting = False
    return True
