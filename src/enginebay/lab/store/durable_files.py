"""Writing files so that they are whole on disk, or not there."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

READ_ONLY = 0o444


def sync_to_disk(path: Path) -> None:
    """Have the disk hold what was written to this file, or the names in this folder."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_synced(path: Path, content: bytes) -> None:
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def create_atomically(path: Path, content: bytes) -> None:
    """Put a new file in place in one step: a reader sees all of it or nothing. Raises `FileExistsError`."""
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        write_synced(beside, content)
        _link_or_copy(beside, path, content)
    finally:
        beside.unlink(missing_ok=True)
    sync_to_disk(path.parent)


def _link_or_copy(beside: Path, path: Path, content: bytes) -> None:
    try:
        path.hardlink_to(beside)
    except FileExistsError:
        raise
    except OSError:  # a file system without links: a reader may see half of it for a moment
        with path.open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())


def hash_file(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
