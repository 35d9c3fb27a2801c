"""Bounds the memory of request bodies, in all and by client. A large body counts until its response is written."""

from __future__ import annotations

from enginebay.server.http.http_settings import HttpSettings


class BodyLease:
    """The bytes that one request holds."""

    __slots__ = ("client", "held_bytes")

    def __init__(self, client: str) -> None:
        self.client = client
        self.held_bytes = 0


class BodyBudget:
    def __init__(self, settings: HttpSettings) -> None:
        self._settings = settings
        self._by_client: dict[str, int] = {}
        self.held_bytes = 0

    def resize(self, lease: BodyLease, held_bytes: int) -> str:
        """Let a request hold this much. Return the name of the limit that it would exceed, else an empty text."""
        settings, added = self._settings, held_bytes - lease.held_bytes
        of_client = self._by_client.get(lease.client, 0) + added
        # One body of the maximum size always fits.
        if of_client > max(settings.max_client_buffered_bytes, settings.max_body_bytes):
            return "client_body_buffer_bytes"
        if self.held_bytes + added > max(settings.max_buffered_bytes, settings.max_body_bytes):
            return "body_buffer_bytes"
        self._by_client[lease.client] = of_client
        self.held_bytes += added
        lease.held_bytes = held_bytes
        return ""

    def release(self, lease: BodyLease) -> None:
        """Give everything back. May be called twice."""
        left = self._by_client.get(lease.client, 0) - lease.held_bytes
        self.held_bytes -= lease.held_bytes
        lease.held_bytes = 0
        if left > 0:
            self._by_client[lease.client] = left
        else:
            self._by_client.pop(lease.client, None)
