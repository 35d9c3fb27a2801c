"""What the state store takes and returns. Bodies are encoded JSON."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

ROW_BYTES = 256  # counted for each row, for its columns and its place in the indexes


def make_id(prefix: str) -> str:
    """Return an id that cannot be guessed: 192 random bits."""
    return f"{prefix}_{secrets.token_hex(24)}"


@dataclass(frozen=True, slots=True)
class StoredItem:
    id: str
    body: bytes


@dataclass(frozen=True, slots=True)
class StoredResponse:
    """`runner` is the server process that still generates it, or empty."""

    id: str
    chain: str
    status: str
    body: bytes
    runner: str = ""


@dataclass(frozen=True, slots=True)
class NewResponse:
    """A response to store, with the items of its own turn. Its chain is that of `previous`, a conversation, or its own."""

    id: str
    status: str
    body: bytes
    inputs: Sequence[StoredItem] = ()
    outputs: Sequence[StoredItem] = ()
    previous: str | None = None
    conversation: str | None = None
    runner: str = ""

    @property
    def bytes(self) -> int:
        return measure_items(self.inputs) + measure_items(self.outputs) + len(self.body) + ROW_BYTES


@dataclass(frozen=True, slots=True)
class StoredConversation:
    id: str
    created_at: int
    metadata: bytes


@dataclass(frozen=True, slots=True)
class PageQuery:
    """One page of a list. `after`: the id of the item before it."""

    after: str | None = None
    limit: int = 20
    order: Literal["asc", "desc"] = "desc"


@dataclass(frozen=True, slots=True)
class ItemPage:
    items: Sequence[StoredItem]
    has_more: bool


class NotStored(Exception):
    """A write that was not done, and why. The response is answered without it."""


class UnknownItem(Exception):
    """A page starts after an item that is not in the list."""


def measure_items(items: Sequence[StoredItem]) -> int:
    return sum(len(item.body) + ROW_BYTES for item in items)
