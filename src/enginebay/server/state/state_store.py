"""Responses and conversations in SQLite. Every method is one transaction, and blocks: call it off the event loop."""

from __future__ import annotations

import sqlite3
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from enginebay.config.sections.server_section import StateLimits
from enginebay.server.state.state_eviction import StateEviction
from enginebay.server.state.state_schema import open_database
from enginebay.server.state.stored_records import (
    ROW_BYTES,
    ItemPage,
    NewResponse,
    NotStored,
    PageQuery,
    ReadBound,
    StoredConversation,
    StoredItem,
    StoredResponse,
    TooMuchStored,
    UnknownItem,
    make_id,
    measure_items,
)

_ITEMS = "items (id, chain, response, is_output, body)"
_ROWS_PER_STATEMENT = 500
_TURNS = """
WITH RECURSIVE turns (id, previous, depth) AS (
    SELECT id, previous, 0 FROM responses WHERE id = ?
    UNION ALL SELECT responses.id, responses.previous, depth + 1 FROM responses JOIN turns ON responses.id = turns.previous
) """


class StateStore:
    """A key never sees what another one stores: every statement names the owner."""

    def __init__(self, path: Path, limits: StateLimits, clock: Callable[[], float] = time.time) -> None:
        self._limits = limits
        self._clock = clock
        self._database = open_database(path, limits.max_bytes)
        self._eviction = StateEviction(self._database, limits)
        with suppress(sqlite3.OperationalError), self._write():  # another process may be busy with it
            self._eviction.expire(self._clock())
        self._eviction.shrink()

    def close(self) -> None:
        self._database.close()

    @contextmanager
    def _write(self) -> Iterator[sqlite3.Connection]:
        self._database.execute("BEGIN IMMEDIATE")
        try:
            yield self._database
            self._database.execute("COMMIT")
        except BaseException:
            if self._database.in_transaction:  # a full disk may have ended it
                self._database.execute("ROLLBACK")
            raise

    def _oldest_use(self) -> float:
        return self._clock() - self._limits.max_age_s

    # Responses

    def add_response(self, owner: str, new: NewResponse) -> None:
        """Store a response with its items. Raises `NotStored` with the reason, or `sqlite3.Error`."""
        with self._write():
            now = self._clock()
            chain = self._find_chain(owner, new)
            self._eviction.make_room(now, chain, new.bytes)
            if chain is None:
                self._add_chains(now, [(owner, new)])
            else:
                self._add_turns([(chain, new)])
                self._touch(chain, now, new.bytes)

    def add_first_responses(self, responses: Sequence[tuple[str, NewResponse]]) -> None:
        """Store responses that continue nothing, each with its owner: all or none. Raises as `add_response` does."""
        with self._write():
            now = self._clock()
            self._eviction.make_room(now, None, sum(new.bytes for _, new in responses))
            self._add_chains(now, responses)

    def _add_chains(self, now: float, responses: Sequence[tuple[str, NewResponse]]) -> None:
        chains = [make_id("chain") for _ in responses]
        self._insert("chains", [
            (chain, owner, 0, int(now), now, ROW_BYTES + new.bytes, b"")
            for chain, (owner, new) in zip(chains, responses, strict=True)
        ])  # fmt: skip
        self._add_turns([(chain, new) for chain, (_, new) in zip(chains, responses, strict=True)])

    def _add_turns(self, turns: Sequence[tuple[str, NewResponse]]) -> None:
        self._insert("responses", [
            (new.id, chain, new.previous, new.status, new.runner, new.body) for chain, new in turns
        ])  # fmt: skip
        items = [(item.id, chain, new.id, False, item.body) for chain, new in turns for item in new.inputs]
        items += [(item.id, chain, new.id, True, item.body) for chain, new in turns for item in new.outputs]
        self._insert(_ITEMS, items)

    def _insert(self, table: str, rows: Sequence[Sequence[object]]) -> None:
        """Insert with few statements: each of them lets the event loop have the interpreter, and waits for it again."""
        for start in range(0, len(rows), _ROWS_PER_STATEMENT):
            some = rows[start : start + _ROWS_PER_STATEMENT]
            row = f"({', '.join('?' * len(some[0]))})"
            self._database.execute(
                f"INSERT INTO {table} VALUES {', '.join([row] * len(some))}", [value for one in some for value in one]
            )

    def _find_chain(self, owner: str, new: NewResponse) -> str | None:
        if new.conversation is not None:
            if self.get_conversation(owner, new.conversation) is None:
                raise NotStored("its conversation was deleted in the meantime")
            return new.conversation
        if new.previous is None:
            return None
        previous = self.get_response(owner, new.previous)
        if previous is None:
            raise NotStored("the previous response was deleted in the meantime")
        return previous.chain

    def _add_items(self, chain: str, response: str | None, items: Sequence[StoredItem], is_output: bool) -> None:
        self._insert(_ITEMS, [(item.id, chain, response, is_output, item.body) for item in items])

    def _touch(self, chain: str, now: float, added_bytes: int = 0) -> None:
        self._database.execute(
            "UPDATE chains SET used_at = ?, bytes = bytes + ? WHERE id = ?", (now, added_bytes, chain)
        )

    def get_response(self, owner: str, response_id: str) -> StoredResponse | None:
        row = self._database.execute(
            "SELECT responses.id, chain, status, body, runner FROM responses JOIN chains ON chains.id = chain "
            "WHERE responses.id = ? AND owner = ? AND used_at > ?",
            (response_id, owner, self._oldest_use()),
        ).fetchone()
        return None if row is None else StoredResponse(*row)

    def delete_response(self, owner: str, response_id: str) -> bool:
        """Delete a response and its items. Those of a conversation stay in it."""
        with self._write() as database:
            found = self.get_response(owner, response_id)
            if found is None:
                return False
            freed = len(found.body) + ROW_BYTES
            if self.get_conversation(owner, found.chain) is None:
                sizes = database.execute(
                    "DELETE FROM items WHERE response = ? RETURNING length(body)", (response_id,)
                ).fetchall()
                freed += sum(size + ROW_BYTES for (size,) in sizes)
            else:
                database.execute("UPDATE items SET response = NULL WHERE response = ?", (response_id,))
            database.execute("DELETE FROM responses WHERE id = ?", (response_id,))
            database.execute("UPDATE chains SET bytes = bytes - ? WHERE id = ?", (freed, found.chain))
            database.execute(
                "DELETE FROM chains WHERE id = ? AND NOT is_conversation "
                "AND NOT EXISTS (SELECT 1 FROM responses WHERE chain = chains.id)",
                (found.chain,),
            )
            return True

    def load_history(self, owner: str, response_id: str, bound: ReadBound | None = None) -> list[bytes] | None:
        """Return all items up to and with this response, and keep its chain from expiring. None if a part is gone.

        Raises `TooMuchStored`.
        """
        with self._write() as database:
            found = self.get_response(owner, response_id)
            if found is None:
                return None
            first = database.execute(
                f"{_TURNS} SELECT previous FROM turns ORDER BY depth DESC LIMIT 1", (response_id,)
            ).fetchone()
            if first[0] is not None:
                return None
            items = "FROM turns JOIN items ON items.response = turns.id"
            self._check_bound(_TURNS, items, response_id, bound)
            self._touch(found.chain, self._clock())
            rows = database.execute(f"{_TURNS} SELECT body {items} ORDER BY depth DESC, number", (response_id,))
            return [body for (body,) in rows]

    def _check_bound(self, turns: str, items: str, value: str, bound: ReadBound | None) -> None:
        """Raise `TooMuchStored`. Reads sizes, not bodies, and not more of them than allowed."""
        if bound is None:
            return
        count, size = self._database.execute(
            f"{turns} SELECT count(*), coalesce(sum(size), 0) FROM (SELECT length(body) AS size {items} LIMIT ?)",
            (value, bound.items + 1),
        ).fetchone()
        if count > bound.items:
            raise TooMuchStored("messages")
        if size > bound.bytes:
            raise TooMuchStored("body_bytes")

    def find_items(self, owner: str, ids: Sequence[str], max_bytes: int | None = None) -> dict[str, bytes]:
        """Return the items with these ids, the newest of each. Raises `TooMuchStored`; each mention of an item counts."""
        found: dict[str, bytes] = {}
        size = 0
        for item_id, mentions in Counter(ids).items():
            row = self._database.execute(
                "SELECT items.body FROM items JOIN chains ON chains.id = chain "
                "WHERE items.id = ? AND owner = ? AND used_at > ? ORDER BY number DESC LIMIT 1",
                (item_id, owner, self._oldest_use()),
            ).fetchone()
            if row is not None:
                found[item_id] = row[0]
                size += len(row[0]) * mentions
                if max_bytes is not None and size > max_bytes:
                    raise TooMuchStored("body_bytes")
        return found

    def list_input_items(self, owner: str, response_id: str, page: PageQuery) -> ItemPage | None:
        if self.get_response(owner, response_id) is None:
            return None
        return self._read_page("response = ? AND NOT is_output", response_id, page)

    def _read_page(self, where: str, value: str, page: PageQuery) -> ItemPage:
        start = 0 if page.order == "asc" else (1 << 63) - 1
        if page.after is not None:
            row = self._database.execute(
                f"SELECT number FROM items WHERE {where} AND id = ?", (value, page.after)
            ).fetchone()
            if row is None:
                raise UnknownItem(page.after)
            start = row[0]
        sign, order = (">", "ASC") if page.order == "asc" else ("<", "DESC")
        rows = self._database.execute(
            f"SELECT id, body FROM items WHERE {where} AND number {sign} ? ORDER BY number {order} LIMIT ?",
            (value, start, page.limit + 1),
        )
        items: list[StoredItem] = []
        size = 0
        for row in rows:
            size += len(row[1])
            if len(items) == page.limit or (items and size > page.max_bytes):
                return ItemPage(items, has_more=True)
            items.append(StoredItem(*row))
        return ItemPage(items, has_more=False)

    # Responses in the background

    def finish_response(
        self, response_id: str, runner: str, status: str, body: bytes, outputs: Sequence[StoredItem] = ()
    ) -> bool:
        """End a response that this runner generates. Return whether it was still running: not cancelled, not deleted."""
        with self._write() as database:
            row = database.execute(
                "SELECT chain, length(body) FROM responses WHERE id = ? AND runner = ?", (response_id, runner)
            ).fetchone()
            if row is None:
                return False
            chain, known_bytes = row
            added = len(body) - known_bytes + measure_items(outputs)
            now = self._clock()
            if status in ("completed", "incomplete"):  # that it failed always fits
                self._eviction.make_room(now, chain, max(0, added))
            database.execute(
                "UPDATE responses SET status = ?, body = ?, runner = '' WHERE id = ?", (status, body, response_id)
            )
            self._add_items(chain, response_id, outputs, is_output=True)
            self._touch(chain, now, added)
            return True

    def set_running_body(self, response_id: str, runner: str, status: str, body: bytes) -> None:
        """Replace the object of a response that this runner generates."""
        with self._write() as database:
            database.execute(
                "UPDATE responses SET status = ?, body = ? WHERE id = ? AND runner = ?",
                (status, body, response_id, runner),
            )

    def list_running(self, runner: str) -> set[str]:
        """Return the responses that this runner generates: neither cancelled nor deleted."""
        rows = self._database.execute("SELECT id FROM responses WHERE runner = ?", (runner,))
        return {response_id for (response_id,) in rows}

    def append_events(self, response_id: str, number: int, events: bytes) -> None:
        """Store events of a stream. `number`: the sequence number of the first."""
        with self._write() as database:
            row = database.execute("SELECT chain FROM responses WHERE id = ?", (response_id,)).fetchone()
            if row is None:
                return
            now, size = self._clock(), len(events) + ROW_BYTES
            self._eviction.make_room(now, row[0], size)
            database.execute("INSERT INTO events VALUES (?, ?, ?)", (response_id, number, events))
            self._touch(row[0], now, size)

    def read_events(self, owner: str, response_id: str, after: int) -> tuple[list[tuple[int, bytes]], str] | None:
        """Return the batches of events from the one with number `after`, and the response's status."""
        found = self.get_response(owner, response_id)
        if found is None:
            return None
        rows = self._database.execute(
            "SELECT number, body FROM events WHERE response = ?1 AND number >= coalesce("
            "(SELECT max(number) FROM events WHERE response = ?1 AND number <= ?2), 0) ORDER BY number",
            (response_id, after),
        ).fetchall()
        return rows, found.status

    # Conversations

    def add_conversation(
        self, owner: str, new_id: str, metadata: bytes, items: Sequence[StoredItem]
    ) -> StoredConversation:
        size = ROW_BYTES + len(metadata) + measure_items(items)
        with self._write() as database:
            now = self._clock()
            self._eviction.make_room(now, None, size)
            database.execute(
                "INSERT INTO chains VALUES (?, ?, 1, ?, ?, ?, ?)", (new_id, owner, int(now), now, size, metadata)
            )
            self._add_items(new_id, None, items, is_output=False)
            return StoredConversation(new_id, int(now), metadata)

    def get_conversation(self, owner: str, conversation_id: str) -> StoredConversation | None:
        row = self._database.execute(
            "SELECT id, created_at, metadata FROM chains WHERE id = ? AND owner = ? AND is_conversation AND used_at > ?",
            (conversation_id, owner, self._oldest_use()),
        ).fetchone()
        return None if row is None else StoredConversation(*row)

    def set_metadata(self, owner: str, conversation_id: str, metadata: bytes) -> StoredConversation | None:
        with self._write() as database:
            found = self.get_conversation(owner, conversation_id)
            if found is None:
                return None
            database.execute(
                "UPDATE chains SET metadata = ?, bytes = bytes + ?, used_at = ? WHERE id = ?",
                (metadata, len(metadata) - len(found.metadata), self._clock(), conversation_id),
            )
            return StoredConversation(conversation_id, found.created_at, metadata)

    def delete_conversation(self, owner: str, conversation_id: str) -> bool:
        with self._write() as database:
            deleted = database.execute(
                "DELETE FROM chains WHERE id = ? AND owner = ? AND is_conversation", (conversation_id, owner)
            )
            return deleted.rowcount > 0

    def add_conversation_items(self, owner: str, conversation_id: str, items: Sequence[StoredItem]) -> bool:
        with self._write():
            if self.get_conversation(owner, conversation_id) is None:
                return False
            now, size = self._clock(), measure_items(items)
            self._eviction.make_room(now, conversation_id, size)
            self._add_items(conversation_id, None, items, is_output=False)
            self._touch(conversation_id, now, size)
            return True

    def load_conversation(self, owner: str, conversation_id: str, bound: ReadBound | None = None) -> list[bytes] | None:
        """Return all items, and keep the conversation from expiring. Raises `TooMuchStored`."""
        with self._write() as database:
            if self.get_conversation(owner, conversation_id) is None:
                return None
            self._check_bound("", "FROM items WHERE chain = ?", conversation_id, bound)
            self._touch(conversation_id, self._clock())
            rows = database.execute("SELECT body FROM items WHERE chain = ? ORDER BY number", (conversation_id,))
            return [body for (body,) in rows]

    def list_conversation_items(self, owner: str, conversation_id: str, page: PageQuery) -> ItemPage | None:
        if self.get_conversation(owner, conversation_id) is None:
            return None
        return self._read_page("chain = ?", conversation_id, page)

    def get_conversation_item(self, owner: str, conversation_id: str, item_id: str) -> bytes | None:
        if self.get_conversation(owner, conversation_id) is None:
            return None
        row = self._database.execute(
            "SELECT body FROM items WHERE chain = ? AND id = ?", (conversation_id, item_id)
        ).fetchone()
        return None if row is None else row[0]

    def delete_conversation_item(self, owner: str, conversation_id: str, item_id: str) -> bool:
        with self._write() as database:
            if self.get_conversation(owner, conversation_id) is None:
                return False
            sizes = database.execute(
                "DELETE FROM items WHERE chain = ? AND id = ? RETURNING length(body)", (conversation_id, item_id)
            ).fetchall()
            self._touch(conversation_id, self._clock(), -sum(size + ROW_BYTES for (size,) in sizes))
            return bool(sizes)

    # Size and age

    def expire(self) -> bool:
        """Delete what has expired, a part of it. Return whether there may be more."""
        with self._write():
            more = self._eviction.expire(self._clock())
        self._eviction.shrink()
        return more

    def count_used_bytes(self) -> int:
        return self._eviction.count_used_bytes()
