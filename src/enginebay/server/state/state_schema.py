"""The tables of the state file, and how a file is opened."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path

from enginebay.errors import ConfigError

SCHEMA_VERSION = 1
PAGE_BYTES = 4096
_APPLICATION_ID = 0x42415953  # "BAYS"
_BUSY_TIMEOUT_S = 10.0
_WAL_PAGES = 1000  # before its content moves to the file

# A chain is a conversation, or the responses that continue each other. It is evicted as a whole.
_TABLES = """
CREATE TABLE chains (
    id TEXT PRIMARY KEY, owner TEXT NOT NULL, is_conversation INTEGER NOT NULL, created_at INTEGER NOT NULL,
    used_at REAL NOT NULL, bytes INTEGER NOT NULL, metadata BLOB NOT NULL
) WITHOUT ROWID;
CREATE INDEX chains_by_owner ON chains (owner, used_at);
CREATE INDEX chains_by_use ON chains (used_at);
CREATE TABLE responses (
    id TEXT PRIMARY KEY, chain TEXT NOT NULL REFERENCES chains ON DELETE CASCADE, previous TEXT, status TEXT NOT NULL,
    runner TEXT NOT NULL, body BLOB NOT NULL
);
CREATE INDEX responses_by_chain ON responses (chain);
CREATE INDEX responses_running ON responses (runner) WHERE runner <> '';
CREATE TABLE items (
    number INTEGER PRIMARY KEY, id TEXT NOT NULL, chain TEXT NOT NULL REFERENCES chains ON DELETE CASCADE,
    response TEXT, is_output INTEGER NOT NULL, body BLOB NOT NULL
);
CREATE INDEX items_by_id ON items (id);
CREATE INDEX items_by_chain ON items (chain);
CREATE INDEX items_by_response ON items (response);
CREATE TABLE events (
    response TEXT NOT NULL REFERENCES responses ON DELETE CASCADE, number INTEGER NOT NULL, body BLOB NOT NULL,
    PRIMARY KEY (response, number)
) WITHOUT ROWID;
CREATE TABLE owners (owner TEXT PRIMARY KEY, bytes INTEGER NOT NULL) WITHOUT ROWID;
CREATE TRIGGER chain_added AFTER INSERT ON chains BEGIN
    INSERT INTO owners VALUES (new.owner, new.bytes) ON CONFLICT (owner) DO UPDATE SET bytes = bytes + new.bytes;
END;
CREATE TRIGGER chain_grew AFTER UPDATE OF bytes ON chains BEGIN
    UPDATE owners SET bytes = bytes + new.bytes - old.bytes WHERE owner = new.owner;
END;
CREATE TRIGGER chain_deleted AFTER DELETE ON chains BEGIN
    UPDATE owners SET bytes = bytes - old.bytes WHERE owner = old.owner;
    DELETE FROM owners WHERE owner = old.owner AND bytes <= 0;
END;
"""


def open_database(path: Path, max_bytes: int) -> sqlite3.Connection:
    """Open or create the file, readable by its owner only. Raises `ConfigError`, `sqlite3.Error` or `OSError`."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))  # SQLite gives its other files the same mode
    connection = sqlite3.connect(path, timeout=_BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False)
    try:
        _configure(connection, max_bytes)
        _create_tables(connection, path)
    except BaseException:
        connection.close()
        raise
    return connection


def _configure(connection: sqlite3.Connection, max_bytes: int) -> None:
    connection.execute(f"PRAGMA page_size = {PAGE_BYTES}")
    connection.execute("PRAGMA auto_vacuum = INCREMENTAL")  # before the first table
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = NORMAL")  # a commit survives SIGKILL; the last ones not a power cut
    connection.execute("PRAGMA foreign_keys = ON")
    connection.execute("PRAGMA secure_delete = FAST")
    connection.execute(f"PRAGMA wal_autocheckpoint = {_WAL_PAGES}")
    connection.execute(f"PRAGMA journal_size_limit = {_WAL_PAGES * PAGE_BYTES}")
    connection.execute(f"PRAGMA max_page_count = {max(64, max_bytes // PAGE_BYTES)}")


def _create_tables(connection: sqlite3.Connection, path: Path) -> None:
    connection.execute("BEGIN IMMEDIATE")  # two servers may open a new file at once
    try:
        version = connection.execute("PRAGMA user_version").fetchone()[0]
        application = connection.execute("PRAGMA application_id").fetchone()[0]
        if version > SCHEMA_VERSION or application not in (0, _APPLICATION_ID):
            raise _make_version_error(path, version, application)
        if version == 0:
            for statement in _split_statements(_TABLES):
                connection.execute(statement)
            connection.execute(f"PRAGMA application_id = {_APPLICATION_ID}")
            connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
        connection.execute("COMMIT")
    except BaseException:
        connection.execute("ROLLBACK")
        raise


def _split_statements(script: str) -> list[str]:
    """`executescript` would commit the transaction."""
    statements, current = [], ""
    for line in script.splitlines(keepends=True):
        current += line
        if sqlite3.complete_statement(current):
            statements.append(current)
            current = ""
    return statements


def _make_version_error(path: Path, version: int, application: int) -> ConfigError:
    if application not in (0, _APPLICATION_ID):
        return ConfigError(f"{path} is not a state file of enginebay", "move it away, or set server.state: off")
    return ConfigError(
        f"{path} has schema version {version}, but this version of enginebay supports {SCHEMA_VERSION}",
        "upgrade enginebay, move the file away, or set server.state: off",
    )
