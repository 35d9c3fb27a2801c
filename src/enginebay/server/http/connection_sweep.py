"""What the listener does to all connections twice a second: deadlines, and memory for slow readers."""

from __future__ import annotations

import time
from collections.abc import Collection
from typing import Protocol

PROGRESS_BYTES = 4096  # reading this much before the deadline extends it
LINGER_S = 5.0  # how long a refused client may keep sending; closing earlier could discard the error response


class SweptConnection(Protocol):
    """A connection of any protocol."""

    deadline: float | None
    congested: bool

    @property
    def unread_bytes(self) -> int: ...

    @property
    def busy(self) -> bool: ...

    def expire(self) -> None: ...

    def close_when_idle(self) -> None: ...

    def abort(self) -> None: ...


class StallTimer:
    """Gives a client `stall_timeout_s` to read some of what was written."""

    __slots__ = ("_unread_before",)

    def __init__(self) -> None:
        self._unread_before = 0

    def start(self, unsent_bytes: int, timeout_s: float) -> float:
        """Return the deadline."""
        self._unread_before = unsent_bytes
        return time.monotonic() + timeout_s

    def stop(self) -> None:
        self._unread_before = 0

    def has_progress(self, unsent_bytes: int) -> bool:
        """Whether the client is slow, but reading."""
        return self._unread_before - unsent_bytes >= PROGRESS_BYTES


def expire_overdue(connections: Collection[SweptConnection], now: float) -> None:
    """Expire the connections whose deadline has passed."""
    for connection in list(connections):
        if connection.deadline is not None and connection.deadline < now:
            connection.expire()


def bound_unread_bytes(connections: Collection[SweptConnection], max_bytes: int) -> int:
    """Disconnect the clients that have read the least, until the others fit. Return the bytes that are left."""
    slow = [(connection.unread_bytes, connection) for connection in connections if connection.congested]
    total = sum(unread for unread, _ in slow)
    if total > max_bytes:
        for unread, connection in sorted(slow, key=lambda entry: entry[0], reverse=True):
            if total <= max_bytes:
                break
            connection.abort()
            total -= unread
    return total


def extend_deadlines(connections: Collection[SweptConnection], seconds: float) -> None:
    """Extend all deadlines by a delay that clients did not cause."""
    for connection in connections:
        if connection.deadline is not None:
            connection.deadline += seconds
