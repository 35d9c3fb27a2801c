"""Settings of the HTTP layer, and the interface of the application behind it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Protocol

from enginebay.server.http.exchange import Exchange


@dataclass(slots=True)
class HttpSettings:
    max_body_bytes: int
    max_header_bytes: int
    max_connections: int
    header_timeout_s: float
    body_timeout_s: float
    keep_alive_s: float
    stall_timeout_s: float
    write_buffer_bytes: int
    # (status, message, exceeded limit, request if its headers were read) -> error body
    encode_refusal: Callable[[int, str, str, Exchange | None], bytes]
    max_buffered_bytes: int = 256 << 20  # of large request bodies, in all
    max_client_buffered_bytes: int = 64 << 20
    max_unread_bytes: int = 128 << 20  # of responses to clients that read slowly, in all
    common_headers: bytes = b""

    def update(self, other: HttpSettings) -> None:
        """Copy all settings from `other`. Open connections apply them from their next request."""
        for setting in fields(self):
            if setting.name != "common_headers":
                setattr(self, setting.name, getattr(other, setting.name))


class HttpApplication(Protocol):
    """The application behind the HTTP layer. All calls run on the event loop."""

    def handle(self, exchange: Exchange) -> None:
        """Start handling a request; `exchange.respond` or `exchange.end` completes it."""

    def check_before_body(self, exchange: Exchange) -> tuple[int, str] | None:
        """Return a status and message to reject a request before its large body is read, else None."""

    def identify_client(self, exchange: Exchange) -> str:
        """Return who sends a request, to bound what one client may hold."""

    def on_refused(self, status: int, exchange: Exchange | None) -> None:
        """Record a request that the HTTP layer refused. May add headers if `exchange` is known."""
