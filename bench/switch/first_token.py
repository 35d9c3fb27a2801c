"""Times a streamed chat request on the client until the first text arrives."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import urlsplit

from bench.server.http_responses import CONTENT, parse_head

_READ = 1 << 16
_RETRY_S = 0.02  # between attempts to reach a starting server
_TIMEOUT_S = 300.0


class NotReady(Exception):
    """The server does not listen, or responds that it is not ready."""


def time_first_text(url: str, body: Mapping[str, Any], headers: Mapping[str, str]) -> float:
    """Return when the first text arrived, by `time.perf_counter`. Reads the whole response. Raises `NotReady`."""
    address = urlsplit(url)
    try:
        with socket.create_connection((address.hostname or "", address.port or 80), timeout=_TIMEOUT_S) as connection:
            connection.sendall(_build_request(address.netloc, body, headers))
            return _wait_first_text(connection)
    except ConnectionError as problem:
        raise NotReady(str(problem)) from None


def retry_first_text(url: str, body: Mapping[str, Any], check: Callable[[], None]) -> float:
    """Retry `time_first_text` while a server starts. `check` raises if it has exited."""
    deadline = time.monotonic() + _TIMEOUT_S
    while True:
        try:
            return time_first_text(url, body, {})
        except NotReady as problem:
            check()
            if time.monotonic() > deadline:
                raise SystemExit(f"no response within {_TIMEOUT_S:.0f} s: {problem}") from None
        time.sleep(_RETRY_S)


def _build_request(host: str, body: Mapping[str, Any], headers: Mapping[str, str]) -> bytes:
    data = json.dumps(body).encode()
    lines = ["POST /v1/chat/completions HTTP/1.1", f"Host: {host}", "Content-Type: application/json"]
    lines += ["Connection: close", f"Content-Length: {len(data)}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + data


def _wait_first_text(connection: socket.socket) -> float:
    arrived_at, response = 0.0, b""
    while chunk := connection.recv(_READ):
        response += chunk
        if not arrived_at and CONTENT.search(response):
            arrived_at = time.perf_counter()
    head = parse_head(response)
    if head is None or head.status != 200:
        raise NotReady(f"responded {response[:300]!r}")
    if not arrived_at:
        raise SystemExit(f"a response without text: {response[-500:]!r}")
    return arrived_at
