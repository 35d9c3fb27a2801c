"""What the state store takes and returns. Bodies are encoded JSON."""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

ROW_BYTES = 256  # counted for each row, for its columns and its place in the indexes
_MADE_ID = re.compile(r"[a-z]+_[0-9a-f]{48}(_[0-9]+)?")  # an output item has its response's random bits


def make_id(prefix: str) -> str:
    """Return an id that cannot be guessed: 144 random bits. The time comes first, so that new rows lie side by side."""
    return f"{prefix}_{time.time_ns() // 1_000_000:012x}{secrets.token_hex(18)}"


def is_made_id(item_id: str) -> bool:
    """Return whether an id has the form of those that the server makes. Others can be guessed."""
    return _MADE_ID.fullmatch(item_id) is not None


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
    def starts_chain(self) -> bool:
        return self.previous is None and self.conversation is None

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
    """One page of a list. `after`: the id of the item before it. `max_bytes`: a page ends early rather than be larger."""

    after: str | None = None
    limit: int = 20
    order: Literal["asc", "desc"] = "desc"
    max_bytes: int = 4 << 20


@dataclass(frozen=True, slots=True)
class ItemPage:
    items: Sequence[StoredItem]
    has_more: bool


@dataclass(frozen=True, slots=True)
class ReadBound:
    """How much one request may read."""

    items: int
    bytes: int


class TooMuchStored(Exception):
    """More is stored than one request may read. `setting`: the limit that it exceeds."""

    def __init__(self, setting: str) -> None:
        super().__init__(setting)
        self.setting = setting


class NotStored(Exception):
    """A write that was not done, and why. The response is answered without it."""


class UnknownItem(Exception):
    """A page starts after an item that is not in the list."""


def measure_items(items: Sequence[StoredItem]) -> int:
    return sum(len(item.body) + ROW_BYTES for item in items)
