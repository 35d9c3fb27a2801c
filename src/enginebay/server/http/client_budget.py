"""Bounds what the server keeps for clients, in total and per client: bodies in memory, forms on disk, WebSockets."""

from __future__ import annotations

from typing import NamedTuple

from enginebay.server.http.http_settings import HttpSettings
from enginebay.server.http.refusal import Refusal


class BudgetLease:
    """What one request holds."""

    __slots__ = ("client", "held")

    def __init__(self, client: str) -> None:
        self.client = client
        self.held = 0


class BudgetKind(NamedTuple):
    """The settings that bound a budget, and their configuration keys."""

    client_setting: str
    total_setting: str
    client_limit: str
    total_limit: str
    what: str


BODIES = BudgetKind(
    "max_client_buffered_bytes", "max_buffered_bytes", "client_body_buffer_bytes", "body_buffer_bytes", "large requests"
)
FORMS = BudgetKind(
    "max_client_form_disk_bytes", "max_form_disk_bytes", "client_form_disk_bytes", "form_disk_bytes", "large forms"
)
WEBSOCKETS = BudgetKind(
    "max_client_websockets", "max_websockets", "client_websockets", "websockets", "open WebSockets"
)  # fmt: skip


class ClientBudget:
    def __init__(self, settings: HttpSettings, kind: BudgetKind = BODIES) -> None:
        self._settings = settings
        self._kind = kind
        self._by_client: dict[str, int] = {}
        self.held = 0

    def resize(self, lease: BudgetLease, held: int) -> None:
        """Let a request hold this much. Raise `Refusal` if the client or the server would hold too much.

        A request fits if nothing else is held: its own size has other limits.
        """
        kind, added = self._kind, held - lease.held
        of_client = self._by_client.get(lease.client, 0) + added
        if of_client > held and of_client > getattr(self._settings, kind.client_setting):
            raise Refusal(429, f"this client has too many {kind.what}", kind.client_limit)
        total = self.held + added
        if total > held and total > getattr(self._settings, kind.total_setting):
            raise Refusal(503, f"the server has too many {kind.what}", kind.total_limit)
        self._by_client[lease.client] = of_client
        self.held = total
        lease.held = held

    def release(self, lease: BudgetLease) -> None:
        """Give everything back. May be called twice."""
        left = self._by_client.get(lease.client, 0) - lease.held
        self.held -= lease.held
        lease.held = 0
        if left > 0:
            self._by_client[lease.client] = left
        else:
            self._by_client.pop(lease.client, None)


class ClientBudgets:
    """The budgets of one server process."""

    def __init__(self, settings: HttpSettings) -> None:
        self.bodies = ClientBudget(settings)
        self.forms = ClientBudget(settings, FORMS)
        self.websockets = ClientBudget(settings, WEBSOCKETS)
