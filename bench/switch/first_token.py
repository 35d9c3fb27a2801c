"""One streamed chat request, timed by the client's clock until the first text of the answer has arrived."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import urlsplit

from bench.server.http_responses import CONTENT, parse_head

_READ = 1 << 16
_RETRY_S = 0.02  # between two tries to reach a server that is not up yet
_TIMEOUT_S = 300.0


class NotReady(Exception):
    """The server does not listen, or answers that it is not ready."""


def time_first_text(url: str, body: Mapping[str, Any], headers: Mapping[str, str]) -> float:
    """When the first text came, by `time.perf_counter`; the answer is read to its end. Raises `NotYet`."""
    place = urlsplit(url)
    try:
        with socket.create_connection((place.hostname or "", place.port or 80), timeout=_TIMEOUT_S) as connection:
            connection.sendall(_build_request(place.netloc, body, headers))
            return _wait_first_text(connection)
    except ConnectionError as problem:
        raise NotReady(str(problem)) from None


def retry_first_text(url: str, body: Mapping[str, Any], check: Callable[[], None]) -> float:
    """The same, of a server that is being started; `check` raises when it will never answer."""
    deadline = time.monotonic() + _TIMEOUT_S
    while True:
        try:
            return time_first_text(url, body, {})
        except NotReady as problem:
            check()
            if time.monotonic() > deadline:
                raise SystemExit(f"no answer within {_TIMEOUT_S:.0f} s: {problem}") from None
        time.sleep(_RETRY_S)


def _build_request(host: str, body: Mapping[str, Any], headers: Mapping[str, str]) -> bytes:
    data = json.dumps(body).encode()
    lines = ["POST /v1/chat/completions HTTP/1.1", f"Host: {host}", "Content-Type: application/json"]
    lines += ["Connection: close", f"Content-Length: {len(data)}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + data


def _wait_first_text(connection: socket.socket) -> float:
    came, answer = 0.0, b""
    while piece := connection.recv(_READ):
        answer += piece
        if not came and CONTENT.search(answer):
            came = time.perf_counter()
    head = parse_head(answer)
    if head is None or head.status != 200:
        raise NotReady(f"answered {answer[:300]!r}")
    if not came:
        raise SystemExit(f"an answer without text: {answer[-500:]!r}")
    return came
