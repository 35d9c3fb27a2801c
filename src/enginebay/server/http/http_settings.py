"""What the HTTP layer needs to know, and whom it hands requests to."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
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
    # The body of an answer that no application code gets to see: its status, what is wrong, and over which limit it is.
    encode_refusal: Callable[[int, str, str], bytes]
    common_headers: bytes = b""

    def update(self, other: HttpSettings) -> None:
        """For connections that are open as well, from their next request on."""
        for one in fields(self):
            if one.name != "common_headers":
                setattr(self, one.name, getattr(other, one.name))


class HttpApplication(Protocol):
    """What is behind the HTTP layer. All calls come on the event loop."""

    def handle(self, exchange: Exchange) -> None:
        """Begin to answer; `exchange.respond` or `exchange.end` says when it is done."""

    def check_before_body(self, exchange: Exchange) -> tuple[int, str] | None:
        """Asked before a large body is read: a status and a message for a client that need not send it."""

    def on_refused(self, status: int, exchange: Exchange | None) -> None:
        """A request was turned away before it got here. Headers may be added, where its own are known by then."""
