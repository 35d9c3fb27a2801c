"""Keeps the state file within its size and age: deletes whole chains, the least recently used first."""

from __future__ import annotations

import sqlite3

from enginebay.config.sections.server_section import StateLimits
from enginebay.server.state.state_schema import PAGE_BYTES
from enginebay.server.state.stored_records import NotStored

_EXPIRY_INTERVAL_S = 60.0
_EXPIRED_PER_CALL = 256  # bounds how long a write waits
_FILLED_SHARE = 0.9  # of the pages: indexes need some, and a page is seldom full
_CHAIN_SHARE = 8  # a chain may take one eighth of the file
_VACUUM_PAGES = 2048


class StateEviction:
    def __init__(self, database: sqlite3.Connection, limits: StateLimits) -> None:
        self._database = database
        self._limits = limits
        self._expired_at = 0.0

    def count_used_bytes(self) -> int:
        pages = self._database.execute(
            "SELECT page_count - freelist_count FROM pragma_page_count, pragma_freelist_count"
        ).fetchone()[0]
        return int(pages) * PAGE_BYTES

    def expire(self, now: float) -> bool:
        """Delete chains that were not used for `max_age_s`, but not too many at once. Return whether there may be more."""
        if now - self._expired_at < _EXPIRY_INTERVAL_S:
            return False
        deleted = self._database.execute(
            "DELETE FROM chains WHERE id IN (SELECT id FROM chains WHERE used_at <= ? ORDER BY used_at LIMIT ?)",
            (now - self._limits.max_age_s, _EXPIRED_PER_CALL),
        )
        if deleted.rowcount == _EXPIRED_PER_CALL:
            return True
        self._expired_at = now
        return False

    def make_room(self, now: float, chain: str | None, added_bytes: int) -> None:
        """Evict until `added_bytes` fit, never from `chain`. Raises `NotStored` if they cannot.

        The key that stores most loses its least recently used first, so that one key cannot displace the others.
        """
        self.expire(now)
        self._check_chain_size(chain, added_bytes)
        room = int(self._limits.max_bytes * _FILLED_SHARE) - _round_to_pages(added_bytes)
        while self.count_used_bytes() > room:
            victim = self._find_victim(chain)
            if victim is None:
                raise NotStored("it does not fit in server.state.max_bytes")
            self._database.execute("DELETE FROM chains WHERE id = ?", (victim,))

    def _check_chain_size(self, chain: str | None, added_bytes: int) -> None:
        row = chain and self._database.execute("SELECT bytes FROM chains WHERE id = ?", (chain,)).fetchone()
        allowed = self._limits.max_bytes // _CHAIN_SHARE
        if (row[0] if row else 0) + added_bytes > allowed:
            raise NotStored(f"one conversation may take at most {allowed} bytes, an eighth of server.state.max_bytes")

    def _find_victim(self, kept: str | None) -> str | None:
        for (owner,) in self._database.execute("SELECT owner FROM owners ORDER BY bytes DESC").fetchall():
            row = self._database.execute(
                "SELECT id FROM chains WHERE owner = ? AND id IS NOT ? ORDER BY used_at LIMIT 1", (owner, kept)
            ).fetchone()
            if row is not None:
                return str(row[0])
        return None

    def shrink(self) -> None:
        """Give free pages back to the disk, a few at a time."""
        try:
            self._database.execute(f"PRAGMA incremental_vacuum({_VACUUM_PAGES})").fetchall()
        except sqlite3.OperationalError:  # another process writes: next time
            return


def _round_to_pages(size: int) -> int:
    return -(-size // PAGE_BYTES) * PAGE_BYTES * 2  # indexes, and pages that are not full
