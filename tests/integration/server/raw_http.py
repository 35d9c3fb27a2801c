"""HTTP byte by byte, for what no proper client would send, and a check of every answer for what it must not tell."""

from __future__ import annotations

import json
import re
import socket
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import enginebay

_HOST_PLACES = (str(Path(enginebay.__file__).parent), tempfile.gettempdir(), str(Path.home()))
_PATH = re.compile(r"/[\w.+-]+(?:/[\w.+-]+)*")
_ADDRESS = re.compile(r"0x[0-9a-fA-F]{6,}|unix:|\b\d{1,3}(?:\.\d{1,3}){3}\b")


@dataclass(frozen=True)
class RawResponse:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def error(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.body)["error"]
        return found


def build_request(
    method: str, path: str, body: bytes | None = None, headers: dict[str, str] | None = None, version: str = "1.1"
) -> bytes:
    """The bytes of a proper request."""
    lines = {"host": "localhost", **(headers or {})}
    if body is not None:
        lines = {"content-type": "application/json", "content-length": str(len(body)), **lines}
    head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
    return f"{method} {path} HTTP/{version}\r\n{head}\r\n".encode("latin-1") + (body or b"")


def connect(port: int, timeout_s: float = 20, receive_bytes: int | None = None) -> socket.socket:
    sock = socket.socket()
    sock.settimeout(timeout_s)
    if receive_bytes is not None:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
    sock.connect(("127.0.0.1", port))
    return sock


def read_to_end(sock: socket.socket) -> bytes:
    """All until the server closes the connection. A reset after something was read counts as an end."""
    parts = []
    while True:
        try:
            data = sock.recv(65536)
        except ConnectionResetError:
            return b"".join(parts)
        if not data:
            return b"".join(parts)
        parts.append(data)


def read_response(sock: socket.socket, rest: bytes = b"") -> tuple[RawResponse, bytes]:
    """One answer from a connection that stays open, and what came after it."""
    while b"\r\n\r\n" not in rest:
        rest = _receive_more(sock, rest)
    head, _, rest = rest.partition(b"\r\n\r\n")
    status, headers = _parse_head(head)
    if headers.get("transfer-encoding") == "chunked":
        body, rest = _read_chunks(sock, rest)
        return RawResponse(status, headers, body), rest
    length = int(headers.get("content-length", 0))
    while len(rest) < length:
        rest = _receive_more(sock, rest)
    return RawResponse(status, headers, rest[:length]), rest[length:]


def _receive_more(sock: socket.socket, rest: bytes) -> bytes:
    data = sock.recv(65536)
    assert data, f"the connection ended after {rest[-300:]!r}"
    return rest + data


def _read_chunks(sock: socket.socket, rest: bytes) -> tuple[bytes, bytes]:
    body = b""
    while True:
        while b"\r\n" not in rest:
            rest = _receive_more(sock, rest)
        size_text, _, rest = rest.partition(b"\r\n")
        size = int(size_text, 16)
        while len(rest) < size + 2:
            rest = _receive_more(sock, rest)
        body, rest = body + rest[:size], rest[size + 2 :]
        if size == 0:
            return body, rest


def _parse_head(head: bytes) -> tuple[int, dict[str, str]]:
    first, *lines = head.decode("latin-1").split("\r\n")
    assert first.startswith("HTTP/1.1 "), first
    headers = {}
    for line in lines:
        name, _, value = line.partition(":")
        headers[name.strip().lower()] = value.strip()
    return int(first.split()[1]), headers


def parse_responses(data: bytes) -> list[RawResponse]:
    """Every answer of a connection that has ended, each with a content-length."""
    found = []
    while data:
        head, separator, data = data.partition(b"\r\n\r\n")
        assert separator, head
        status, headers = _parse_head(head)
        length = int(headers.get("content-length", 0))
        found.append(RawResponse(status, headers, data[:length]))
        data = data[length:]
    return found


def send(port: int, data: bytes, timeout_s: float = 20) -> list[RawResponse]:
    """Send these bytes and read until the server closes the connection, which it must do by itself."""
    with connect(port, timeout_s) as sock:
        sock.sendall(data)
        return parse_responses(read_to_end(sock))


def assert_no_leak(said: str, asked: str = "") -> None:
    """No path of this host, no address, no stack trace; what the client itself has sent may come back."""
    assert "Traceback" not in said and 'File "' not in said, said
    for place in _HOST_PLACES:
        assert len(place) < 2 or place in asked or place not in said, said
    for found in _PATH.findall(said):
        assert found in asked or found == "/docs" or not Path(found).exists(), said
    for address in _ADDRESS.findall(said):
        assert address in asked, said


def assert_error(answer: RawResponse, status: int, param: str | None = None, asked: str = "") -> dict[str, Any]:
    """An answer in OpenAI's form of errors, with this status, about this parameter."""
    assert answer.status == status, (answer.status, answer.body[:500])
    assert answer.headers["content-type"] == "application/json"
    error = answer.error
    assert set(error) == {"message", "type", "param", "code"} and error["message"]
    assert len(answer.body) < 4000, len(answer.body)
    assert_no_leak(answer.body.decode(), asked)
    if param is not None:
        assert error["param"] == param, error
    return error


def wait_until(happens: Any, patience_s: float = 10.0, what: str = "it") -> None:
    deadline = time.monotonic() + patience_s
    while not happens():
        assert time.monotonic() < deadline, f"{what} did not happen"
        time.sleep(0.02)
