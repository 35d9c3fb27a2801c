"""Settings of the HTTP layer, and the interface of the application behind it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import NamedTuple, Protocol

from enginebay.server.http.exchange import Exchange
from enginebay.server.http.form_parser import FormLimits
from enginebay.util.paths import runtime_dir


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
    form_limits: FormLimits = field(default_factory=FormLimits)
    max_form_disk_bytes: int = 8 << 30  # of files in forms, in all
    max_client_form_disk_bytes: int = 2 << 30
    find_form_folder: Callable[[], Path] = runtime_dir
    max_websockets: int = 1024
    max_client_websockets: int = 128
    websocket_idle_s: float = 600.0
    common_headers: bytes = b""

    def update(self, other: HttpSettings) -> None:
        """Copy all settings from `other`. Open connections apply them from their next request."""
        for setting in fields(self):
            if setting.name != "common_headers":
                setattr(self, setting.name, getattr(other, setting.name))


class BodyRule(NamedTuple):
    """What a route takes as its body."""

    max_bytes: int
    limit: str = "body_bytes"  # the configuration key of `max_bytes`
    takes_form: bool = False  # multipart/form-data, as `exchange.form`


class HttpApplication(Protocol):
    """The application behind the HTTP layer. All calls run on the event loop."""

    def handle(self, exchange: Exchange) -> object:
        """Start handling a request; `exchange.respond`, `exchange.end` or `exchange.accept_websocket` completes it."""

    def find_body_rule(self, exchange: Exchange) -> BodyRule | None:
        """Return what the route of a request takes, or None for the default: `max_body_bytes`, no form."""

    def takes_websocket(self, path: str) -> bool:
        """Return whether there is a WebSocket route. If not, a request to upgrade is an ordinary one."""

    def check_before_body(self, exchange: Exchange) -> tuple[int, str] | None:
        """Return a status and message to reject a request before its large body is read, else None."""

    def identify_client(self, exchange: Exchange) -> str:
        """Return who sends a request, to bound what one client may hold."""

    def on_refused(self, status: int, exchange: Exchange | None) -> None:
        """Record a request that the HTTP layer refused. May add headers if `exchange` is known."""
